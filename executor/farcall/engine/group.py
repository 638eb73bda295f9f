"""Groups of tasks: the tasks of one job, from SubmitJob to the collected results.

A job is a group of 1 to 10,000 tasks that were submitted together. A call, an electron and a task
of a map are views of one task of a group. A group is the only owner of what a job needs until its
last result is collected: tracking, terminations, printed output, objects in the bucket and shared
values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import NamedTuple, TypeAlias

from farcall.backends.base import raise_first
from farcall.config.settings import Settings
from farcall.engine.delivered import Delivered, Wanted
from farcall.engine.fetcher import Fetcher, Room, no_bound
from farcall.engine.logs.relay import Relay, Writer
from farcall.engine.shared import Use
from farcall.engine.terminations import Terminations
from farcall.engine.tracked_job import Completion, Ended, IsFull, OnCompletion, is_unseen
from farcall.engine.tracker import Tracker
from farcall.model.submission import CommandSubmission, Submission
from farcall.payload.spill import where_needed
from farcall.storage.outcomes import failed_keys
from farcall.storage.store import Stores


class Services(NamedTuple):
    """Parts of a session that its groups use.

    Attributes:
        stores: The buckets.
        tracker: Tracks the tasks.
        fetcher: Fetches outcomes.
        relay: Prints the output of running tasks.
        terminations: Terminates jobs.
        on_failed: Called when a task has failed, because it may have missed a shared object.
    """

    stores: Stores
    tracker: Tracker
    fetcher: Fetcher
    relay: Relay
    terminations: Terminations
    on_failed: Callable[[], object]


Place: TypeAlias = "tuple[TaskGroup, int]"
"""A task: its job, and its index in it."""


class TaskGroup:
    """The tasks of one job.

    Args:
        services: The session's parts.
        job: The job. A command job is one task without an outcome.
        settings: Options of the job.
        use: The bundle's shared values, if any.
        is_own: Whether this session has submitted the job.

    Attributes:
        services: The session's parts.
        job: The job.
        settings: Options of the job.
        unfinished: Number of tasks that are not known to have finished.
        is_unseen: Whether the job can no longer be polled; it continues.
    """

    # Without a dict: a client can wait for 10,000 jobs.
    __slots__ = (
        "_ends",
        "_is_well",
        "_listeners",
        "_on_end",
        "_origins",
        "_restarted",
        "_uncollected",
        "_use",
        "is_unseen",
        "job",
        "services",
        "settings",
        "unfinished",
    )

    def __init__(
        self,
        services: Services,
        job: Submission | CommandSubmission,
        settings: Settings,
        use: Use | None = None,
        *,
        is_own: bool = False,
    ) -> None:
        self.services = services
        self.job = job
        self.settings = settings
        self.unfinished = job.size
        self.is_unseen = False
        self._use = use
        self._uncollected = job.size if is_own else 0
        self._is_well = True
        self._origins: dict[int, Place] = {}  # the failed tasks that run again as these
        self._restarted: list[int] = []
        self._on_end: OnCompletion | None = None
        self._listeners: dict[int, OnCompletion] = {}
        self._ends: dict[int, Completion] = {}  # before their listeners

    @property
    def submission(self) -> Submission:
        """The job, if its tasks store outcomes."""
        assert isinstance(self.job, Submission)  # noqa: S101 - for the type checker
        return self.job

    def id_of(self, index: int) -> str:
        """Return the ID of a task's job."""
        return self.submission.id_of(index)

    # --- tracking -----------------------------------------------------------------------------

    def track(self, on_end: OnCompletion | None = None, is_full: IsFull | None = None) -> None:
        """Track all tasks.

        Args:
            on_end: Called with each task's index and end; by default, see `follow`.
            is_full: Back-pressure; see `Tracker.watch`.
        """
        self._on_end = on_end
        tasks = range(self.job.size)
        self.services.tracker.watch(self.job, tasks, self.settings, self._record_end, is_full)

    def follow(self, index: int, on_end: OnCompletion) -> None:
        """Track one task, whose end is reported once."""
        end = self._ends.pop(index, None)
        if end is not None:
            on_end(index, end)
            return
        self._listeners[index] = on_end
        tracker = self.services.tracker
        if not tracker.is_watched(self.job.job_id, index, self._record_end):
            tracker.watch(self.job, [index], self.settings, self._record_end)

    def leave(self) -> None:
        """Stop tracking and printing; the job continues."""
        self.services.tracker.unwatch(self.job.job_id, self._record_end)
        if isinstance(self.job, Submission):
            self.services.relay.leave(self.job, range(self.job.size))

    def _record_end(self, index: int, end: Completion) -> None:
        if isinstance(end, Ended) and end.error is not None:  # it may still run
            self.is_unseen = self.is_unseen or is_unseen(end.error)
        else:
            self.unfinished -= 1
        listener = self._on_end or self._listeners.pop(index, None)
        if listener is None:
            self._ends[index] = end
        else:
            listener(index, end)

    # --- output, results, cancellation --------------------------------------------------------

    def print(self, labels: Mapping[int, str], writer: Writer) -> None:
        """Print the output of tasks while they run, with a label for each index."""
        self.services.relay.follow(self.submission, labels, writer)

    def stop_printing(self, indexes: Iterable[int]) -> None:
        """Stop printing the output of tasks."""
        self.services.relay.leave(self.submission, indexes)

    async def deliver(
        self, index: int, end: Completion, wanted: Wanted, room: Room = no_bound
    ) -> Delivered:
        """Fetch the outcome of a finished task, which stays in the bucket until `discard`.

        Args:
            index: Index of the task.
            end: The tracker's report of the end.
            wanted: Parts of the outcome to fetch.
            room: Waits before anything except the outcome is fetched.

        Raises:
            ServiceError: S3 refused a request.
        """
        if wanted.folder_for is None:
            wanted = replace(wanted, folder_for=where_needed(self.settings.cache_dir))
        keep = wanted.keep
        if keep is not None:
            wanted = replace(wanted, read=keep.reading(wanted.read))
        delivered = await self.services.fetcher.deliver(self.submission, index, end, wanted, room)
        if keep is not None:
            await keep.store(self.submission, index, end, delivered)
        await self.services.relay.finish(self.submission, index, delivered)
        return delivered

    def record_restart(self, index: int, place: Place) -> None:
        """Record that a failed task runs again; it is settled together with its new task."""
        group, number = place
        group._origins[number] = self, index
        self._restarted.append(index)

    def discard(self, index: int, deletable: list[str], output: Iterable[str] = ()) -> None:
        """Delete the objects of a task whose result was collected; the last task ends the bundle.

        The objects of a failed task are kept for diagnosis, and its bundle with them, unless the
        task has run again and succeeded. If the process is killed before that,
        `farcall.BatchExecutor.recover` finds the objects again.

        Args:
            index: Index of the task.
            deletable: Keys of objects to delete; empty if the task failed. See `Delivered`.
            output: Keys of output that can still be requested, until the session closes.
        """
        where = self.submission.where
        store = self.services.stores.of(where.bucket)
        if deletable:
            store.delete_delivered(self.submission, index, deletable)
            store.delete_at_close(output)
        else:
            if self._use is not None:
                self._use.doubt()
            self.services.on_failed()
        self._settle(index, is_well=bool(deletable))

    def _settle(self, index: int, *, is_well: bool) -> None:
        """Record that a task's result was collected; the last one ends the bundle."""
        where = self.submission.where
        self._is_well = self._is_well and is_well
        self._uncollected -= 1
        if not self._uncollected:
            store = self.services.stores.of(where.bucket)
            failed = frozenset(self._restarted)
            failures = partial(failed_keys, store, self.submission, failed) if failed else None
            store.end_bundle(where, delete=self._is_well, failures=failures)
            if self._is_well and self._use is not None:
                self._use.release()
        origin = self._origins.pop(index, None)
        if origin is not None:
            group, number = origin
            group._settle(number, is_well=is_well)

    async def cancel(self, reason: str, indexes: Iterable[int] | None = None) -> None:
        """Terminate tasks, by default all.

        Raises:
            ServiceError: The platform refused the call.
        """
        ids = [self.job.job_id]
        if indexes is not None:
            ids = [self.submission.id_of(index) for index in indexes]
        raise_first(await self.services.terminations.end(ids, reason))
