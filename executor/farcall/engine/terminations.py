"""Termination of jobs for those who own them, together where they are named together."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import islice

from farcall.backends.base import Backend, raise_first
from farcall.engine.tracker import Tracker
from farcall.model.errors import FarcallError, ServiceError
from farcall.model.interrupts import Interrupts
from farcall.model.submission import Submission
from farcall.model.wording import counted, named

_log = logging.getLogger("farcall")

_TOGETHER_S = 0.05
_ANSWERED_TOGETHER = 500
_LEAVING_S = 5.0
"""For so long after a second Ctrl-C no job is waited for."""


@dataclass
class _Doomed:
    """Jobs that are named within a moment, to be ended with one request.

    Attributes:
        timer: Sends it.
        sent: Is done when it was answered.
        job_ids: The jobs.
        is_left: Whether an owner goes away, who is told how many there are.
    """

    timer: asyncio.TimerHandle
    sent: asyncio.Future[None]
    job_ids: dict[str, None] = field(default_factory=dict)
    is_left: bool = False


class Terminations:
    """The requests of one session to end jobs.

    A request goes on when the wait for it is cancelled, and is made again where the event loop's
    end cuts it off; `settle` sees to that.

    Args:
        backend: Where the jobs run.
        tracker: Is told to look soon at what came of it.
    """

    def __init__(self, backend: Backend, tracker: Tracker) -> None:
        self._backend = backend
        self._tracker = tracker
        self._requests: set[asyncio.Future[None]] = set()
        self._unended: dict[str, set[int]] = {}  # of arrays, children whose end is not known
        self._doomed: dict[str, _Doomed] = {}
        self._asked: dict[str, str] = {}  # by ID, why it is to be ended, until Batch has answered
        self._interrupts = Interrupts(self._abandon)
        self._abandoned_at = -math.inf

    async def now(self, job_ids: Iterable[str], reason: str) -> None:
        """End jobs, and look soon at what came of it.

        An array is ended as a whole where all of its children that have not ended are named.

        Args:
            job_ids: The jobs' IDs.
            reason: Kept by Batch.

        Raises:
            ServiceError: Batch refused a call.
        """
        await _answered(self._send(job_ids, reason))

    async def each(self, job_ids: Iterable[str], reason: str) -> dict[str, ServiceError]:
        """End jobs as `now` does; return those that Batch refused to end, with why.

        Args:
            job_ids: The jobs' IDs.
            reason: Kept by Batch.
        """
        refused: dict[str, ServiceError] = {}
        await _answered(self._send(job_ids, reason, refused))
        return refused

    async def soon(self, job_id: str, reason: str) -> None:
        """End a job as `now` does, together with others that are named within a moment.

        Args:
            job_id: The job's ID.
            reason: Kept by Batch; others with another reason are ended apart.

        Raises:
            ServiceError: Batch refused a call.
        """
        await _answered(self._doom(job_id, reason).sent)

    async def leave(self, job_ids: Iterable[str], tasks: int, reason: str) -> None:
        """End jobs as `now` does, for one who goes away; say so, and whatever goes wrong.

        Args:
            job_ids: The jobs' IDs.
            tasks: How many tasks of theirs are unfinished.
            reason: Kept by Batch.
        """
        left = self._in_few(job_ids)
        what = f"{counted(tasks, 'unfinished task')} of {named(left)}"
        if self._is_abandoned:
            _log.warning("left without ending %s", what)
            return
        _log.warning("ending %s (%s); Ctrl-C leaves at once", what, reason)
        try:
            with self._interrupts:
                await self.now(left, reason)
        except FarcallError as error:  # why they are left matters more
            _log.warning("they may still run: %s", error)
        else:
            _log.warning("ended %s", what)

    async def leave_one(self, job_id: str, reason: str) -> None:
        """End a job as `soon` does, for one who goes away, and whatever goes wrong.

        Args:
            job_id: The job's ID.
            reason: Kept by Batch.
        """
        doomed = self._doom(job_id, reason)
        doomed.is_left = True
        try:
            with self._interrupts:
                await _answered(doomed.sent)
        except FarcallError as error:  # why it is left matters more
            _log.warning("%s may still run: %s", job_id, error)

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
        """See the requests to their end, whatever comes of them, before the clients close."""
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
                raise_first(await self._backend.terminate(job_ids, reason))
            except FarcallError as error:
                _log.warning("%s may still run: %s", named(job_ids), error)

    @property
    def _is_abandoned(self) -> bool:
        return time.monotonic() - self._abandoned_at < _LEAVING_S

    def _doom(self, job_id: str, reason: str) -> _Doomed:
        doomed = self._doomed.get(reason)
        if doomed is None:
            loop = asyncio.get_running_loop()
            timer = loop.call_later(_TOGETHER_S, self._send_doomed, reason)
            doomed = self._doomed[reason] = _Doomed(timer, loop.create_future())
        doomed.job_ids[job_id] = None
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
            _log.warning("ending %d tasks (%s); Ctrl-C leaves at once", count, reason)

    def _send(
        self,
        job_ids: Iterable[str],
        reason: str,
        refused: dict[str, ServiceError] | None = None,
    ) -> asyncio.Future[None]:
        """Send what ends jobs; where nothing takes what is refused, that is an error."""
        wanted = self._in_few(job_ids)
        self._asked.update(dict.fromkeys(wanted, reason))
        sent = asyncio.ensure_future(self._terminate(wanted, reason, refused))
        self._requests.add(sent)
        sent.add_done_callback(self._requests.discard)
        return sent

    async def _terminate(
        self, job_ids: list[str], reason: str, refused: dict[str, ServiceError] | None
    ) -> None:
        groups = iter(job_ids)
        requests = []
        while group := list(islice(groups, _ANSWERED_TOGETHER)):
            requests.append(self._terminate_group(group, reason, refused))
        for error in await asyncio.gather(*requests, return_exceptions=True):
            if error is not None:
                raise error

    async def _terminate_group(
        self, job_ids: list[str], reason: str, refused: dict[str, ServiceError] | None
    ) -> None:
        try:
            found = await self._backend.terminate(job_ids, reason)
        except Exception:
            self._note_answered(job_ids)  # whoever waits is told
            raise
        self._note_answered(job_ids)
        if refused is not None:
            refused |= found
        else:
            raise_first(found)
        self._tracker.hurry(job_ids)

    def _note_answered(self, job_ids: Iterable[str]) -> None:
        for job_id in job_ids:
            self._asked.pop(job_id, None)

    def _abandon(self) -> None:
        """Let go of what was not answered: whoever owns the jobs wants to leave now."""
        left = [*self._asked, *(job_id for d in self._doomed.values() for job_id in d.job_ids)]
        if left:
            _log.warning("left without ending %s; farcall cancel JOB... ends jobs", named(left))
        self._abandoned_at = time.monotonic()

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


async def _answered(sent: asyncio.Future[None]) -> None:
    """Wait for the answer to a request that goes on without the one who waits."""
    try:
        await asyncio.shield(sent)
    except asyncio.CancelledError:
        sent.add_done_callback(_tell_failure)
        raise


def _tell_failure(sent: asyncio.Future[None]) -> None:
    error = None if sent.cancelled() else sent.exception()
    if error is not None:
        _log.warning("jobs that were to be ended may still run: %s", error)


def _copy(request: asyncio.Future[None], to: asyncio.Future[None]) -> None:
    if request.cancelled():
        to.cancel()
    elif error := request.exception():
        to.set_exception(error)
    else:
        to.set_result(None)
