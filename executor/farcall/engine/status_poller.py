"""Status poller: decides which jobs Batch describes, and when.

Outcomes appear in the bucket. Batch is polled for jobs that died without one: for the status of
each single job and array, for an array's failed tasks if their number has grown, and for finished
tasks whose outcome is missing. Requests are sequential, at the rate that the backend allows,
regardless of the number of jobs.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import logging
import math
from collections.abc import Callable
from itertools import islice

from farcall.backends.base import Jobs, raise_first
from farcall.engine.attempt_reporter import AttemptReporter
from farcall.engine.tracked_job import Ended, RetryBudget, TrackedJob, Trouble
from farcall.model import clock
from farcall.model.clock import within
from farcall.model.failure_reasons import STUCK
from farcall.model.jobs import JobDetail, JobStatus
from farcall.model.names import counted
from farcall.model.timing import Timing

_log = logging.getLogger("farcall")

_NOT_STARTED = (JobStatus.SUBMITTED, JobStatus.PENDING, JobStatus.RUNNABLE)

_NEAREST_S = 0.15
_SHARE_AT_FIRST = 0.3
_SHARE_OF_WAIT = 0.1
"""Shares of the time since the last observed change by which a poll may be late.

The first one applies up to the shortest interval, to local endpoints.
"""

_LONGEST_S = 3600.0
_REPORT_AGAIN_S = 600.0
"""Minimum interval between two warnings that no job starts, in seconds."""

_TOGETHER_S = 0.1
"""Time in seconds within which due jobs share the current request."""


class StatusPoller:
    """Polls Batch for the status of tracked jobs.

    Args:
        backend: Platform that runs the jobs.
        watches: Tracked jobs by ID.
        on_change: Called with a job whose status has changed.
        reporter: Notified of jobs with failed attempts.
        trouble: Notified of failed requests.
        timing: Polling intervals, and when a job is lost.
    """

    def __init__(
        self,
        backend: Jobs,
        watches: dict[str, TrackedJob],
        on_change: Callable[[TrackedJob], None],
        reporter: AttemptReporter,
        trouble: Trouble,
        timing: Timing,
    ) -> None:
        self._backend = backend
        self._timing = timing
        self._pause_s = timing.status_pause_s
        self._together = backend.capabilities.described_together
        self._watches = watches
        self._on_change = on_change
        self._reporter = reporter
        self._missing: dict[TrackedJob, dict[int, None]] = {}
        self._missing_at = 0.0
        self._rests_until = math.inf
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._budget = RetryBudget(trouble, timing)
        self._check_idle_at = 0.0
        self._idle_since = 0.0
        self._idle_state: tuple[int, int, float] | None = None

    def poll_soon(self, watch: TrackedJob) -> None:
        """Poll soon, because a job is new or a change is expected."""
        watch.changed_at = clock.now()
        watch.poll_at = min(watch.poll_at, watch.changed_at + self._shortest_s)
        if watch.poll_at < self._rests_until:
            self._wake.set()
        if self._task is None or self._task.done():
            self._task = asyncio.ensure_future(self._run())

    def describe_missing(self, watch: TrackedJob, indexes: list[int]) -> None:
        """Describe finished tasks without an outcome, and notify their callers."""
        self._missing.setdefault(watch, {}).update(dict.fromkeys(indexes))
        self._wake.set()

    def forget(self, watch: TrackedJob) -> None:
        """Stop polling a job."""
        self._missing.pop(watch, None)
        if not self._watches:
            self._wake.set()

    async def close(self) -> None:
        """Stop polling."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while self._watches:
            await self._rest()
            try:
                if await self._poll_jobs(self._due()) + await self._poll_missing():
                    self._budget.record_success()
            except Exception as error:  # no caller may wait forever because of a bug
                self._budget.handle_failure(error, self._watches)
                await asyncio.sleep(self._pause_s)
        self._budget.end()

    async def _rest(self) -> None:
        """Wait until a poll is due."""
        self._wake.clear()
        self._rests_until = min((w.poll_at for w in self._watches.values()), default=math.inf)
        if self._missing:
            self._rests_until = min(self._rests_until, self._missing_at)
        wait_s = self._rests_until - clock.now()
        if wait_s > _TOGETHER_S:
            with contextlib.suppress(TimeoutError):
                await within(min(wait_s, _LONGEST_S), self._wake.wait())
        self._rests_until = -math.inf

    @property
    def _shortest_s(self) -> float:
        """Polling interval right after a change."""
        is_near = self._backend.meter.quickest_s < self._timing.near_s
        return min(_NEAREST_S, self._pause_s) if is_near else self._pause_s

    def _interval_s(self, watch: TrackedJob) -> float:
        in_vain_s = clock.now() - watch.changed_at
        return max(
            self._shortest_s,
            min(self._pause_s, _SHARE_AT_FIRST * in_vain_s),
            min(watch.settings.poll_freq, _SHARE_OF_WAIT * in_vain_s),
        )

    # --- jobs as a whole ----------------------------------------------------------------------

    def _due(self) -> list[TrackedJob]:
        """Return the jobs of the next request.

        If more jobs are due than one request can describe, half of the request is for the jobs
        with the most recent changes, which are most likely to finish. The others take turns.
        """
        soon = clock.now() + _TOGETHER_S
        due = [watch for watch in self._watches.values() if watch.poll_at <= soon]
        if len(due) <= self._together:
            return due
        due.sort(key=lambda watch: watch.poll_at)
        lively = heapq.nlargest(self._together // 2, due, key=lambda watch: watch.changed_at)
        return list(islice(dict.fromkeys([*lively, *due]), self._together))

    async def _poll_jobs(self, watches: list[TrackedJob]) -> int:
        """Describe jobs; return their number."""
        if not watches:
            return 0
        heads = {watch: head for watch in watches if (head := _head(watch))}
        ids = [watch.job.job_id for watch in watches]
        found = await self._backend.describe([*ids, *heads.values()])
        for watch in watches:
            detail = found.get(watch.job.job_id)
            pages = 0
            if not watch.waiting:  # it may have finished meanwhile
                continue
            if detail is None:
                self._record_unseen(watch)
            else:
                pages = await self._learn(watch, detail)
            if not math.isinf(watch.poll_at):
                watch.poll_at = clock.now() + max(self._interval_s(watch), pages * self._pause_s)
        head_details = {watch: found.get(heads.get(watch, "")) for watch in watches}
        await self._check_blocked(
            {watch: _telling(watch, head_details[watch]) for watch in watches}
        )
        self._report_idle()
        return len(watches)

    def _record_unseen(self, watch: TrackedJob) -> None:
        """Record that Batch does not know a job: it is very new, or forgotten."""
        now = clock.now()
        watch.unseen_since = watch.unseen_since or now
        if now - watch.unseen_since > self._timing.lost_after_s:
            watch.ended = dict.fromkeys(watch.waiting)
            self._on_change(watch)

    async def _learn(self, watch: TrackedJob, detail: JobDetail) -> int:
        """Record Batch's description of a job; return the number of listed pages."""
        watch.unseen_since = None
        is_first = watch.detail is None
        if watch.take(detail):
            self._on_change(watch)
            if not is_first:  # the first description may be old
                watch.changed_at = clock.now()
        if detail.attempts_allowed > 1 and not detail.status.is_final:
            if watch.job.size == 1:
                self._reporter.note(watch, 0, detail)
            else:
                self._reporter.add(watch)
        counted = detail.status_summary.get(JobStatus.FAILED.value, 0)
        if detail.status.is_final or counted <= watch.failed:
            return 0
        pages = 0
        failed: list[int] = []
        async for page in self._backend.list_children(detail.job_id, JobStatus.FAILED):
            pages += 1
            failed += [child.index for child in page]
        watch.failed = len(failed)
        new = [index for index in failed if index in watch.waiting and index not in watch.ended]
        if new:
            watch.ended.update(dict.fromkeys(new))
            watch.changed_at = clock.now()
            self._on_change(watch)
        return pages

    def _report_idle(self) -> None:
        """Warn if the tracked jobs wait and nothing has happened for a while.

        Results arrive without a status request, so progress is detected by comparing two checks:
        any task that was submitted, started or finished between them makes the state differ.
        """
        now = clock.now()
        if now < self._check_idle_at:
            return
        self._check_idle_at = now + self._timing.idle_report_s
        watches = [watch for watch in self._watches.values() if watch.waiting]
        details = [watch.detail for watch in watches if watch.detail is not None]
        tasks = sum(len(watch.waiting) for watch in watches)
        newest = max((watch.changed_at for watch in watches), default=now)
        before, self._idle_state = self._idle_state, (len(watches), tasks, newest)
        has_started = any(detail.furthest not in _NOT_STARTED for detail in details)
        if before != self._idle_state or has_started or not details:
            self._idle_since = now
            return
        self._check_idle_at = now + _REPORT_AGAIN_S
        if any(watch.blocked_reported for watch in watches):  # already logged with the reason
            return
        _log.warning(
            "%s %s waited for %.0f s, and no job has started or finished. %s `farcall describe "
            "%s` shows more, and `farcall list --all-users --state active` the other jobs.",
            counted(tasks, "task"),
            "has" if tasks == 1 else "have",
            now - self._idle_since,
            details[0].likely_cause,
            details[0].job_id,
        )

    async def _check_blocked(self, details: dict[TrackedJob, JobDetail | None]) -> None:
        """Report jobs that cannot start, and terminate those that cannot recover.

        A job is terminated after ``stuck_timeout_s``, or earlier if the platform's reason is known
        to be permanent.

        Args:
            details: The platform's description of each single job or array, or of the array task
                at the head of the queue.
        """
        now = clock.now()
        new: dict[tuple[str, str, str], list[TrackedJob]] = {}
        stuck: dict[str, list[TrackedJob]] = {}
        for watch, detail in details.items():
            if detail is None or not detail.is_blocked:
                watch.blocked_since = None
                watch.blocked_reported = False
                continue
            why = detail.status_reason or detail.container_reason
            limit = watch.settings.stuck_timeout_s
            dwell = detail.dwell(self._timing)
            if watch.blocked_since is None:
                watch.blocked_since = now
            lasts_s = now - watch.blocked_since
            if lasts_s >= dwell.reported_s and not watch.blocked_reported:
                watch.blocked_reported = True
                new.setdefault((detail.platform, why, detail.remedy), []).append(watch)
            limits = [each for each in (limit, dwell.ended_s) if each is not None]
            if limits and lasts_s >= min(limits) and not watch.stuck:
                # The reason becomes the job's status reason, so it includes the platform's text.
                stuck.setdefault(f"{STUCK}{min(limits):g} s: {why}", []).append(watch)
        for (platform, why, remedy), found in new.items():
            rest = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
            text = "job %s%s is waiting, because %s reports %r. To do: %s"
            _log.warning(text, found[0].job.job_id, rest, platform, why, remedy)
        for reason, found in stuck.items():
            await self._end(found, reason)

    async def _end(self, watches: list[TrackedJob], reason: str) -> None:
        for watch in watches:
            watch.stuck = True
        try:
            ids = [watch.job.job_id for watch in watches]
            raise_first(await self._backend.terminate(ids, reason))
        except BaseException:
            for watch in watches:
                watch.stuck = False
            raise

    # --- tasks that left no outcome -----------------------------------------------------------

    async def _poll_missing(self) -> int:
        """Describe finished tasks without an outcome; return their number."""
        if not self._missing or clock.now() + _TOGETHER_S < self._missing_at:
            return 0
        requested = self._take_missing()
        found = await self._backend.describe([watch.job.id_of(i) for watch, i in requested])
        delivered = False
        for watch, index in requested:
            self._missing.get(watch, {}).pop(index, None)
            if not self._missing.get(watch, True):
                del self._missing[watch]
            delivered = self._deliver(watch, index, found.get(watch.job.id_of(index))) or delivered
        if not delivered:
            self._missing_at = clock.now() + self._shortest_s
        return len(requested)

    def _take_missing(self) -> list[tuple[TrackedJob, int]]:
        """Return tasks for one request, an equal share for each job."""
        watches = list(self._missing)[: self._together]
        share = self._together // len(watches)
        return [(w, index) for w in watches for index in islice(self._missing[w], share)]

    def _deliver(self, watch: TrackedJob, index: int, detail: JobDetail | None) -> bool:
        """Notify the callers of a finished task; return False if its end is not known yet."""
        if index not in watch.waiting:
            return False
        now = clock.now()
        if detail is not None:
            watch.children_unseen_since = None
            is_over = detail.status.is_final
        elif watch.unseen_since is None:  # the job itself is still known
            watch.children_unseen_since = watch.children_unseen_since or now
            is_over = now - watch.children_unseen_since >= self._timing.lost_after_s
        else:
            is_over = True
        if is_over:
            watch.deliver(index, Ended(detail))
        elif detail is None or (watch.detail is not None and watch.detail.status.is_final):
            watch.ended[index] = None  # search for its outcome again, and then poll Batch
        else:
            watch.failed = 0  # the job exists, so its failed tasks are listed again
        return is_over


def _telling(watch: TrackedJob, head: JobDetail | None) -> JobDetail | None:
    """Return the description that can show a blocked start: the job's or a task's."""
    whole = watch.detail
    return whole if watch.job.size == 1 or (whole and whole.is_blocked) else head


def _head(watch: TrackedJob) -> str:
    """Return the array task that Batch may be unable to place, or an empty string.

    Batch reports an array only as pending. It sets a reason on the job at the head of the queue,
    which is the first task if no task is placed.
    """
    if watch.job.size == 1 or watch.detail is None or watch.detail.status.is_final:
        return ""
    counts = watch.detail.status_summary
    placed = counts.get(JobStatus.STARTING.value, 0) + counts.get(JobStatus.RUNNING.value, 0)
    if placed or not counts.get(JobStatus.RUNNABLE.value, 0):
        return ""
    first = next((index for index in watch.waiting if index not in watch.ended), None)
    return "" if first is None else watch.job.id_of(first)
