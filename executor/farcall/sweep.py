"""Many calls of one function, as array jobs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Sequence
from typing import Any, Generic, TypeVar

from farcall import payload
from farcall.errors import FarcallError
from farcall.payload import Call
from farcall.results import Result
from farcall.session import Session, session_for
from farcall.settings import Settings
from farcall.submission import Submission
from farcall.tracker import Arrival, Ended

R = TypeVar("R")

_FETCHERS = 16
_WINDOW = 64
"""Tasks whose values are held at most, beside what the caller keeps."""


class Sweep(Generic[R]):
    """The calls of a `Task.map`, to be awaited or iterated over.

    ``await sweep`` gives the values in the order of the arguments; ``async for index, value in
    sweep`` gives them as they come. Either way nothing is submitted before, and the jobs belong
    to the one who waits: an error that is raised, a cancelled wait and a loop that is left early
    end the jobs that are still unfinished.

    Args:
        settings: The options.
        function: The function.
        calls: Arguments of each call.
        chunksize: Calls in one task; they run one after the other.
        return_exceptions: Give exceptions as values instead of raising the first.
    """

    def __init__(
        self,
        settings: Settings,
        function: Callable[..., Any],
        calls: Sequence[Call],
        *,
        chunksize: int,
        return_exceptions: bool,
    ) -> None:
        self._settings = settings
        self._function = function
        self._calls = calls
        self._chunksize = chunksize
        self._return_exceptions = return_exceptions
        self._arrivals: asyncio.Queue[tuple[Submission, int, int, Arrival]] = asyncio.Queue()
        self._submissions: dict[str, tuple[Submission, int]] = {}
        self._unfinished: dict[str, int] = {}
        self._waited_for = False

    def __len__(self) -> int:
        return len(self._calls)

    def __await__(self) -> Generator[Any, None, list[R]]:
        return self._gather().__await__()

    def __aiter__(self) -> AsyncIterator[tuple[int, R]]:
        return self._iterate()

    @property
    def job_ids(self) -> list[str]:
        """IDs of the jobs submitted so far: array jobs, and a plain one for a single task."""
        return list(self._submissions)

    async def _gather(self) -> list[R]:
        values: list[Any] = [None] * len(self._calls)
        async for index, value in self._iterate():
            values[index] = value
        return values

    async def _iterate(self) -> AsyncGenerator[tuple[int, R], None]:
        if not self._calls:
            return
        session = await session_for(self._settings)
        if self._waited_for:
            raise FarcallError(
                "this sweep is being waited for already; call map again for another"
            )
        self._waited_for = True
        # Anew: what an earlier wait left unfinished may still report to what was here before.
        self._arrivals, self._submissions, self._unfinished = asyncio.Queue(), {}, {}
        results: asyncio.Queue[tuple[int, Result] | BaseException] = asyncio.Queue(_WINDOW)
        helpers = [asyncio.ensure_future(self._submit(session, results))]
        helpers += [asyncio.ensure_future(self._fetch(session, results)) for _ in range(_FETCHERS)]
        try:
            for _ in range(len(self._calls)):
                found = await results.get()
                if isinstance(found, BaseException):
                    raise found
                index, result = found
                if result.error is not None and self._return_exceptions:
                    yield index, result.error  # type: ignore[misc]
                else:
                    yield index, result.unwrap()
        finally:
            self._waited_for = False
            for helper in helpers:
                helper.cancel()
            await asyncio.gather(*helpers, return_exceptions=True)
            if self._unfinished:
                await session.terminations.now(
                    list(self._unfinished), "nobody waits for it any more"
                )

    async def _submit(self, session: Session, results: asyncio.Queue[Any]) -> None:
        """Submit the calls, one array after the other."""
        try:
            submitter = await session.submitter(self._settings)
            function = await session.in_thread(payload.pack_function, self._function)
            step, last = self._chunksize, len(self._calls)
            groups = (self._calls[at : at + step] for at in range(0, last, step))
            tasks = ((function, arguments) for arguments in payload.pack_calls(groups))
            first = 0
            while first * step < last:
                name = getattr(self._function, "__name__", "task")
                submitting = asyncio.ensure_future(
                    submitter.submit_together(self._settings, name, tasks)
                )
                try:
                    submission = await asyncio.shield(submitting)
                except asyncio.CancelledError:
                    # The request may be on its way, and only its answer tells what to terminate.
                    submission = await submitting
                    self._unfinished[submission.job_id] = submission.size
                    raise
                self._watch(session, submission, first)
                first += submission.size
        except Exception as error:  # whatever it is, the waiting caller is to have it
            await results.put(error)

    def _watch(self, session: Session, submission: Submission, first: int) -> None:
        arrivals, unfinished = self._arrivals, self._unfinished
        self._submissions[submission.job_id] = (submission, first)
        unfinished[submission.job_id] = submission.size

        def tell(index: int, arrival: Arrival) -> None:
            if not (isinstance(arrival, Ended) and arrival.error):  # else it may still run
                unfinished[submission.job_id] -= 1
            if not unfinished[submission.job_id]:
                del unfinished[submission.job_id]
            arrivals.put_nowait((submission, index, first, arrival))

        session.note_submission(submission)
        session.tracker.watch(submission, range(submission.size), self._settings, tell)

    async def _fetch(self, session: Session, results: asyncio.Queue[Any]) -> None:
        """Fetch outcomes, as fast as the caller takes their values."""
        while True:
            submission, index, first, arrival = await self._arrivals.get()
            at = (first + index) * self._chunksize
            calls = min(self._chunksize, len(self._calls) - at)
            try:
                delivered = await session.deliver(
                    self._settings, submission, index, arrival, calls
                )
            except Exception as error:  # the caller is to have it
                await results.put(error)
                return
            for offset, result in enumerate(delivered.results):
                await results.put((at + offset, result))
