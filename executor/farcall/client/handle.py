"""Job handle: a job that is followed to its end, without what comes of it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from farcall.engine.session import Session
from farcall.engine.watch import Arrival, ClosedError, Ended
from farcall.model.errors import FarcallError
from farcall.model.jobs import JobDetail, JobStatus
from farcall.model.settings import Settings
from farcall.model.submission import Submission
from farcall.storage.store import Arrived


class Handle:
    """One task's job: an AWS Batch job, or one child of an array job.

    Args:
        job_id: The job's ID.
        settings: The options.
        session: Gives the running event loop's session.
        place: The submission it is part of, and its number there, where they are known.
        on_end: Is told of its end.

    Attributes:
        id: The job's ID.
    """

    def __init__(
        self,
        job_id: str,
        settings: Settings,
        session: Callable[[], Awaitable[Session]],
        place: tuple[Submission, int] | None,
        on_end: Callable[[str], None],
    ) -> None:
        self.id = job_id
        self._settings = settings
        self._session = session
        self._place = place
        self._on_end = on_end
        self._followed = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._arrival: Arrival | None = None
        # Plain futures, one for each wait: ten thousand jobs are waited for in little memory.
        self._waits: list[asyncio.Future[Arrival]] = []

    def __repr__(self) -> str:
        return f"<Job {self.id}{' done' if self.done() else ''}>"

    @property
    def name(self) -> str:
        """The job's name, which begins with the function's; empty where it is not known yet.

        Of a job that was attached to it is known once something was asked about it.
        """
        return self._place[0].name if self._place is not None else ""

    def done(self) -> bool:
        """Tell whether the job's end is known here; it asks nobody."""
        return self._arrival is not None

    async def wait(self) -> None:
        """Wait for the job's end; what came of it is fetched when it is asked for.

        Raises:
            ServiceError: AWS refused a call.
        """
        while True:
            self.watch(*await self._find())
            if not was_closed(await self._arrived()):
                return

    async def status(self) -> JobStatus:
        """Ask Batch for the job's status. Asking for many jobs at once shares calls.

        Raises:
            JobLostError: Batch does not know the job.
            ServiceError: Batch refused the call.
        """
        return (await self.detail()).status

    async def detail(self) -> JobDetail:
        """Ask Batch for everything it says of the job: status, reasons, times, log stream.

        Raises:
            JobLostError: Batch does not know the job.
            ServiceError: Batch refused the call.
        """
        return await (await self._session()).describe(self.id)

    async def cancel(self, reason: str = "cancelled by its owner") -> None:
        """End the job, whatever it is doing; a job that has ended stays as it is.

        The task's process gets SIGTERM, 20 seconds to clean up, then SIGKILL. `result` raises
        `JobCancelledError` afterwards.

        Args:
            reason: Kept by Batch, up to some 1000 characters.

        Raises:
            ServiceError: Batch refused the call.
        """
        session = await self._session()
        await session.terminations.soon(self.id, reason)

    async def _find(self) -> tuple[Session, Submission, int]:
        session = await self._session()
        if self._place is None:
            self._place = Submission.of(await session.describe(self.id))
        return session, *self._place

    def note_outcome(self, arrived: Arrived) -> None:
        """Take in that the job's outcome was seen in the bucket."""
        self._tell(arrived.index, arrived)

    def watch(self, session: Session, submission: Submission, index: int) -> None:
        """Have the tracker follow the job, whether or not somebody waits for its result yet.

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
            session.tracker.watch(submission, [index], self._settings, self._tell)

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
    """Tell whether it is the tracker that ended, and not the job.

    Raises:
        FarcallError: The job could not be looked for; it goes on.
    """
    error = arrived.error if isinstance(arrived, Ended) else None
    if error is not None and not isinstance(error, ClosedError):
        raise error
    return error is not None
