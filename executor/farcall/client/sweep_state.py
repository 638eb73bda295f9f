"""State of a sweep that is waited for: what is under way."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

from farcall.client.byte_budget import ByteBudget, Reservation
from farcall.client.progress import Counts
from farcall.engine.watch import Arrival, OnArrival
from farcall.model import clock
from farcall.model.jobs import JobDetail, JobStatus
from farcall.model.submission import Submission
from farcall.model.timing import Timing
from farcall.payload.results import Result

_ENDED = (JobStatus.SUCCEEDED.value, JobStatus.FAILED.value)
_RUNNING = (JobStatus.STARTING.value, JobStatus.RUNNING.value)


@dataclass(frozen=True, slots=True)
class Ready:
    """A task that has ended and is to be fetched.

    Attributes:
        submission: Its job.
        index: Its number there.
        numbers: Those of its calls.
        arrival: How it ended.
        failing_since: When fetching it failed first; None where it has not.
    """

    submission: Submission
    index: int
    numbers: range
    arrival: Arrival
    failing_since: float | None = None


class Fetched(NamedTuple):
    """A task that was fetched.

    Attributes:
        first: Number of its first call.
        job_id: Its job.
        results: Those of its calls.
        place: The room that they take.
        on_taken: Is told when the last of them was handed over.
    """

    first: int
    job_id: str
    results: deque[Result]
    place: Reservation
    on_taken: Callable[[], None]


@dataclass(eq=False)
class Array:
    """A job of a sweep.

    Attributes:
        submission: The job.
        first: Number of its first task in the sweep.
        unfinished: How many of its tasks have not ended.
        ended: How many calls are in those that have.
        tell: What the tracker tells of their ends.
        is_unseen: Whether it could not be looked for any longer; it goes on.
    """

    submission: Submission
    first: int
    unfinished: int
    ended: int = 0
    tell: OnArrival | None = None
    is_unseen: bool = False


class SweepState:
    """One wait for a sweep. What an earlier one left unfinished may still report to that.

    The budget is its own: a loop that waits for another sweep in its body takes nothing meanwhile.

    Args:
        calls: Number of calls.
        chunksize: Calls in one task.
        timing: How much is fetched ahead, and how long what fails.
        with_output: Whether the caller gets what the tasks wrote, too.

    Attributes:
        arrays: The jobs by their IDs.
        arrivals: Tasks that have ended.
        fetched: Those that were fetched, or an error that ends the wait.
        budget: Bounds what is fetched and was not taken.
        is_over: Whether nobody waits any more.
        with_output: As the argument.
    """

    def __init__(
        self, calls: int, chunksize: int, timing: Timing, *, with_output: bool = False
    ) -> None:
        self.with_output = with_output
        self._timing = timing
        self._calls = calls
        self._chunksize = chunksize
        self.arrays: dict[str, Array] = {}
        self.arrivals: asyncio.Queue[Ready] = asyncio.Queue()
        self.fetched: asyncio.Queue[Fetched | BaseException] = asyncio.Queue()
        self.budget = ByteBudget(timing.window_bytes, timing.window_tasks)
        self.is_over = False
        self._failed = 0
        self._now: Fetched | None = None
        self._taken: list[Callable[[], None]] = []

    def postpone(self, ready: Ready) -> bool:
        """Have a task fetched again a little later; tell whether that still makes sense."""
        now = clock.now()
        since = now if ready.failing_since is None else ready.failing_since
        if now - since > self._timing.fetch_retry_s:
            return False
        again = replace(ready, failing_since=since)
        loop = asyncio.get_running_loop()
        loop.call_later(self._timing.fetch_again_s, self._resume, again)
        return True

    def _resume(self, ready: Ready) -> None:
        if not self.is_over:
            self.arrivals.put_nowait(ready)

    def put(self, fetched: Fetched) -> None:
        """Have a task's results taken."""
        self._failed += sum(result.error is not None for result in fetched.results)
        self.fetched.put_nowait(fetched)

    async def take(self) -> tuple[int, str, Result]:
        """Wait for the next result; return the number of its call, its job, and the result.

        Raises:
            Exception: What keeps others from coming.
        """
        if self._now is None:
            fetched = await self.fetched.get()
            if isinstance(fetched, BaseException):
                raise fetched
            self._now = fetched
        first, job_id, results, place, on_taken = self._now
        self._now = None
        result = results.popleft()
        if results:
            self._now = Fetched(first + 1, job_id, results, place, on_taken)
        else:
            place.leave()
            self._taken.append(on_taken)
        return first, job_id, result

    def note_taken(self) -> None:
        """Tell of the tasks whose results the caller has, and not only gets in this moment."""
        for on_taken in self._taken:
            on_taken()
        self._taken.clear()

    def end(self) -> None:
        """Let go of what nobody has taken."""
        self.is_over = True
        self._now = None
        for queue in (self.arrivals, self.fetched):
            while not queue.empty():
                queue.get_nowait()

    def is_full(self) -> bool:
        """Tell whether enough tasks are known that wait to be fetched."""
        return self.arrivals.qsize() >= self._timing.most_unfetched

    def calls_of(self, array: Array, index: int, tasks: int = 1) -> range:
        """Return the numbers of the calls in a task of a job, or in several from this one on."""
        first = (array.first + index) * self._chunksize
        return range(first, min(first + tasks * self._chunksize, self._calls))

    def count(self, latest: Callable[[str], JobDetail | None]) -> Counts:
        """Count the calls by what has arrived here and what Batch said last.

        Args:
            latest: Gives what Batch said last of a job.
        """
        ended = running = 0
        for job_id, array in self.arrays.items():
            calls = len(self.calls_of(array, 0, array.submission.size))
            detail = latest(job_id)
            said = (detail.status_summary or {detail.status.value: 1}) if detail else {}
            ended_there = self._chunksize * sum(said.get(status, 0) for status in _ENDED)
            ended_here = min(max(array.ended, ended_there), calls)
            ended += ended_here
            running_there = self._chunksize * sum(said.get(status, 0) for status in _RUNNING)
            running += min(running_there, calls - ended_here)
        return Counts(running, ended - self._failed, self._failed)
