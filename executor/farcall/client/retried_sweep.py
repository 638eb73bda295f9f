"""Retried map: the calls of a `Sweep` that gave no value, run again."""

from __future__ import annotations

import asyncio
import contextlib
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
from farcall.client.job import Job
from farcall.client.progress import Counts, Progress
from farcall.client.sweep_state import how_far
from farcall.engine import retry
from farcall.engine.fetcher import Output
from farcall.engine.session import Session, session_for
from farcall.engine.task_handle import TaskHandle
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
_NOBODY = "nobody waits for it any more"


@dataclass(frozen=True)
class Source:
    """A job whose calls may run again.

    Attributes:
        submission: The job.
        wholes: For each of its tasks, the numbers of the calls that its arguments are, in the map.
        calls: For each of them, the numbers of those that it runs.
    """

    submission: Submission
    wholes: Sequence[Sequence[int]]
    calls: Sequence[Sequence[int]]


class RetriedSweep(Awaitable[list[R]]):
    """The calls of a map that gave no value, to be run again; see `Sweep.retry`.

    ``await again`` gives their values in the order of `indices`, ``async for index, value in
    again`` as they come, with the numbers that the calls have in the map, and ``await
    again.complete()`` the values of all calls of the map. Nothing is submitted before. The jobs
    belong to the one who waits, as those of a map.

    Args:
        name: The function's name.
        settings: The options of the map.
        sources: The jobs of which calls are to run again.
        before: These, and those of the map that they were retries of.
        total: How many calls the map has.
        options: Options that are to be others.
        return_exceptions: Give exceptions as values instead of raising the first.
        progress: Show how far they are.
        output: Show what the tasks print.
    """

    def __init__(
        self,
        name: str,
        settings: Settings,
        sources: Sequence[Source],
        before: Sequence[Source],
        total: int,
        options: Mapping[str, Any],
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
        self._sources = sources
        self._before = before
        self._total = total
        self._options = dict(options)
        self._return_exceptions = return_exceptions
        self._progress = progress
        self._output = output
        self._failures = Groups()
        self._failed = 0
        self._submitted: list[Source] | None = None
        self._values: dict[int, R] = {}
        self._returned: set[int] = set()

    @property
    def indices(self) -> list[int]:
        """Numbers of the calls that run again, in the map; empty before they are submitted."""
        return sorted(n for each in self._submitted or () for task in each.calls for n in task)

    @property
    def job_ids(self) -> list[str]:
        """IDs of the jobs that run them; empty before they are submitted."""
        return [each.submission.job_id for each in self._submitted or ()]

    @shows_options
    def retry(self, **options: Unpack[Options]) -> RetriedSweep[R]:
        """Run again what still gave no value; see `Sweep.retry`.

        Raises:
            FarcallError: Nothing was submitted yet.
        """
        if self._submitted is None:
            self._was_told = True
            raise FarcallError("nothing of this retry was submitted; await it first")
        lacking = [
            each
            for each in self._submitted
            if not all(n in self._returned for task in each.calls for n in task)
        ]
        return RetriedSweep(
            self._name,
            self._settings,
            lacking,
            [*self._before, *self._submitted],
            self._total,
            {**self._options, **options},
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
        """Run the calls again, unless that was done, and return the values of all of the map.

        Args:
            values: What the map gave, with ``return_exceptions``. Without it the values are
                fetched that nobody has taken yet, as those of a map whose error was raised.

        Raises:
            FarcallError: Values were handed over before, and are gone from the bucket.
            Exception: What a call raised once more, and all that a map raises.
        """
        self._is_used = True
        if self._submitted is None:
            await self._gather()
        found: dict[int, Any] = dict(enumerate(values))
        if not values:
            found = await self._kept()
        found |= self._values
        missing = [index for index in range(self._total) if index not in found]
        if missing:
            raise FarcallError(
                f"{len(missing)} of {self._total} values are not here, such as that of call "
                f"{missing[0]}: they were handed over before, or the calls were never submitted; "
                "give what the map gave: complete(values)"
            )
        return [found[index] for index in range(self._total)]

    async def _gather(self) -> list[R]:
        __tracebackhide__ = True
        async for _ in self._each():
            pass
        return [self._values[index] for index in self.indices]

    async def _each(self) -> AsyncGenerator[tuple[int, R], None]:
        session = await session_for(self._settings)
        with session.at_work():
            self._submitted = await self._submit(session)
        waits = self._begin(session, self._submitted)
        left = set(waits)
        try:
            with self._shown(session, self._submitted):
                while left:
                    done, left = await asyncio.wait(left, return_when=asyncio.FIRST_COMPLETED)
                    for each in done:
                        for pair in self._take(waits.pop(each), each.result()):
                            yield pair
        except BaseException as error:
            if left:
                reason = _NOBODY if isinstance(error, GeneratorExit) else left_by(error)
                await session.terminations.leave(self.job_ids, len(left), reason)
            raise
        finally:
            for each in left:
                each.cancel()
            await asyncio.gather(*left, return_exceptions=True)

    def _begin(
        self, session: Session, submitted: Sequence[Source]
    ) -> dict[asyncio.Future[list[Result]], Sequence[int]]:
        """Wait for each task's end, and return its calls with what is to come of them."""
        places = asyncio.Semaphore(_PARALLEL)
        waits: dict[asyncio.Future[list[Result]], Sequence[int]] = {}
        for source in submitted:
            for number, calls in enumerate(source.calls):
                job = self._job(session, source.submission, number, len(calls))
                waits[asyncio.ensure_future(_outcome(job, places))] = calls
        return waits

    @contextlib.contextmanager
    def _shown(self, session: Session, submitted: Sequence[Source]) -> Iterator[None]:
        """Show how far they are and what they print, where that is wanted, while a block lasts."""
        for source in submitted if self._output else ():
            labels = {n: live_output.label_of(self._name, c) for n, c in enumerate(source.calls)}
            session.relay.follow(source.submission, labels, live_output.writer)
        try:
            with self._bar(session, submitted) if self._progress else contextlib.nullcontext():
                yield
        finally:
            for source in submitted if self._output else ():
                session.relay.leave(source.submission, range(source.submission.size))

    def _bar(self, session: Session, submitted: Sequence[Source]) -> Progress:
        def count() -> Counts:
            ended = running = 0
            for source in submitted:
                calls = [number for task in source.calls for number in task]
                known = sum(number in self._values for number in calls)
                largest = max(map(len, source.calls))
                detail = session.tracker.latest(source.submission.job_id)
                ended_here, running_here = how_far(detail, len(calls), largest, known)
                ended, running = ended + ended_here, running + running_here
            done = ended - self._failed
            return Counts(running, done, self._failed, errors=str(self._failures))

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
            why = result.why()
            self._failed += result.error is not None
            if why is not None:
                self._failures.add(index, why)
            value: Any = result.error
            if result.error is None or not self._return_exceptions:
                value = result.unwrap()
            self._values[index] = value
            if result.error is None:
                self._returned.add(index)
            yield index, value

    async def _submit(self, session: Session) -> list[Source]:
        """Submit the calls that gave no value, once Batch knows the end of what was ended."""
        found: list[Source] = []
        try:
            for source in self._sources:
                found += await self._submit_one(session, source)
        except BaseException as error:
            if found:
                ids = [each.submission.job_id for each in found]
                await session.terminations.leave(ids, len(ids), left_by(error))
            raise
        if not found:
            raise NothingToRetryError(f"each call of the map of {self._name} has given a value")
        return found

    async def _submit_one(self, session: Session, source: Source) -> list[Source]:
        found: list[Source] = []
        job_id = source.submission.job_id
        await retry.until_ended(session, job_id)
        plan = await retry.look(session, self._settings, job_id)
        if not plan.tasks:
            return []
        settings = plan.with_options(self._options)
        for done in await retry.submit(session, plan, settings):
            session.cleaner.note_submission(done.submission)
            wholes = [source.wholes[task.number] for task in done.tasks]
            calls = [
                [n for bit, n in enumerate(whole) if not task.skip >> bit & 1]
                for whole, task in zip(wholes, done.tasks, strict=True)
            ]
            found.append(Source(done.submission, wholes, calls))
        return found

    def _job(self, session: Session, submission: Submission, number: int, calls: int) -> Job[R]:
        place = submission, number
        handle = TaskHandle(submission.id_of(number), self._settings, place)
        handle.watch(session, submission, number)
        return Job(handle, Output.NONE, calls)

    async def _kept(self) -> dict[int, Any]:
        """Return the values that lie in the bucket, of the map and of earlier retries."""
        session = await session_for(self._settings)
        places = asyncio.Semaphore(_PARALLEL)
        found: dict[int, Any] = {}

        async def take(source: Source, number: int, arrived: Arrived | None) -> None:
            calls = source.calls[number]
            place = source.submission, number
            handle = TaskHandle(source.submission.id_of(number), self._settings, place)
            if arrived is not None:
                handle.note_outcome(arrived)
            async with places:
                results = await Job[R](handle, Output.NONE, len(calls)).outcome()
            for index, result in zip(calls, results, strict=False):
                if result.error is None:
                    found[index] = result.value

        for source in self._before:
            where = source.submission.where
            store, after, more = session.stores.of(where.bucket), "", True
            # Of several calls of a task that was ended some may have returned before.
            ended = {n for n, calls in enumerate(source.calls) if len(calls) > 1}
            while more:
                page, after = await store.list_outcomes(
                    where.root, bundle=where.bundle, after=after
                )
                there = [each for each in page if each.index < len(source.calls)]
                await asyncio.gather(*(take(source, each.index, each) for each in there))
                ended.difference_update(each.index for each in there)
                more = bool(after)
            await asyncio.gather(*(take(source, number, None) for number in ended))
        return found


async def _outcome(job: Job[Any], places: asyncio.Semaphore) -> list[Result]:
    """Wait for a task's end, and return what came of its calls; some are fetched at a time."""
    await job.wait()
    async with places:
        return await job.outcome()
