"""Parts of one job in the web UI: array tasks, or nodes of a multi-node job."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any

from farcall.backends.base import Jobs
from farcall.model import clock
from farcall.model.jobs import JobDetail, JobStatus
from farcall.operations import json_view
from farcall.operations.explain import unstarted
from farcall.ui.jobs import counts
from farcall.ui.watchers import Account, Feed, Watcher


class Parts(Watcher[int]):
    """Poller of a job's parts, by index.

    Attributes:
        known: The parts' states.
        calls: The parts' call texts, as far as they are known.
        errors: The failed parts' errors, as far as they are known.
    """

    def __init__(self, account: Account) -> None:
        super().__init__(account)
        self.known: dict[int, JobDetail] = {}
        self.calls: Sequence[str] = ()
        self.errors: dict[int, str] = {}

    def row(self, index: int) -> dict[str, Any]:
        """Return a part's data for the browser, kept short because there may be thousands."""
        child = self.known[index]
        return {
            "i": index,
            "s": json_view.state(child),
            "b": _ms(child.started_at),
            "e": _ms(child.stopped_at),
            "c": _ms(child.created_at),
            "x": child.exit_code,
            "r": child.reason,
            "a": self.calls[index] if index < len(self.calls) else "",
            "w": self.errors.get(index, None if self.is_unread(child) else ""),
        }

    def keys(self) -> Iterable[int]:
        """Return the indexes of the known parts in order."""
        return sorted(self.known)

    def note(self, parts: Iterable[JobDetail]) -> None:
        """Store the parts' current states, and notify listeners of the changed ones."""
        changed = []
        for part in parts:
            index = part.index if part.node_index is None else part.node_index
            before = self.known.get(index)
            if before is not None and self.is_over(before):
                continue  # the list lags behind
            self.known[index] = part
            if before is None or _state(before) != _state(part):
                changed.append(index)
        self.notify(changed)

    def is_unread(self, part: JobDetail) -> bool:
        """Return whether a part's error is still to be read and sent."""
        return False

    def is_over(self, part: JobDetail) -> bool:
        """Return whether a part can no longer change."""
        return part.status.is_final


def _state(part: JobDetail) -> tuple[object, ...]:
    moments = part.created_at, part.started_at, part.stopped_at
    return (json_view.state(part), part.exit_code, part.reason, *moments)


def _ms(at: datetime | None) -> int | None:
    return None if at is None else round(at.timestamp() * 1000)


# --- The nodes of one job, read with few requests -----------------------------------------------
#
# Each node is described again until it and its job have finished, one request per 100 nodes. If
# there are very many, the least recently described nodes come first.


_MOST_DESCRIBED = 300
"""Maximum number of nodes or tasks that one poll describes: three requests."""


class Nodes(Parts):
    """Poller of a job's nodes, by index."""

    def __init__(self, account: Account, whole: JobDetail) -> None:
        super().__init__(account)
        self._whole = whole
        self._described_at: dict[int, float] = {}

    def is_active(self) -> bool:
        """Return whether a node is unfinished."""
        return bool(self._left())

    async def poll(self) -> None:
        """Describe the job and its unfinished nodes."""
        left = self._left()
        if not left:
            return
        backend = (await self.account.session()).backend
        job_id = self._whole.job_id
        left = left[:_MOST_DESCRIBED]
        ids = {self._whole.node_id(number): number for number in left}
        details = await backend.describe([job_id, *ids])
        self._whole = details.get(job_id, self._whole)
        self._described_at.update(dict.fromkeys(left, clock.now()))
        nodes = [details.get(node_id) or unstarted(self._whole, ids[node_id]) for node_id in ids]
        self.note(nodes)
        self.is_complete = len(self.known) == self._whole.nodes

    def is_over(self, part: JobDetail) -> bool:
        """Return whether a node cannot run again in another attempt of its job."""
        return part.status.is_final and self._whole.status.is_final

    def _left(self) -> list[int]:
        """Return the nodes to describe, least recently described first."""
        left = [
            number
            for number in range(self._whole.nodes)
            if number not in self.known or not self.is_over(self.known[number])
        ]
        return sorted(left, key=lambda number: self._described_at.get(number, 0.0))


# --- The tasks of one array, read with few requests ---------------------------------------------
#
# ListJobs returns the tasks with one status, 1000 per request, and the array's description has the
# number of tasks per status. So only statuses whose numbers differ from the known ones are listed
# again, the shortest lists first, until the numbers agree: if 8 of 10,000 tasks run at a time, a
# change costs one or two requests.


_ON_THE_MOVE = (JobStatus.RUNNING, JobStatus.STARTING)
_ERRORS_AT_ONCE = 100
_MOST_ERRORS = 1000
"""Maximum number of failed tasks whose errors are read: each error is an S3 request.

Further failed tasks show Batch's reason.
"""


class Children(Parts):
    """Poller of an array's tasks, by index."""

    def __init__(self, account: Account, parent_id: str) -> None:
        super().__init__(account)
        self.parent_id = parent_id
        self._parent: JobDetail | None = None

    def is_active(self) -> bool:
        """Return whether the array is unfinished, or errors are left to read."""
        return not self._has_ended() or bool(self._unread())

    async def poll(self) -> None:
        """Get the number of tasks per status, and list the statuses whose numbers differ."""
        if self._has_ended() and self._agrees():
            return
        backend = (await self.account.session()).backend
        details = await backend.describe([self.parent_id])
        if self.parent_id not in details:
            return  # Batch deletes jobs some days after their end
        before, self._parent = self._parent, details[self.parent_id]
        if before is None:
            self.calls = await (await self.account.reasons()).calls(self._parent)
        is_same = before is not None and counts(before) == counts(self._parent)
        if not self._agrees() and not (is_same and self.is_complete and not self._has_ended()):
            await self._list(backend)
        self.is_complete = True

    async def poll_details(self) -> None:
        """Read the errors of some failed tasks."""
        left = self._unread()
        if not left or self._parent is None:
            return
        most = max(0, min(_ERRORS_AT_ONCE, _MOST_ERRORS - len(self.errors)))
        indexes = left[:most] or left
        listed = [self.known[index] for index in left[:most]]
        reasons = await self.account.reasons()
        reasons_by_index = await reasons.errors(self._parent, listed)
        self.errors.update(
            {n: reasons_by_index[n].text if n in reasons_by_index else "" for n in indexes}
        )
        self.notify(indexes)

    def is_unread(self, part: JobDetail) -> bool:
        """Return whether a task failed and its error has not been read."""
        return part.index not in self.errors and json_view.state(part) == JobStatus.FAILED.value

    def _unread(self) -> list[int]:
        return [index for index, child in self.known.items() if self.is_unread(child)]

    def _has_ended(self) -> bool:
        return self._parent is not None and self._parent.status.is_final

    async def _list(self, backend: Jobs) -> None:
        moving = {index for index, child in self.known.items() if child.status in _ON_THE_MOVE}
        listed: set[int] = set()
        reported = self._reported()
        # Other tasks may be running although their number is unchanged.
        for status in _ON_THE_MOVE:
            if reported[status.value]:
                listed |= await self._list_status(backend, status)
        gone = moving - listed
        if gone and len(gone) <= _MOST_DESCRIBED:
            ids = [f"{self.parent_id}:{index}" for index in sorted(gone)]
            self.note((await backend.describe(ids)).values())
        others = [status for status in JobStatus if status not in _ON_THE_MOVE]
        for status in sorted(others, key=lambda status: reported[status.value]):
            if self._agrees():
                return
            if reported[status.value] and reported[status.value] != self._own()[status.value]:
                await self._list_status(backend, status)

    async def _list_status(self, backend: Jobs, status: JobStatus) -> set[int]:
        listed: set[int] = set()
        async for page in backend.list_children(self.parent_id, status):
            self.note(page)
            listed.update(child.index for child in page)
        return listed

    def _reported(self) -> Counter[str]:
        return Counter(counts(self._parent) if self._parent is not None else {})

    def _own(self) -> Counter[str]:
        return Counter(child.status.value for child in self.known.values())

    def _agrees(self) -> bool:
        return self._own() == self._reported()


# --- The jobs that a browser has opened: arrays and multi-node jobs -----------------------------


class OpenJobs:
    """Jobs whose parts a browser shows; browsers share each job's requests."""

    def __init__(self, account: Account) -> None:
        self._account = account
        self._open: dict[str, Parts] = {}

    @contextlib.contextmanager
    def listen(self, whole: JobDetail) -> Iterator[tuple[Parts, Feed[int]]]:
        """Yield an array's tasks or a job's nodes, with a feed of them."""
        job_id = whole.job_id
        parts = self._open.get(job_id)
        if parts is None:
            account = self._account
            parts = Nodes(account, whole) if whole.nodes else Children(account, job_id)
            self._open[job_id] = parts
        try:
            with parts.listen() as feed:
                yield parts, feed
        finally:
            if not parts.is_heard:
                self._open.pop(job_id, None)

    def poll_soon(self, job_ids: Iterable[str]) -> None:
        """Poll the open ones among these jobs soon."""
        for job_id in job_ids:
            if job_id in self._open:
                self._open[job_id].poll_soon()
