"""State of a running sweep."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from farcall.client import live_output
from farcall.client.progress import Counts
from farcall.engine.cache import CachedResults, Keep
from farcall.engine.calls import CachedTasks
from farcall.engine.delivered import Output
from farcall.engine.group import Place, TaskGroup
from farcall.engine.second_chances import SecondChances
from farcall.engine.window import Calls, Fetched, Window
from farcall.model.jobs import JobDetail, JobStatus
from farcall.model.timing import Timing
from farcall.payload import call_texts
from farcall.payload.error_texts import Groups
from farcall.payload.results import Result, add_note
from farcall_runtime.contract import Location

_ENDED = (JobStatus.SUCCEEDED.value, JobStatus.FAILED.value)
_RUNNING = (JobStatus.STARTING.value, JobStatus.RUNNING.value)


@dataclass(eq=False)
class Array:
    """Job of a sweep.

    Attributes:
        group: The job.
        calls: Numbers of the job's calls in the sweep.
        chunksize: Number of calls in one task.
        ended: Number of calls in finished tasks.
        restarted: Number of finished tasks that run again in another job.
        returned: Number of these calls whose result was fetched.
        texts: Call texts of the job's tasks, once a task has failed.
        tasks: Numbers of each task's calls in the map, for a retry; None for consecutive calls.
        labels: Prefix of each task's output, if it is printed.
        cached: The function's cached results, to which the tasks' results are added.
        digests: For them, the digest of each task's calls.
    """

    group: TaskGroup
    calls: range
    chunksize: int = 1
    ended: int = 0
    restarted: int = 0
    returned: int = 0
    texts: list[str] | None = None
    tasks: Sequence[Sequence[int]] | None = None
    labels: Mapping[int, str] = field(default_factory=dict)
    cached: CachedResults | None = None
    digests: Sequence[bytes] = ()

    def numbers(self, index: int) -> Sequence[int]:
        """Return the numbers of a task's calls."""
        if self.tasks is not None:
            return self.tasks[index]
        return self.calls[index * self.chunksize : (index + 1) * self.chunksize]

    def keep(self, index: int) -> Keep | None:
        """Return what caches the result of a task; None without the option ``cache``."""
        return None if self.cached is None else Keep(self.cached, self.digests[index])

    def record_end(self, index: int) -> Sequence[int]:
        """Record that a task has finished; return the numbers of its calls."""
        numbers = self.numbers(index)
        self.ended += len(numbers)
        return numbers

    def record_restart(self, index: int, place: Place) -> None:
        """Record that a finished task runs again, as a task of another job."""
        self.ended -= len(self.numbers(index))
        self.restarted += 1
        if self.labels:
            group, number = place
            group.print({number: self.labels[index]}, live_output.writer)


@dataclass(eq=False)
class CachedCalls:
    """Calls of a sweep whose results are cached.

    Attributes:
        tasks: Their tasks.
        numbers: Numbers of each task's calls in the sweep.
    """

    tasks: CachedTasks
    numbers: list[Sequence[int]] = field(default_factory=list)

    def keep(self, index: int) -> None:
        """Return None: the result is cached already."""

    def record_end(self, index: int) -> Sequence[int]:
        """Return the numbers of a task's calls."""
        return self.numbers[index]

    def record_restart(self, index: int, place: Place) -> None:
        """Do nothing: a task that is computed again has second chances of its own."""


def how_far(detail: JobDetail | None, array: Array) -> tuple[int, int]:
    """Return the numbers of finished and of running calls of a job.

    Args:
        detail: Batch's latest description of the job.
        array: The job.
    """
    calls, chunksize = len(array.calls), array.chunksize
    counts = (detail.status_summary or {detail.status.value: 1}) if detail else {}
    ended_there = chunksize * (sum(counts.get(each, 0) for each in _ENDED) - array.restarted)
    ended_in_all = min(max(array.ended, ended_there), calls)
    running_there = chunksize * sum(counts.get(status, 0) for status in _RUNNING)
    return ended_in_all, min(running_there, calls - ended_in_all)


_MOST_NOT_BEGUN = 5
"""Tasks that may fail before their functions run, if no other task succeeds in that."""


class SweepState:
    """State of one wait for a sweep; an earlier wait's tasks report to its state.

    The window is separate, because a loop that waits for another sweep in its body takes no
    results meanwhile.

    Args:
        total: Number of calls; None if it is not known yet.
        chunksize: Calls in one task.
        timing: Limits of fetching ahead and of repeated fetches.
        chances: Runs failed tasks again.
        with_output: Whether the caller gets the tasks' output, too.

    Attributes:
        total: Number of calls; None if it is not known yet.
        submitted: Number of calls in accepted jobs, and of calls whose results are cached.
        cached: Number of the latter.
        cached_calls: The latter; None if there are none.
        packed: Number of pickled calls during an upload; otherwise None.
        sent_bytes: Number of uploaded bytes of bundles.
        arrays: The jobs by their IDs.
        window: The fetched results.
        is_over: Whether the caller has stopped waiting.
        errors: Number of fetched calls by error class.
        raised: The call's error that is being raised, if any.
        has_raised: Whether a pool has raised a call's error; it may continue anyway.
        given_values: Number of results that were handed over.
        given_cached: Number of those that were cached.
        failures: Fetched calls with an error.
    """

    def __init__(
        self,
        total: int | None,
        chunksize: int,
        timing: Timing,
        chances: SecondChances,
        *,
        with_output: bool = False,
    ) -> None:
        self.total = total
        self.submitted = 0
        self.cached = 0
        self.cached_calls: CachedCalls | None = None
        self.packed: int | None = None
        self.sent_bytes = 0
        self._chunksize = chunksize
        self._is_whole = False
        self._given = 0
        self._less = asyncio.Event()
        self.arrays: dict[str, Array] = {}
        output = Output.WHOLE if with_output else Output.NONE
        self.window = Window(timing, output, self.record_results, chances)
        self.is_over = False
        self.errors: Counter[str] = Counter()
        self.raised: BaseException | None = None
        self.has_raised = False
        self.given_values = self.given_cached = 0
        self.failures = Groups()
        self._begun = self._not_begun = 0  # tasks
        self._now: Fetched | None = None
        self._position = 0
        self._taken: list[Callable[[], None]] = []

    def record_results(
        self, calls: Calls, index: int, numbers: Sequence[int], results: Sequence[Result]
    ) -> BaseException | None:
        """Record a task's failed calls, and add their call texts to the errors.

        Args:
            calls: The task's job, as it was submitted first.
            index: The task's index in it.
            numbers: Numbers of the task's calls.
            results: Results of these calls.

        Returns:
            An error that ends the map, because its tasks cannot start.
        """
        has_begun = False
        array = calls if isinstance(calls, Array) else None
        for position, (number, result) in enumerate(zip(numbers, results, strict=True)):
            if array is not None:
                array.returned += result.error is None
            has_begun |= result.has_begun
            reason = result.why()
            if reason is None or result.error is None:
                continue
            self.errors[type(result.error).__name__] += 1
            call = "" if array is None else self._text_of(array, index, position)
            failures = self.failures.add(number, reason)
            failures.call = failures.call or call
            if call:
                with contextlib.suppress(Exception):  # the class's own code
                    add_note(result.error, f"In call {number} of the map: {call}")
        self._begun += has_begun
        self._not_begun += not has_begun
        if self._cannot_start and results[0].error is not None:
            self.raised = results[0].error
            return self.raised
        return None

    @property
    def _cannot_start(self) -> bool:
        """Whether the first tasks all failed in the same way before their functions ran."""
        if self._begun or self._not_begun < _MOST_NOT_BEGUN:
            return False
        return len(self.failures.groups) == 1

    def _text_of(self, array: Array, index: int, position: int) -> str:
        submission = array.group.submission
        if array.texts is None:
            sealed = submission.texts
            array.texts = call_texts.read(sealed, submission.size) if sealed else []
        text = array.texts[index] if index < len(array.texts) else ""
        return call_texts.of_call(text, position) if text else ""

    def record_cached(self, tasks: CachedTasks, index: int, numbers: Sequence[int]) -> None:
        """Record a task whose result is cached, and fetch it."""
        if self.cached_calls is None:
            self.cached_calls = CachedCalls(tasks)
        self.cached_calls.numbers.append(numbers)
        self.submitted += len(numbers)
        self.cached += len(numbers)
        self.window.add_cached(tasks, self.cached_calls, index)

    def record_job(
        self,
        group: TaskGroup,
        calls: int,
        tasks: Sequence[Sequence[int]] | None = None,
        cached: CachedResults | None = None,
        digests: Sequence[bytes] = (),
    ) -> Array:
        """Record an accepted job, whose calls follow the previous job's."""
        numbers = range(self.submitted, self.submitted + calls)
        self.submitted += calls
        array = Array(group, numbers, self._chunksize, tasks=tasks, cached=cached, digests=digests)
        self.arrays[group.job.job_id] = array
        return array

    def record_sent(self, size_bytes: int) -> None:
        """Record uploaded bytes of a bundle."""
        self.sent_bytes += size_bytes

    async def record_uploaded(self, _where: Location) -> None:
        """Record that a bundle is in the bucket."""
        self.packed = None

    def record_whole(self) -> None:
        """Record that all calls were submitted."""
        self._is_whole, self.total, self.packed = True, self.submitted, None
        self.window.wake()

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
            fetched = await self.window.next()
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
        self.given_cached += not now.job_id
        if not now.results:
            self._now = None
            now.reservation.leave()
            self._taken.append(now.on_collected)
            self._less.set()
        return number, now.job_id, result

    def record_collected(self) -> None:
        """Notify the owners of results that the caller has processed."""
        for on_collected in self._taken:
            on_collected()
        self._taken.clear()

    async def end(self) -> None:
        """Stop fetching, and release the uncollected results."""
        try:
            await self.window.close()
        finally:  # a closing event loop may cancel this as well
            self.is_over = True
            self._now = None

    def count(self, latest: Callable[[str], JobDetail | None]) -> Counts:
        """Count the calls by state, from the results here and Batch's latest descriptions.

        Args:
            latest: Returns Batch's latest description of a job.
        """
        ended, running = self.cached, 0
        for job_id, array in self.arrays.items():
            ended_here, running_here = how_far(latest(job_id), array)
            ended += ended_here
            running += running_here
        failed = self.errors.total()
        done, failure_text = ended - failed, str(self.failures)
        return Counts(
            *(running, done, failed, self.total, self.packed, self.sent_bytes),
            *(failure_text, self.cached),
        )
