"""Retried map: the failed tasks of a `Sweep`, run again."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

from farcall.client.sweep import MapJobs, Source
from farcall.client.sweep_state import CachedCalls, SweepState
from farcall.config.help import shows_options
from farcall.config.settings import Settings
from farcall.engine import retry
from farcall.engine.delivered import Output, Wanted
from farcall.engine.retry_plan import plan_for, until_ended
from farcall.engine.run import TaskRun
from farcall.engine.session import Session, session_for
from farcall.model.errors import FarcallError, NothingToRetryError
from farcall.payload.results import Result
from farcall.storage.store import Arrived

if TYPE_CHECKING:
    from farcall.config.settings import Options

R = TypeVar("R")

_PARALLEL = 16


class RetriedSweep(MapJobs[R]):
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
        cached: Tasks of the map whose results were cached.
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
        cached: CachedCalls | None = None,
        *,
        return_exceptions: bool,
        progress: bool,
        output: bool,
    ) -> None:
        super().__init__(
            "retry",
            name,
            f"retry of {name}",
            "write await sweep.retry(...), await sweep.retry(...).complete(), or async for index, "
            "value in sweep.retry(...)",
            settings,
            None,
            return_exceptions=return_exceptions,
            progress=progress,
            output=output,
        )
        self._unsubmitted = deque(sources)
        self._before = before
        self._total = total
        self._options = dict(options)
        self._earlier = dict(values)
        self._cached = cached
        self._values: dict[int, R] = {}
        self._returned: set[int] = set()

    @property
    def indices(self) -> list[int]:
        """Indexes in the map of the calls that run again; empty before they are submitted."""
        arrays = self._state.arrays.values() if self._state is not None else ()
        return sorted(n for array in arrays for task in array.tasks or () for n in task)

    @shows_options
    def retry(self, **options: Unpack[Options]) -> RetriedSweep[R]:
        """Rerun the tasks that failed in this retry; see `Sweep.retry`.

        Raises:
            FarcallError: Nothing was submitted yet, or a caller still waits for the retry.
        """
        sources, lacking = self._sources()
        return RetriedSweep(
            self._name,
            self._settings,
            [*self._unsubmitted, *lacking],
            [*self._before, *sources],
            self._total,
            {**self._options, **options},
            {**self._earlier, **self._results()},
            self._cached,
            return_exceptions=self._return_exceptions,
            progress=self._progress,
            output=self._output,
        )

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
        if self._state is None:
            await self._coroutine()
        sources, _ = self._sources()
        given = {
            n: value for n, value in enumerate(values) if not isinstance(value, BaseException)
        }
        await self._take_kept(sources, {**given, **self._results()})
        await self._take_cached(given)
        results: dict[int, Any] = {**dict(enumerate(values)), **self._values}
        results |= {**given, **self._earlier, **self._results()}
        missing = [index for index in range(self._total) if index not in results]
        if missing:
            raise FarcallError(
                f"{len(missing)} of {self._total} results are not available, such as that of call "
                f"{missing[0]}: they were collected before, or the calls were never submitted. "
                "Pass what the map returned: complete(values)"
            )
        return [results[index] for index in range(self._total)]

    def _results(self) -> dict[int, R]:
        return {index: self._values[index] for index in self._returned}

    async def _coroutine(self) -> list[R]:
        __tracebackhide__ = True
        if not self.indices or self._values.keys() < set(self.indices):
            async for _ in self._each(self._pair, one_by_one=False):
                pass
        return [self._values[index] for index in self.indices]

    def _pair(self, index: int, job_id: str, result: Result) -> tuple[int, R]:
        pair = super()._pair(index, job_id, result)
        self._values[index] = pair[1]
        if result.error is None:
            self._returned.add(index)
        return pair

    def _new_state(self, session: Session, *, with_output: bool) -> SweepState:
        if self._state is not None:
            raise FarcallError(
                "this retry was awaited before. Call its complete() for the results of all calls, "
                "or its retry() for the calls that failed again"
            )
        sizes = [len(task) for source in self._unsubmitted for task in source.calls]
        self._run = session.run
        self._state = SweepState(
            None,
            max(sizes, default=1),
            session.timing,
            session.chances,
            with_output=with_output,
        )
        return self._state

    async def _submit_all(self, session: Session, state: SweepState) -> None:
        """Submit the failed tasks, once the cancelled ones have finished."""
        with session.at_work():
            while self._unsubmitted:
                await self._submit_one(session, state, self._unsubmitted[0])
                self._unsubmitted.popleft()
        if not state.arrays:
            raise NothingToRetryError(
                f"the map of {self._name} has no task to retry: each task has succeeded or was "
                "retried already. Call retry() of the newest retry"
            )

    async def _submit_one(self, session: Session, state: SweepState, source: Source) -> None:
        job_id = source.submission.job_id
        await until_ended(session, job_id)
        plan = await plan_for(session, self._settings, job_id)
        if not plan.tasks:
            return
        settings = plan.with_options(self._options)
        for done in await retry.submit(session, plan, settings):
            tasks = [source.calls[index] for index in done.origin]
            self._watch(state, done.group, sum(map(len, tasks)), tasks)

    async def _take_cached(self, given: Mapping[int, Any]) -> None:
        """Fetch the map's cached results."""
        if self._cached is None:
            return
        for number, calls in enumerate(self._cached.numbers):
            if not given.keys() >= set(calls):
                wanted = Wanted(len(calls), Output.NONE)
                arrived = Arrived("", number, 0)
                delivered = await self._cached.tasks.deliver(number, arrived, wanted)
                values = (result.value for result in delivered.results)
                self._earlier.update(zip(calls, values, strict=True))

    async def _take_kept(self, sources: Sequence[Source], known: Mapping[int, Any]) -> None:
        """Fetch the results of all jobs that are still in the bucket."""
        known = {**known, **self._earlier}
        session = await session_for(self._settings)
        places = asyncio.Semaphore(_PARALLEL)
        kept: dict[int, R] = {}

        async def take(source: Source, number: int, arrived: Arrived | None) -> None:
            calls = source.calls[number]
            run = TaskRun(
                source.submission.id_of(number),
                self._settings,
                (source.submission, number),
                wanted=Wanted(len(calls), Output.NONE),
            )
            if arrived is not None:
                run.record_outcome(arrived)
            async with places:
                results = await run.results()
            for index, result in zip(calls, results, strict=False):
                if result.error is None:
                    kept[index] = result.value

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
            for source in (*self._before, *sources):
                await take_all(source)
        finally:  # fetched results are no longer in the bucket
            self._earlier = {**kept, **self._earlier}
