"""Window: the outcomes of many groups, fetched as fast as one consumer takes the results."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple, Protocol, TypeAlias

from farcall.aws import error_translation
from farcall.config.settings import Settings
from farcall.engine.byte_budget import ByteBudget, Reservation
from farcall.engine.delivered import Delivered, Keep, Output, Wanted
from farcall.engine.fetcher import Room, no_bound
from farcall.engine.group import Place, TaskGroup
from farcall.engine.second_chances import SecondChances, add_attempts, is_due
from farcall.engine.tracked_job import Completion
from farcall.model import clock
from farcall.model.errors import FarcallError, ServiceError
from farcall.model.timing import Timing
from farcall.payload.results import Result
from farcall.storage.store import Arrived

_log = logging.getLogger("farcall")

_FETCHERS = 16
_CACHED = Arrived("", 0, 0)
"""End of a task whose result is cached."""


class Tasks(Protocol):
    """The tasks of a group, or tasks whose results are cached."""

    settings: Settings

    def id_of(self, index: int) -> str:
        """Return the ID of a task's job."""

    async def deliver(
        self, index: int, end: Completion, wanted: Wanted, room: Room = no_bound
    ) -> Delivered:
        """Fetch the outcome of a finished task."""

    def discard(self, index: int, deletable: list[str]) -> None:
        """Delete the objects of a task whose result was collected."""


class Calls(Protocol):
    """The calls of a group's tasks."""

    def keep(self, index: int) -> Keep | None:
        """Return what keeps the result of a task for later calls, if anything does."""

    def record_end(self, index: int) -> Sequence[int]:
        """Record that a task has finished; return the numbers of its calls."""

    def record_restart(self, index: int, place: Place) -> None:
        """Record that a finished task runs again, as a task of another job."""


@dataclass(frozen=True, slots=True)
class _Ready:
    """Finished task whose outcome must be fetched.

    Attributes:
        group: The task's job.
        index: The task's index in the job.
        task: The task's index in the job that was added, and its calls.
        numbers: Numbers of the task's calls.
        end: How the task finished.
        failing_since: Time of the first failed fetch; None if none has failed.
        attempts: Descriptions of earlier attempts.
    """

    group: Tasks
    index: int
    task: tuple[int, Calls]
    numbers: Sequence[int]
    end: Completion
    failing_since: float | None = None
    attempts: tuple[str, ...] = ()


class Fetched(NamedTuple):
    """Fetched task.

    Attributes:
        numbers: Numbers of the task's calls.
        job_id: The task's job.
        results: Results of the task's calls.
        reservation: The results' share of the budget.
        on_collected: Called when the last result was handed over.
    """

    numbers: Sequence[int]
    job_id: str
    results: deque[Result]
    reservation: Reservation
    on_collected: Callable[[], None]


Record: TypeAlias = "Callable[[Calls, int, Sequence[int], Sequence[Result]], BaseException | None]"
"""Called with each fetched task: its job's calls, its index, and its calls' numbers and results.

It may return an error that ends the window.
"""


class Window:
    """Fetched results of one consumer, limited in bytes and tasks.

    Args:
        timing: Limits of fetching ahead and of repeated fetches.
        output: Part of the tasks' output that is fetched.
        record: Called with each fetched task.
        chances: Runs failed tasks again.

    Attributes:
        groups: The tracked groups.
    """

    def __init__(
        self, timing: Timing, output: Output, record: Record, chances: SecondChances
    ) -> None:
        self.groups: list[TaskGroup] = []
        self._chances = chances
        self._moving: set[asyncio.Task[None]] = set()
        self._timing = timing
        self._output = output
        self._record = record
        self._budget = ByteBudget(timing.window_bytes, timing.window_tasks)
        self._ready: asyncio.Queue[_Ready] = asyncio.Queue()
        self._fetched: asyncio.Queue[Fetched | BaseException | None] = asyncio.Queue()
        self._fetchers: list[asyncio.Task[None]] = []
        self._is_closed = False

    def add(self, group: TaskGroup, calls: Calls) -> None:
        """Track a group, and fetch the outcomes of its tasks."""

        def make_ready(index: int, end: Completion) -> None:
            numbers = calls.record_end(index)
            self._ready.put_nowait(_Ready(group, index, (index, calls), numbers, end))

        self.groups.append(group)
        group.track(make_ready, self._is_full)

    def add_cached(self, cached: Tasks, calls: Calls, index: int) -> None:
        """Fetch a cached result."""
        numbers = calls.record_end(index)
        self._ready.put_nowait(_Ready(cached, index, (index, calls), numbers, _CACHED))

    def start(self) -> None:
        """Start fetching; `close` stops it."""
        self._fetchers = [asyncio.ensure_future(self._fetch()) for _ in range(_FETCHERS)]

    async def next(self) -> Fetched | None:
        """Wait for a fetched task; None after `wake`.

        Raises:
            BaseException: The reason that no more results can arrive.
        """
        fetched = await self._fetched.get()
        if isinstance(fetched, BaseException):
            raise fetched
        return fetched

    def wake(self) -> None:
        """Resume the consumer, because the number of results is known."""
        self._fetched.put_nowait(None)

    def fail(self, error: BaseException) -> None:
        """Raise an error in the consumer."""
        self._fetched.put_nowait(error)

    async def close(self) -> None:
        """Stop fetching, and release the results that were not taken."""
        self._is_closed = True
        running = [*self._fetchers, *self._moving]
        for task in running:
            task.cancel()
        try:
            await asyncio.gather(*running, return_exceptions=True)
        finally:  # a closing event loop may cancel this as well
            for queue in (self._ready, self._fetched):
                while not queue.empty():
                    queue.get_nowait()

    def _is_full(self) -> bool:
        return self._ready.qsize() >= self._timing.most_unfetched

    async def _fetch(self) -> None:
        """Fetch outcomes; a failure affects only the calls of its task."""
        while True:
            ready = await self._ready.get()
            group, index, numbers = ready.group, ready.index, ready.numbers
            size = ready.end.size if isinstance(ready.end, Arrived) else 0
            reservation = await self._budget.enter(size)
            task, calls = ready.task
            wanted = Wanted(len(numbers), self._output, keep=calls.keep(task))
            try:
                delivered = await group.deliver(index, ready.end, wanted, reservation.grow)
            except Exception as error:
                reservation.leave()
                if error_translation.concerns_all(error):
                    self.fail(error)
                    return
                passes = isinstance(error, ServiceError) and error_translation.may_pass(error)
                passes = passes or error_translation.is_of_credentials(error)
                if passes and self._postpone(ready):
                    continue
                delivered = Delivered([Result(error=error)] * len(numbers))
            if isinstance(group, TaskGroup) and is_due(group.settings.ladders, delivered):
                moving = asyncio.ensure_future(self._move(group, ready, delivered, reservation))
                self._moving.add(moving)
                moving.add_done_callback(self._moving.discard)
            else:
                add_attempts(delivered, ready.attempts, None)
                self._hand_over(ready, delivered, reservation)
            del delivered  # the consumer owns collected values

    def _hand_over(self, ready: _Ready, delivered: Delivered, reservation: Reservation) -> None:
        group, index, numbers = ready.group, ready.index, ready.numbers
        results = delivered.results[: len(numbers)]
        reason = self._record(ready.task[1], ready.task[0], numbers, results)
        if reason is not None:
            self.fail(reason)
            return
        deletable = [] if group.settings.keep_artifacts else delivered.all_deletable
        discard = partial(group.discard, index, deletable)
        self._fetched.put_nowait(
            Fetched(numbers, group.id_of(index), deque(results), reservation, discard)
        )

    async def _move(
        self, failed: TaskGroup, ready: _Ready, delivered: Delivered, reservation: Reservation
    ) -> None:
        """Run a failed task again, or hand over its failure."""
        reservation.leave()  # other tasks are fetched meanwhile
        try:
            chance = await self._chances.take(failed, ready.index, delivered)
        except FarcallError as error:
            _log.warning("%s", error)
            chance = None
        if chance is None or chance.place is None:
            add_attempts(delivered, ready.attempts, chance)
            self._hand_over(ready, delivered, reservation)
            return
        group, number = chance.place
        if group not in self.groups:
            self.groups.append(group)
        index, calls = ready.task
        calls.record_restart(index, chance.place)
        attempts = (*ready.attempts, chance.attempt)

        def make_ready(_number: int, end: Completion) -> None:
            numbers = calls.record_end(index)
            task = _Ready(group, number, ready.task, numbers, end, attempts=attempts)
            self._ready.put_nowait(task)

        group.follow(number, make_ready)

    def _postpone(self, ready: _Ready) -> bool:
        """Schedule another fetch of a task; return False if its retry time is over."""
        now = clock.now()
        since = now if ready.failing_since is None else ready.failing_since
        if now - since > self._timing.fetch_retry_s:
            return False
        again = replace(ready, failing_since=since)
        loop = asyncio.get_running_loop()
        loop.call_later(self._timing.fetch_again_s, self._resume, again)
        return True

    def _resume(self, ready: _Ready) -> None:
        if not self._is_closed:
            self._ready.put_nowait(ready)
