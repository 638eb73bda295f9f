"""A handle on one task that was submitted."""

from __future__ import annotations

import asyncio
import codecs
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Generic, Literal, TypeVar

from farcall import logs
from farcall.delivery import Delivered, Usage
from farcall.errors import JobLostError
from farcall.session import Session
from farcall.settings import Settings
from farcall.states import JobDetail, JobStatus
from farcall.submission import Submission
from farcall.watching import Arrival, ClosedError, Ended
from farcall_runtime.contract import STDERR, STDOUT, STREAMS

R = TypeVar("R")

_FOLLOW_S = 1.0


class Job(Generic[R]):
    """One task: an AWS Batch job, or one child of an array job.

    Made by `Task.submit`, `BatchExecutor.submit` and `BatchExecutor.attach`. A handle is bound
    to the event loop it was made on.

    Attributes:
        id: The job's ID, such as ``"6f1c…"``; an array child's is ``"<parent>:<index>"``.
    """

    def __init__(
        self,
        job_id: str,
        settings: Settings,
        session: Callable[[], Awaitable[Session]],
        place: tuple[Submission, int] | None = None,
        on_end: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.id = job_id
        self._settings = settings
        self._session = session
        self._place = place
        self._on_end = on_end
        self._followed = False
        self._arrival: Arrival | None = None
        # Plain futures, one for each wait: ten thousand jobs are waited for in little memory.
        self._waits: list[asyncio.Future[Arrival]] = []
        self._delivery: asyncio.Task[Delivered] | None = None

    def __repr__(self) -> str:
        return f"<Job {self.id}{' done' if self.done() else ''}>"

    async def result(self) -> R:
        """Wait for the job's end and return the function's value.

        Cancelling the wait leaves the job running; `cancel` ends the job. Waiting again gives
        the same value, or raises the same error, without asking AWS again.

        The job of a ``map`` with a ``chunksize`` gives the values of its calls as a list.

        Raises:
            Exception: What the function raised, with the remote traceback as a note.
            JobError: The job ended badly; its class says how.
            OutcomeError: The job ended, and its answer cannot be used.
            ServiceError: AWS refused a call.
        """
        values = [result.unwrap() for result in (await self._delivered()).results]
        value: R = values if len(values) > 1 else values[0]  # type: ignore[assignment]
        return value

    async def exception(self) -> BaseException | None:
        """Wait for the job's end and return what `result` would raise, or None.

        Raises:
            ServiceError: AWS refused a call.
        """
        errors = (result.error for result in (await self._delivered()).results)
        return next((error for error in errors if error is not None), None)

    def done(self) -> bool:
        """Tell whether the job's end is known here; it asks nobody."""
        return self._arrival is not None

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
        return await self._describe(await self._session())

    async def usage(self) -> Usage:
        """Wait for the job's end and return what it used: time, CPU, peak memory.

        Raises:
            ServiceError: AWS refused a call.
        """
        return (await self._delivered()).usage

    async def stdout(self) -> str:
        """Return what the task has written to stdout, up to now or in all, as UTF-8.

        Bytes that are no UTF-8 appear as U+FFFD.

        Raises:
            ServiceError: AWS refused a call.
        """
        return await self._output(STDOUT)

    async def stderr(self) -> str:
        """Return what the task has written to stderr; see `stdout`.

        Raises:
            ServiceError: AWS refused a call.
        """
        return await self._output(STDERR)

    async def logs(
        self, *, follow: bool = False, stream: Literal["stdout", "stderr"] | None = None
    ) -> AsyncIterator[str]:
        """Yield the lines the task has written, without their line ends.

        While the task runs, the container stores output about every two seconds, after some five
        minutes of steady output every ten.

        Args:
            follow: Go on until the job's end.
            stream: Only this one; by default both, in the order in which they were stored.

        Raises:
            ServiceError: AWS refused a call.
        """
        wanted = _wanted(stream)
        lines = _Lines()
        async for attempt, name, data in self._chunks(follow=follow):
            if name in wanted:
                for line in lines.add(name, data, attempt):
                    yield line
        whole = await self._whole()
        for name in wanted:
            if whole is not None:
                lines.add_rest_of(name, whole[STREAMS.index(name)])
            for line in lines.end(name):
                yield line

    async def _chunks(self, *, follow: bool) -> AsyncIterator[tuple[int, str, bytes]]:
        """Yield what is stored of the output, and go on until the job's end if told to."""
        session, submission, index = await self._find()
        if follow:
            self.watch(session, submission, index)  # before the first look: the job may have ended
        tail = logs.Tail(session.store(submission.where.bucket), submission, index)
        while not self.done():
            for chunk in await tail.read():
                yield chunk
            if not follow:
                return
            self.watch(*await self._find())  # anew, where the session was closed
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._arrived(), _FOLLOW_S)

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

    # --- how it is found ----------------------------------------------------------------------

    async def _describe(self, session: Session) -> JobDetail:
        detail = await session.detail(self.id)
        if detail is None:
            raise JobLostError(
                f"Batch does not know job {self.id} in {session.aws.region}; is it the right "
                "region and account, and less than some days old?",
                job_id=self.id,
            )
        return detail

    async def _find(self) -> tuple[Session, Submission, int]:
        session = await self._session()
        if self._place is None:
            self._place = Submission.of(await self._describe(session))
        return session, *self._place

    def watch(self, session: Session, submission: Submission, index: int) -> None:
        """Have the tracker follow the job, whether or not somebody waits for its result yet."""
        if not self._followed:
            self._followed = True
            session.tracker.watch(submission, [index], self._settings, self._tell)
            session.events.listen(self._settings.event_queue)

    def _tell(self, _index: int, arrived: Arrival) -> None:
        if _is_closed(arrived):
            self._followed = False  # the job goes on; whoever waits follows it in a new session
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
        self._waits.append(wait)
        try:
            return await wait
        finally:
            self._waits.remove(wait)

    async def _delivered(self) -> Delivered:
        delivery = self._delivery
        while delivery is None or _has_failed(delivery):
            session, submission, index = await self._find()
            self.watch(session, submission, index)
            arrived = await self._arrived()
            delivery = self._delivery  # which another wait may have begun meanwhile
            if not _is_closed(arrived) and (delivery is None or _has_failed(delivery)):
                delivery = self._delivery = asyncio.ensure_future(
                    self._fetch(session, submission, index, arrived)
                )
                break
        return await asyncio.shield(delivery)

    async def _fetch(
        self, session: Session, submission: Submission, index: int, arrived: Arrival
    ) -> Delivered:
        return await session.deliver(self._settings, submission, index, arrived)

    async def _output(self, stream: str) -> str:
        whole = await self._whole()
        if whole is not None:
            data = whole[STREAMS.index(stream)]
        else:
            session, submission, index = await self._find()
            tail = logs.Tail(session.store(submission.where.bucket), submission, index)
            data = b"".join(chunk for _, name, chunk in await tail.read() if name == stream)
        return data.decode(errors="replace")

    async def _whole(self) -> tuple[bytes, bytes] | None:
        """Return everything the task wrote, or None while it runs."""
        if self.done():
            delivered = await self._delivered()
            return delivered.stdout, delivered.stderr
        session, submission, index = await self._find()
        return await session.output(submission, index)


def _has_failed(delivery: asyncio.Task[Delivered]) -> bool:
    """Tell whether a delivery came to nothing and is to be tried again."""
    return delivery.done() and (delivery.cancelled() or delivery.exception() is not None)


def _is_closed(arrived: Arrival) -> bool:
    return isinstance(arrived, Ended) and isinstance(arrived.error, ClosedError)


def _wanted(stream: str | None) -> tuple[str, ...]:
    if stream not in (None, *STREAMS):
        raise ValueError(f"stream is {stream!r}; {' or '.join(STREAMS)} is allowed")
    return STREAMS if stream is None else (stream,)


class _Lines:
    """Cuts the chunks of streams into lines, and knows how much of each it has seen."""

    def __init__(self) -> None:
        self._decoders: dict[str, codecs.IncrementalDecoder] = {}
        self._begun: dict[str, str] = {}
        self._seen: dict[str, int] = {}
        self._attempt = 0

    def add(self, stream: str, data: bytes, attempt: int = 0) -> list[str]:
        """Return the lines that end in a chunk."""
        if attempt > self._attempt:  # another attempt begins its streams anew
            self._attempt = attempt
            self._seen.clear()
        decoder = self._decoders.setdefault(
            stream, codecs.getincrementaldecoder("utf-8")(errors="replace")
        )
        self._seen[stream] = self._seen.get(stream, 0) + len(data)
        text = self._begun.get(stream, "") + decoder.decode(data)
        *lines, self._begun[stream] = text.split("\n")
        return lines

    def add_rest_of(self, stream: str, whole: bytes) -> None:
        """Take in what comes after the part that was seen, given the whole stream."""
        self._begun[stream] = "\n".join(
            [*self.add(stream, whole[self._seen.get(stream, 0) :]), self._begun.get(stream, "")]
        )

    def end(self, stream: str) -> list[str]:
        """Return the lines that were not given out yet, the last one whether or not it ends."""
        *lines, last = self._begun.pop(stream, "").split("\n")
        return [*lines, last] if last else lines
