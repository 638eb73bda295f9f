"""Parallel map: many calls of one function, as array jobs."""

from __future__ import annotations

import asyncio
import functools
import itertools
import logging
from abc import abstractmethod
from collections import deque
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Callable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

from farcall.backends.base import raise_first
from farcall.client import live_output
from farcall.client.awaitable import Awaitable
from farcall.client.call_reader import CallReader, Inputs
from farcall.client.frames import hide_if_meant
from farcall.client.map_failure import MapFailure, names_of
from farcall.client.progress import Progress
from farcall.client.sweep_state import SweepState
from farcall.config.help import shows_options
from farcall.config.settings import Settings
from farcall.engine.cache import CachedResults
from farcall.engine.calls import CachedTasks
from farcall.engine.group import TaskGroup
from farcall.engine.packer import rules_for
from farcall.engine.session import Session, session_for
from farcall.engine.tracked_job import is_unseen
from farcall.model.errors import FarcallError, JobCancelledError
from farcall.model.failure_reasons import MAP_FAILED
from farcall.model.interrupts import left_by
from farcall.model.names import named
from farcall.model.submission import Submission
from farcall.payload import pickling
from farcall.payload.bundle import FIXED
from farcall.payload.call_texts import CallTexts
from farcall.payload.pickling import Call, Packed
from farcall.payload.results import CallResult, Result
from farcall.payload.shared import Digests

if TYPE_CHECKING:
    from farcall.client.retried_sweep import RetriedSweep
    from farcall.config.settings import Options

_log = logging.getLogger("farcall")

R = TypeVar("R")
T = TypeVar("T")

_MOST_UNCOLLECTED = 10_000
"""Maximum uncollected tasks before submission pauses, for inputs without a length."""

_NOBODY = "no caller waits for it anymore"


@dataclass(frozen=True)
class Source:
    """Job of a map or a retry.

    Attributes:
        submission: The job.
        calls: For each of its tasks, the indexes of its calls in the map.
    """

    submission: Submission
    calls: Sequence[Sequence[int]]


class MapJobs(Awaitable[list[R]]):
    """Jobs of a map or its retry, whose results one caller awaits or iterates over.

    Args:
        kind: ``sweep`` or ``retry``, for errors.
        name: Name of the function.
        what: Description, such as ``map of simulate``.
        instead: Code to write instead of another use.
        settings: Options of the jobs.
        size: Number of calls; None if it is known only after the submission.
        return_exceptions: Return exceptions as values instead of raising the first one.
        progress: Show progress on stderr.
        output: Print the tasks' output.
    """

    def __init__(
        self,
        kind: str,
        name: str,
        what: str,
        instead: str,
        settings: Settings,
        size: int | None,
        *,
        return_exceptions: bool,
        progress: bool,
        output: bool,
    ) -> None:
        super().__init__(name, what, instead)
        self._kind = kind
        self._name = name
        self._settings = settings
        self._size = size
        self._return_exceptions = return_exceptions
        self._progress = progress
        self._output = output
        self._state: SweepState | None = None
        self._run = ""

    def __aiter__(self) -> AsyncIterator[tuple[int, R]]:
        self._is_used = True
        return self._each(self._pair)

    @property
    def job_ids(self) -> list[str]:
        """IDs of the jobs submitted so far: array jobs, or a job for a single task."""
        return list(self._state.arrays) if self._state is not None else []

    @abstractmethod
    def _new_state(self, session: Session, *, with_output: bool) -> SweepState:
        """Begin a wait."""

    @abstractmethod
    async def _submit_all(self, session: Session, state: SweepState) -> None:
        """Submit the calls, and watch their jobs."""

    def _sources(self) -> tuple[list[Source], list[Source]]:
        """Return the submitted jobs, and the jobs of which some calls have no result.

        Raises:
            FarcallError: Nothing was submitted yet, or a caller still waits for the jobs.
        """
        state = self._state
        self._has_warned = True
        if state is None or not state.arrays:
            raise FarcallError(f"this {self._kind} has not submitted any call. Await it first")
        if not state.is_over:
            raise FarcallError(
                f"this {self._kind} is still being awaited. Retry it when it has finished"
            )
        sources, lacking = [], []
        for array in state.arrays.values():
            submission = array.group.submission
            calls = [array.numbers(n) for n in range(submission.size)]
            sources.append(Source(submission, calls))
            if array.returned < len(array.calls):  # successful jobs may be deleted by now
                lacking.append(sources[-1])
        return sources, lacking

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
        """Submit the calls, and yield the shaped result of each call as it arrives.

        A yielded result is deleted from the bucket when the next one is requested, because the
        caller's loop has then processed it. If the caller only receives all results together, they
        are deleted at the end.

        This must be a single generator: if a loop is abandoned, the event loop closes all nested
        generators at the same time.
        """
        if self._size == 0:
            return
        session = await session_for(self._settings)
        state = self._new_state(session, with_output=with_output)
        cause: BaseException | None = None
        failure: MapFailure | None = None
        submitting = asyncio.ensure_future(self._submit(session, state))
        state.window.start()
        try:
            with self._shown(session, state):
                while await state.has_more():
                    yield shape(*state.take())
                    if one_by_one:
                        state.record_collected()
            if not (for_pool and state.errors):
                state.record_collected()
        except BaseException as error:
            is_left = isinstance(error, GeneratorExit)  # a loop
            is_told = for_pool and isinstance(error, asyncio.CancelledError)
            cause = None if is_left or is_told else error
            failure = self._failure_by(error, state, keeps_all=not one_by_one)
            hide_if_meant(error)
            raise
        finally:
            submitting.cancel()
            try:
                await asyncio.gather(submitting, state.end(), return_exceptions=True)
            finally:  # a closing event loop may cancel this as well
                await self._leave(session, state, cause, failure)

    def _shown(self, session: Session, state: SweepState) -> AbstractContextManager[object]:
        """Show progress while the block runs, if requested."""
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

    def _failure_by(
        self, error: BaseException, state: SweepState, *, keeps_all: bool
    ) -> MapFailure | None:
        """Attach the progress of the map to a call's error, and return it."""
        failure = None
        if error is state.raised and not is_unseen(error):
            failure = self._failure(state, keeps_all=keeps_all)
            failure.annotate(error, f"await executor.recover({failure.run!r})")
        elif state.has_raised:
            failure = self._failure(state, keeps_all=keeps_all)
        return failure

    def _failure(self, state: SweepState, *, keeps_all: bool) -> MapFailure:
        """Return the progress of the map, for a call's error that is being raised."""
        arrays = list(state.arrays.values())  # others may be added by another thread
        total = state.submitted if state.total is None else state.total
        ended = state.submitted - state.cached - sum(array.ended for array in arrays)
        handed_over = state.cached
        if not keeps_all:
            handed_over += state.given_values - state.given_cached
        return MapFailure(
            total,
            failed=state.errors.total(),
            cancelled=ended,
            cancelled_tasks=sum(group.unfinished for group in state.window.groups),
            unsubmitted=total - state.submitted,
            kept=state.submitted - ended - state.errors.total() - handed_over,
            errors=names_of(state.errors),
            run=self._run,
            job_ids=tuple(array.group.job.job_id for array in arrays),
        )

    async def _leave(
        self,
        session: Session,
        state: SweepState,
        cause: BaseException | None,
        failure: MapFailure | None,
    ) -> None:
        """Terminate the unfinished jobs after the caller has stopped waiting."""
        groups = state.window.groups
        for group in groups:
            group.leave()
        unfinished = [group for group in groups if group.unfinished]
        job_ids = [group.job.job_id for group in unfinished]
        if unfinished and (
            is_unseen(cause) if cause is not None else all(each.is_unseen for each in unfinished)
        ):
            text = "%s will continue; collect results with attach, or all with recover(%r)"
            _log.warning(text, named(job_ids, "job"), session.run)
        elif cause is not None and unfinished:
            tasks = sum(group.unfinished for group in unfinished)
            reason = left_by(cause)
            if failure is not None and not isinstance(cause, JobCancelledError):
                reason = f"{MAP_FAILED}{failure.message}"
            await session.terminations.leave(job_ids, tasks, reason)
        elif unfinished:
            reason = _NOBODY if failure is None else f"{MAP_FAILED}{failure.message}"
            raise_first(await session.terminations.end(job_ids, reason))

    async def _submit(self, session: Session, state: SweepState) -> None:
        try:
            await self._submit_all(session, state)
            state.record_whole()
        except BaseException as error:  # the waiting caller receives any error
            state.window.fail(error)
            if isinstance(error, asyncio.CancelledError):
                raise

    def _watch(
        self,
        state: SweepState,
        group: TaskGroup,
        calls: int,
        tasks: Sequence[Sequence[int]] | None = None,
        cached: CachedResults | None = None,
        digests: Sequence[bytes] = (),
    ) -> None:
        array = state.record_job(group, calls, tasks, cached, digests)
        if self._output:
            array.labels = {
                index: live_output.label_of(self._name, array.numbers(index))
                for index in range(group.job.size)
            }
            group.print(array.labels, live_output.writer)
        state.window.add(group, array)


class Sweep(MapJobs[R]):
    """The calls of one `Task.map`, which start when the sweep is awaited or iterated over.

    ``await sweep`` returns the results in the order of the arguments. ``async for index, value in
    sweep`` yields results as they arrive, and ``async for result in sweep.results()`` yields a
    `farcall.CallResult` of each call, with its printed output, duration and error.

    If the caller stops waiting (an exception, a cancelled wait, a loop left with ``break``), the
    unfinished jobs are terminated. If a call raises an exception, the exception gets an attribute
    ``map_failure``: how many calls had returned by then, and how to collect their results. The
    map's jobs then have the state FAILED.

    In a loop, results that were not yielded yet stay in S3, except about 256 MiB that are fetched
    ahead. An iterable with a length is submitted at once. Other iterables are read and submitted
    step by step: reading pauses while more than 10,000 tasks have results to be collected, so an
    endless iterable works in a loop that ends with ``break``.

    Args:
        settings: Options of the jobs.
        function: The function to call.
        inputs: Source of the arguments.
        fixed: Keyword arguments of every call.
        chunksize: Number of calls in one task, which run one after the other.
        return_exceptions: Return exceptions as values instead of raising the first one.
        progress: Show progress on stderr.
        output: Print the tasks' output.
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
        name = str(getattr(function, "__name__", "task"))
        super().__init__(
            "sweep",
            name,
            f"map of {name}",
            f"write await {name}.map(...), or async for index, value in {name}.map(...), or in "
            f"code without async, BatchPoolExecutor().map({name}, ...)",
            settings,
            inputs.size,
            return_exceptions=return_exceptions,
            progress=progress,
            output=output,
        )
        self._function = function
        self._inputs = inputs
        self._fixed = fixed
        self._chunksize = chunksize

    def __len__(self) -> int:
        if self._size is None:
            raise TypeError(
                "this sweep has no len(): at least one of its iterables, such as a generator, has "
                "none. Map a list of its items, or count the results"
            )
        return self._size

    @shows_options
    def retry(self, **options: Unpack[Options]) -> RetriedSweep[R]:
        """Run the failed and cancelled tasks again, as new jobs.

        ::

            try:
                values = await sweep
            except MemoryError:
                values = await sweep.retry(memory=8).complete()

        Tasks are submitted when the returned object is awaited. Function, arguments and options
        are the original ones, except for the options that you give. A task with several calls
        (``chunksize``) runs all of them again. Calls that were never submitted do not run. If
        calls fail again, call `retry` of the object that this method returns.

        Args:
            **options: ``vcpu``, ``memory``, ``num_gpus``, ``time_limit``, ``retry_attempts``,
                ``retry_on``, ``queue``, ``priority``, ``share_identifier`` and ``tags``.

        Returns:
            A sweep of the tasks that run again. ``await`` it for their results only, or its
            ``complete()`` for the results of all calls of the map.

        Raises:
            FarcallError: Nothing was submitted yet, or a caller still waits for the map.
        """
        from farcall.client.retried_sweep import RetriedSweep  # it is a `MapJobs`, too

        sources, lacking = self._sources()
        submitted = sum(len(task) for each in sources for task in each.calls)
        return RetriedSweep(
            self._name,
            self._settings,
            lacking,
            sources,
            submitted if self._size is None else self._size,
            options,
            {},
            self._state.cached_calls if self._state is not None else None,
            return_exceptions=self._return_exceptions,
            progress=self._progress,
            output=self._output,
        )

    def results(self) -> AsyncIterator[CallResult[R]]:
        """Yield the value or error of each call as it arrives, without raising errors.

        Raises:
            TaskNotPicklableError: The function or an argument cannot be pickled.
            SubmissionError: Batch did not accept a job.
            SettingsError: A resource that the options name does not exist.
            ServiceError: AWS refused a call.
        """
        self._is_used = True
        return self._each(
            lambda index, job_id, result: result.with_place(index, job_id), with_output=True
        )

    def _outcomes(self) -> AsyncIterator[tuple[int, Result]]:
        """Yield the index and the result of each call as it arrives, for pools.

        If the wait is cancelled, the caller reports the terminated jobs. If a call fails, values
        stay in the bucket until `discard`, because the consumer may stop there.

        Raises:
            Exception: See `results`.
        """
        self._is_used = True
        return self._each(
            lambda index, _job_id, result: (index, result), one_by_one=False, for_pool=True
        )

    def _record_raised(self, error: BaseException) -> MapFailure:
        """Record that a pool raises a call's error, and return the progress of the map.

        Called from another thread while calls continue. If the wait is cancelled afterwards, this
        error is the reason for terminating them.
        """
        state = self._state
        assert state is not None  # noqa: S101 - there is a result
        state.has_raised |= not (is_unseen(error) or isinstance(error, JobCancelledError))
        failure = self._failure(state, keeps_all=True)
        return replace(failure, cancelled=0, cancelled_tasks=0, unfinished=failure.cancelled)

    def discard(self) -> None:
        """Delete the values that stayed in the bucket; see `outcomes`."""
        if self._state is not None:
            self._state.record_collected()

    async def _coroutine(self) -> list[R]:
        __tracebackhide__ = True
        values: list[Any] = [None] * (self._size or 0)
        count = 0
        async for index, value in self._each(self._pair, one_by_one=False):
            if index >= len(values):
                values.extend([None] * (index + 1 - len(values)))
            values[index] = value
            count += 1
        return values[:count] if count < len(values) else values

    def _new_state(self, session: Session, *, with_output: bool) -> SweepState:
        if self._state is not None and not self._state.is_over:
            raise FarcallError(
                "this sweep is already being awaited. Call map again for another one"
            )
        if self._state is not None and self._inputs.is_once:
            raise FarcallError(
                "this sweep's arguments came from an iterator, which can be read only once. Call "
                "map again with a new one"
            )
        self._state = SweepState(
            self._size,
            self._chunksize,
            session.timing,
            session.chances,
            with_output=with_output,
        )
        self._run = session.run
        return self._state

    async def _submit_all(self, session: Session, state: SweepState) -> None:
        """Submit the calls as they are read, one array after the other."""
        digests = Digests()  # changing an array meanwhile would not be safe anyway
        reader = CallReader(self._inputs, self._chunksize, self._settings.linger_s)
        try:
            with session.at_work():
                submitter = await session.submitter(self._settings)
                using, codes = await session.threads.run(rules_for, self._settings)
                pack = functools.partial(pickling.pack_function, using=using, codes=codes)
                function = await session.threads.run(pack, self._function, self._fixed, digests)
                cached = await self._cached_tasks(session, function)
            reading = _Reading(reader, function, state, cached)
            texts = CallTexts(self._function, self._fixed)
            to_text = texts.of if self._settings.store_call_summaries else None
            while (groups := await reader.groups()) is not None:
                cache_dir = self._settings.cache_dir
                counted = reading.counted(groups)
                packed = pickling.pack_calls(
                    counted, cache_dir, to_text, digests, using=using, codes=codes
                )
                tasks = reading.tasks(packed)
                same = {FIXED: list(self._fixed)} if self._fixed else {}
                while (first := await session.threads.run(next, tasks, None)) is not None:
                    if self._size is None:
                        await state.wait_for_consumer(_MOST_UNCOLLECTED * self._chunksize)
                    with session.at_work():
                        group = await submitter.submit_together(
                            self._settings,
                            self._name,
                            itertools.chain([first], tasks),
                            planned=state.record_uploaded,
                            facts=same,
                            on_sent=state.record_sent if self._progress else None,
                        )
                    numbers, digests_of = reading.take(group.job.size)
                    calls = sum(map(len, numbers))
                    if cached is None:
                        self._watch(state, group, calls)
                    else:
                        self._watch(state, group, calls, numbers, cached.cached, digests_of)
        finally:
            await reader.close()
        if state.cached:
            _log.info("%d calls of %s from the cache", state.cached, self._name)

    async def _cached_tasks(self, session: Session, function: Packed) -> CachedTasks | None:
        """Return the calls' cached results; None without the option ``cache``."""
        settings = self._settings
        if not function.code or settings.nodes > 1:
            return None
        cached = await session.cache.of(settings, self._name, function)
        return CachedTasks(cached, self._name, function, settings)


class _Reading:
    """Packed tasks of a map, without those whose results are cached.

    Its generators run in a thread.
    """

    def __init__(
        self,
        reader: CallReader,
        function: Packed,
        state: SweepState,
        cached: CachedTasks | None,
    ) -> None:
        self._reader = reader
        self._function = function
        self._state = state
        self._cached = cached
        self._loop = asyncio.get_running_loop()
        self._next = 0
        self._sizes: deque[int] = deque()
        self._unsubmitted: deque[tuple[range, bytes]] = deque()

    def counted(self, groups: Iterator[Sequence[Call]]) -> Iterator[Sequence[Call]]:
        """Yield the calls of each task, and note their number."""
        for calls in groups:
            self._sizes.append(len(calls))
            yield calls

    def tasks(self, packed: Iterator[Packed]) -> Iterator[tuple[Packed, Packed]]:
        """Yield the function and arguments of each task."""
        state = self._state
        for arguments in packed:
            size = self._sizes.popleft()
            numbers = range(self._next, self._next + size)
            self._next += size
            sent = arguments.size + sum(value.size for value in arguments.shared)
            self._reader.record_bytes(sent)
            state.packed = self._next
            digest = b""
            if self._cached is not None:
                digest, index = self._cached.find(arguments)
                if index is not None:
                    self._loop.call_soon_threadsafe(
                        state.record_cached, self._cached, index, numbers
                    )
                    continue
            self._unsubmitted.append((numbers, digest))
            yield self._function, arguments

    def take(self, tasks: int) -> tuple[list[range], list[bytes]]:
        """Return the numbers of the calls in the next submitted tasks, and their digests."""
        taken = [self._unsubmitted.popleft() for _ in range(tasks)]
        return [numbers for numbers, _ in taken], [digest for _, digest in taken]
