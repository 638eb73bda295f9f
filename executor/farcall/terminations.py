"""Ending jobs for those who own them, together where they are named together, and to the end."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine, Iterable
from dataclasses import dataclass
from typing import Any

from farcall.batch import Batch
from farcall.submission import Submission
from farcall.tracker import Tracker

_TOGETHER_S = 0.05


@dataclass
class _Doomed:
    """Jobs that are named within a moment, and the request that will end them."""

    job_ids: dict[str, None]
    request: asyncio.Future[None]


class Terminations:
    """The requests of one session to end jobs.

    A request goes on when the wait for it is cancelled; `settle` waits for those on their way.

    Args:
        batch: Batch.
        tracker: Is told to look soon at what came of it.
    """

    def __init__(self, batch: Batch, tracker: Tracker) -> None:
        self._batch = batch
        self._tracker = tracker
        self._requests: set[asyncio.Future[None]] = set()
        self._unended: dict[str, set[int]] = {}  # of arrays, children whose end is not known
        self._doomed: dict[str, _Doomed] = {}

    async def now(self, job_ids: Iterable[str], reason: str) -> None:
        """End jobs, and look soon at what came of it.

        An array is ended as a whole where all of its children that have not ended are named.

        Args:
            job_ids: The jobs' IDs.
            reason: Kept by Batch.

        Raises:
            ServiceError: Batch refused a call.
        """
        await asyncio.shield(self._send(self._terminate(job_ids, reason)))

    async def soon(self, job_id: str, reason: str) -> None:
        """End a job as `now` does, together with others that are named within a moment.

        Args:
            job_id: The job's ID.
            reason: Kept by Batch; others with another reason are ended apart.

        Raises:
            ServiceError: Batch refused a call.
        """
        if reason not in self._doomed:
            request = self._send(self._terminate_doomed(reason))
            self._doomed[reason] = _Doomed({}, request)
        doomed = self._doomed[reason]
        doomed.job_ids[job_id] = None
        await asyncio.shield(doomed.request)

    def note_children(self, submission: Submission) -> None:
        """Count the children of an array, so that it is known when none is left out."""
        if submission.size > 1 and submission.job_id not in self._unended:
            self._unended[submission.job_id] = set(range(submission.size))

    def note_end(self, submission: Submission, index: int) -> None:
        """Count a child out that has ended."""
        left = self._unended.get(submission.job_id)
        if left is not None:
            left.discard(index)
            if not left:
                del self._unended[submission.job_id]

    async def settle(self) -> None:
        """Wait for the requests on their way, whatever comes of them."""
        await asyncio.gather(*self._requests, return_exceptions=True)

    def _send(self, request: Coroutine[Any, Any, None]) -> asyncio.Future[None]:
        sent = asyncio.ensure_future(request)
        self._requests.add(sent)
        sent.add_done_callback(self._requests.discard)
        return sent

    async def _terminate(self, job_ids: Iterable[str], reason: str) -> None:
        wanted = self._in_few(job_ids)
        await self._batch.terminate(wanted, reason)
        self._tracker.hurry(wanted)

    async def _terminate_doomed(self, reason: str) -> None:
        # The loop's end cancels this; the jobs are to be ended all the same.
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(_TOGETHER_S)
        await self._terminate(self._doomed.pop(reason).job_ids, reason)

    def _in_few(self, job_ids: Iterable[str]) -> list[str]:
        """Name arrays as a whole instead of all of their children that have not ended."""
        children: dict[str, dict[str, None]] = {}
        for job_id in job_ids:
            children.setdefault(job_id.partition(":")[0], {})[job_id] = None
        wanted: list[str] = []
        for parent, ids in children.items():
            left = self._unended.get(parent)
            whole = left and all(f"{parent}:{index}" in ids for index in left)
            several = len(ids) > 1
            wanted += [parent] if several and (whole or parent in ids) else ids
        return wanted
