"""The children of one array, as the page shows them, in few requests.

ListJobs gives the children that have one status, a thousand in a request, and the array itself
says how many have which. So it is only listed again where the numbers differ from what is known,
the shortest lists first, until they agree: of ten thousand children of which eight run at a time,
a change costs a request or two.
"""

from __future__ import annotations

from collections import Counter

from farcall.backends.base import Backend
from farcall.model.jobs import JobDetail, JobStatus
from farcall.operations import json_view
from farcall.ui.account import Account
from farcall.ui.jobs import counts
from farcall.ui.parts import Parts

_ON_THE_MOVE = (JobStatus.RUNNING, JobStatus.STARTING)
_ERRORS_AT_ONCE = 100
_MOST_ERRORS = 1000
"""Of more failed children than these Batch's words are shown: each error is a request of S3."""

_MOST_DESCRIBED = 300
"""Of more children that began and are not listed so any more, the lists are read again."""


class Children(Parts):
    """The children of an array, by index."""

    def __init__(self, account: Account, parent_id: str) -> None:
        super().__init__(account)
        self.parent_id = parent_id
        self._parent: JobDetail | None = None

    def is_active(self) -> bool:
        """Tell whether there is more to be read; the list of jobs tells when something changed."""
        return bool(self._unread())

    async def look(self) -> None:
        """Ask how many children have which status, and list those that are not known so."""
        if self._has_ended() and self._agrees():
            return
        backend = (await self.account.session()).backend
        found = await backend.describe([self.parent_id])
        if self.parent_id not in found:
            return  # Batch forgets jobs some days after their end
        before, self._parent = self._parent, found[self.parent_id]
        if before is None:
            self.calls = await (await self.account.reasons()).calls(self._parent)
        is_same = before is not None and counts(before) == counts(self._parent)
        if not self._agrees() and not (is_same and self.is_complete and not self._has_ended()):
            await self._list(backend)
        self.is_complete = True

    async def look_beside(self) -> None:
        """Read the errors of some of the children that failed."""
        left = self._unread()
        if not left or self._parent is None:
            return
        most = max(0, min(_ERRORS_AT_ONCE, _MOST_ERRORS - len(self.errors)))
        indexes = left[:most] or left
        listed = [self.known[index] for index in left[:most]]
        reasons = await self.account.reasons()
        found = await reasons.errors(self._parent, listed)
        self.errors.update({n: found[n].text if n in found else "" for n in indexes})
        self.tell(indexes)

    def is_unread(self, part: JobDetail) -> bool:
        """Tell whether a child failed and its error was not read yet."""
        return part.index not in self.errors and json_view.state(part) == JobStatus.FAILED.value

    def _unread(self) -> list[int]:
        return [index for index, child in self.known.items() if self.is_unread(child)]

    def _has_ended(self) -> bool:
        return self._parent is not None and self._parent.status.is_final

    async def _list(self, backend: Backend) -> None:
        moving = {index for index, child in self.known.items() if child.status in _ON_THE_MOVE}
        listed: set[int] = set()
        told = self._told()
        # Which ones run may change while how many stays the same.
        for status in _ON_THE_MOVE:
            if told[status.value]:
                listed |= await self._list_status(backend, status)
        gone = moving - listed
        if gone and len(gone) <= _MOST_DESCRIBED:
            ids = [f"{self.parent_id}:{index}" for index in sorted(gone)]
            self.note((await backend.describe(ids)).values())
        others = [status for status in JobStatus if status not in _ON_THE_MOVE]
        for status in sorted(others, key=lambda status: told[status.value]):
            if self._agrees():
                return
            if told[status.value] and told[status.value] != self._own()[status.value]:
                await self._list_status(backend, status)

    async def _list_status(self, backend: Backend, status: JobStatus) -> set[int]:
        listed: set[int] = set()
        async for page in backend.list_children(self.parent_id, status):
            self.note(page)
            listed.update(child.index for child in page)
        return listed

    def _told(self) -> Counter[str]:
        return Counter(counts(self._parent) if self._parent is not None else {})

    def _own(self) -> Counter[str]:
        return Counter(child.status.value for child in self.known.values())

    def _agrees(self) -> bool:
        return self._own() == self._told()
