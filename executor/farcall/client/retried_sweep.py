"""Retried map: the failed tasks of a `Sweep`, run again."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Coroutine,
    Iterator,
    Mapping,
    Sequence,
)
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from farcall.client import live_output
from farcall.client.awaitable import Awaitable
from farcall.client.progress import Counts, Progress
from farcall.client.sweep_state import how_far
from farcall.engine import retry
from farcall.engine.fetcher import Output
from farcall.engine.run import TaskRun, Wanted
from farcall.engine.session import Session, session_for
from farcall.model.errors import FarcallError, NothingToRetryError
from farcall.model.interrupts import left_by
from farcall.model.option_signatures import shows_options
from farcall.model.settings import Settings
from farcall.model.submission import Submission
from farcall.payload.error_texts import Groups
from farcall.payload.results import Result
from farcall.storage.store import Arrived

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from farcall.model.settings import Options

R = TypeVar("R")

_PARALLEL = 16
_NOT_AWAITED = "the caller stopped waiting for it"


@dataclass(frozen=True)
class Source:
    """Job of a map or a retry.

    Attributes:
        submission: The job.
        calls: For each of its tasks, the indexes of its calls in the map.
    """

    submission: Submission
    calls: Sequence[Sequence[int]]


class RetriedSweep(Awaitable[list[R]]):
    """Failed tasks of a map that run again; see `Sweep.retry`.

    ``await again`` returns the results of their calls in the order of `indices`, ``async for
    index, value in again`` yields them as they arrive, with the calls' indexes in the map, and
    ``await again.complete()`` returns the results of all calls of the map. Nothing is submitted
    before. As with a map, cancelling the wait cancels the jobs.

    Args:
        name: The function's name.
        settings: The options of the map.
        sources: The jobs whose failed tasks run again.
        before: All jobs of the map and of its retries so far.
        total: Number of calls of the map.
        options: Options that differ from the map's.
        values: Results of earlier retries, by the calls' indexes in the map.
        return_exceptions: Return exceptions as results instead of raising the first.
        progress: Show the progress.
        output: Print the tasks' output.
    """

    def __init__(
        self,
        name: str,
        settings: Settings,
        sources: Sequence[Source],
        before: Sequence[Source],
        total: int,
        options: Mapping[str, Any],
        values: Mapping[int, R],
        *,
        return_exceptions: bool,
        progress: bool,
        output: bool,
    ) -> None:
        super().__init__(
            name,
            f"retry of {name}",
            "write await sweep.retry(...), await sweep.retry(...).complete(), or async for index, "
            "value in sweep.retry(...)",
        )
        self._name = name
        self._settings = settings
        self._unsubmitted = deque(sources)
        self._before = before
        self._total = total
        self._options = dict(options)
        self._return_exceptions = return_exceptions
        self._progress = progress
        self._output = output
        self._failures = Groups()
        self._submitted: list[Source] = []
        self._earlier = dict(values)
        self._values: dict[int, R] = {}
        self._returned: set[int] = set()

    @property
    def indices(self) -> list[int]:
        """Indexes in the map of the calls that run again; empty before they are submitted."""
        return sorted(n for each in self._submitted for task in each.calls for n in task)

    @property
    def job_ids(self) -> list[str]:
        """IDs of the submitted jobs; empty before the submission."""
        return [each.submission.job_id for each in self._submitted]

    @shows_options
    def retry(self, **options: Unpack[Options]) -> RetriedSweep[R]:
        """Rerun the tasks that failed in this retry; see `Sweep.retry`.

        Raises:
            FarcallError: Nothing was submitted yet.
        """
        if not self._submitted:
            self._was_told = True
            raise FarcallError("this retry has not submitted any call. Await it first")
        lacking = [
            each
            for each in self._submitted
            if not all(n in self._returned for task in each.calls for n in task)
        ]
        return RetriedSweep(
            self._name,
            self._settings,
            [*self._unsubmitted, *lacking],
            [*self._before, *self._submitted],
            self._total,
            {**self._options, **options},
            {**self._earlier, **self._results()},
            return_exceptions=self._return_exceptions,
            progress=self._progress,
            output=self._output,
        )

    def _coroutine(self) -> Coroutine[Any, Any, list[R]]:
        return self._gather()

    def __aiter__(self) -> AsyncIterator[tuple[int, R]]:
        self._is_used = True
        return self._each()

    async def complete(self, values: Sequence[Any] = ()) -> list[R]:
        """Rerun the tasks, unless already done, and return all results of the map.

        If a call ran several times, its newest result counts; an exception replaces no result.

        Args:
            values: The map's return value with ``return_exceptions``. By default the results are
                fetched from the bucket, which keeps the results of a map that raised an error.

        Raises:
            FarcallError: Results were collected before, and are no longer in the bucket.
            Exception: The error of a call that failed again, and the errors of a map.
        """
        self._is_used = True
        is_done = self._submitted and not self._unsubmitted
        if not is_done or not self._values.keys() >= set(self.indices):
            await self._gather()
        given = {
            n: value for n, value in enumerate(values) if not isinstance(value, BaseException)
        }
        await self._take_kept({**given, **self._results()})
        found: dict[int, Any] = {**dict(enumerate(values)), **self._values}
        found |= {**given, **self._earlier, **self._results()}
        missing = [index for index in range(self._total) if index not in found]
        if missing:
            raise FarcallError(
                f"{len(missing)} of {self._total} results are not available, such as that of call "
                f"{missing[0]}: they were collected before, or the calls were never submitted. "
                "Pass what the map returned: complete(values)"
            )
        return [found[index] for index in range(self._total)]

    def _results(self) -> dict[int, R]:
        return {index: self._values[index] for index in self._returned}

    async def _gather(self) -> list[R]:
        __tracebackhide__ = True
        async for _ in self._each():
            pass
        return [self._values[index] for index in self.indices]

    async def _each(self) -> AsyncGenerator[tuple[int, R], None]:
        session = await session_for(self._settings)
        with session.at_work():
            await self._submit(session)
        waits = self._begin(session)
        left = set(waits)
        try:
            with self._shown(session):
                while left:
                    done, left = await asyncio.wait(left, return_when=asyncio.FIRST_COMPLETED)
                    for each in done:
                        for pair in self._take(waits.pop(each), each.result()):
                            yield pair
        except BaseException as error:
            if left:
                reason = _NOT_AWAITED if isinstance(error, GeneratorExit) else left_by(error)
                await session.terminations.leave(self.job_ids, len(left), reason)
            raise
        finally:
            for each in left:
                each.cancel()
            await asyncio.gather(*left, return_exceptions=True)

    def _begin(self, session: Session) -> dict[asyncio.Future[list[Result]], Sequence[int]]:
        """Start waiting for the tasks without results; return their calls by future."""
        places = asyncio.Semaphore(_PARALLEL)
        waits: dict[asyncio.Future[list[Result]], Sequence[int]] = {}
        for source in self._submitted:
            for number, calls in enumerate(source.calls):
                if self._returned.issuperset(calls):
                    continue
                run = self._run(source.submission, number, len(calls))
                run.watch(session, source.submission, number)
                waits[asyncio.ensure_future(self._outcome(run, calls, places))] = calls
        return waits

    @contextlib.contextmanager
    def _shown(self, session: Session) -> Iterator[None]:
        """Show progress and output during a block, if requested."""
        for source in self._submitted if self._output else ():
            labels = {n: live_output.label_of(self._name, c) for n, c in enumerate(source.calls)}
            session.relay.follow(source.submission, labels, live_output.writer)
        try:
            with self._bar(session) if self._progress else contextlib.nullcontext():
                yield
        finally:
            for source in self._submitted if self._output else ():
                session.relay.leave(source.submission, range(source.submission.size))

    def _bar(self, session: Session) -> Progress:
        def count() -> Counts:
            ended = running = 0
            for source in self._submitted:
                calls = [number for task in source.calls for number in task]
                known = sum(number in self._values for number in calls)
                largest = max(map(len, source.calls))
                detail = session.tracker.latest(source.submission.job_id)
                ended_here, running_here = how_far(detail, len(calls), largest, known)
                ended, running = ended + ended_here, running + running_here
            failed = len(self._values) - len(self._returned)
            return Counts(running, ended - failed, failed, errors=str(self._failures))

        trouble = session.tracker.trouble
        return Progress(
            self._name,
            len(self.indices),
            count,
            session.timing,
            lambda: trouble.text,
            self._failures.lines,
        )

    def _take(self, calls: Sequence[int], results: Sequence[Result]) -> Iterator[tuple[int, R]]:
        for index, result in zip(calls, results, strict=False):
            if not self._return_exceptions:
                result.unwrap()
            yield index, self._values[index]

    async def _outcome(
        self, run: TaskRun, calls: Sequence[int], places: asyncio.Semaphore
    ) -> list[Result]:
        """Wait for a task and record its calls' results; few tasks are fetched at a time."""
        await run.wait()
        async with places:
            results = await run.results()
        # They are no longer in the bucket, and the caller may stop before it takes them.
        for index, result in zip(calls, results, strict=False):
            why = result.why()
            if why is not None and index not in self._values:
                self._failures.add(index, why)
            value: Any = result.value if result.error is None else result.error
            self._values[index] = value
            if result.error is None:
                self._returned.add(index)
        return results

    async def _submit(self, session: Session) -> None:
        """Submit the failed tasks, once the cancelled ones have finished."""
        try:
            while self._unsubmitted:
                await self._submit_one(session, self._unsubmitted[0])
                self._unsubmitted.popleft()
        except BaseException as error:
            if self._submitted:
                ids = self.job_ids
                await session.terminations.leave(ids, len(ids), left_by(error))
            raise
        if not self._submitted:
            raise NothingToRetryError(
                f"the map of {self._name} has no task to retry: each task has succeeded or was "
                "retried already. Call retry() of the newest retry"
            )

    async def _submit_one(self, session: Session, source: Source) -> None:
        job_id = source.submission.job_id
        await retry.until_ended(session, job_id)
        plan = await retry.look(session, self._settings, job_id)
        if not plan.tasks:
            return
        settings = plan.with_options(self._options)
        for done in await retry.submit(session, plan, settings):
            session.cleaner.record_submission(done.submission)
            calls = [source.calls[index] for index in done.origin]
            self._submitted.append(Source(done.submission, calls))

    def _run(self, submission: Submission, number: int, calls: int) -> TaskRun:
        wanted = Wanted(calls, Output.NONE)
        place = submission, number
        return TaskRun(submission.id_of(number), self._settings, place, wanted=wanted)

    async def _take_kept(self, known: Mapping[int, Any]) -> None:
        """Fetch the map's and earlier retries' results that are still in the bucket."""
        known = {**known, **self._earlier}
        session = await session_for(self._settings)
        places = asyncio.Semaphore(_PARALLEL)
        found: dict[int, R] = {}

        async def take(source: Source, number: int, arrived: Arrived | None) -> None:
            calls = source.calls[number]
            run = self._run(source.submission, number, len(calls))
            if arrived is not None:
                run.record_outcome(arrived)
            async with places:
                results = await run.results()
            for index, result in zip(calls, results, strict=False):
                if result.error is None:
                    found[index] = result.value

        async def take_all(source: Source) -> None:
            tasks = enumerate(source.calls)
            wanted = {number for number, calls in tasks if not known.keys() >= set(calls)}
            where = source.submission.where
            store, after, more = session.stores.of(where.bucket), "", bool(wanted)
            # If a task with several calls was cancelled, some of them may have returned before.
            ended = {number for number in wanted if len(source.calls[number]) > 1}
            while more:
                page, after = await store.list_outcomes(
                    where.root, bundle=where.bundle, after=after
                )
                there = [each for each in page if each.index in wanted]
                await asyncio.gather(*(take(source, each.index, each) for each in there))
                ended.difference_update(each.index for each in there)
                more = bool(after)
            await asyncio.gather(*(take(source, number, None) for number in ended))

        try:
            for source in self._before:
                await take_all(source)
        finally:  # fetched results are no longer in the bucket
            self._earlier = {**found, **self._earlier}
