"""Task handle: one task, from its submission to its end, and what came of it, fetched once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeAlias

from farcall.engine.delivered import Delivered
from farcall.engine.session import Session, session_for
from farcall.engine.submitter import Planned
from farcall.engine.watch import Arrival, ClosedError, Ended
from farcall.model.errors import FarcallError
from farcall.model.settings import Settings
from farcall.model.submission import Submission
from farcall.model.workflows import NodeOf, Workflow
from farcall.payload.pickling import Packed
from farcall.storage.store import Arrived

Pack: TypeAlias = Callable[[Session], Awaitable[tuple[Packed, Packed]]]
"""Pickles a task's function and its arguments."""

Fetch: TypeAlias = Callable[[Session, Submission, int, Arrival], Awaitable[Delivered]]
"""Fetches what came of a task of a job, given its number there and how it ended."""


def _tell_nobody(_job_id: str) -> None: ...


class TaskHandle:
    """One task: an AWS Batch job, or one child of an array job.

    One event loop at a time waits by a handle. Once that has ended, or what came of the task is
    there, any loop will do.

    Args:
        job_id: The job's ID; an array child's is ``"<parent>:<index>"``.
        settings: The options.
        place: The task's submission and its number there; without it Batch is asked.
        on_end: Is told the job's ID when its end is known.

    Attributes:
        id: As the argument.
        settings: As the argument.
    """

    __slots__ = (
        "_arrival",
        "_delivery",
        "_followed",
        "_loop",
        "_on_end",
        "_place",
        "_waits",
        "id",
        "settings",
    )

    def __init__(
        self,
        job_id: str,
        settings: Settings,
        place: tuple[Submission, int] | None = None,
        on_end: Callable[[str], None] = _tell_nobody,
    ) -> None:
        self.id = job_id
        self.settings = settings
        self._place = place
        self._on_end = on_end
        self._followed = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._arrival: Arrival | None = None
        # Plain futures, one for each wait: ten thousand jobs are waited for in little memory.
        self._waits: list[asyncio.Future[Arrival]] = []
        self._delivery: asyncio.Task[Delivered] | None = None

    @property
    def name(self) -> str:
        """The job's name; empty where it is not known yet."""
        return self._place[0].name if self._place is not None else ""

    @property
    def has_ended(self) -> bool:
        """Whether the task's end is known here."""
        return self._arrival is not None

    async def session(self) -> Session:
        """Return the running event loop's session.

        Raises:
            SettingsError: The profile or the credentials file does not exist.
            ServiceError: There are no credentials.
        """
        return await session_for(self.settings)

    async def find(self) -> tuple[Session, Submission, int]:
        """Return the session, the task's submission and its number there.

        Raises:
            JobLostError: Batch does not know the job.
            FarcallError: farcall did not submit it.
            ServiceError: AWS refused a call.
        """
        session = await self.session()
        if self._place is None:
            self._place = Submission.of(await session.describe(self.id))
        return session, *self._place

    def note_outcome(self, arrived: Arrived) -> None:
        """Take in that the task's outcome was seen in the bucket."""
        self._tell(arrived.index, arrived)

    def watch(self, session: Session, submission: Submission, index: int) -> None:
        """Have the tracker follow the task, whether or not somebody waits for it yet.

        Raises:
            FarcallError: Another event loop follows it, which would wake nobody here.
        """
        here = asyncio.get_running_loop()
        if self._loop is not here:
            if self._loop is not None and not self._loop.is_closed():
                raise FarcallError(
                    f"job {self.id} is waited for on another event loop; "
                    f"attach({self.id!r}) gives a handle for this one"
                )
            self._loop, self._followed, self._waits = here, False, []
        if self._arrival is None and not self._followed:
            self._followed = True
            session.tracker.watch(submission, [index], self.settings, self._tell)

    async def wait(self) -> None:
        """Wait for the task's end.

        Raises:
            FarcallError: It could not be looked for any longer; the task goes on.
        """
        while True:
            self.watch(*await self.find())
            if not _was_closed(await self._arrived()):
                return

    async def delivered(self, fetch: Fetch) -> Delivered:
        """Wait for the task's end, and return what came of it.

        Args:
            fetch: Fetches that; what it has once fetched is there for all who ask after that.
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
            if not _was_closed(arrived) and (delivery is None or _has_failed(delivery)):
                fetching = fetch(session, submission, index, arrived)
                delivery = self._delivery = asyncio.ensure_future(fetching)
                break
        return await asyncio.shield(delivery)

    def kept(self) -> Delivered | None:
        """Return what was delivered here, where its objects may be gone from the bucket."""
        delivery = self._delivery
        if delivery is None or not delivery.done() or _has_failed(delivery):
            return None
        delivered = delivery.result()
        return delivered if delivered.spent else None

    def _tell(self, _index: int, arrived: Arrival) -> None:
        if isinstance(arrived, Ended) and arrived.error is not None:
            self._followed = False  # the job goes on; whoever waits follows it anew
        else:
            self._arrival = arrived
            self._on_end(self.id)
        for wait in self._waits:
            if not wait.done():
                wait.set_result(arrived)

    async def _arrived(self) -> Arrival:
        """Wait for what the tracker tells of the task's end."""
        if self._arrival is not None:
            return self._arrival
        wait: asyncio.Future[Arrival] = asyncio.get_running_loop().create_future()
        waits = self._waits
        waits.append(wait)
        try:
            return await wait
        finally:
            waits.remove(wait)


async def submit(
    settings: Settings,
    name: str,
    pack: Pack,
    on_end: Callable[[str], None] = _tell_nobody,
    planned: Planned | None = None,
    workflow: Workflow | None = None,
    node: NodeOf | None = None,
) -> TaskHandle:
    """Submit a task, together with others that come within ``linger_s``, and follow it.

    Args:
        settings: The options.
        name: The function's name.
        pack: Pickles it and its arguments, once what the options name was found.
        on_end: Is told the job's ID when its end is known.
        planned: See `Submitter.submit`, as for the others.
        workflow: What it belongs to.
        node: Which of Covalent's nodes it is.

    Raises:
        TaskNotPicklableError: What ``pack`` raises.
        SettingsError: Something the options name does not exist.
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


def _was_closed(arrived: Arrival) -> bool:
    """Tell whether it is the tracker that ended, and not the task.

    Raises:
        FarcallError: The task could not be looked for; it goes on.
    """
    error = arrived.error if isinstance(arrived, Ended) else None
    if error is not None and not isinstance(error, ClosedError):
        raise error
    return error is not None


def _has_failed(delivery: asyncio.Task[Delivered]) -> bool:
    """Tell whether a delivery came to nothing and is to be tried again."""
    return delivery.done() and (delivery.cancelled() or delivery.exception() is not None)
