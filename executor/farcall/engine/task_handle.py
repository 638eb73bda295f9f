"""Task handle: one task from submission to its result, which is fetched once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeAlias

from farcall.engine.delivered import Delivered
from farcall.engine.job_handle import JobHandle, tell_nobody, was_closed
from farcall.engine.session import Session, session_for
from farcall.engine.submitter import Planned
from farcall.engine.watch import Arrival
from farcall.model.errors import FarcallError
from farcall.model.settings import Settings
from farcall.model.submission import CommandSubmission, Submission
from farcall.model.workflows import NodeOf, Workflow
from farcall.payload.pickling import Packed
from farcall.storage.store import Arrived

Pack: TypeAlias = Callable[[Session], Awaitable[tuple[Packed, Packed]]]
"""Pickles a task's function and arguments."""

Fetch: TypeAlias = Callable[[Session, Submission, int, Arrival], Awaitable[Delivered]]
"""Fetches the outcome of a task, given its index in the job and how it ended."""


class TaskHandle(JobHandle):
    """One task: a single job or an array task.

    While the task is unfinished, only one event loop at a time can wait for a handle. Afterwards
    every loop can use it.

    Args:
        job_id: The job's ID; for an array task ``"<parent>:<index>"``.
        settings: Options of the job.
        place: The task's submission and its index in it; by default Batch is called.
        on_end: Called with the job's ID when the task has finished.
    """

    __slots__ = ("_delivery", "_place")

    def __init__(
        self,
        job_id: str,
        settings: Settings,
        place: tuple[Submission, int] | None = None,
        on_end: Callable[[str], None] = tell_nobody,
    ) -> None:
        super().__init__(job_id, settings, on_end)
        self._place = place
        self._delivery: asyncio.Task[Delivered] | None = None

    @property
    def name(self) -> str:
        """The job's name; empty if it is not known yet."""
        return self._place[0].name if self._place is not None else ""

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

    def note_outcome(self, arrived: Arrived) -> None:
        """Record that the task's outcome was found in the bucket."""
        self._tell(arrived.index, arrived)

    def watch(
        self, session: Session, submission: Submission | CommandSubmission, index: int
    ) -> None:
        """Track the task, even if no caller waits for it yet.

        Raises:
            FarcallError: Another event loop tracks the task and would not wake this one, or the
                handle is for one node of a multi-node task.
        """
        if isinstance(submission, Submission) and submission.is_other_node(index):
            raise FarcallError(
                f"{self.id} is one node of job {submission.job_id}: that one gives the values of "
                "all nodes"
            )
        super().watch(session, submission, index)

    async def delivered(self, fetch: Fetch) -> Delivered:
        """Wait until the task has finished, and return its outcome.

        Args:
            fetch: Fetches the outcome; later callers get the same one.
        """
        delivery = self._delivery
        if delivery is not None and not delivery.done():
            self.watch(*await self.find())  # refuses where another loop is at it
            if delivery.get_loop() is not asyncio.get_running_loop():
                delivery = self._delivery = None
        while delivery is None or _has_failed(delivery):
            session, submission, index = await self.find()
            self.watch(session, submission, index)
            arrived = await self._arrived()
            delivery = self._delivery  # which another wait may have begun meanwhile
            if not was_closed(arrived) and (delivery is None or _has_failed(delivery)):
                fetching = fetch(session, submission, index, arrived)
                delivery = self._delivery = asyncio.ensure_future(fetching)
                break
        return await asyncio.shield(delivery)

    def kept(self) -> Delivered | None:
        """Return the fetched outcome, if its objects may be deleted from the bucket."""
        delivery = self._delivery
        if delivery is None or not delivery.done() or _has_failed(delivery):
            return None
        delivered = delivery.result()
        return delivered if delivered.spent else None


async def submit(
    settings: Settings,
    name: str,
    pack: Pack,
    on_end: Callable[[str], None] = tell_nobody,
    planned: Planned | None = None,
    workflow: Workflow | None = None,
    node: NodeOf | None = None,
) -> TaskHandle:
    """Submit a task, together with other tasks that arrive within ``linger_s``, and track it.

    Args:
        settings: Options of the job.
        name: Name of the function.
        pack: Pickles the function and its arguments, after the options were checked.
        on_end: Called with the job's ID when the task has finished.
        planned: See `Submitter.submit`.
        workflow: Workflow of the job.
        node: Node of the Covalent workflow.

    Raises:
        TaskNotPicklableError: Raised by ``pack``.
        SettingsError: A resource that the options name does not exist.
        SubmissionError: Batch refused the job.
        ServiceError: AWS refused a call.
    """
    session = await session_for(settings)
    with session.at_work():
        submitter = await session.submitter(settings)
        function, arguments = await pack(session)
        submission, index = await submitter.submit(
            settings, name, function, arguments, planned, workflow, node
        )
        session.cleaner.note_submission(submission)

        def note_end(job_id: str) -> None:
            session.terminations.note_end(submission, index)
            on_end(job_id)

        place = submission, index
        handle = TaskHandle(submission.id_of(index), settings, place, note_end)
        handle.watch(session, submission, index)
        return handle


def _has_failed(delivery: asyncio.Task[Delivered]) -> bool:
    """Return whether fetching failed and must be repeated."""
    return delivery.done() and (delivery.cancelled() or delivery.exception() is not None)
