"""State of a running sweep."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from farcall.client.progress import Counts
from farcall.engine.tracked_job import Completion, OnCompletion
from farcall.model import clock
from farcall.model.jobs import JobDetail, JobStatus
from farcall.model.submission import Submission
from farcall.model.timing import Timing
from farcall.payload import call_texts
from farcall.payload.error_texts import Groups
from farcall.payload.results import Result, add_note
from farcall_runtime.contract import Location

# --- Byte budget: limit of the fetched results in memory. No I/O --------------------------------


class ByteBudget:
    """Admission of tasks up to a number of bytes, first come, first served.

    At least one task is always admitted, however large it is.

    Args:
        size_bytes: Maximum total size in bytes.
        most: Maximum number of tasks.
    """

    def __init__(self, size_bytes: int, most: int) -> None:
        self._size_bytes = size_bytes
        self._most = most
        self._used_bytes = 0
        self._inside = 0
        self._turn = asyncio.Lock()
        self._less = asyncio.Event()

    async def enter(self, size_bytes: int) -> Reservation:
        """Wait for capacity, and reserve it."""
        place = Reservation(self)
        await place.grow(size_bytes)
        return place

    async def _take(self, size_bytes: int) -> None:
        async with self._turn:
            while not self._has_room(size_bytes):
                self._less.clear()
                await self._less.wait()
            self._note(size_bytes, 1)

    def _give_back(self, size_bytes: int) -> None:
        self._note(-size_bytes, -1)
        self._less.set()

    def _has_room(self, size_bytes: int) -> bool:
        return not self._inside or (
            self._inside < self._most and self._used_bytes + size_bytes <= self._size_bytes
        )

    def _note(self, size_bytes: int, number: int) -> None:
        self._used_bytes += size_bytes
        self._inside += number


class Reservation:
    """One task's share of a budget.

    Attributes:
        size_bytes: Size of the share in bytes.
    """

    def __init__(self, budget: ByteBudget) -> None:
        self.size_bytes = 0
        self._budget = budget
        self._is_inside = False

    async def grow(self, more_bytes: int) -> None:
        """Wait for more capacity.

        The current share is returned first, because several waiting tasks would otherwise block
        each other.
        """
        if self._is_inside and not more_bytes:
            return
        size_bytes = self.size_bytes + more_bytes
        self.leave()
        await self._budget._take(size_bytes)
        self.size_bytes, self._is_inside = size_bytes, True

    def leave(self) -> None:
        """Return the share; a second call does nothing."""
        if self._is_inside:
            self._is_inside = False
            self._budget._give_back(self.size_bytes)
            self.size_bytes = 0


_ENDED = (JobStatus.SUCCEEDED.value, JobStatus.FAILED.value)
_RUNNING = (JobStatus.STARTING.value, JobStatus.RUNNING.value)


@dataclass(frozen=True, slots=True)
class Ready:
    """Finished task whose outcome must be fetched.

    Attributes:
        submission: The task's job.
        index: The task's index in the job.
        numbers: Numbers of the task's calls.
        arrival: How the task finished.
        failing_since: Time of the first failed fetch; None if none has failed.
    """

    submission: Submission
    index: int
    numbers: Sequence[int]
    arrival: Completion
    failing_since: float | None = None


class Fetched(NamedTuple):
    """Fetched task.

    Attributes:
        numbers: Numbers of the task's calls.
        job_id: The task's job.
        results: Results of the task's calls.
        place: The results' share of the budget.
        on_collected: Called when the last result was handed over.
    """

    numbers: Sequence[int]
    job_id: str
    results: deque[Result]
    place: Reservation
    on_collected: Callable[[], None]


@dataclass(eq=False)
class Array:
    """Job of a sweep.

    Attributes:
        submission: The job.
        calls: Numbers of the job's calls in the sweep.
        unfinished: Number of unfinished tasks.
        ended: Number of calls in finished tasks.
        returned: Number of these calls whose result was fetched.
        callback: Called by the tracker with finished tasks.
        is_unseen: Whether the job can no longer be polled; it continues.
        texts: Call texts of the job's tasks, once a task has failed.
        tasks: Numbers of each task's calls in the map, for a retry; None for consecutive calls.
    """

    submission: Submission
    calls: range
    unfinished: int
    ended: int = 0
    returned: int = 0
    callback: OnCompletion | None = None
    is_unseen: bool = False
    texts: list[str] | None = None
    tasks: Sequence[Sequence[int]] | None = None


def how_far(detail: JobDetail | None, calls: int, chunksize: int, ended: int) -> tuple[int, int]:
    """Return the numbers of finished and of running calls of a job.

    Args:
        detail: Batch's latest description of the job.
        calls: Number of the job's calls.
        chunksize: Number of calls in one task.
        ended: Number of calls that are known to have finished.
    """
    counts = (detail.status_summary or {detail.status.value: 1}) if detail else {}
    ended_there = chunksize * sum(counts.get(status, 0) for status in _ENDED)
    ended_in_all = min(max(ended, ended_there), calls)
    running_there = chunksize * sum(counts.get(status, 0) for status in _RUNNING)
    return ended_in_all, min(running_there, calls - ended_in_all)


_MOST_NOT_BEGUN = 5
"""Tasks that may fail before their functions run, if no other task succeeds in that."""


class SweepState:
    """State of one wait for a sweep; an earlier wait's tasks report to its state.

    The budget is separate, because a loop that waits for another sweep in its body takes no
    results meanwhile.

    Args:
        total: Number of calls; None if it is not known yet.
        chunksize: Calls in one task.
        timing: Limits of fetching ahead and of repeated fetches.
        with_output: Whether the caller gets the tasks' output, too.

    Attributes:
        total: Number of calls; None if it is not known yet.
        submitted: Number of calls in accepted jobs.
        packed: Number of pickled calls during an upload; otherwise None.
        sent_bytes: Number of uploaded bytes of bundles.
        arrays: The jobs by their IDs.
        arrivals: Finished tasks.
        fetched: Fetched tasks, or an error that ends the wait; None after the last call.
        budget: Limits the results that were fetched and not taken.
        is_over: Whether the caller has stopped waiting.
        errors: Number of fetched calls by error class.
        raised: The call's error that is being raised, if any.
        has_raised: Whether a pool has raised a call's error; it may continue anyway.
        given_values: Number of results that were handed over.
        failures: Fetched calls with an error.
        with_output: Whether the caller gets the tasks' output, too.
    """

    def __init__(
        self, total: int | None, chunksize: int, timing: Timing, *, with_output: bool = False
    ) -> None:
        self.with_output = with_output
        self.total = total
        self.submitted = 0
        self.packed: int | None = None
        self.sent_bytes = 0
        self._timing = timing
        self._chunksize = chunksize
        self._is_whole = False
        self._given = 0
        self._less = asyncio.Event()
        self.arrays: dict[str, Array] = {}
        self.arrivals: asyncio.Queue[Ready] = asyncio.Queue()
        self.fetched: asyncio.Queue[Fetched | BaseException | None] = asyncio.Queue()
        self.budget = ByteBudget(timing.window_bytes, timing.window_tasks)
        self.is_over = False
        self.errors: Counter[str] = Counter()
        self.raised: BaseException | None = None
        self.has_raised = False
        self.given_values = 0
        self.failures = Groups()
        self._begun = self._not_begun = 0  # tasks
        self._now: Fetched | None = None
        self._position = 0
        self._taken: list[Callable[[], None]] = []

    def postpone(self, ready: Ready) -> bool:
        """Schedule another fetch of a task; return False if its retry time is over."""
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
        """Make a task's results available."""
        for result in fetched.results:
            if result.error is not None:
                self.errors[type(result.error).__name__] += 1
        self.fetched.put_nowait(fetched)

    def record_results(
        self, submission: Submission, index: int, results: Iterable[tuple[int, Result]]
    ) -> None:
        """Record a task's failed calls, and add their call texts to the errors.

        Args:
            submission: The task's job.
            index: The task's index in the job.
            results: Number and result of each call.
        """
        has_begun = False
        for position, (number, result) in enumerate(results):
            self.arrays[submission.job_id].returned += result.error is None
            has_begun |= result.has_begun
            reason = result.why()
            if reason is None or result.error is None:
                continue
            call = self._text_of(submission, index, position)
            group = self.failures.add(number, reason)
            group.call = group.call or call
            if call:
                with contextlib.suppress(Exception):  # the class's own code
                    add_note(result.error, f"In call {number} of the map: {call}")
        self._begun += has_begun
        self._not_begun += not has_begun

    @property
    def cannot_start(self) -> bool:
        """Whether the first tasks all failed in the same way before their functions ran."""
        if self._begun or self._not_begun < _MOST_NOT_BEGUN:
            return False
        return len(self.failures.groups) == 1

    def _text_of(self, submission: Submission, index: int, position: int) -> str:
        array = self.arrays[submission.job_id]
        if array.texts is None:
            sealed = submission.texts
            array.texts = call_texts.read(sealed, submission.size) if sealed else []
        text = array.texts[index] if index < len(array.texts) else ""
        return call_texts.of_call(text, position) if text else ""

    def record_job(
        self, submission: Submission, calls: int, tasks: Sequence[Sequence[int]] | None = None
    ) -> Array:
        """Record an accepted job, whose calls follow the previous job's."""
        numbers = range(self.submitted, self.submitted + calls)
        self.submitted += calls
        array = Array(submission, numbers, submission.size, tasks=tasks)
        self.arrays[submission.job_id] = array
        return array

    def record_sent(self, size_bytes: int) -> None:
        """Record uploaded bytes of a bundle."""
        self.sent_bytes += size_bytes

    async def record_uploaded(self, _where: Location) -> None:
        """Record that a bundle is in the bucket."""
        self.packed = None

    def record_whole(self) -> None:
        """Record that all calls were submitted."""
        self._is_whole, self.total = True, self.submitted
        self.fetched.put_nowait(None)

    async def wait_for_consumer(self, most: int) -> None:
        """Wait until at most this number of submitted calls are uncollected."""
        while self.submitted - self._given > most:
            self._less.clear()
            await self._less.wait()

    async def has_more(self) -> bool:
        """Wait for a result; return whether there is one.

        Raises:
            BaseException: The reason that no more results can arrive.
        """
        while self._now is None:
            if self._is_whole and self._given == self.submitted:
                return False
            fetched = await self.fetched.get()
            if isinstance(fetched, BaseException):
                raise fetched
            if fetched is not None:
                self._now, self._position = fetched, 0
        return True

    def take(self) -> tuple[int, str, Result]:
        """Return the next call's number, job and result; see `has_more`."""
        now = self._now
        assert now is not None  # noqa: S101 - says so to the type checker
        number, result = now.numbers[self._position], now.results.popleft()
        self._position += 1
        self._given += 1
        self.given_values += result.error is None
        if not now.results:
            self._now = None
            now.place.leave()
            self._taken.append(now.on_collected)
            self._less.set()
        return number, now.job_id, result

    def record_collected(self) -> None:
        """Notify the owners of results that the caller has processed."""
        for on_collected in self._taken:
            on_collected()
        self._taken.clear()

    def end(self) -> None:
        """Release the uncollected results."""
        self.is_over = True
        self._now = None
        for queue in (self.arrivals, self.fetched):
            while not queue.empty():
                queue.get_nowait()

    def is_full(self) -> bool:
        """Return whether enough tasks wait to be fetched."""
        return self.arrivals.qsize() >= self._timing.most_unfetched

    def calls_of(self, array: Array, index: int) -> Sequence[int]:
        """Return the numbers of the calls in a job's task."""
        if array.tasks is not None:
            return array.tasks[index]
        return array.calls[index * self._chunksize : (index + 1) * self._chunksize]

    def count(self, latest: Callable[[str], JobDetail | None]) -> Counts:
        """Count the calls by state, from the results here and Batch's latest descriptions.

        Args:
            latest: Returns Batch's latest description of a job.
        """
        ended = running = 0
        for job_id, array in self.arrays.items():
            of = len(array.calls), self._chunksize
            ended_here, running_here = how_far(latest(job_id), *of, array.ended)
            ended += ended_here
            running += running_here
        failed = self.errors.total()
        done, failure_text = ended - failed, str(self.failures)
        return Counts(
            running, done, failed, self.total, self.packed, self.sent_bytes, failure_text
        )
