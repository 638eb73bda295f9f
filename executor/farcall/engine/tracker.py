"""Job tracker: learns how every task that is waited for ended, and tells those who wait.

An outcome shows in a listing of the run's inbox, the moment the container stored it and however
many tasks wait. Batch itself is asked more slowly beside it, about what died without an outcome.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from farcall.backends.base import Backend
from farcall.engine.attempt_reporter import AttemptReporter
from farcall.engine.outcome_poller import OutcomePoller
from farcall.engine.packer import Batcher
from farcall.engine.status_poller import StatusPoller
from farcall.engine.watch import ClosedError, Ended, IsFull, OnArrival, Trouble, Watch
from farcall.model.jobs import JobDetail
from farcall.model.settings import Settings
from farcall.model.submission import CommandSubmission, Submission
from farcall.model.timing import Timing
from farcall.storage.stores import Stores

_COALESCE_S = 0.01


class Tracker:
    """Follows every task of one event loop and account.

    Args:
        backend: Where the jobs run.
        stores: The buckets.
        timing: How often is looked and asked, and for how long.

    Attributes:
        trouble: What keeps it from looking at the moment, if anything does.
    """

    def __init__(self, backend: Backend, stores: Stores, timing: Timing) -> None:
        self._backend = backend
        self._timing = timing
        self._stores = stores
        self._watches: dict[str, Watch] = {}
        self._outcome_pollers: dict[tuple[str, str], OutcomePoller] = {}
        self._reporter = AttemptReporter(backend, stores)
        self.trouble = Trouble()
        self._status_poller = StatusPoller(
            backend, self._watches, self._look_soon, self._reporter, self.trouble, timing
        )
        self._on_empty = self._forget  # once, and not for each of 10,000
        self._details = Batcher(
            self._describe, backend.capabilities.described_together, _COALESCE_S
        )
        self._is_closed = False

    def watch(
        self,
        job: Submission | CommandSubmission,
        indexes: Iterable[int],
        settings: Settings,
        tell: OnArrival,
        is_full: IsFull | None = None,
    ) -> None:
        """Follow tasks of a job to their end.

        Args:
            job: The job. A command job's only task is number 0.
            indexes: Numbers of the tasks.
            settings: The options it was made with.
            tell: Called once for each task, on the event loop.
            is_full: Asked before each look: while it is true the job's outcomes are not looked
                for, because enough of those that were told of lie unfetched. It is asked at
                least four times a second, so whoever fetches 4000 a second is kept busy by a limit
                of 1000.
                Who stops fetching says so by `unwatch`.
        """
        if self._is_closed:
            for index in indexes:
                tell(index, Ended(None, _closed()))
            return
        watch = self._watches.get(job.job_id)
        if watch is None:
            watch = Watch(job, settings, self._on_empty, is_full)
            self._watches[job.job_id] = watch
        elif watch.full is not is_full:
            watch.full = None  # one of those who wait takes whatever comes
        told = (tell,)
        for index in indexes:
            watch.waiting[index] = watch.waiting.get(index, ()) + told
        if watch.leaves_outcomes:
            self._outcome_poller(watch).add(watch)
        self._status_poller.hurry(watch)

    def unwatch(self, job_id: str, tell: OnArrival) -> None:
        """Follow a job no more for one of those who wait; the job goes on.

        Args:
            job_id: The job's ID.
            tell: What was given to `watch`; it is not called any more.
        """
        if job_id in self._watches:
            self._watches[job_id].leave(tell)

    def submission(self, job_id: str) -> Submission | None:
        """Return what a job carries that is waited for; None of a command and of all others."""
        watch = self._watches.get(job_id)
        return watch.submission if watch is not None and watch.leaves_outcomes else None

    def latest(self, job_id: str) -> JobDetail | None:
        """Return what Batch said last of a job as a whole; it asks nobody.

        Args:
            job_id: The job's ID, of an array the parent's.

        Returns:
            The description without its environment; None if Batch said nothing yet, or nobody
            waits for the job any more.
        """
        watch = self._watches.get(job_id)
        return None if watch is None else watch.detail

    def hurry(self, job_ids: Iterable[str]) -> None:
        """Look again soon: something happens to jobs.

        Args:
            job_ids: IDs of jobs, arrays or children of arrays.
        """
        for job_id in {job_id.partition(":")[0] for job_id in job_ids}:
            watch = self._watches.get(job_id)
            if watch is not None:
                self._look_soon(watch)
                self._status_poller.hurry(watch)

    async def detail(self, job_id: str) -> JobDetail | None:
        """Return what Batch says of a job now; many askers share one call.

        Raises:
            ServiceError: Batch refused the call.
        """
        return await asyncio.shield(self._details.ask(job_id))

    async def close(self) -> None:
        """Stop looking, and tell those who wait, and those who come later. Jobs go on."""
        self._is_closed = True
        await self._status_poller.close()
        await self._reporter.close()
        for inbox in self._outcome_pollers.values():
            await inbox.close()
        for watch in list(self._watches.values()):
            watch.give_up(_closed())

    def _outcome_poller(self, watch: Watch) -> OutcomePoller:
        where = watch.submission.where
        place = (where.bucket, where.root)
        if place not in self._outcome_pollers:
            store = self._stores.of(where.bucket)
            self._outcome_pollers[place] = OutcomePoller(
                store, where.root, self._status_poller.look_for, self.trouble, self._timing
            )
        return self._outcome_pollers[place]

    def _look_soon(self, watch: Watch) -> None:
        if watch.leaves_outcomes:
            self._outcome_poller(watch).hurry(watch)
            return
        for index, detail in list(watch.ended.items()):
            watch.deliver(index, Ended(detail))

    def _forget(self, watch: Watch) -> None:
        del self._watches[watch.job.job_id]
        if watch.leaves_outcomes:
            self._outcome_poller(watch).forget(watch)
        self._status_poller.forget(watch)
        self._reporter.forget(watch)

    async def _describe(self, job_ids: list[str]) -> list[JobDetail | None]:
        found = await self._backend.describe(job_ids)
        return [found.get(job_id) for job_id in job_ids]


def _closed() -> ClosedError:
    return ClosedError("the executor was closed while its jobs were waited for")
