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
from farcall.model.failure_reasons import NO_INSTANCE, STUCK
from farcall.model.jobs import NOT_STARTED, JobDetail, JobStatus
from farcall.model.names import counted
from farcall.model.timing import Timing

_log = logging.getLogger("farcall")

_NEAREST_S = 0.15
_SHARE_AT_FIRST = 0.3
_SHARE_OF_WAIT = 0.1
"""Shares of the time since the last observed change by which a poll may be late.

The first one applies up to the shortest interval, to local endpoints.
"""

_LONGEST_S = 3600.0
_REPORT_AGAIN_S = 600.0
"""Minimum interval between two warnings that no job starts, in seconds."""

_CANCEL_AGAIN_S = 60.0
"""Interval between two cancellations of a job's waiting tasks, in seconds.

A task can wait again after its host was lost.
"""

_TOGETHER_S = 0.1
"""Time in seconds within which due jobs share the current request."""


class StatusPoller:
    """Polls Batch for the status of tracked jobs.

    Args:
        backend: Platform that runs the jobs.
        jobs: Tracked jobs by ID.
        on_change: Called with a job whose status has changed.
        reporter: Notified of jobs with failed attempts.
        trouble: Notified of failed requests.
        timing: Polling intervals, and when a job is lost.
    """

    def __init__(
        self,
        backend: Jobs,
        jobs: dict[str, TrackedJob],
        on_change: Callable[[TrackedJob], None],
        reporter: AttemptReporter,
        trouble: Trouble,
        timing: Timing,
    ) -> None:
        self._backend = backend
        self._timing = timing
        self._pause_s = timing.status_pause_s
        self._together = backend.capabilities.described_together
        self._jobs = jobs
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

    def poll_soon(self, job: TrackedJob) -> None:
        """Poll soon, because a job is new or a change is expected."""
        job.changed_at = clock.now()
        job.poll_at = min(job.poll_at, job.changed_at + self._shortest_s)
        if job.poll_at < self._rests_until:
            self._wake.set()
        if self._task is None or self._task.done():
            self._task = asyncio.ensure_future(self._run())

    def describe_missing(self, job: TrackedJob, indexes: list[int]) -> None:
        """Describe finished tasks without an outcome, and notify their callers."""
        self._missing.setdefault(job, {}).update(dict.fromkeys(indexes))
        self._wake.set()

    def forget(self, job: TrackedJob) -> None:
        """Stop polling a job."""
        self._missing.pop(job, None)
        if not self._jobs:
            self._wake.set()

    async def close(self) -> None:
        """Stop polling."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while self._jobs:
            await self._rest()
            try:
                if await self._poll_jobs(self._due()) + await self._poll_missing():
                    self._budget.record_success()
            except Exception as error:  # no caller may wait forever because of a bug
                self._budget.handle_failure(error, self._jobs)
                await asyncio.sleep(self._pause_s)
        self._budget.end()

    async def _rest(self) -> None:
        """Wait until a poll is due."""
        self._wake.clear()
        self._rests_until = min((w.poll_at for w in self._jobs.values()), default=math.inf)
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

    def _interval_s(self, job: TrackedJob) -> float:
        in_vain_s = clock.now() - job.changed_at
        return max(
            self._shortest_s,
            min(self._pause_s, _SHARE_AT_FIRST * in_vain_s),
            min(job.settings.poll_freq, _SHARE_OF_WAIT * in_vain_s),
        )

    # --- jobs as a whole ----------------------------------------------------------------------

    def _due(self) -> list[TrackedJob]:
        """Return the jobs of the next request.

        If more jobs are due than one request can describe, half of the request is for the jobs
        with the most recent changes, which are most likely to finish. The others take turns.
        """
        soon = clock.now() + _TOGETHER_S
        due = [job for job in self._jobs.values() if job.poll_at <= soon]
        if len(due) <= self._together:
            return due
        due.sort(key=lambda job: job.poll_at)
        lively = heapq.nlargest(self._together // 2, due, key=lambda job: job.changed_at)
        return list(islice(dict.fromkeys([*lively, *due]), self._together))

    async def _poll_jobs(self, jobs: list[TrackedJob]) -> int:
        """Describe jobs; return their number."""
        if not jobs:
            return 0
        heads = {job: head for job in jobs if (head := _head(job))}
        ids = [job.job.job_id for job in jobs]
        descriptions = await self._backend.describe([*ids, *heads.values()])
        for job in jobs:
            detail = descriptions.get(job.job.job_id)
            pages = 0
            if not job.waiting:  # it may have finished meanwhile
                continue
            if detail is None:
                self._record_unseen(job)
            else:
                pages = await self._learn(job, detail)
            if not math.isinf(job.poll_at):
                job.poll_at = clock.now() + max(self._interval_s(job), pages * self._pause_s)
        head_details = {job: descriptions.get(heads.get(job, "")) for job in jobs}
        await self._check_blocked({job: _telling(job, head_details[job]) for job in jobs})
        await self._check_patience(jobs)
        self._report_idle()
        return len(jobs)

    def _record_unseen(self, job: TrackedJob) -> None:
        """Record that Batch does not know a job: it is very new, or forgotten."""
        now = clock.now()
        job.unseen_since = job.unseen_since or now
        if now - job.unseen_since > self._timing.lost_after_s:
            job.ended = dict.fromkeys(job.waiting)
            self._on_change(job)

    async def _learn(self, job: TrackedJob, detail: JobDetail) -> int:
        """Record Batch's description of a job; return the number of listed pages."""
        job.unseen_since = None
        is_first = job.detail is None
        if job.take(detail):
            self._on_change(job)
            if not is_first:  # the first description may be old
                job.changed_at = clock.now()
        if detail.attempts_allowed > 1 and not detail.status.is_final:
            if job.job.size == 1:
                self._reporter.note(job, 0, detail)
            else:
                self._reporter.add(job)
        counted = detail.status_summary.get(JobStatus.FAILED.value, 0)
        if detail.status.is_final or counted <= job.failed:
            return 0
        pages = 0
        failed: list[int] = []
        async for page in self._backend.list_children(detail.job_id, JobStatus.FAILED):
            pages += 1
            failed += [child.index for child in page]
        job.failed = len(failed)
        new = [index for index in failed if index in job.waiting and index not in job.ended]
        if new:
            job.ended.update(dict.fromkeys(new))
            job.changed_at = clock.now()
            self._on_change(job)
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
        jobs = [job for job in self._jobs.values() if job.waiting]
        details = [job.detail for job in jobs if job.detail is not None]
        tasks = sum(len(job.waiting) for job in jobs)
        newest = max((job.changed_at for job in jobs), default=now)
        before, self._idle_state = self._idle_state, (len(jobs), tasks, newest)
        has_started = any(detail.furthest not in NOT_STARTED for detail in details)
        if before != self._idle_state or has_started or not details:
            self._idle_since = now
            return
        self._check_idle_at = now + _REPORT_AGAIN_S
        if any(job.blocked_reported for job in jobs):  # already logged with the reason
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
        for job, detail in details.items():
            if detail is None or not detail.is_blocked:
                job.blocked_since = None
                job.blocked_reported = False
                continue
            why = detail.status_reason or detail.container_reason
            limit = job.settings.stuck_timeout_s
            dwell = detail.dwell(self._timing)
            if job.blocked_since is None:
                job.blocked_since = now
            lasts_s = now - job.blocked_since
            if lasts_s >= dwell.reported_s and not job.blocked_reported:
                job.blocked_reported = True
                new.setdefault((detail.platform, why, detail.remedy), []).append(job)
            limits = [each for each in (limit, dwell.ended_s) if each is not None]
            if limits and lasts_s >= min(limits) and not job.stuck:
                # The reason becomes the job's status reason, so it includes the platform's text.
                stuck.setdefault(f"{STUCK}{min(limits):g} s: {why}", []).append(job)
        for (platform, why, remedy), blocked in new.items():
            rest = f" (and {len(blocked) - 1} more)" if len(blocked) > 1 else ""
            text = "job %s%s is waiting, because %s reports %r. To do: %s"
            _log.warning(text, blocked[0].job.job_id, rest, platform, why, remedy)
        for reason, blocked in stuck.items():
            await self._end(blocked, reason)

    async def _check_patience(self, jobs: list[TrackedJob]) -> None:
        """Cancel tasks that have waited for ``queue_patience``, if there is a next queue."""
        now = clock.now()
        impatient: dict[float, list[TrackedJob]] = {}
        for job in jobs:
            patience_s = job.settings.queue_patience
            if patience_s is None or job.detail is None or not job.leaves_outcomes:
                continue
            if not math.isfinite(job.cancel_at):
                job.cancel_at = now + patience_s
            has_next = job.settings.ladders.next_queue(job.detail.queue)
            if has_next and job.detail.has_waiting_tasks and job.cancel_at <= now:
                job.cancel_at = now + _CANCEL_AGAIN_S
                impatient.setdefault(patience_s, []).append(job)
        for patience_s, waiting in impatient.items():
            ids = [job.job.job_id for job in waiting]
            reason = f"{NO_INSTANCE}{patience_s:g} s (queue_patience)"
            refused = await self._backend.cancel_waiting(ids, reason)
            if refused:
                error = next(iter(refused.values()))
                _log.warning("%s stay in their queue: %s", counted(len(refused), "job"), error)
            for job in waiting:
                self.poll_soon(job)

    async def _end(self, jobs: list[TrackedJob], reason: str) -> None:
        for job in jobs:
            job.stuck = True
        try:
            ids = [job.job.job_id for job in jobs]
            raise_first(await self._backend.terminate(ids, reason))
        except BaseException:
            for job in jobs:
                job.stuck = False
            raise

    # --- tasks that left no outcome -----------------------------------------------------------

    async def _poll_missing(self) -> int:
        """Describe finished tasks without an outcome; return their number."""
        if not self._missing or clock.now() + _TOGETHER_S < self._missing_at:
            return 0
        requested = self._take_missing()
        details = await self._backend.describe([job.job.id_of(i) for job, i in requested])
        delivered = False
        for job, index in requested:
            self._missing.get(job, {}).pop(index, None)
            if not self._missing.get(job, True):
                del self._missing[job]
            delivered = self._deliver(job, index, details.get(job.job.id_of(index))) or delivered
        if not delivered:
            self._missing_at = clock.now() + self._shortest_s
        return len(requested)

    def _take_missing(self) -> list[tuple[TrackedJob, int]]:
        """Return tasks for one request, an equal share for each job."""
        jobs = list(self._missing)[: self._together]
        share = self._together // len(jobs)
        return [(w, index) for w in jobs for index in islice(self._missing[w], share)]

    def _deliver(self, job: TrackedJob, index: int, detail: JobDetail | None) -> bool:
        """Notify the callers of a finished task; return False if its end is not known yet."""
        if index not in job.waiting:
            return False
        now = clock.now()
        if detail is not None:
            job.children_unseen_since = None
            is_over = detail.status.is_final
        elif job.unseen_since is None:  # the job itself is still known
            job.children_unseen_since = job.children_unseen_since or now
            is_over = now - job.children_unseen_since >= self._timing.lost_after_s
        else:
            is_over = True
        if is_over:
            job.deliver(index, Ended(detail))
        elif detail is None or (job.detail is not None and job.detail.status.is_final):
            job.ended[index] = None  # search for its outcome again, and then poll Batch
        else:
            job.failed = 0  # the job exists, so its failed tasks are listed again
        return is_over


def _telling(job: TrackedJob, head: JobDetail | None) -> JobDetail | None:
    """Return the description that can show a blocked start: the job's or a task's."""
    whole = job.detail
    return whole if job.job.size == 1 or (whole and whole.is_blocked) else head


def _head(job: TrackedJob) -> str:
    """Return the array task that Batch may be unable to place, or an empty string.

    Batch reports an array only as pending. It sets a reason on the job at the head of the queue,
    which is the first task if no task is placed.
    """
    if job.job.size == 1 or job.detail is None or job.detail.status.is_final:
        return ""
    counts = job.detail.status_summary
    placed = counts.get(JobStatus.STARTING.value, 0) + counts.get(JobStatus.RUNNING.value, 0)
    if placed or not counts.get(JobStatus.RUNNABLE.value, 0):
        return ""
    first = next((index for index in job.waiting if index not in job.ended), None)
    return "" if first is None else job.job.id_of(first)
