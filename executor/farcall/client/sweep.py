"""Parallel map: many calls of one function, as array jobs."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from farcall.aws import refusals
from farcall.backends.base import raise_first
from farcall.client import live_output
from farcall.client.awaitable import Awaitable
from farcall.client.call_reader import CallReader, Inputs
from farcall.client.frames import hide_if_meant
from farcall.client.map_failure import MapFailure, names_of
from farcall.client.progress import Progress
from farcall.client.retried_sweep import RetriedSweep, Source
from farcall.client.sweep_state import Fetched, Ready, SweepState
from farcall.engine.delivered import Delivered
from farcall.engine.fetcher import Output
from farcall.engine.session import Session, session_for
from farcall.engine.watch import Arrival, Ended, is_unseen
from farcall.model.endings import MAP_FAILED
from farcall.model.errors import FarcallError, JobCancelledError, ServiceError
from farcall.model.interrupts import left_by
from farcall.model.names import named
from farcall.model.option_signatures import shows_options
from farcall.model.settings import Settings
from farcall.model.submission import Submission
from farcall.payload import pickling
from farcall.payload.bundle import FIXED
from farcall.payload.call_texts import CallTexts
from farcall.payload.pickling import Packed
from farcall.payload.project import Pickling
from farcall.payload.results import CallResult, Result
from farcall.payload.shared import Digests
from farcall.payload.spill import where_needed
from farcall.storage.store import Arrived

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from farcall.model.settings import Options

_log = logging.getLogger("farcall")

R = TypeVar("R")
T = TypeVar("T")

_FETCHERS = 16
_MOST_UNTAKEN = 10_000
"""Tasks whose results were not taken, up to which others are read and submitted, where nobody
knows how many there will be."""

_NOBODY = "nobody waits for it any more"


class Sweep(Awaitable[list[R]]):
    """The calls of a `Task.map`, to be awaited or iterated over.

    ``await sweep`` gives the values in the order of the arguments; ``async for index, value in
    sweep`` gives them as they come, and ``async for result in sweep.results()`` gives them with
    output, time and error of each. Either way nothing is submitted before, and the jobs belong
    to the one who waits: an error that is raised, a cancelled wait and a loop that is left early
    end the jobs that are still unfinished. The error of a call has ``map_failure``, which tells
    how far the map had come and where the values are that were computed; its jobs are FAILED.

    In a loop, what its body has not taken yet stays on S3, except some 256 MiB that are fetched
    ahead. What is known at once is submitted at once. Of iterables without a length, calls are
    submitted as they come, up to 10,000 tasks and those of one more array whose results were not
    taken yet; so an endless one works in a loop that is left by ``break``.

    Args:
        settings: The options.
        function: The function.
        inputs: What the calls are made of.
        fixed: Keywords that each call has.
        chunksize: Calls in one task; they run one after the other.
        return_exceptions: Give exceptions as values instead of raising the first.
        progress: Show how far it is.
        output: Show what the tasks print.
    """

    def __init__(
        self,
        settings: Settings,
        function: Callable[..., Any],
        inputs: Inputs,
        fixed: Mapping[str, Any],
        *,
        chunksize: int,
        return_exceptions: bool,
        progress: bool,
        output: bool,
    ) -> None:
        name = getattr(function, "__name__", "task")
        super().__init__(
            name,
            f"map of {name}",
            f"write await {name}.map(...), or async for index, value in {name}.map(...), or in "
            f"code without async BatchPoolExecutor().map({name}, ...)",
        )
        self._settings = settings
        self._function = function
        self._inputs = inputs
        self._fixed = fixed
        self._chunksize = chunksize
        self._return_exceptions = return_exceptions
        self._progress = progress
        self._output = output
        self._state: SweepState | None = None
        self._run = ""

    def __len__(self) -> int:
        if self._inputs.size is None:
            raise TypeError(
                "this sweep has no len(): at least one of its iterables has none, such as a "
                "generator; map a list of what it gives, or count what comes"
            )
        return self._inputs.size

    def _coroutine(self) -> Coroutine[Any, Any, list[R]]:
        return self._gather()

    def __aiter__(self) -> AsyncIterator[tuple[int, R]]:
        self._is_used = True
        return self._each(self._pair)

    @property
    def job_ids(self) -> list[str]:
        """IDs of the jobs submitted so far: array jobs, and a plain one for a single task."""
        return list(self._state.arrays) if self._state is not None else []

    @shows_options
    def retry(self, **options: Unpack[Options]) -> RetriedSweep[R]:
        """Run the tasks again that failed or were cancelled, each with all calls of its chunk.

        ::

            try:
                values = await sweep
            except MemoryError:
                values = await sweep.retry(memory=8).complete()

        Nothing is submitted before that is awaited. Function and arguments are read from the
        bucket as they were submitted, and all options are those of the map, except those given.
        Calls that were never submitted are not among them. If calls fail again, call `retry` of
        the object that this returns.

        Args:
            **options: ``vcpu``, ``memory``, ``num_gpus``, ``time_limit``, ``retry_attempts``,
                ``retry_on``, ``queue``, ``priority``, ``share_identifier`` and ``tags``.

        Raises:
            FarcallError: Nothing was submitted yet, or somebody still waits for the map.
        """
        state = self._state
        if state is None or not state.arrays:
            raise FarcallError("nothing of this sweep was submitted; await it first")
        if not state.is_over:
            raise FarcallError("this sweep is still being waited for; retry it after its end")
        sources, lacking = [], []
        for array in state.arrays.values():
            calls = [state.calls_of(array, n) for n in range(array.submission.size)]
            sources.append(Source(array.submission, calls))
            if array.returned < len(array.calls):  # what all went well of may be gone by now
                lacking.append(sources[-1])
        return RetriedSweep(
            self._name,
            self._settings,
            lacking,
            sources,
            state.submitted if self._inputs.size is None else self._inputs.size,
            options,
            {},
            return_exceptions=self._return_exceptions,
            progress=self._progress,
            output=self._output,
        )

    def results(self) -> AsyncIterator[CallResult[R]]:
        """Iterate over what came of each call, as it comes; a call's own error is not raised.

        Raises:
            TaskNotPicklableError: The function or an argument cannot travel.
            SubmissionError: Batch did not accept a job.
            SettingsError: Something the options name does not exist.
            ServiceError: AWS refused a call.
        """
        self._is_used = True
        return self._each(
            lambda index, job_id, result: result.tell(index, job_id), with_output=True
        )

    def outcomes(self) -> AsyncIterator[tuple[int, Result]]:
        """Iterate over the number and the result of each call, as it comes, for pools.

        Who cancels the wait tells what is ended by it. Where a call has an error, the values stay
        in the bucket until `discard`: whoever takes them may stop there.

        Raises:
            Exception: As `results`.
        """
        self._is_used = True
        return self._each(
            lambda index, _job_id, result: (index, result), one_by_one=False, for_pool=True
        )

    def note_raised(self, error: BaseException) -> MapFailure:
        """Take in that a pool raises the error of a call, and tell how far the map is.

        That is asked from another thread, while the calls go on. They are ended because of the
        error if the wait is cancelled after it.
        """
        state = self._state
        assert state is not None  # noqa: S101 - there is a result
        state.has_raised |= not (is_unseen(error) or isinstance(error, JobCancelledError))
        failure = self._failure(state, keeps_all=True)
        return replace(failure, ended=0, ended_tasks=0, unfinished=failure.ended)

    def discard(self) -> None:
        """Have the values deleted that stayed in the bucket; see `outcomes`."""
        if self._state is not None:
            self._state.note_taken()

    async def _gather(self) -> list[R]:
        __tracebackhide__ = True
        values: list[Any] = [None] * (self._inputs.size or 0)
        count = 0
        async for index, value in self._each(self._pair, one_by_one=False):
            if index >= len(values):
                values.extend([None] * (index + 1 - len(values)))
            values[index] = value
            count += 1
        return values[:count] if count < len(values) else values

    def _pair(self, index: int, _job_id: str, result: Result) -> tuple[int, R]:
        if result.error is not None and self._return_exceptions:
            return index, result.error  # type: ignore[return-value]
        if result.error is not None and self._state is not None:
            self._state.raised = result.error
        return index, result.unwrap()

    async def _each(
        self,
        shape: Callable[[int, str, Result], T],
        *,
        one_by_one: bool = True,
        with_output: bool = False,
        for_pool: bool = False,
    ) -> AsyncGenerator[T, None]:
        """Submit the calls, and yield what comes of each as it comes.

        What was yielded is deleted from the bucket when the next one is asked for: then the
        caller's loop is through with it. Where the caller has nothing before it has all, nothing
        is deleted before either.

        Generators within this one would not do: where a loop that was left is closed by the end
        of the event loop, that closes all of them at once.
        """
        if self._inputs.size == 0:
            return
        session = await session_for(self._settings)
        state = self._new_state(session, with_output=with_output)
        reader = CallReader(self._inputs, self._chunksize, self._settings.linger_s)
        cause: BaseException | None = None
        failure: MapFailure | None = None
        helpers = [asyncio.ensure_future(self._submit(session, state, reader))]
        helpers += [reader.task] if reader.task is not None else []
        helpers += [asyncio.ensure_future(self._fetch(session, state)) for _ in range(_FETCHERS)]
        try:
            with self._shown(session, state):
                while await state.has_more():
                    yield shape(*state.take())
                    if one_by_one:
                        state.note_taken()
            if not (for_pool and state.errors):
                state.note_taken()
        except BaseException as error:
            is_left = isinstance(error, GeneratorExit)  # a loop
            is_told = for_pool and isinstance(error, asyncio.CancelledError)
            cause = None if is_left or is_told else error
            failure = self._failure_by(error, state, keeps_all=not one_by_one)
            hide_if_meant(error)
            raise
        finally:
            reader.close()
            for helper in helpers:
                helper.cancel()
            try:
                await asyncio.gather(*helpers, return_exceptions=True)
            finally:  # the event loop may be at its end, and cancel this, too
                state.end()
                await self._leave(session, state, cause, failure)

    def _new_state(self, session: Session, *, with_output: bool) -> SweepState:
        if self._state is not None and not self._state.is_over:
            raise FarcallError(
                "this sweep is being waited for already; call map again for another"
            )
        if self._state is not None and self._inputs.is_once:
            raise FarcallError(
                "this sweep's arguments came from an iterator, which can be read only once; call "
                "map again with a new one"
            )
        size, timing = self._inputs.size, session.timing
        self._state = SweepState(size, self._chunksize, timing, with_output=with_output)
        self._run = session.run
        return self._state

    def _shown(self, session: Session, state: SweepState) -> AbstractContextManager[object]:
        """Show how far it is, where that is wanted, for as long as a block lasts."""
        if not self._progress:
            return nullcontext()
        count = functools.partial(state.count, session.tracker.latest)
        trouble = session.tracker.trouble
        return Progress(
            self._name,
            state.total,
            count,
            session.timing,
            lambda: trouble.text,
            state.failures.lines,
        )

    @property
    def _name(self) -> str:
        return str(getattr(self._function, "__name__", "task"))

    def _failure_by(
        self, error: BaseException, state: SweepState, *, keeps_all: bool
    ) -> MapFailure | None:
        """Tell how far the map is where an error that is raised is a call's; so does the error."""
        failure = None
        if error is state.raised and not is_unseen(error):
            failure = self._failure(state, keeps_all=keeps_all)
            failure.tell(error, f"await executor.recover({failure.run!r})")
        elif state.has_raised:
            failure = self._failure(state, keeps_all=keeps_all)
        return failure

    def _failure(self, state: SweepState, *, keeps_all: bool) -> MapFailure:
        """Tell how far the map is, whose call's error is being raised."""
        arrays = list(state.arrays.values())  # others may be added by another thread
        total = state.submitted if state.total is None else state.total
        ended = state.submitted - sum(array.ended for array in arrays)
        handed_over = 0 if keeps_all else state.given_values
        return MapFailure(
            total,
            failed=state.errors.total(),
            ended=ended,
            ended_tasks=sum(array.unfinished for array in arrays),
            unsubmitted=total - state.submitted,
            kept=state.submitted - ended - state.errors.total() - handed_over,
            errors=names_of(state.errors),
            run=self._run,
            job_ids=tuple(array.submission.job_id for array in arrays),
        )

    async def _leave(
        self,
        session: Session,
        state: SweepState,
        cause: BaseException | None,
        failure: MapFailure | None,
    ) -> None:
        """End what has not ended: nobody waits for it any more."""
        for array in state.arrays.values() if self._output else ():
            session.relay.leave(array.submission, range(array.submission.size))
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
            reason = left_by(cause)
            if failure is not None and not isinstance(cause, JobCancelledError):
                reason = f"{MAP_FAILED}{failure.sentence}"
            await session.terminations.leave(job_ids, tasks, reason)
        elif unfinished:
            reason = _NOBODY if failure is None else f"{MAP_FAILED}{failure.sentence}"
            raise_first(await session.terminations.end(job_ids, reason))

    async def _submit(self, session: Session, state: SweepState, reader: CallReader) -> None:
        """Submit the calls as they come, one array after the other."""
        digests = Digests()  # an array that is changed meanwhile would not travel safely anyway
        try:
            with session.at_work():
                submitter = await session.submitter(self._settings)
                using = await session.threads.run(Pickling.of, self._settings)
                pack = functools.partial(pickling.pack_function, using=using)
                function = await session.threads.run(pack, self._function, self._fixed, digests)
            texts = CallTexts(self._function, self._fixed)
            to_text = texts.of if self._settings.call_texts else None
            while (groups := await reader.groups()) is not None:
                cache_dir = self._settings.cache_dir
                packed = pickling.pack_calls(groups, cache_dir, to_text, digests, using=using)
                tasks = self._tasks(function, packed, reader, state)
                same = {FIXED: list(self._fixed)} if self._fixed else {}
                while True:
                    if self._inputs.size is None:
                        await state.wait_for_taker(_MOST_UNTAKEN * self._chunksize)
                    with session.at_work():
                        submission = await submitter.submit_together(
                            self._settings,
                            self._name,
                            tasks,
                            planned=state.note_uploaded,
                            facts=same,
                            on_sent=state.note_sent,
                        )
                    # Those that are left were given out, for they are pickled some at a time.
                    left = reader.given - state.submitted
                    calls = min(submission.size * self._chunksize, left)
                    self._watch(session, state, submission, calls)
                    if calls == left:
                        break
            state.note_whole()
        except BaseException as error:  # whatever it is, the waiting caller is to have it
            state.fetched.put_nowait(error)
            if isinstance(error, asyncio.CancelledError):
                raise

    def _tasks(
        self, function: Packed, packed: Iterator[Packed], reader: CallReader, state: SweepState
    ) -> Iterator[tuple[Packed, Packed]]:
        """Yield function and arguments of each task, in a thread."""
        for arguments in packed:
            reader.note_bytes(arguments.size + sum(value.size for value in arguments.shared))
            packed_before = state.submitted if state.packed is None else state.packed
            state.packed = min(packed_before + self._chunksize, reader.given)
            yield function, arguments

    def _watch(
        self, session: Session, state: SweepState, submission: Submission, calls: int
    ) -> None:
        array = state.note_job(submission, calls)

        def tell(index: int, arrival: Arrival) -> None:
            if isinstance(arrival, Ended) and arrival.error:  # it may still run
                array.is_unseen = array.is_unseen or is_unseen(arrival.error)
            else:
                array.unfinished -= 1
            numbers = state.calls_of(array, index)
            array.ended += len(numbers)
            state.arrivals.put_nowait(Ready(submission, index, numbers, arrival))

        if self._output:
            labels = {
                index: live_output.label_of(self._name, state.calls_of(array, index))
                for index in range(submission.size)
            }
            session.relay.follow(submission, labels, live_output.writer)
        array.tell = tell
        session.cleaner.note_submission(submission)
        session.tracker.watch(
            submission, range(submission.size), self._settings, tell, state.is_full
        )

    async def _fetch(self, session: Session, state: SweepState) -> None:
        """Fetch outcomes, as fast as the caller takes their values.

        What goes wrong with one of them is its own calls' matter: others are fetched anyway.
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
            if self._output:
                await session.relay.finish(submission, index, delivered)
            job_id, results = submission.id_of(index), delivered.results[: len(numbers)]
            state.note_results(submission, index, zip(numbers, results, strict=False))
            discard = functools.partial(
                session.cleaner.discard, self._settings, submission, index, delivered.all_spent
            )
            state.put(Fetched(numbers.start, job_id, deque(results), place, discard))
            del delivered, results  # the values are the caller's, as soon as they are taken
