"""Job handle: what the tracker tells of one job or task, for those who wait for its end here."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Callable
from typing import ClassVar

from farcall.engine.session import Session, session_for
from farcall.engine.watch import Arrival, ClosedError, Ended
from farcall.model.errors import FarcallError
from farcall.model.settings import Settings
from farcall.model.submission import CommandSubmission, Submission


def tell_nobody(_job_id: str) -> None:
    """Take in the end of a job that nobody else is told of."""


class JobHandle:
    """One job: a plain one, one child of an array, or a command job.

    One event loop at a time waits by a handle. Once that has ended, any loop will do.

    Args:
        job_id: The job's ID; an array child's is ``"<parent>:<index>"``.
        settings: The options.
        on_end: Is told the job's ID when its end is known.

    Attributes:
        id: As the argument.
        settings: As the argument.
    """

    joined_by: ClassVar[str] = "attach"
    """The executor's method that makes such a handle."""

    __slots__ = ("_arrival", "_followed", "_loop", "_on_end", "_waits", "id", "settings")

    def __init__(
        self, job_id: str, settings: Settings, on_end: Callable[[str], None] = tell_nobody
    ) -> None:
        self.id = job_id
        self.settings = settings
        self._on_end = on_end
        self._followed = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._arrival: Arrival | None = None
        # Plain futures, one for each wait: ten thousand jobs are waited for in little memory.
        self._waits: list[asyncio.Future[Arrival]] = []

    @property
    @abstractmethod
    def name(self) -> str:
        """The job's name; empty where it is not known yet."""

    @property
    def has_ended(self) -> bool:
        """Whether the job's end is known here."""
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
        """Return the session, the submission and the task's number there.

        Raises:
            JobLostError: Batch does not know the job.
            FarcallError: farcall did not submit it.
            ServiceError: AWS refused a call.
        """

    def watch(
        self, session: Session, submission: Submission | CommandSubmission, index: int
    ) -> None:
        """Have the tracker follow the job, whether or not somebody waits for it yet.

        Raises:
            FarcallError: Another event loop follows it, which would wake nobody here.
        """
        here = asyncio.get_running_loop()
        if self._loop is not here:
            if self._loop is not None and not self._loop.is_closed():
                raise FarcallError(
                    f"job {self.id} is waited for on another event loop; "
                    f"{self.joined_by}({self.id!r}) gives a handle for this one"
                )
            self._loop, self._followed, self._waits = here, False, []
        if self._arrival is None and not self._followed:
            self._followed = True
            session.tracker.watch(submission, [index], self.settings, self._tell)

    async def wait(self) -> Arrival:
        """Wait for the job's end, and return what is told of it.

        Raises:
            FarcallError: It could not be looked for any longer; the job goes on.
        """
        while self._arrival is None:
            self.watch(*await self.find())
            arrived = await self._arrived()
            if not was_closed(arrived):
                return arrived
        return self._arrival

    def _tell(self, _index: int, arrived: Arrival) -> None:
        if isinstance(arrived, Ended) and arrived.error is not None:
            self._followed = False  # the job goes on; whoever waits follows it again
        else:
            self._arrival = arrived
            self._on_end(self.id)
        for wait in self._waits:
            if not wait.done():
                wait.set_result(arrived)

    async def _arrived(self) -> Arrival:
        """Wait for what the tracker tells of the job's end."""
        if self._arrival is not None:
            return self._arrival
        wait: asyncio.Future[Arrival] = asyncio.get_running_loop().create_future()
        waits = self._waits
        waits.append(wait)
        try:
            return await wait
        finally:
            waits.remove(wait)


def was_closed(arrived: Arrival) -> bool:
    """Return whether it is the tracker that ended, and not the job.

    Raises:
        FarcallError: The job could not be looked for; it goes on.
    """
    error = arrived.error if isinstance(arrived, Ended) else None
    if error is not None and not isinstance(error, ClosedError):
        raise error
    return error is not None
