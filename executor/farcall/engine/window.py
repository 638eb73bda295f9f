"""Window: the outcomes of many groups, fetched as fast as one consumer takes the results."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple, TypeAlias

from farcall.aws import error_translation
from farcall.engine.byte_budget import ByteBudget, Reservation
from farcall.engine.delivered import Delivered, Output, Wanted
from farcall.engine.group import TaskGroup
from farcall.engine.tracked_job import Completion
from farcall.model import clock
from farcall.model.errors import ServiceError
from farcall.model.timing import Timing
from farcall.payload.results import Result
from farcall.storage.store import Arrived

_FETCHERS = 16


@dataclass(frozen=True, slots=True)
class _Ready:
    """Finished task whose outcome must be fetched.

    Attributes:
        group: The task's job.
        index: The task's index in the job.
        numbers: Numbers of the task's calls.
        end: How the task finished.
        failing_since: Time of the first failed fetch; None if none has failed.
    """

    group: TaskGroup
    index: int
    numbers: Sequence[int]
    end: Completion
    failing_since: float | None = None


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


Record: TypeAlias = (
    "Callable[[TaskGroup, int, Sequence[int], Sequence[Result]], BaseException | None]"
)
"""Called with each fetched task: its group, index, and its calls' numbers and results.

It may return an error that ends the window.
"""


class Window:
    """Fetched results of one consumer, limited in bytes and tasks.

    Args:
        timing: Limits of fetching ahead and of repeated fetches.
        output: Part of the tasks' output that is fetched.
        record: Called with each fetched task.
    """

    def __init__(self, timing: Timing, output: Output, record: Record) -> None:
        self._timing = timing
        self._output = output
        self._record = record
        self._budget = ByteBudget(timing.window_bytes, timing.window_tasks)
        self._ready: asyncio.Queue[_Ready] = asyncio.Queue()
        self._fetched: asyncio.Queue[Fetched | BaseException | None] = asyncio.Queue()
        self._fetchers: list[asyncio.Task[None]] = []
        self._is_closed = False

    def add(self, group: TaskGroup, on_end: Callable[[int], Sequence[int]]) -> None:
        """Track a group, and fetch the outcomes of its tasks.

        Args:
            group: The group.
            on_end: Called with the index of each finished task; returns its calls' numbers.
        """

        def make_ready(index: int, end: Completion) -> None:
            self._ready.put_nowait(_Ready(group, index, on_end(index), end))

        group.track(make_ready, self._is_full)

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
        for fetcher in self._fetchers:
            fetcher.cancel()
        try:
            await asyncio.gather(*self._fetchers, return_exceptions=True)
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
            wanted = Wanted(len(numbers), self._output)
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
            results = delivered.results[: len(numbers)]
            reason = self._record(group, index, numbers, results)
            if reason is not None:
                self.fail(reason)
                return
            deletable = [] if group.settings.keep_artifacts else delivered.all_deletable
            discard = partial(group.discard, index, deletable)
            job_id = group.submission.id_of(index)
            self._fetched.put_nowait(
                Fetched(numbers, job_id, deque(results), reservation, discard)
            )
            del delivered, results  # the consumer owns collected values

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
