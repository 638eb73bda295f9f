"""Termination of jobs for their owners, with few requests."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from itertools import islice
from typing import TypeAlias

from farcall.backends.base import Backend, raise_first
from farcall.engine.tracker import Tracker
from farcall.model.errors import FarcallError, ServiceError, UnknownError
from farcall.model.interrupts import Interrupts
from farcall.model.names import counted, named
from farcall.model.submission import Submission
from farcall.storage.store import Store
from farcall.storage.stores import Stores
from farcall_runtime import envelope

# --- Cancel markers: objects that ask the container of one array task to exit -------------------
#
# Some platforms cannot terminate one task of an array, because they would restart it. A marker is
# signed with the bundle's key, so that other users of the bucket cannot write one.


_PARALLEL = 32


async def mark_cancelled(
    store: Store, submission: Submission, indexes: Iterable[int], reason: str
) -> None:
    """Store the cancel markers of array tasks; they are deleted with the bundle.

    Raises:
        ServiceError: S3 refused.
    """
    places = asyncio.Semaphore(_PARALLEL)

    async def mark(index: int) -> None:
        key = submission.where.cancelled_key(index)
        async with places:
            pieces = envelope.seal_note(submission.key, key, {"reason": reason})
            await store.put(key, pieces, quick=True)
        store.record_mark(submission.where, key)

    await asyncio.gather(*map(mark, indexes))


_log = logging.getLogger("farcall")

_TOGETHER_S = 0.05
_ANSWERED_TOGETHER = 500
_LEAVING_S = 5.0
"""Time in seconds after a second Ctrl-C in which terminations are not awaited."""


Refused: TypeAlias = dict[str, ServiceError]
"""Job ID to error, for jobs that could not be terminated."""


@dataclass
class _Doomed:
    """Jobs collected for one termination request.

    Attributes:
        timer: Sends the request.
        sent: Receives the response.
        job_ids: IDs of the jobs.
        is_left: Whether the owner is leaving, so that the number of jobs is logged.
    """

    timer: asyncio.TimerHandle
    sent: asyncio.Future[Refused]
    job_ids: dict[str, None] = field(default_factory=dict)
    is_left: bool = False


class Terminations:
    """Termination requests of one session.

    A request continues if its caller is cancelled. `settle` repeats requests that the end of the
    event loop has interrupted.

    Args:
        backend: Platform that runs the jobs.
        tracker: Polls terminated jobs soon.
        stores: Buckets, for the cancel markers of array tasks if the backend needs them.
    """

    def __init__(self, backend: Backend, tracker: Tracker, stores: Stores) -> None:
        self._backend = backend
        self._tracker = tracker
        self._stores = stores
        self._requests: set[asyncio.Future[Refused]] = set()
        self._unended: dict[str, set[int]] = {}  # unfinished tasks by array
        self._doomed: dict[str, _Doomed] = {}
        self._asked: dict[str, str] = {}  # reason by ID, until Batch has responded
        self._interrupts = Interrupts(self._abandon)
        self._abandoned_at = -math.inf

    async def end(
        self, job_ids: Collection[str], reason: str, *, together: bool = False
    ) -> dict[str, ServiceError]:
        """Terminate jobs, and poll them soon.

        If all unfinished tasks of an array are listed, the array is terminated with one request.

        Args:
            job_ids: IDs of the jobs.
            reason: Stored by the backend.
            together: Whether to share one request with jobs that follow within a moment for the
                same reason.

        Returns:
            Job ID to error, for jobs that could not be terminated.

        Raises:
            ServiceError: The request failed.
        """
        sent = self._enqueue(job_ids, reason).sent if together else self._send(job_ids, reason)
        refused = await _answered(sent)
        why = {job_id: refused.get(job_id) or refused.get(_parent(job_id)) for job_id in job_ids}
        return {job_id: error for job_id, error in why.items() if error is not None}

    async def leave(self, job_ids: Iterable[str], tasks: int, reason: str) -> None:
        """Terminate a leaving owner's jobs, and log it; never raises a `FarcallError`."""
        left = self._collapse_children(job_ids)
        what = f"{counted(tasks, 'unfinished task')} of {named(left)}"
        if self._is_abandoned:
            _log.warning("exited without cancelling %s", what)
            return
        _log.warning("cancelling %s (%s); press Ctrl-C to exit at once", what, reason)
        try:
            with self._interrupts:
                raise_first(await self.end(left, reason))
        except FarcallError as error:  # the owner's own error matters more
            _log.warning("they may still run: %s", error)
        else:
            _log.warning("cancelled %s", what)

    async def leave_one(self, job_id: str, reason: str) -> None:
        """Terminate a leaving owner's job, batched with others; raises no `FarcallError`."""
        self._enqueue([job_id], reason).is_left = True
        try:
            with self._interrupts:
                raise_first(await self.end([job_id], reason, together=True))
        except FarcallError as error:  # the owner's own error matters more
            _log.warning("%s may still run: %s", job_id, error)

    def record_children(self, submission: Submission) -> None:
        """Record the tasks of an array, to know when all of them are being terminated."""
        if submission.size > 1 and submission.job_id not in self._unended:
            self._unended[submission.job_id] = set(range(submission.size))

    def record_end(self, submission: Submission, index: int) -> None:
        """Record that an array task has finished."""
        left = self._unended.get(submission.job_id)
        if left is not None:
            left.discard(index)
            if not left:
                del self._unended[submission.job_id]

    async def settle(self) -> None:
        """Wait for pending requests before the connections close; ignore their results."""
        for reason in list(self._doomed):
            self._send_doomed(reason)
        requests = list(self._requests)
        if self._is_abandoned:
            for request in requests:
                request.cancel()
        await asyncio.gather(*requests, return_exceptions=True)
        if self._is_abandoned or not self._asked:
            return
        cut_off: dict[str, list[str]] = {}
        for job_id, reason in self._asked.items():
            cut_off.setdefault(reason, []).append(job_id)
        self._asked.clear()
        for reason, job_ids in cut_off.items():
            try:
                await self._mark(job_ids, reason)
                raise_first(await self._backend.terminate(job_ids, reason))
            except FarcallError as error:
                _log.warning("%s may still run: %s", named(job_ids), error)

    @property
    def _is_abandoned(self) -> bool:
        return time.monotonic() - self._abandoned_at < _LEAVING_S

    def _enqueue(self, job_ids: Iterable[str], reason: str) -> _Doomed:
        doomed = self._doomed.get(reason)
        if doomed is None:
            loop = asyncio.get_running_loop()
            timer = loop.call_later(_TOGETHER_S, self._send_doomed, reason)
            doomed = self._doomed[reason] = _Doomed(timer, loop.create_future())
        doomed.job_ids.update(dict.fromkeys(job_ids))
        return doomed

    def _send_doomed(self, reason: str) -> None:
        doomed = self._doomed.pop(reason)
        doomed.timer.cancel()
        request = self._send(doomed.job_ids, reason)

        def answer(_: object) -> None:
            if not doomed.sent.done():
                _copy(request, doomed.sent)

        request.add_done_callback(answer)
        count = len(doomed.job_ids)
        if doomed.is_left and count > 1:
            _log.warning("cancelling %d tasks (%s); press Ctrl-C to exit at once", count, reason)

    def _send(self, job_ids: Iterable[str], reason: str) -> asyncio.Future[Refused]:
        wanted = self._collapse_children(job_ids)
        self._asked.update(dict.fromkeys(wanted, reason))
        sent = asyncio.ensure_future(self._terminate(wanted, reason))
        self._requests.add(sent)
        sent.add_done_callback(self._requests.discard)
        return sent

    async def _terminate(self, job_ids: list[str], reason: str) -> Refused:
        groups = iter(job_ids)
        requests = []
        while group := list(islice(groups, _ANSWERED_TOGETHER)):
            requests.append(self._terminate_group(group, reason))
        refused: Refused = {}
        for found in await asyncio.gather(*requests, return_exceptions=True):
            if isinstance(found, BaseException):
                raise found
            refused |= found
        return refused

    async def _terminate_group(self, job_ids: list[str], reason: str) -> Refused:
        try:
            await self._mark(job_ids, reason)
            refused = await self._backend.terminate(job_ids, reason)
        except Exception:
            self._record_answered(job_ids)  # notifies the waiting callers
            raise
        self._record_answered(job_ids)
        self._tracker.poll_soon(job_ids)
        return refused

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

    def _record_answered(self, job_ids: Iterable[str]) -> None:
        for job_id in job_ids:
            self._asked.pop(job_id, None)

    def _abandon(self) -> None:
        """Abandon pending requests, because the user wants to leave at once."""
        left = [*self._asked, *(job_id for d in self._doomed.values() for job_id in d.job_ids)]
        if left:
            _log.warning(
                "exited without cancelling %s. Use farcall cancel JOB... to cancel jobs.",
                named(left),
            )
        self._abandoned_at = time.monotonic()

    def _collapse_children(self, job_ids: Iterable[str]) -> list[str]:
        """Replace the unfinished tasks of an array with the array, if all are listed."""
        children: dict[str, dict[str, None]] = {}
        for job_id in job_ids:
            children.setdefault(_parent(job_id), {})[job_id] = None
        wanted: list[str] = []
        for parent, ids in children.items():
            left = self._unended.get(parent)
            whole = left and all(f"{parent}:{index}" in ids for index in left)
            several = len(ids) > 1
            wanted += [parent] if several and (whole or parent in ids) else ids
        return wanted


def _parent(job_id: str) -> str:
    """Return the array of an array task; for other jobs the job's own ID."""
    return job_id.partition(":")[0]


async def _answered(sent: asyncio.Future[Refused]) -> Refused:
    """Wait for the response to a request that continues if this wait is cancelled."""
    try:
        return await asyncio.shield(sent)
    except asyncio.CancelledError:
        sent.add_done_callback(_tell_failure)
        raise


def _tell_failure(sent: asyncio.Future[Refused]) -> None:
    if sent.cancelled():
        return
    error = sent.exception() or next(iter(sent.result().values()), None)
    if error is not None:
        _log.warning("jobs that were to be terminated may still run: %s", error)


def _copy(request: asyncio.Future[Refused], to: asyncio.Future[Refused]) -> None:
    if request.cancelled():
        to.cancel()
    elif error := request.exception():
        to.set_exception(error)
    else:
        to.set_result(request.result())
