"""One loop that learns how every waiting task ended.

An outcome shows in one listing of the run's inbox, the moment the container stored it and however
many tasks wait. Batch itself is asked more slowly beside it, about what died without an outcome.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TypeAlias

from farcall.batch import DESCRIBE_IDS, Batch
from farcall.errors import FarcallError, ServiceError, SettingsError
from farcall.settings import Settings
from farcall.states import JobDetail, JobStatus
from farcall.store import Arrived, Store
from farcall.submission import Submission

_log = logging.getLogger("farcall")

_SHORTEST_S = 0.25
_SHARE_OF_WAIT = 0.01
"""A look may be late by this share of the time that was waited in vain: 1 s after 100 s."""

_BATCH_SHORTEST_S = 1.0
_BATCH_SHARE_OF_WAIT = 0.1
_BATCH_CALLS_PER_S = 5.0
_LOST_AFTER_S = 60.0
_GIVE_UP_S = 600.0
"""For how long the tracker's own calls may fail before the waiting tasks are told."""

_COALESCE_S = 0.01


@dataclass(frozen=True)
class Ended:
    """A task ended and left no outcome.

    Attributes:
        detail: What Batch says of it; None if Batch no longer knows it.
        error: Set where it was not the task that failed but the looking for it; the job may go on.
        stuck: Whether it was ended because it could not be placed.
    """

    detail: JobDetail | None
    error: FarcallError | None = None
    stuck: bool = False


class ClosedError(FarcallError):
    """The tracker was closed while somebody waited; another can follow the job on."""


Arrival: TypeAlias = Arrived | Ended
OnArrival: TypeAlias = Callable[[int, Arrival], None]


@dataclass(eq=False)
class _Watch:
    """The tasks of one job that somebody waits for.

    Attributes:
        submission: The job.
        settings: The options it was made with.
        waiting: By number of the task, who is to be told of its end.
        detail: What Batch said last of the job as a whole.
        ended: Tasks that Batch calls ended and whose outcome was not seen yet; the detail is
            None for a child of an array, until it is asked for.
        failed: Number of failed children when they were last listed.
        unseen_since: When Batch began not to know the job.
        children_unseen_since: When Batch began not to know children that have ended.
        blocked_since: When Batch began to say that it cannot place the job.
        stuck: Whether it was terminated for that.
    """

    submission: Submission
    settings: Settings
    waiting: dict[int, tuple[OnArrival, ...]] = field(default_factory=dict)
    detail: JobDetail | None = None
    ended: dict[int, JobDetail | None] = field(default_factory=dict)
    failed: int = 0
    unseen_since: float | None = None
    children_unseen_since: float | None = None
    blocked_since: float | None = None
    stuck: bool = False

    def deliver(self, index: int, arrival: Arrival) -> None:
        self.ended.pop(index, None)
        for tell in self.waiting.pop(index, ()):
            tell(index, arrival)


class Tracker:
    """Follows every task of one event loop and account.

    Args:
        batch: Batch.
        store_of: Gives the store of a bucket.
    """

    def __init__(self, batch: Batch, store_of: Callable[[str], Store]) -> None:
        self._batch = batch
        self._store_of = store_of
        self._watches: dict[str, _Watch] = {}
        self._loop: asyncio.Task[None] | None = None
        self._news = time.monotonic()
        self._wake = asyncio.Event()
        self._asked: dict[str, asyncio.Future[JobDetail | None]] = {}
        self._answering: asyncio.Task[None] | None = None
        self._failing_since: float | None = None
        self._asking: asyncio.Future[int] | None = None
        self._ask_batch_at = 0.0

    # --- what others ask for ------------------------------------------------------------------

    def watch(
        self, submission: Submission, indexes: Iterable[int], settings: Settings, tell: OnArrival
    ) -> None:
        """Follow tasks of a job to their end.

        Args:
            submission: The job.
            indexes: Numbers of the tasks.
            settings: The options it was made with.
            tell: Called once for each task, on the event loop.
        """
        watch = self._watches.setdefault(submission.job_id, _Watch(submission, settings))
        told = (tell,)
        for index in indexes:
            watch.waiting[index] = watch.waiting.get(index, ()) + told
        self.hurry()
        if self._loop is None or self._loop.done():
            self._loop = asyncio.ensure_future(self._run())

    def hurry(self) -> None:
        """Look again soon: something has happened, or is about to."""
        self._news = time.monotonic()
        self._wake.set()

    async def detail(self, job_id: str) -> JobDetail | None:
        """Return what Batch says of a job now; many askers share one call.

        Raises:
            ServiceError: Batch refused the call.
        """
        if not self._asked:
            self._answering = asyncio.ensure_future(self._answer())
        future = self._asked.setdefault(job_id, asyncio.get_running_loop().create_future())
        return await asyncio.shield(future)

    async def close(self) -> None:
        """Stop looking, and tell those who wait. Jobs go on."""
        if self._loop is not None:
            self._loop.cancel()
            await asyncio.gather(self._loop, return_exceptions=True)
        self._give_up(ClosedError("the executor was closed while its jobs were waited for"))
        self._watches.clear()

    async def _answer(self) -> None:
        await asyncio.sleep(_COALESCE_S)
        asked, self._asked = self._asked, {}
        try:
            found = await self._batch.describe(asked)
        except Exception as error:  # whatever it is, nobody is to wait for ever
            for future in asked.values():
                if not future.done():
                    future.set_exception(error)
            return
        for job_id, future in asked.items():
            if not future.done():
                future.set_result(found.get(job_id))

    # --- the loop -----------------------------------------------------------------------------

    async def _run(self) -> None:
        self._ask_batch_at = time.monotonic() + _BATCH_SHORTEST_S
        try:
            await self._look_again_and_again()
        finally:
            if self._asking is not None:
                self._asking.cancel()
                self._asking = None

    async def _look_again_and_again(self) -> None:
        while self._watches:
            await self._pause()
            try:
                await self._look_in_inboxes()
                if await self._has_answer():
                    self._failing_since = None
            except FarcallError as error:
                self._endure(error)
            except Exception as error:  # nobody may wait for ever because of a bug
                told = FarcallError(f"looking for the job's end failed: {error!r}")
                told.__cause__ = error
                self._endure(told)
            self._watches = {key: w for key, w in self._watches.items() if w.waiting}

    async def _has_answer(self) -> bool:
        """Ask Batch where it is time to; tell whether no answer of Batch's is waited for.

        The inboxes are looked at meanwhile: Batch may be slow to answer, or refuse for minutes.
        """
        if self._asking is None and time.monotonic() >= self._ask_batch_at:
            self._asking = asyncio.ensure_future(self._ask_batch())
        if self._asking is None:
            return True
        await asyncio.wait([self._asking], timeout=_SHORTEST_S)
        if not self._asking.done():
            return False
        asked, self._asking = self._asking, None
        calls = asked.result()
        wait_s = self._interval(_BATCH_SHORTEST_S, _BATCH_SHARE_OF_WAIT)
        self._ask_batch_at = time.monotonic() + max(wait_s, calls / _BATCH_CALLS_PER_S)
        return True

    def _interval(self, shortest: float, share: float) -> float:
        longest = min((w.settings.poll_freq for w in self._watches.values()), default=0)
        return max(shortest, min(longest, share * (time.monotonic() - self._news)))

    async def _pause(self) -> None:
        self._wake.clear()
        try:
            wait_s = self._interval(_SHORTEST_S, _SHARE_OF_WAIT)
            await asyncio.wait_for(self._wake.wait(), wait_s)
        except asyncio.TimeoutError:
            return
        await asyncio.sleep(_SHORTEST_S)  # woken: what was announced takes its time

    async def _look_in_inboxes(self) -> None:
        """Deliver the outcomes that have arrived, then the ends that came without one."""
        watches = list(self._watches.values())
        # Taken before the listing. S3 lists whatever was stored before it was asked, so a task
        # known by now to have ended, and whose outcome is not in the listing, has none.
        ended = [(watch, dict(watch.ended)) for watch in watches if watch.ended]
        by_bundle = {watch.submission.where.bundle: watch for watch in watches}
        for bucket, root in {
            (w.submission.where.bucket, w.submission.where.root) for w in watches
        }:
            async for arrived in self._store_of(bucket).list_outcomes(root):
                watch = by_bundle.get(arrived.bundle)
                if watch is not None and arrived.index in watch.waiting:
                    self._news = time.monotonic()
                    watch.deliver(arrived.index, arrived)
        for watch, ends in ended:
            left = {index: ends[index] for index in ends if index in watch.waiting}
            if left:
                await self._deliver_ends(watch, left)

    async def _deliver_ends(self, watch: _Watch, ends: dict[int, JobDetail | None]) -> None:
        id_of = watch.submission.id_of
        described = await self._batch.describe(id_of(i) for i, known in ends.items() if not known)
        now = time.monotonic()
        for index, known in ends.items():
            detail = known or described.get(id_of(index))
            if detail is None and watch.unseen_since is None:  # the job itself is still known
                watch.children_unseen_since = watch.children_unseen_since or now
                if now - watch.children_unseen_since < _LOST_AFTER_S:
                    continue
            if detail is None or detail.status.is_final:
                self._news = time.monotonic()
                watch.deliver(index, Ended(detail, stuck=watch.stuck))

    async def _ask_batch(self) -> int:
        """Ask Batch for the jobs that are waited for; return the number of calls it took."""
        found = await self._batch.describe(list(self._watches))
        calls = -(-len(self._watches) // DESCRIBE_IDS)
        for job_id, watch in list(self._watches.items()):
            detail = found.get(job_id)
            if detail is None:
                self._note_unseen(watch)
                continue
            watch.unseen_since = None
            if watch.detail is None or watch.detail.status is not detail.status:
                self._news = time.monotonic()
            watch.detail = detail
            await self._note_blocked(watch, detail)
            calls += await self._note_ends(watch, detail)
        return calls

    def _note_unseen(self, watch: _Watch) -> None:
        """A job may be missing right after its submission, and for ever once Batch forgot it."""
        now = time.monotonic()
        watch.unseen_since = watch.unseen_since or now
        if now - watch.unseen_since > _LOST_AFTER_S:
            watch.ended = dict.fromkeys(watch.waiting)

    async def _note_ends(self, watch: _Watch, detail: JobDetail) -> int:
        """Note which tasks have ended; return the number of calls it took."""
        if watch.submission.size == 1:
            if detail.status.is_final:
                watch.ended = {0: detail}
            return 0
        if detail.status.is_final:
            watch.ended = dict.fromkeys(watch.waiting)
            return 0
        counted = detail.status_summary.get(JobStatus.FAILED.value)
        if counted == watch.failed or counted == 0:
            return 0
        failed = await self._batch.list_children(detail.job_id, JobStatus.FAILED)
        watch.failed = len(failed)
        watch.ended.update((index, None) for index in failed if index in watch.waiting)
        return 1 + len(failed) // 1000

    async def _note_blocked(self, watch: _Watch, detail: JobDetail) -> None:
        """Tell at once that a job cannot be placed; end it only after ``stuck_timeout_s``."""
        if not detail.is_blocked:
            watch.blocked_since = None
            return
        now = time.monotonic()
        if watch.blocked_since is None:
            watch.blocked_since = now
            _log.warning("job %s waits: %s", detail.job_id, detail.status_reason)
        limit = watch.settings.stuck_timeout_s
        if limit is not None and now - watch.blocked_since >= limit and not watch.stuck:
            watch.stuck = True
            # The reason becomes the job's status reason, so Batch's own words go into it.
            reason = f"stuck for {limit:g} s: {detail.status_reason}"
            await self._batch.terminate([detail.job_id], reason)

    def _endure(self, error: FarcallError) -> None:
        """Live through a failed look, unless it would fail for ever."""
        now = time.monotonic()
        if self._failing_since is None:
            self._failing_since = now
            _log.warning("%s; trying again", error)
        permanent = isinstance(error, SettingsError) or (
            isinstance(error, ServiceError) and "AccessDenied" in error.code
        )
        if permanent or now - self._failing_since > _GIVE_UP_S:
            self._give_up(error)

    def _give_up(self, error: FarcallError) -> None:
        for watch in self._watches.values():
            for index in list(watch.waiting):
                watch.deliver(index, Ended(None, error))
            self._failing_since = None
