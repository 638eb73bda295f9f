"""Ending jobs for those who own them, together where they are named together, and to the end."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine, Sequence
from typing import Any

from farcall.batch import Batch
from farcall.submission import Submission
from farcall.tracker import Tracker

_TOGETHER_S = 0.05


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
        self._doomed: list[str] = []
        self._gathering: asyncio.Future[None] | None = None

    async def now(self, job_ids: Sequence[str], reason: str) -> None:
        """End jobs, and look soon at what came of it.

        Args:
            job_ids: The jobs' IDs.
            reason: Kept by Batch.

        Raises:
            ServiceError: Batch refused a call.
        """
        await asyncio.shield(self._send(self._terminate(job_ids, reason)))

    async def soon(self, job_id: str, reason: str) -> None:
        """End a job together with others that are named within a moment.

        An array is ended as a whole where all of its children that have not ended are named.

        Args:
            job_id: The job's ID.
            reason: Kept by Batch; the first one of the moment is used.

        Raises:
            ServiceError: Batch refused a call.
        """
        self._doomed.append(job_id)
        if self._gathering is None:
            self._gathering = self._send(self._terminate_doomed(reason))
        await asyncio.shield(self._gathering)

    def note_children(self, submission: Submission) -> None:
        """Count the children of an array, so that `soon` knows when none is left out."""
        if submission.size > 1:
            self._unended.setdefault(submission.job_id, set(range(submission.size)))

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

    async def _terminate(self, job_ids: Sequence[str], reason: str) -> None:
        await self._batch.terminate(job_ids, reason)
        self._tracker.hurry()

    async def _terminate_doomed(self, reason: str) -> None:
        # The loop's end cancels this; the jobs are to be ended all the same.
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(_TOGETHER_S)
        doomed, self._doomed, self._gathering = dict.fromkeys(self._doomed), [], None
        children: dict[str, set[str]] = {}
        for job_id in doomed:
            children.setdefault(job_id.partition(":")[0], set()).add(job_id)
        wanted: list[str] = []
        for parent, ids in children.items():
            left = self._unended.get(parent)
            whole = left is not None and all(f"{parent}:{index}" in ids for index in left)
            wanted += [parent] if whole else sorted(ids)
        await self._terminate(wanted, reason)
