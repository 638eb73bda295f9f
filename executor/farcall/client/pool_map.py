"""Map of a pool: an iterator over results in the order of the arguments.

If all calls may be submitted at once, they are one sweep: one future, and a slot for each result.
If only some may be unfinished at a time, each chunk of calls has a future.
"""

from __future__ import annotations

import logging
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any, Generic, Protocol, TypeVar

from farcall.client.blocking_calls import Work
from farcall.client.frames import frames_hidden
from farcall.client.future import BatchFuture, Condition
from farcall.client.map_failure import MapFailure, names_of
from farcall.client.sweep import Sweep
from farcall.model.errors import FarcallError
from farcall.payload.results import Result

_log = logging.getLogger("farcall")

R = TypeVar("R")


class Source(Protocol):
    """Source of results."""

    def take(self, timeout: float | None) -> Sequence[Result]:
        """Wait for the next results up to a number of seconds; return none at the end.

        Raises:
            TimeoutError: The results have not arrived by then.
            Exception: The reason that this and all later results cannot arrive.
        """

    def record_raised(self, error: BaseException) -> None:
        """Attach the progress of the map to a call's error that is being raised."""

    def cancel(self) -> None:
        """Cancel the calls whose results were not collected."""

    def discard(self) -> None:
        """Delete the kept results, after all results were collected."""


class MapValues(Iterator[R], Generic[R]):
    """Results of a map, in the order of its arguments.

    The error of a call is raised in place of its result, and the next result follows. If the
    iterator is closed, garbage-collected early or timed out, the remaining calls are cancelled. A
    map that was never iterated over continues.

    Args:
        source: Source of the results.
        ends_at: Deadline for all results, by the clock of `time.monotonic`.
    """

    def __init__(self, source: Source, ends_at: float | None) -> None:
        self._source: Source | None = source
        self._ends_at = ends_at
        self._ready: deque[Result] = deque()
        self._is_begun = False

    def __next__(self) -> R:
        __tracebackhide__ = True
        with frames_hidden():
            result = self._take()
            if result is None:
                raise StopIteration
            if result.error is not None and self._source is not None:
                self._source.record_raised(result.error)
            del self  # an error's traceback would retain it and the remaining calls
            try:
                return result.unwrap()  # type: ignore[no-any-return]
            except StopIteration as error:  # it would end the caller's loop without an error
                raise RuntimeError("the mapped function raised StopIteration") from error
            finally:
                del result

    def close(self) -> None:
        """Cancel the calls whose results were not collected, if iteration has begun."""
        source, self._source = self._source, None
        self._ready.clear()
        if source is not None and self._is_begun:
            source.cancel()

    def __del__(self) -> None:
        self.close()

    def _take(self) -> Result | None:
        self._is_begun = True
        if not self._ready:
            if self._source is None:
                return None
            try:
                self._ready.extend(self._source.take(self._left_s()))
            except BaseException:
                self.close()
                raise
            if not self._ready:
                self._source.discard()
                self._source = None
                return None
        return self._ready.popleft()

    def _left_s(self) -> float | None:
        return None if self._ends_at is None else self._ends_at - time.monotonic()


class SweepWork(Work):
    """Sweep whose results one thread collects in the order of the calls.

    Args:
        sweep: The sweep.
        size: Number of calls.
        call_soon: Calls a function on the event loop.
    """

    __slots__ = ("_arrived", "_awaited", "_call_soon", "_left", "_outcomes", "_results", "_sweep")

    def __init__(
        self, sweep: Sweep[Any], size: int, call_soon: Callable[[Callable[[], object]], None]
    ) -> None:
        super().__init__()
        self._sweep = sweep
        self._call_soon = call_soon
        self._outcomes = sweep._outcomes()
        self._results: list[Result | None] = [None] * size
        self._left = size
        self._awaited = 0
        self._arrived = Condition()

    @property
    def unfinished(self) -> int:
        """Number of calls without a result."""
        return 0 if self.is_settled else self._left

    @property
    def job_ids(self) -> list[str]:
        """IDs of the sweep's array jobs."""
        return self._sweep.job_ids

    async def run(self) -> Result:
        """Submit the calls, and receive their results."""
        try:
            async for index, result in self._outcomes:
                given = [result]
                del result  # the consumer may receive it before this line
                self._note(index, given)
        except FarcallError as error:
            if self.future.cancelled():
                self.may_run = True
                _log.warning("jobs of an interrupted map may still run: %s", error)
            raise
        return Result()

    def take(self, timeout: float | None) -> Sequence[Result]:
        """Wait for the next results; see `Source`."""
        if self._awaited == len(self._results):
            return ()
        if not self._is_ready():
            self.future._check_wait()
        with self._arrived:
            if not self._arrived.wait_for(self._is_ready, timeout):
                raise TimeoutError
        taken = []
        for number in range(self._awaited, len(self._results)):
            result = self._results[number]
            if result is None:
                break
            taken.append(result)
            self._results[number] = None
        self._awaited += len(taken)
        if not taken:
            self.future.result()  # raises its error or cancellation
        return taken

    def record_raised(self, error: BaseException) -> None:
        """Attach the progress of the map to an error; see `Source`."""
        failure = self._sweep._record_raised(error)
        failure.annotate(error, f"farcall recover {failure.run}")

    def cancel(self) -> None:
        """Cancel the unfinished calls."""
        self.future.cancel()

    def discard(self) -> None:
        """Delete results that were kept because of an error."""
        self._call_soon(self._sweep.discard)

    def _is_ready(self) -> bool:
        return self._results[self._awaited] is not None or self.future.done()

    def _note(self, index: int, given: list[Result]) -> None:
        with self._arrived:
            self._results[index] = given.pop()
            self._left -= 1
            if index == self._awaited:
                self._arrived.notify()

    def wake(self, _future: object) -> None:
        """Wake the consumer, because the future is done."""
        with self._arrived:
            self._arrived.notify()


class Chunks:
    """Chunks of calls, submitted up to a maximum of uncollected chunks.

    Args:
        start: Submits a chunk; the future's result is the list of its calls' results.
        calls: The arguments of each call.
        chunksize: Number of calls in one chunk.
        most: Maximum number of submitted, uncollected chunks; None for no limit.
    """

    def __init__(
        self,
        start: Callable[[list[tuple[Any, ...]]], BatchFuture[list[Result]]],
        calls: Iterator[tuple[Any, ...]],
        chunksize: int,
        most: int | None,
    ) -> None:
        self._start = start
        self._chunks = iter(lambda: list(islice(calls, chunksize)), [])
        self._most = most
        self._futures: deque[tuple[int, BatchFuture[list[Result]]]] = deque()
        self._submitted = 0
        self._errors: Counter[str] = Counter()
        self._job_ids: dict[str, None] = {}
        self._submit(most)

    def take(self, timeout: float | None) -> Sequence[Result]:
        """Wait for the next results; see `Source`."""
        if not self._futures:
            return ()
        if self._most is not None:
            self._submit(1)
        _, future = self._futures.popleft()
        try:
            results = future.result(timeout)
        finally:
            future.cancel()  # does nothing if it has finished
        self._job_ids[(future.job_id or "").partition(":")[0]] = None
        self._errors.update(
            type(each.error).__name__ for each in results if each.error is not None
        )
        return results

    def record_raised(self, error: BaseException) -> None:
        """Attach the progress of the map to an error; see `Source`. No results are kept."""
        unfinished = sum(size for size, future in self._futures if not future.done())
        failure = MapFailure(
            self._submitted,
            failed=self._errors.total(),
            cancelled=0,
            cancelled_tasks=0,
            unsubmitted=0,
            kept=0,
            errors=names_of(self._errors),
            run="",
            job_ids=tuple(self._job_ids),
            unfinished=unfinished,
        )
        failure.annotate(error, "")

    def cancel(self) -> None:
        """Cancel the calls whose results were not collected."""
        for _, future in self._futures:
            future.cancel()

    def discard(self) -> None:
        """No-op: results were deleted when they were fetched."""

    def _submit(self, most: int | None) -> None:
        for chunk in islice(self._chunks, most):
            self._futures.append((len(chunk), self._start(chunk)))
            self._submitted += len(chunk)


def all_of(results: list[Result]) -> Result:
    """Return the results of a chunk as one."""
    return Result(results)
