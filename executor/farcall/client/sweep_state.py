"""State of a sweep that is waited for: what is under way."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter, deque
from collections.abc import Callable, Iterable
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

# --- Byte budget: how much may be held at once of what is fetched. No I/O -----------------------


class ByteBudget:
    """Lets tasks in up to a number of bytes, first come, first served.

    One at least is always inside, however large it is.

    Args:
        size_bytes: The bytes of all that are inside.
        most: Their number, however small they are.
    """

    def __init__(self, size_bytes: int, most: int) -> None:
        self._size_bytes = size_bytes
        self._most = most
        self._used_bytes = 0
        self._inside = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    async def enter(self, size_bytes: int) -> Reservation:
        """Wait for room, and take it."""
        place = Reservation(self)
        await place.grow(size_bytes)
        return place

    async def _take(self, size_bytes: int) -> None:
        if not self._waiting and self._has_room(size_bytes):
            self._note(size_bytes, 1)
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((size_bytes, turn))
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():  # it came in the same moment
                self._give_back(size_bytes)
            else:
                self._admit()
            raise

    def _give_back(self, size_bytes: int) -> None:
        self._note(-size_bytes, -1)
        self._admit()

    def _admit(self) -> None:
        while self._waiting:
            size_bytes, turn = self._waiting[0]
            if not turn.cancelled():
                if not self._has_room(size_bytes):
                    return
                self._note(size_bytes, 1)
                turn.set_result(None)
            self._waiting.popleft()

    def _has_room(self, size_bytes: int) -> bool:
        return not self._inside or (
            self._inside < self._most and self._used_bytes + size_bytes <= self._size_bytes
        )

    def _note(self, size_bytes: int, number: int) -> None:
        self._used_bytes += size_bytes
        self._inside += number


class Reservation:
    """The room that one task has in a budget.

    Attributes:
        size_bytes: How much it is.
    """

    def __init__(self, budget: ByteBudget) -> None:
        self.size_bytes = 0
        self._budget = budget
        self._is_inside = False

    async def grow(self, more_bytes: int) -> None:
        """Wait for more room.

        What it had goes back before: of several that wait for more, each would keep the others
        from it.
        """
        if self._is_inside and not more_bytes:
            return
        size_bytes = self.size_bytes + more_bytes
        self.leave()
        await self._budget._take(size_bytes)
        self.size_bytes, self._is_inside = size_bytes, True

    def leave(self) -> None:
        """Give the room back; doing so again does nothing."""
        if self._is_inside:
            self._is_inside = False
            self._budget._give_back(self.size_bytes)
            self.size_bytes = 0


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
    arrival: Completion
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
        calls: Numbers of its calls in the sweep.
        unfinished: How many of its tasks have not ended.
        ended: How many calls are in those that have.
        returned: How many of these have a value that was fetched.
        tell: What the tracker tells of their ends.
        is_unseen: Whether it could not be looked for any longer; it goes on.
        texts: What its tasks were called with, once one of them has failed.
    """

    submission: Submission
    calls: range
    unfinished: int
    ended: int = 0
    returned: int = 0
    tell: OnCompletion | None = None
    is_unseen: bool = False
    texts: list[str] | None = None


def how_far(detail: JobDetail | None, calls: int, chunksize: int, ended: int) -> tuple[int, int]:
    """Return how many calls of a job have ended, and how many run.

    Args:
        detail: What Batch said last of it.
        calls: How many it makes.
        chunksize: How many are in one task.
        ended: How many are known to have ended.
    """
    said = (detail.status_summary or {detail.status.value: 1}) if detail else {}
    ended_there = chunksize * sum(said.get(status, 0) for status in _ENDED)
    ended_in_all = min(max(ended, ended_there), calls)
    running_there = chunksize * sum(said.get(status, 0) for status in _RUNNING)
    return ended_in_all, min(running_there, calls - ended_in_all)


class SweepState:
    """One wait for a sweep. What an earlier one left unfinished may still report to that.

    The budget is its own: a loop that waits for another sweep in its body takes nothing meanwhile.

    Args:
        total: Number of calls; None where it is not known yet.
        chunksize: Calls in one task.
        timing: How much is fetched ahead, and how long what fails.
        with_output: Whether the caller gets what the tasks wrote, too.

    Attributes:
        total: As the argument.
        submitted: How many calls are in jobs that were accepted.
        packed: How many calls are pickled, while a bundle of them is uploaded; else None.
        sent_bytes: How much of the bundles was sent.
        arrays: The jobs by their IDs.
        arrivals: Tasks that have ended.
        fetched: Those that were fetched, or an error that ends the wait; None where no more
            calls will come.
        budget: Bounds what is fetched and was not taken.
        is_over: Whether nobody waits any more.
        errors: How many of the calls that were fetched have an error of which class.
        raised: The error of a call that is being raised, if any.
        has_raised: Whether a pool has raised the error of a call; it may go on anyway.
        given_values: How many values were handed over.
        failures: The calls that have an error, of those that were fetched.
        with_output: As the argument.
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
        self._now: Fetched | None = None
        self._number = 0
        self._taken: list[Callable[[], None]] = []

    def postpone(self, ready: Ready) -> bool:
        """Have a task fetched again a little later; say whether that still makes sense."""
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
        for result in fetched.results:
            if result.error is not None:
                self.errors[type(result.error).__name__] += 1
        self.fetched.put_nowait(fetched)

    def note_results(
        self, submission: Submission, index: int, results: Iterable[tuple[int, Result]]
    ) -> None:
        """Take in which calls of a task have an error, and say there what they were called with.

        Args:
            submission: The task's job.
            index: Its number there.
            results: Number and result of each of its calls.
        """
        for number, result in results:
            self.arrays[submission.job_id].returned += result.error is None
            reason = result.why()
            if reason is None or result.error is None:
                continue
            call = self._text_of(submission, index)
            group = self.failures.add(number, reason)
            group.call = group.call or call
            if call:
                with contextlib.suppress(Exception):  # the class's own code
                    add_note(result.error, f"In call {number} of the map: {call}")

    def _text_of(self, submission: Submission, index: int) -> str:
        array = self.arrays[submission.job_id]
        if array.texts is None:
            sealed = submission.texts
            array.texts = call_texts.read(sealed, submission.size) if sealed else []
        return array.texts[index] if index < len(array.texts) else ""

    def note_job(self, submission: Submission, calls: int) -> Array:
        """Take in a job that was accepted, of the calls that follow those of the last one."""
        numbers = range(self.submitted, self.submitted + calls)
        self.submitted += calls
        array = self.arrays[submission.job_id] = Array(submission, numbers, submission.size)
        return array

    def note_sent(self, size_bytes: int) -> None:
        """Take in that so much more of a bundle was sent."""
        self.sent_bytes += size_bytes

    async def note_uploaded(self, _where: Location) -> None:
        """Take in that a bundle is in the bucket."""
        self.packed = None

    def note_whole(self) -> None:
        """Take in that all calls were submitted."""
        self._is_whole, self.total = True, self.submitted
        self.fetched.put_nowait(None)

    async def wait_for_taker(self, most: int) -> None:
        """Wait until no more than so many calls were submitted whose results were not taken."""
        while self.submitted - self._given > most:
            self._less.clear()
            await self._less.wait()

    async def has_more(self) -> bool:
        """Wait until there is a result to be taken; say whether there is one.

        Raises:
            BaseException: What keeps others from coming.
        """
        while self._now is None:
            if self._is_whole and self._given == self.submitted:
                return False
            fetched = await self.fetched.get()
            if isinstance(fetched, BaseException):
                raise fetched
            if fetched is not None:
                self._now, self._number = fetched, fetched.first
        return True

    def take(self) -> tuple[int, str, Result]:
        """Return the number of the next call, its job, and its result; see `has_more`."""
        now, number = self._now, self._number
        assert now is not None  # noqa: S101 - says so to the type checker
        result = now.results.popleft()
        self._number += 1
        self._given += 1
        self.given_values += result.error is None
        if not now.results:
            self._now = None
            now.place.leave()
            self._taken.append(now.on_taken)
            self._less.set()
        return number, now.job_id, result

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
        """Return whether enough tasks are known that wait to be fetched."""
        return self.arrivals.qsize() >= self._timing.most_unfetched

    def calls_of(self, array: Array, index: int) -> range:
        """Return the numbers of the calls in a task of a job."""
        return array.calls[index * self._chunksize : (index + 1) * self._chunksize]

    def count(self, latest: Callable[[str], JobDetail | None]) -> Counts:
        """Count the calls by what has arrived here and what Batch said last.

        Args:
            latest: Gives what Batch said last of a job.
        """
        ended = running = 0
        for job_id, array in self.arrays.items():
            of = len(array.calls), self._chunksize
            ended_here, running_here = how_far(latest(job_id), *of, array.ended)
            ended += ended_here
            running += running_here
        failed = self.errors.total()
        done, told = ended - failed, str(self.failures)
        return Counts(running, done, failed, self.total, self.packed, self.sent_bytes, told)
