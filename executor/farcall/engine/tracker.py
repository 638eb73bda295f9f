"""Job tracker: detects how tracked tasks end, and notifies the waiting callers.

An outcome appears in the listing of the run's prefix as soon as the container has stored it,
with one listing for all tasks. Batch is polled less often, to detect tasks that died without
an outcome.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable

from farcall.backends.base import Jobs
from farcall.config.settings import Settings
from farcall.engine.attempt_reporter import AttemptReporter
from farcall.engine.batcher import Batcher
from farcall.engine.outcome_poller import OutcomePoller
from farcall.engine.status_poller import StatusPoller
from farcall.engine.tracked_job import (
    ClosedError,
    Ended,
    IsFull,
    OnCompletion,
    TrackedJob,
    Trouble,
)
from farcall.model.jobs import JobDetail
from farcall.model.submission import CommandSubmission, Submission
from farcall.model.timing import Timing
from farcall.storage.store import Stores

_COALESCE_S = 0.01


class Tracker:
    """Tracks all tasks of one event loop and account.

    Args:
        backend: Platform that runs the jobs.
        stores: The buckets.
        timing: Polling intervals and limits.
        on_outcome: Called with job and index of each task whose outcome has arrived.

    Attributes:
        trouble: Current failure of the tracker's own requests, if any.
    """

    def __init__(
        self,
        backend: Jobs,
        stores: Stores,
        timing: Timing,
        on_outcome: Callable[[str, int], object] = lambda _job_id, _index: None,
    ) -> None:
        self._backend = backend
        self._on_outcome = on_outcome
        self._timing = timing
        self._stores = stores
        self._jobs: dict[str, TrackedJob] = {}
        self._outcome_pollers: dict[tuple[str, str], OutcomePoller] = {}
        self._reporter = AttemptReporter(backend, stores)
        self.trouble = Trouble()
        self._status_poller = StatusPoller(
            backend, self._jobs, self._poll_soon, self._reporter, self.trouble, timing
        )
        self._on_empty = self._forget  # bound once, and not for each of 10,000 jobs
        self._details = Batcher(
            self._describe, backend.capabilities.described_together, _COALESCE_S
        )
        self._is_closed = False

    def watch(
        self,
        job: Submission | CommandSubmission,
        indexes: Iterable[int],
        settings: Settings,
        callback: OnCompletion,
        is_full: IsFull | None = None,
    ) -> None:
        """Track tasks of a job until they have finished.

        Args:
            job: The job. The only task of a command job has index 0.
            indexes: Indexes of the tasks.
            settings: Options of the job.
            callback: Called once per task, on the event loop.
            is_full: Back-pressure, called before each poll: while it returns True, the job's
                outcomes are not listed, because enough known outcomes are waiting to be fetched.
                It is called at least four times a second, so a limit of 1000 allows 4000 fetches a
                second. A caller that stops fetching calls `unwatch`.
        """
        if self._is_closed:
            for index in indexes:
                callback(index, Ended(None, _closed()))
            return
        tracked = self._jobs.get(job.job_id)
        if tracked is None:
            tracked = TrackedJob(job, settings, self._on_empty, is_full)
            self._jobs[job.job_id] = tracked
        elif tracked.full is not is_full:
            tracked.full = None  # a caller without back-pressure takes every outcome
        callbacks = (callback,)
        tracked.is_whole = tracked.is_whole or indexes == range(job.size)
        for index in indexes:
            tracked.waiting[index] = tracked.waiting.get(index, ()) + callbacks
        if tracked.leaves_outcomes:
            self._outcome_poller(tracked).add(tracked)
        self._status_poller.poll_soon(tracked)

    def unwatch(self, job_id: str, callback: OnCompletion) -> None:
        """Stop tracking a job for one caller; the job continues.

        Args:
            job_id: The job's ID.
            callback: The callback passed to `watch`; it is not called again.
        """
        if job_id in self._jobs:
            self._jobs[job_id].leave(callback)

    def is_watched(self, job_id: str, index: int, callback: OnCompletion) -> bool:
        """Return whether a task is tracked for one caller."""
        job = self._jobs.get(job_id)
        return job is not None and callback in job.waiting.get(index, ())

    def unfinished(self, job_id: str) -> Collection[int] | None:
        """Return the unfinished tasks of a job; None if not all of its tasks are tracked."""
        job = self._jobs.get(job_id)
        return job.waiting.keys() if job is not None and job.is_whole else None

    def submission(self, job_id: str) -> Submission | None:
        """Return the submission of a tracked job; None for command jobs and unknown jobs."""
        job = self._jobs.get(job_id)
        return job.submission if job is not None and job.leaves_outcomes else None

    def latest(self, job_id: str) -> JobDetail | None:
        """Return the last known description of a job, without an API request.

        Args:
            job_id: The job's ID; for an array task, the array's.

        Returns:
            The description without its environment; None if Batch has not described the job yet,
            or if the job is not tracked.
        """
        job = self._jobs.get(job_id)
        return None if job is None else job.detail

    def poll_soon(self, job_ids: Iterable[str]) -> None:
        """Poll jobs soon, because a change is expected.

        Args:
            job_ids: IDs of jobs, arrays or array tasks.
        """
        for job_id in {job_id.partition(":")[0] for job_id in job_ids}:
            job = self._jobs.get(job_id)
            if job is not None:
                self._poll_soon(job)
                self._status_poller.poll_soon(job)

    async def detail(self, job_id: str) -> JobDetail | None:
        """Return Batch's current description of a job; concurrent calls share a request.

        Raises:
            ServiceError: Batch refused the call.
        """
        return await asyncio.shield(self._details.add(job_id))

    async def close(self) -> None:
        """Stop polling and notify current and future callers. Jobs continue."""
        self._is_closed = True
        await self._status_poller.close()
        await self._reporter.close()
        for inbox in self._outcome_pollers.values():
            await inbox.close()
        for job in list(self._jobs.values()):
            job.give_up(_closed())

    def _outcome_poller(self, job: TrackedJob) -> OutcomePoller:
        where = job.submission.where
        place = (where.bucket, where.root)
        if place not in self._outcome_pollers:
            store = self._stores.of(where.bucket)
            self._outcome_pollers[place] = OutcomePoller(
                store,
                where.root,
                self._status_poller.describe_missing,
                self.trouble,
                self._timing,
                self._on_outcome,
            )
        return self._outcome_pollers[place]

    def _poll_soon(self, job: TrackedJob) -> None:
        if job.leaves_outcomes:
            self._outcome_poller(job).poll_soon(job)
            return
        for index, detail in list(job.ended.items()):
            job.deliver(index, Ended(detail))

    def _forget(self, job: TrackedJob) -> None:
        del self._jobs[job.job.job_id]
        if job.leaves_outcomes:
            self._outcome_poller(job).forget(job)
        self._status_poller.forget(job)
        self._reporter.forget(job)

    async def _describe(self, job_ids: list[str]) -> list[JobDetail | None]:
        details = await self._backend.describe(job_ids)
        return [details.get(job_id) for job_id in job_ids]


def _closed() -> ClosedError:
    return ClosedError("the executor was closed while it was waiting for its jobs")
