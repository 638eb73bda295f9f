"""Parallel map: many calls of one function, as array jobs."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Generic, TypeVar

from farcall.aws import refusals
from farcall.backends.base import raise_first
from farcall.client.progress import Progress
from farcall.client.sweep_state import Array, Fetched, Ready, SweepState
from farcall.engine.delivered import Delivered
from farcall.engine.fetcher import Output
from farcall.engine.session import Session, session_for
from farcall.engine.watch import Arrival, Ended, is_unseen
from farcall.model.errors import FarcallError, ServiceError
from farcall.model.settings import Settings
from farcall.model.submission import Submission
from farcall.model.wording import named
from farcall.payload import pickling
from farcall.payload.pickling import Call
from farcall.payload.results import CallResult, Result
from farcall.payload.spill import where_needed
from farcall.storage.store import Arrived

_log = logging.getLogger("farcall")

R = TypeVar("R")
T = TypeVar("T")

_FETCHERS = 16
_NOBODY = "nobody waits for it any more"


class Sweep(Generic[R]):
    """The calls of a `Task.map`, to be awaited or iterated over.

    ``await sweep`` gives the values in the order of the arguments; ``async for index, value in
    sweep`` gives them as they come, and ``async for result in sweep.results()`` gives them with
    output, time and error of each. Either way nothing is submitted before, and the jobs belong
    to the one who waits: an error that is raised, a cancelled wait and a loop that is left early
    end the jobs that are still unfinished.

    In a loop, what its body has not taken yet stays on S3, but for some 256 MiB that are fetched
    ahead.

    Args:
        settings: The options.
        function: The function.
        calls: Arguments of each call.
        chunksize: Calls in one task; they run one after the other.
        return_exceptions: Give exceptions as values instead of raising the first.
        progress: Show how far it is.
    """

    def __init__(
        self,
        settings: Settings,
        function: Callable[..., Any],
        calls: Sequence[Call],
        *,
        chunksize: int,
        return_exceptions: bool,
        progress: bool,
    ) -> None:
        self._settings = settings
        self._function = function
        self._calls = calls
        self._chunksize = chunksize
        self._return_exceptions = return_exceptions
        self._progress = progress
        self._state: SweepState | None = None

    def __len__(self) -> int:
        return len(self._calls)

    def __await__(self) -> Generator[Any, None, list[R]]:
        return self._gather().__await__()

    def __aiter__(self) -> AsyncIterator[tuple[int, R]]:
        return self._each(self._pair)

    @property
    def job_ids(self) -> list[str]:
        """IDs of the jobs submitted so far: array jobs, and a plain one for a single task."""
        return list(self._state.arrays) if self._state is not None else []

    def results(self) -> AsyncIterator[CallResult[R]]:
        """Iterate over what came of each call, as it comes; a call's own error is not raised.

        Raises:
            TaskNotPicklableError: The function or an argument cannot travel.
            SubmissionError: Batch did not accept a job.
            SettingsError: Something the options name does not exist.
            ServiceError: AWS refused a call.
        """
        return self._each(
            lambda index, job_id, result: result.tell(index, job_id), with_output=True
        )

    async def _gather(self) -> list[R]:
        values: list[Any] = [None] * len(self._calls)
        async for index, value in self._each(self._pair, one_by_one=False):
            values[index] = value
        return values

    def _pair(self, index: int, _job_id: str, result: Result) -> tuple[int, R]:
        if result.error is not None and self._return_exceptions:
            return index, result.error  # type: ignore[return-value]
        return index, result.unwrap()

    async def _each(
        self,
        shape: Callable[[int, str, Result], T],
        *,
        one_by_one: bool = True,
        with_output: bool = False,
    ) -> AsyncGenerator[T, None]:
        """Submit the calls, and yield what comes of each as it comes.

        What was yielded is deleted from the bucket when the next one is asked for: then the
        caller's loop is through with it. Where the caller has nothing before it has all, nothing
        is deleted before either.

        Generators within this one would not do: where a loop that was left is closed by the end
        of the event loop, that closes all of them at once.
        """
        if not self._calls:
            return
        session = await session_for(self._settings)
        if self._state is not None and not self._state.is_over:
            raise FarcallError(
                "this sweep is being waited for already; call map again for another"
            )
        timing = session.timing
        state = SweepState(len(self._calls), self._chunksize, timing, with_output=with_output)
        self._state = state
        progress: AbstractContextManager[object] = nullcontext()
        if self._progress:
            count = functools.partial(state.count, session.tracker.latest)
            trouble = session.tracker.trouble
            progress = Progress(self._name, len(self._calls), count, timing, lambda: trouble.text)
        cause: BaseException | None = None
        helpers = [asyncio.ensure_future(self._submit(session, state))]
        helpers += [asyncio.ensure_future(self._fetch(session, state)) for _ in range(_FETCHERS)]
        try:
            with progress:
                for _ in self._calls:
                    yield shape(*await state.take())
                    if one_by_one:
                        state.note_taken()
            state.note_taken()
        except BaseException as error:
            cause = None if isinstance(error, GeneratorExit) else error  # of a loop that was left
            raise
        finally:
            for helper in helpers:
                helper.cancel()
            try:
                await asyncio.gather(*helpers, return_exceptions=True)
            finally:  # the event loop may be at its end, and cancel this, too
                state.end()
                await self._leave(session, state, cause)

    @property
    def _name(self) -> str:
        return str(getattr(self._function, "__name__", "task"))

    async def _leave(
        self, session: Session, state: SweepState, cause: BaseException | None
    ) -> None:
        """End what has not ended: nobody waits for it any more."""
        unfinished = [array for array in state.arrays.values() if array.unfinished]
        for array in unfinished:
            if array.tell is not None:
                session.tracker.unwatch(array.submission.job_id, array.tell)
        job_ids = [array.submission.job_id for array in unfinished]
        if unfinished and (
            is_unseen(cause) if cause is not None else all(each.is_unseen for each in unfinished)
        ):
            text = "%s go on; attach joins a job, and recover(%r) all of this run"
            _log.warning(text, named(job_ids, "job"), session.run)
        elif cause is not None and unfinished:
            tasks = sum(array.unfinished for array in unfinished)
            reason = f"left by {type(cause).__name__}"
            await session.terminations.leave(job_ids, tasks, reason)
        elif unfinished:
            raise_first(await session.terminations.end(job_ids, _NOBODY))

    async def _submit(self, session: Session, state: SweepState) -> None:
        """Submit the calls, one array after the other."""
        with session.at_work():
            await self._submit_all(session, state)

    async def _submit_all(self, session: Session, state: SweepState) -> None:
        try:
            submitter = await session.submitter(self._settings)
            function = await session.threads.run(pickling.pack_function, self._function)
            step, last = self._chunksize, len(self._calls)
            groups = (self._calls[at : at + step] for at in range(0, last, step))
            tasks = (
                (function, arguments)
                for arguments in pickling.pack_calls(groups, self._settings.cache_dir)
            )
            first = 0
            while first * step < last:
                submission = await submitter.submit_together(self._settings, self._name, tasks)
                self._watch(session, state, submission, first)
                first += submission.size
        except Exception as error:  # whatever it is, the waiting caller is to have it
            state.fetched.put_nowait(error)

    def _watch(
        self, session: Session, state: SweepState, submission: Submission, first: int
    ) -> None:
        array = state.arrays[submission.job_id] = Array(submission, first, submission.size)

        def tell(index: int, arrival: Arrival) -> None:
            if isinstance(arrival, Ended) and arrival.error:  # it may still run
                array.is_unseen = array.is_unseen or is_unseen(arrival.error)
            else:
                array.unfinished -= 1
            numbers = state.calls_of(array, index)
            array.ended += len(numbers)
            state.arrivals.put_nowait(Ready(submission, index, numbers, arrival))

        array.tell = tell
        session.cleaner.note_submission(submission)
        session.tracker.watch(
            submission, range(submission.size), self._settings, tell, state.is_full
        )

    async def _fetch(self, session: Session, state: SweepState) -> None:
        """Fetch outcomes, as fast as the caller takes their values.

        What goes wrong with one of them is its own calls' matter: others are fetched all the same.
        """
        while True:
            ready = await state.arrivals.get()
            submission, index = ready.submission, ready.index
            numbers, arrival = ready.numbers, ready.arrival
            place = await state.budget.enter(arrival.size if isinstance(arrival, Arrived) else 0)
            try:
                delivered = await session.fetcher.deliver(
                    submission,
                    index,
                    arrival,
                    len(numbers),
                    folder_for=where_needed(self._settings.cache_dir),
                    room=place.grow,
                    output=Output.WHOLE if state.with_output else Output.NONE,
                )
            except Exception as error:
                place.leave()
                if refusals.concerns_all(error):
                    state.fetched.put_nowait(error)
                    return
                passes = isinstance(error, ServiceError) and refusals.may_pass(error)
                if (passes or refusals.is_of_credentials(error)) and state.postpone(ready):
                    continue
                delivered = Delivered([Result(error=error)] * len(numbers))
            job_id, results = submission.id_of(index), delivered.results[: len(numbers)]
            discard = functools.partial(
                session.cleaner.discard, self._settings, submission, index, delivered.all_spent
            )
            state.put(Fetched(numbers.start, job_id, deque(results), place, discard))
            del delivered, results  # the values are the caller's, as soon as they are taken
