"""The children of one array, as the page shows them, in few requests.

ListJobs gives the children that have one status, a thousand in a request, and the array itself
says how many have which. So it is only listed again where the numbers differ from what is known,
the shortest lists first, until they agree: of ten thousand children of which eight run at a time,
a change costs a request or two.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Any

from farcall.backends.base import Backend
from farcall.model.jobs import JobDetail, JobStatus
from farcall.operations import json_view
from farcall.ui.account import Account
from farcall.ui.jobs import counts
from farcall.ui.watchers import Feed, Watcher

_ON_THE_MOVE = (JobStatus.RUNNING, JobStatus.STARTING)
_MOST_DESCRIBED = 300
"""Of more children that began and are not listed so any more, the lists are read again."""


class Children(Watcher[int]):
    """The children of an array, by index.

    Args:
        account: The account.
        parent_id: The array's ID.
    """

    def __init__(self, account: Account, parent_id: str) -> None:
        super().__init__(account)
        self.parent_id = parent_id
        self._known: dict[int, JobDetail] = {}
        self._parent: JobDetail | None = None

    def row(self, index: int) -> dict[str, Any]:
        """Return a child as a browser is told of it; there may be thousands, so it is short."""
        child = self._known[index]
        return {
            "i": index,
            "s": json_view.state(child),
            "b": _ms(child.started_at),
            "e": _ms(child.stopped_at),
            "c": _ms(child.created_at),
            "x": child.exit_code,
            "r": child.reason,
        }

    def keys(self) -> Iterable[int]:
        """Return the indexes of the children that are known, in their order."""
        return sorted(self._known)

    def is_active(self) -> bool:
        """Tell whether something will change soon; the list of jobs tells when it has."""
        return False

    async def look(self) -> None:
        """Ask how many children have which status, and list those that are not known so."""
        if self._has_ended() and self._agrees():
            return
        backend = (await self.account.session()).backend
        found = await backend.describe([self.parent_id])
        if self.parent_id not in found:
            return  # Batch forgets jobs some days after their end
        before, self._parent = self._parent, found[self.parent_id]
        is_same = before is not None and counts(before) == counts(self._parent)
        if not self._agrees() and not (is_same and self.is_complete and not self._has_ended()):
            await self._list(backend)
        self.is_complete = True

    def _has_ended(self) -> bool:
        return self._parent is not None and self._parent.status.is_final

    async def _list(self, backend: Backend) -> None:
        moving = {index for index, child in self._known.items() if child.status in _ON_THE_MOVE}
        listed: set[int] = set()
        told = self._told()
        # Which ones run may change while how many stays the same.
        for status in _ON_THE_MOVE:
            if told[status.value]:
                listed |= await self._list_status(backend, status)
        gone = moving - listed
        if gone and len(gone) <= _MOST_DESCRIBED:
            ids = [f"{self.parent_id}:{index}" for index in sorted(gone)]
            self._note((await backend.describe(ids)).values())
        others = [status for status in JobStatus if status not in _ON_THE_MOVE]
        for status in sorted(others, key=lambda status: told[status.value]):
            if self._agrees():
                return
            if told[status.value] and told[status.value] != self._own()[status.value]:
                await self._list_status(backend, status)

    async def _list_status(self, backend: Backend, status: JobStatus) -> set[int]:
        listed: set[int] = set()
        async for page in backend.list_children(self.parent_id, status):
            self._note(page)
            listed.update(child.index for child in page)
        return listed

    def _note(self, children: Iterable[JobDetail]) -> None:
        changed = []
        for child in children:
            before = self._known.get(child.index)
            if before is not None and before.status.is_final:
                continue  # a list that lags behind
            self._known[child.index] = child
            if before is None or self._said(before) != self._said(child):
                changed.append(child.index)
        self.tell(changed)

    @staticmethod
    def _said(child: JobDetail) -> tuple[object, ...]:
        moments = child.created_at, child.started_at, child.stopped_at
        return (json_view.state(child), child.exit_code, child.reason, *moments)

    def _told(self) -> Counter[str]:
        return Counter(counts(self._parent) if self._parent is not None else {})

    def _own(self) -> Counter[str]:
        return Counter(child.status.value for child in self._known.values())

    def _agrees(self) -> bool:
        return self._own() == self._told()


class Arrays:
    """The arrays somebody looks at: each is asked about once, however many do.

    Args:
        account: The account.
    """

    def __init__(self, account: Account) -> None:
        self._account = account
        self._open: dict[str, Children] = {}

    @contextlib.contextmanager
    def listen(self, parent_id: str) -> Iterator[tuple[Children, Feed[int]]]:
        """Lend the children of an array, and a feed of them."""
        children = self._open.get(parent_id)
        if children is None:
            children = self._open[parent_id] = Children(self._account, parent_id)
        try:
            with children.listen() as feed:
                yield children, feed
        finally:
            if not children.is_heard:
                self._open.pop(parent_id, None)

    def hurry(self, job_ids: Iterable[str]) -> None:
        """Look again soon at those of some jobs that are open."""
        for job_id in job_ids:
            if job_id in self._open:
                self._open[job_id].hurry()


def _ms(at: datetime | None) -> int | None:
    return None if at is None else round(at.timestamp() * 1000)
