"""Runs: one task of a group, whose end and outcome any number of callers wait for.

If tracking or fetching fails, the next caller that waits tries again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

from farcall.aws import error_translation
from farcall.backends.base import raise_first
from farcall.config.settings import Settings
from farcall.engine.delivered import Delivered, Output, Wanted
from farcall.engine.group import Place, TaskGroup
from farcall.engine.second_chances import Chance, add_attempts, is_due
from farcall.engine.session import Session, session_for
from farcall.engine.submitter import Planned
from farcall.engine.tracked_job import ClosedError, Completion, Ended, RetryBudget, UnseenError
from farcall.model.errors import FarcallError, ServiceError
from farcall.model.jobs import JobDetail
from farcall.model.submission import CommandSubmission, Submission
from farcall.model.workflows import NodeOf, Workflow
from farcall.payload.pickling import Packed
from farcall.payload.results import Result
from farcall.storage.store import Arrived

_log = logging.getLogger("farcall")

_WANTED = Wanted()

_FETCH_AGAIN_S = 5.0
"""Interval in seconds before a failed fetch is repeated."""


class JobRun(ABC):
    """A job that this process tracks: a single job, an array task or a command job.

    While the job is unfinished, only one event loop at a time can wait for a run. Afterwards
    every loop can use it.

    Args:
        job_id: The job's ID; for an array task ``"<array job>:<index>"``.
        settings: Options of the job.
        on_end: Called when the end is known.
    """

    joined_by: ClassVar[str] = "attach"
    """Method of `BatchExecutor` that creates a run for a job ID."""

    # Without a dict, and with plain futures: a client can wait for 10,000 jobs.
    __slots__ = (
        "__weakref__",
        "_arrival",
        "_group",
        "_loop",
        "_on_end",
        "_tracked",
        "_waits",
        "id",
        "settings",
    )

    def __init__(
        self, job_id: str, settings: Settings, on_end: Callable[[JobRun], None] | None = None
    ) -> None:
        self.id = job_id
        self.settings = settings
        self._on_end = on_end
        self._tracked = False
        self._group: TaskGroup | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._arrival: Completion | None = None
        self._waits: list[asyncio.Future[Completion]] = []

    @property
    @abstractmethod
    def name(self) -> str:
        """The job's name; empty if it is not known yet."""

    @property
    def is_completed(self) -> bool:
        """Whether this process knows the job's end."""
        return self._arrival is not None

    async def session(self) -> Session:
        """Return the running event loop's session.

        Raises:
            SettingsError: The profile or the credentials file does not exist.
            ServiceError: There are no credentials.
        """
        return await session_for(self.settings)

    @abstractmethod
    async def find(self) -> tuple[Session, Submission | CommandSubmission, int]:
        """Return the session, the submission and the task's index in it.

        Raises:
            JobLostError: Batch does not know the job.
            FarcallError: farcall did not submit the job.
            ServiceError: AWS refused a call.
        """

    async def detail(self) -> JobDetail:
        """Return Batch's current description of the job; concurrent calls share requests.

        Raises:
            JobLostError: Batch does not know the job.
            ServiceError: Batch refused the call.
        """
        return await (await self.session()).describe(self.id)

    async def cancel(self, reason: str) -> None:
        """Terminate the job on all its nodes.

        Raises:
            ServiceError: Batch refused the call.
        """
        session = await self.session()
        raise_first(await session.terminations.end([self.id], reason))

    async def end(self, reason: str) -> bool:
        """Terminate the job, or log that it may still run; return whether it was terminated.

        Raises:
            ServiceError: There are no credentials.
        """
        session = await self.session()
        return await session.terminations.end_one(self.id, reason)

    def watch(
        self, session: Session, submission: Submission | CommandSubmission, index: int
    ) -> None:
        """Track the job, even if no caller waits for it yet.

        Raises:
            FarcallError: Another event loop tracks the job and would not wake this one.
        """
        here = asyncio.get_running_loop()
        if self._loop is not here:
            if self._loop is not None and not self._loop.is_closed():
                raise FarcallError(
                    f"job {self.id} is being awaited on another event loop. Call "
                    f"{self.joined_by}({self.id!r}) to get a handle for this one."
                )
            self._loop, self._tracked, self._waits = here, False, []
        if self._arrival is None and not self._tracked:
            self._tracked = True
            self._group_of(session, submission).follow(index, self._complete)

    async def wait(self) -> Completion:
        """Wait for the job's end.

        Raises:
            FarcallError: Tracking failed for too long; the job continues.
        """
        while self._arrival is None:
            self.watch(*await self.find())
            arrival = await self._arrived()
            if not _was_closed(arrival):
                return arrival
        return self._arrival

    def _group_of(self, session: Session, submission: Submission | CommandSubmission) -> TaskGroup:
        """Return the job's group in a session, for a run that may outlive its session."""
        if self._group is None or self._group.services is not session.services:
            self._group = TaskGroup(session.services, submission, self.settings)
        return self._group

    def _complete(self, _index: int, arrival: Completion) -> None:
        if isinstance(arrival, Ended) and arrival.error is not None:
            self._tracked = False  # the job continues; the next caller tracks it again
        else:
            self._arrival = arrival
            if self._is_final:
                self.record_end()
        for wait in self._waits:
            if not wait.done():
                wait.set_result(arrival)

    @property
    def _is_final(self) -> bool:
        """Whether the job's end is the end of the run."""
        return True

    def record_end(self) -> None:
        """Notify the owner that the run has finished."""
        if self._on_end is not None:
            self._on_end(self)

    async def _arrived(self) -> Completion:
        """Wait for the tracker's next report of this job."""
        if self._arrival is not None:
            return self._arrival
        wait: asyncio.Future[Completion] = asyncio.get_running_loop().create_future()
        waits = self._waits
        waits.append(wait)
        try:
            return await wait
        finally:
            waits.remove(wait)


def _was_closed(arrival: Completion) -> bool:
    """Return whether the tracker was closed, and the job continues.

    Raises:
        FarcallError: Tracking failed; the job continues.
    """
    error = arrival.error if isinstance(arrival, Ended) else None
    if error is not None and not isinstance(error, ClosedError):
        raise error
    return error is not None


class CommandRun(JobRun):
    """A command job.

    Args:
        job_id: The job's ID.
        settings: Options of the job.
        place: The submission; by default Batch is called.
        on_end: Called when the end is known.
    """

    joined_by: ClassVar[str] = "attach_command"

    __slots__ = ("_place",)

    def __init__(
        self,
        job_id: str,
        settings: Settings,
        place: CommandSubmission | None = None,
        on_end: Callable[[JobRun], None] | None = None,
    ) -> None:
        super().__init__(job_id, settings, on_end)
        self._place = place

    @property
    def name(self) -> str:
        """The job's name; empty if it is not known yet."""
        return self._place.name if self._place is not None else ""

    async def find(self) -> tuple[Session, CommandSubmission, int]:
        """Return the session and the submission, whose only task has index 0.

        Raises:
            JobLostError: Batch does not know the job.
            UnknownError: The job is not a command job submitted by farcall.
            ServiceError: AWS refused a call.
        """
        session = await self.session()
        if self._place is None:
            self._place = CommandSubmission.of(await session.describe(self.id))
        return session, self._place, 0


class PackedCall(NamedTuple):
    """The pickled function call of a task.

    Attributes:
        name: Name of the function.
        function: The pickled function.
        arguments: The pickled arguments.
    """

    name: str
    function: Packed
    arguments: Packed


class TaskRun(JobRun):
    """One task: a single job or an array task.

    Args:
        job_id: The job's ID; for an array task ``"<array job>:<index>"``.
        settings: Options of the job.
        place: The task's submission and its index in it; by default Batch is called.
        wanted: Parts of the outcome to fetch.
        on_end: Called when the end is known.
        on_discarded: Called when the result was returned and is being deleted from the bucket.
    """

    is_cached: ClassVar[bool] = False
    """Whether the result came from the cache, without a job."""

    __slots__ = (
        "_delivery",
        "_is_cancelled",
        "_is_discarded",
        "_label",
        "_moving",
        "_on_discarded",
        "_place",
        "wanted",
    )

    def __init__(
        self,
        job_id: str,
        settings: Settings,
        place: tuple[Submission, int] | None = None,
        *,
        wanted: Wanted = _WANTED,
        on_end: Callable[[JobRun], None] | None = None,
        on_discarded: Callable[[], None] | None = None,
    ) -> None:
        super().__init__(job_id, settings, on_end)
        self.wanted = wanted
        self._place = place
        self._on_discarded = on_discarded
        self._delivery: asyncio.Task[Delivered] | None = None
        self._is_cancelled = False
        self._is_discarded = False
        self._label = ""  # while the output is printed
        self._moving: asyncio.Task[Chance | None] | None = None

    @classmethod
    async def submit(
        cls,
        session: Session,
        call: PackedCall,
        settings: Settings,
        wanted: Wanted = _WANTED,
        *,
        on_end: Callable[[JobRun], None] | None = None,
        planned: Planned | None = None,
        workflow: Workflow | None = None,
        node: NodeOf | None = None,
    ) -> TaskRun:
        """Submit a task together with others that arrive within ``linger_s``; track it.

        Args:
            session: The session.
            call: The function call.
            settings: Options of the job.
            wanted: Parts of the outcome to fetch.
            on_end: Called when the task has finished.
            planned: See `Submitter.submit`.
            workflow: Workflow of the job.
            node: Node of the Covalent workflow.

        Raises:
            SettingsError: A resource that the options name does not exist.
            SubmissionError: Batch refused the job.
            ServiceError: AWS refused a call.
        """
        with session.at_work():
            submitter = await session.submitter(settings)
            group, index = await submitter.submit(
                settings, call.name, call.function, call.arguments, planned, workflow, node
            )
            return cls.of_group(group, index, settings, wanted, on_end)

    @classmethod
    def of_group(
        cls,
        group: TaskGroup,
        index: int,
        settings: Settings,
        wanted: Wanted,
        on_end: Callable[[JobRun], None] | None = None,
    ) -> TaskRun:
        """Return the run of one task of a submitted group."""
        submission = group.submission
        run = cls(
            submission.id_of(index), settings, (submission, index), wanted=wanted, on_end=on_end
        )
        run._group, run._loop, run._tracked = group, asyncio.get_running_loop(), True
        group.follow(index, run._complete)
        if not run._is_final:  # tasks that fail together run again together
            run._delivery = asyncio.ensure_future(run._deliver_at_end())
            run._delivery.add_done_callback(lambda done: done.cancelled() or done.exception())
        return run

    @property
    def name(self) -> str:
        """The job's name; empty if it is not known yet."""
        return self._place[0].name if self._place is not None else ""

    @property
    def place(self) -> Place | None:
        """The task's job in this session and its index in it, once it is tracked."""
        return (
            None if self._group is None or self._place is None else (self._group, self._place[1])
        )

    @property
    def is_completed(self) -> bool:
        """Whether this process knows the task's end; with second chances, also its outcome."""
        return super().is_completed and (self._is_final or self._fetched() is not None)

    async def find(self) -> tuple[Session, Submission, int]:
        """Return the session, the task's submission and its index in it.

        Raises:
            JobLostError: Batch does not know the job.
            FarcallError: farcall did not submit the job.
            ServiceError: AWS refused a call.
        """
        session = await self.session()
        if self._place is None:
            whole = self.id.removesuffix("#0")  # the main node ends the job
            self._place = Submission.of(await session.describe(whole))
        return session, *self._place

    def record_outcome(self, arrived: Arrived) -> None:
        """Record that the task's outcome was found in the bucket."""
        self._complete(arrived.index, arrived)

    def watch(
        self, session: Session, submission: Submission | CommandSubmission, index: int
    ) -> None:
        """Track the task, even if no caller waits for it yet.

        Raises:
            FarcallError: Another event loop tracks the task and would not wake this one, or the
                run is for one node of a multi-node task.
        """
        if isinstance(submission, Submission) and submission.is_other_node(index):
            raise FarcallError(
                f"{self.id} is one node of job {submission.job_id}. Use {submission.job_id}, "
                "which returns the results of all nodes."
            )
        super().watch(session, submission, index)

    async def delivered(self) -> Delivered:
        """Wait until the task has finished, and return its outcome, which is fetched once.

        Raises:
            ServiceError: AWS refused a call.
        """
        delivery = self._delivery
        if delivery is not None and not delivery.done():
            self.watch(*await self.find())  # raises on another event loop
            if delivery.get_loop() is not asyncio.get_running_loop():
                delivery = self._delivery = None
        while delivery is None or _has_failed(delivery):
            session, submission, index = await self.find()
            self.watch(session, submission, index)
            arrival = await self._arrived()
            delivery = self._delivery  # another caller may have started it meanwhile
            if not _was_closed(arrival) and (delivery is None or _has_failed(delivery)):
                fetching = self._fetch(session, submission, index, arrival)
                delivery = self._delivery = asyncio.ensure_future(fetching)
                break
        return await asyncio.shield(delivery)

    async def delivered_patiently(self, on_trouble: Callable[[str], None]) -> Delivered:
        """Return the outcome as `delivered` does, and repeat a failed fetch for some minutes.

        Args:
            on_trouble: Called with why the end is unknown, and with "" when it is known again.

        Raises:
            ServiceError: AWS refused a call; the results stay in the bucket.
        """
        session = await self.session()
        trouble = session.tracker.trouble
        budget = RetryBudget(trouble, session.timing)
        with trouble.notifying(on_trouble):
            try:
                while True:
                    try:
                        return await self.delivered()
                    except ServiceError as error:
                        if isinstance(error, UnseenError):
                            raise
                        passes = error_translation.may_pass(error)
                        passes = passes or error_translation.is_of_credentials(error)
                        if not (passes and budget.record_failure(error)):
                            kept = f"the stored results of job {self.id} are kept"
                            raise error_translation.with_text(error, f"{error}; {kept}") from error
                    await asyncio.sleep(_FETCH_AGAIN_S)
            finally:
                budget.end()

    async def results(self) -> list[Result]:
        """Wait until the task has finished, and collect the result of each call.

        The collected result is deleted from the bucket, unless ``keep_artifacts`` is set.

        Raises:
            ServiceError: AWS refused a call.
        """
        async with self._printed():
            delivered = await self.delivered()
        await self.discard(delivered)
        return delivered.results

    async def discard(self, delivered: Delivered, settings: Settings | None = None) -> None:
        """Delete the collected result from the bucket.

        Output that was not fetched is kept until the session closes, if a caller can request it.

        Args:
            delivered: The outcome.
            settings: Options with another ``keep_artifacts``; by default the job's.
        """
        settings = settings or self.settings
        if self._is_discarded or settings.keep_artifacts:
            return
        self._is_discarded = True
        if self.wanted.output is not Output.NONE and not delivered.is_whole:
            await self.discard_keys(delivered.deletable, delivered.output)
        else:
            await self.discard_keys(delivered.all_deletable)
        if delivered.deletable and self._on_discarded is not None:
            self._on_discarded()

    async def wait(self) -> Completion:
        """Wait for the task's end, or that of its last second chance.

        Raises:
            FarcallError: Tracking failed for too long; the job continues.
        """
        arrival = await super().wait()
        if self._is_final:
            return arrival
        await self.delivered()
        return await super().wait()

    async def cancel(self, reason: str) -> None:
        """Terminate the job, and give it no second chance.

        Raises:
            ServiceError: Batch refused the call.
        """
        self.end_chances()
        await super().cancel(reason)

    def end_chances(self) -> None:
        """Give the task no second chance any more, because its caller leaves."""
        self._is_cancelled = True
        if self._moving is not None:
            self._moving.cancel()

    async def discard_keys(self, deletable: list[str], output: Sequence[str] = ()) -> None:
        """Delete objects of the collected task; see `TaskGroup.discard`."""
        try:
            session, submission, index = await self.find()
        except FarcallError as error:  # a lifecycle rule deletes them
            _log.warning("delivered objects may remain in the bucket: %s", error)
        else:
            self._group_of(session, submission).discard(index, deletable, output)

    def kept(self) -> Delivered | None:
        """Return the fetched outcome, if its objects may be deleted from the bucket."""
        delivered = self._fetched()
        return delivered if delivered is not None and delivered.deletable else None

    async def retry(self, options: Mapping[str, Any]) -> TaskRun:
        """Run the failed task again; see `farcall.Job.retry`.

        Raises:
            NothingToRetryError: No task can run again.
            SettingsError: A value is wrong, or a retry cannot change the option.
            SubmissionError: Batch did not accept the job.
            ServiceError: AWS refused a call.
        """
        session = await self.session()
        group, index = await session.retries.run(
            self.settings, self.id, options, has_ended=self.is_completed
        )
        return TaskRun.of_group(group, index, group.settings, self.wanted)

    def _fetched(self) -> Delivered | None:
        delivery = self._delivery
        if delivery is None or not delivery.done() or _has_failed(delivery):
            return None
        return delivery.result()

    async def _fetch(
        self, session: Session, submission: Submission, index: int, arrival: Completion
    ) -> Delivered:
        """Fetch the outcome; a task with a second chance is followed to its next job."""
        group = self._group_of(session, submission)
        attempts: list[str] = []
        while True:
            delivered = await group.deliver(index, arrival, self.wanted)
            chance = await self._take_chance(session, group, index, delivered)
            if chance is None or chance.place is None:
                add_attempts(delivered, attempts, chance)
                if not self._is_final:
                    self.record_end()
                return delivered
            attempts.append(chance.attempt)
            group, index = chance.place
            arrival = await self._follow(group, index)

    async def _deliver_at_end(self) -> Delivered:
        arrival = await self._arrived()
        if _was_closed(arrival):
            raise ClosedError("the session was closed")  # the next caller tries again
        session, submission, index = await self.find()
        return await self._fetch(session, submission, index, arrival)

    async def _take_chance(
        self, session: Session, group: TaskGroup, index: int, delivered: Delivered
    ) -> Chance | None:
        if self._is_cancelled or not is_due(group.settings.ladders, delivered):
            return None
        self._moving = asyncio.ensure_future(session.chances.take(group, index, delivered))
        try:
            return await self._moving
        except FarcallError as error:
            _log.warning("%s", error)
        except asyncio.CancelledError:
            if not self._is_cancelled:
                raise
        finally:
            self._moving.cancel()
            self._moving = None
        return None

    async def _follow(self, group: TaskGroup, index: int) -> Completion:
        """Wait for the end of the task's next job."""
        self.id, self._place = group.submission.id_of(index), (group.submission, index)
        self._group, self._arrival, self._tracked = group, None, True
        if self._label and self.wanted.writer is not None:
            group.print({index: self._label}, self.wanted.writer)
        group.follow(index, self._complete)
        while True:
            arrival = await self._arrived()
            if not _was_closed(arrival):
                return arrival
            self.watch(*await self.find())

    @property
    def _is_final(self) -> bool:
        return not any(self.settings.ladders)

    @contextlib.asynccontextmanager
    async def _printed(self) -> AsyncIterator[None]:
        """Print the task's output while the block runs, if the run has a writer."""
        if self.wanted.writer is None:
            yield
            return
        session, submission, index = await self.find()
        name = self.name.rpartition("-")[0] or self.name
        self._label = f"{name}[{index}]" if submission.size > 1 else name
        self._group_of(session, submission).print({index: self._label}, self.wanted.writer)
        try:
            yield
        finally:
            session, submission, index = await self.find()  # possibly a second chance
            self._label = ""
            self._group_of(session, submission).stop_printing([index])


def _has_failed(delivery: asyncio.Task[Delivered]) -> bool:
    """Return whether fetching failed and must be repeated."""
    return delivery.done() and (delivery.cancelled() or delivery.exception() is not None)
