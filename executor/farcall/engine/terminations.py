"""Termination of jobs for their owners, with few requests."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import Iterable, Mapping
from typing import TypeAlias

from farcall.backends.base import Jobs
from farcall.engine.batcher import Batcher
from farcall.engine.cancel_markers import mark_cancelled
from farcall.engine.tracker import Tracker
from farcall.model.errors import FarcallError, UnknownError
from farcall.model.interrupts import Interrupts
from farcall.model.names import counted, named
from farcall.model.submission import Submission
from farcall.storage.store import Stores

_log = logging.getLogger("farcall")

_TOGETHER_S = 0.05
_ANSWERED_TOGETHER = 500
_LEAVING_S = 5.0
"""Time in seconds after a second Ctrl-C in which terminations are not awaited."""

_Request: TypeAlias = tuple[str, str]
"""ID of a job, and the reason for terminating it."""


class Terminations:
    """Termination requests of one session.

    Requests that follow within a moment are sent together, and continue if their callers are
    cancelled. `settle` repeats requests that the end of the event loop has interrupted.

    Args:
        backend: Platform that runs the jobs.
        tracker: Polls terminated jobs soon.
        stores: Buckets, for the cancel markers of array tasks if the backend needs them.
    """

    def __init__(self, backend: Jobs, tracker: Tracker, stores: Stores) -> None:
        self._backend = backend
        self._tracker = tracker
        self._stores = stores
        self._requests: Batcher[_Request, None] = Batcher(self._answer, wait_s=_TOGETHER_S)
        self._unanswered: dict[_Request, None] = {}
        self._leaving: set[_Request] = set()
        self._unheard: set[_Request] = set()  # requests whose errors are logged
        self._interrupts = Interrupts(self._abandon)
        self._abandoned_at = -math.inf

    async def end(self, job_ids: Iterable[str], reason: str) -> dict[str, FarcallError]:
        """Terminate jobs, and poll them soon.

        If all unfinished tasks of an array are listed, the array is terminated with one request.

        Args:
            job_ids: IDs of the jobs.
            reason: Stored by the backend.

        Returns:
            Job ID to error, for jobs that could not be terminated.
        """
        requested = {job_id: self._request((job_id, reason)) for job_id in job_ids}
        answers = asyncio.gather(*requested.values(), return_exceptions=True)
        try:
            errors_by_job = dict(zip(requested, await asyncio.shield(answers), strict=True))
        except asyncio.CancelledError:
            self._unheard.update((job_id, reason) for job_id in requested)
            raise
        refused: dict[str, FarcallError] = {}
        for job_id, error in errors_by_job.items():
            if isinstance(error, FarcallError):
                refused[job_id] = error
            elif error is not None:
                raise error
        return refused

    async def leave(self, job_ids: Iterable[str], tasks: int, reason: str) -> None:
        """Terminate a leaving owner's jobs, and log it; never raises a `FarcallError`."""
        left = self._collapse_children(job_ids)
        what = f"{counted(tasks, 'unfinished task')} of {named(left)}"
        if self._is_abandoned:
            _log.warning("exited without cancelling %s", what)
            return
        _log.warning("cancelling %s (%s); press Ctrl-C to exit at once", what, reason)
        with self._interrupts:
            refused = await self.end(left, reason)
        if refused:  # the owner's own error matters more
            _log.warning("they may still run: %s", next(iter(refused.values())))
        else:
            _log.warning("cancelled %s", what)

    async def leave_one(self, job_id: str, reason: str) -> None:
        """Terminate a leaving owner's job, and log it together with others."""
        self._leaving.add((job_id, reason))
        with self._interrupts:
            await self.end_one(job_id, reason)

    async def end_one(self, job_id: str, reason: str) -> bool:
        """Terminate a job, or log together with others that it may still run.

        Returns:
            Whether it was terminated.
        """
        self._unheard.add((job_id, reason))
        return not await self.end([job_id], reason)

    async def settle(self) -> None:
        """Wait for pending requests before the connections close; ignore their results."""
        if self._is_abandoned:
            await self._requests.close(FarcallError("the user did not wait for it"))
        await self._requests.finish()

    @property
    def _is_abandoned(self) -> bool:
        return time.monotonic() - self._abandoned_at < _LEAVING_S

    def _request(self, wanted: _Request) -> asyncio.Future[None]:
        answer = self._requests.add(wanted)
        self._unanswered[wanted] = None
        answer.add_done_callback(lambda _: self._unanswered.pop(wanted, None))
        return answer

    async def _answer(self, requested: list[_Request]) -> list[Exception | None]:
        """Terminate the jobs of one batch; return None or an error for each."""
        by_reason: dict[str, list[str]] = {}
        for job_id, reason in requested:
            by_reason.setdefault(reason, []).append(job_id)
        for reason, job_ids in by_reason.items():
            count = sum((job_id, reason) in self._leaving for job_id in job_ids)
            if count > 1:
                text = "cancelling %d tasks (%s); press Ctrl-C to exit at once"
                _log.warning(text, count, reason)
        self._leaving.difference_update(requested)
        groups = [
            (wanted[at : at + _ANSWERED_TOGETHER], reason)
            for reason, job_ids in by_reason.items()
            for wanted in [self._collapse_children(job_ids)]
            for at in range(0, len(wanted), _ANSWERED_TOGETHER)
        ]
        refused: dict[_Request, Exception] = {}
        for errors in await asyncio.gather(*(self._terminate(*group) for group in groups)):
            refused |= errors
        answers = [refused.get(e) or refused.get((_parent(e[0]), e[1])) for e in requested]
        self._log_refused(dict(zip(requested, answers, strict=True)))
        return answers

    async def _terminate(self, job_ids: list[str], reason: str) -> dict[_Request, Exception]:
        try:
            await self._mark(job_ids, reason)
            refused: Mapping[str, Exception] = await self._backend.terminate(job_ids, reason)
        except Exception as error:
            return {(job_id, reason): error for job_id in job_ids}
        self._tracker.poll_soon(job_ids)
        return {(job_id, reason): error for job_id, error in refused.items()}

    async def _mark(self, job_ids: Iterable[str], reason: str) -> None:
        """Store the cancel markers of array tasks, if the backend needs them.

        Raises:
            ServiceError: S3 or the backend refused.
        """
        if not self._backend.capabilities.marks_ended_children:
            return
        children: dict[str, list[int]] = {}
        for job_id in job_ids:
            parent, is_child, index = job_id.partition(":")
            if is_child:
                children.setdefault(parent, []).append(int(index))
        for parent, indexes in children.items():
            submission = await self._submission(parent)
            if submission is not None:
                store = self._stores.of(submission.where.bucket)
                await mark_cancelled(store, submission, indexes, reason)

    async def _submission(self, job_id: str) -> Submission | None:
        """Return the submission of an array; None if it is unknown or not farcall's."""
        known = self._tracker.submission(job_id)
        if known is not None:
            return known
        detail = (await self._backend.describe([job_id])).get(job_id)
        with contextlib.suppress(UnknownError):
            return None if detail is None else Submission.whole(detail)
        return None

    def _abandon(self) -> None:
        """Abandon pending requests, because the user wants to leave at once."""
        left = self._collapse_children(job_id for job_id, _ in self._unanswered)
        if left:
            _log.warning(
                "exited without cancelling %s. Use farcall cancel JOB... to cancel jobs.",
                named(left),
            )
        self._abandoned_at = time.monotonic()

    def _log_refused(self, answers: Mapping[_Request, Exception | None]) -> None:
        """Log jobs that may still run and whose errors reach no caller, once per error."""
        job_ids: dict[str, list[str]] = {}
        for wanted in self._unheard.intersection(answers):
            if answers[wanted] is not None:
                job_ids.setdefault(str(answers[wanted]), []).append(wanted[0])
        self._unheard.difference_update(answers)
        for text, ids in job_ids.items() if not self._is_abandoned else ():
            _log.warning("%s may still run: %s", named(self._collapse_children(sorted(ids))), text)

    def _collapse_children(self, job_ids: Iterable[str]) -> list[str]:
        """Replace the unfinished tasks of an array with the array, if all are listed."""
        children: dict[str, dict[str, None]] = {}
        for job_id in job_ids:
            children.setdefault(_parent(job_id), {})[job_id] = None
        wanted: list[str] = []
        for parent, ids in children.items():
            left = self._tracker.unfinished(parent)
            whole = left and all(f"{parent}:{index}" in ids for index in left)
            several = len(ids) > 1
            wanted += [parent] if several and (whole or parent in ids) else ids
        return wanted


def _parent(job_id: str) -> str:
    """Return the array of an array task; for other jobs the job's own ID."""
    return job_id.partition(":")[0]
