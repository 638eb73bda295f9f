"""Pool for code without async: a ``concurrent.futures.Executor``."""

from __future__ import annotations

import concurrent.futures
import logging
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, ParamSpec, TypeVar, Unpack

from farcall.client.arguments import check_chunksize, check_iterables
from farcall.client.blocking_calls import BlockingCalls, TaskWork, only
from farcall.client.executor import BatchExecutor
from farcall.client.frames import frames_hidden
from farcall.client.future import BatchFuture
from farcall.client.pool_map import Chunks, MapValues, Source, SweepWork, all_of
from farcall.client.shared import Shared
from farcall.client.task import Task
from farcall.config.help import shows_options
from farcall.config.settings import Settings
from farcall.model.errors import SettingsError, TaskNotPicklableError
from farcall.model.interrupts import left_by
from farcall.model.names import counted
from farcall.payload.pickling import Call
from farcall.payload.results import Result

if TYPE_CHECKING:
    from farcall.config.settings import Options

_log = logging.getLogger("farcall")

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

_MANY = 10_000
"""Number of workers reported to libraries such as dask if there is no limit."""


_NAMES_ELSEWHERE = {
    "apply": "submit(function, ...).result()",
    "apply_async": "submit(function, ...)",
    "imap": "map(function, xs)",
    "imap_unordered": "concurrent.futures.as_completed with the futures that submit returns",
    "starmap": "map(function, xs, ys)",
    "close": "shutdown(), or a block: with BatchPoolExecutor(...) as pool:",
    "join": "shutdown(), or a block: with BatchPoolExecutor(...) as pool:",
    "terminate": "shutdown(cancel_futures=True)",
    "task": "submit, which accepts any function; the decorator is BatchExecutor.task",
}
"""Methods of `multiprocessing.Pool` and `BatchExecutor`, and their replacements."""


class BatchPoolExecutor(concurrent.futures.Executor):
    """Runs functions as AWS Batch or Kubernetes jobs, for code without ``async``.

    It is a `concurrent.futures.Executor`, so it can replace a ``ThreadPoolExecutor`` or a
    ``ProcessPoolExecutor``. It also works while an event loop is running, as in a notebook. ::

        with BatchPoolExecutor(vcpu=2, memory=3.75) as pool:
            future = pool.submit(simulate, 3, steps=10)
            print(future.result(), future.job_id)
            ys = list(pool.map(simulate, range(10_000)))

    farcall connects at the first call; if that fails, the call's future raises the error. Calls
    submitted within a short time (``linger_s``) share one array job. Leaving the block waits for
    all calls, as the standard pools do; leaving it with Ctrl-C terminates their jobs. The end of
    the interpreter also waits.

    Several threads can use one pool, but it does not survive ``fork()``.

    Args:
        max_workers: Maximum number of submitted, unfinished calls; further calls wait in this
            process. None for no limit.
        settings: Existing options; see `BatchExecutor`.
        **options: See `farcall.Settings`.

    Attributes:
        executor: The `BatchExecutor` that runs the calls.

    Raises:
        SettingsError: A value is wrong, or an option is unknown.
    """

    @shows_options
    def __init__(
        self,
        max_workers: int | None = None,
        *,
        settings: Settings | None = None,
        **options: Unpack[Options],
    ) -> None:
        if max_workers is not None and (
            isinstance(max_workers, bool) or not isinstance(max_workers, int) or max_workers < 1
        ):
            raise SettingsError(
                f"max_workers is {max_workers!r}: max_workers must be greater than 0. Use a whole "
                "number, or None for no limit",
                option="max_workers",
            )
        with frames_hidden():
            self.executor = BatchExecutor(settings, **options)
        self._limit = max_workers
        self._max_workers = max_workers or _MANY  # read by dask
        self._calls = BlockingCalls(max_workers)
        # An unreferenced pool ends as soon as its calls have finished.
        weakref.finalize(self, self._calls.shut).atexit = False

    def __repr__(self) -> str:
        state = counted(self._calls.unfinished, "unfinished call")
        if self._calls.is_shut:
            state += ", shut down"
        return f"<BatchPoolExecutor: {state}>"

    def __reduce__(self) -> tuple[Any, ...]:
        raise TaskNotPicklableError(
            "a BatchPoolExecutor cannot be pickled: it holds open connections. Create one where "
            "it is used"
        )

    if not TYPE_CHECKING:  # type checkers still report them as errors

        async def __aenter__(self) -> NoReturn:
            raise TypeError(
                "a BatchPoolExecutor does not support `async with`; use `with`, or in an async "
                "def `async with farcall.BatchExecutor(...) as executor:`"
            )

        async def __aexit__(self, *_: object) -> None:
            """Do nothing; `async with` requires the method before it calls ``__aenter__``."""

        def __getattr__(self, name: str) -> NoReturn:
            here = _NAMES_ELSEWHERE.get(name)
            hint = f": use {here}" if here else ""
            raise AttributeError(f"a BatchPoolExecutor has no {name!r}{hint}", name=name, obj=self)

    def submit(
        self, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs
    ) -> BatchFuture[R]:
        """Submit a call of a function or a `Task`, and return its future at once.

        farcall pickles the arguments a moment later, so do not change them until the call runs.

        Raises:
            TypeError: The arguments do not fit the function's signature.
            TaskNotPicklableError: The object is a generator function or not callable.
            RuntimeError: The pool was shut down, the interpreter is exiting, or the pool belongs
                to another process.
        """
        with frames_hidden():
            task = self._task(function)
            task._bind(args, kwargs)
            work = TaskWork.of_calls(self.executor, task.function, [(args, kwargs)], only)
            return self._calls.start(work)

    def map(
        self,
        function: Callable[..., R],
        /,
        *iterables: Iterable[Any],
        timeout: float | None = None,
        chunksize: int = 1,
        buffersize: int | None = None,
        progress: bool = False,
    ) -> Iterator[R]:
        """Call a function or `Task` with each item, and iterate over the results in order.

        All items are read and all calls are submitted before this method returns, and they run
        even if the caller never iterates. A call's exception is raised in place of its result.
        Closing the iterator, or leaving it early, cancels the remaining calls.

        Args:
            function: The function to call.
            *iterables: Arguments, as for the built-in ``map``; the shortest one ends the map.
            timeout: Seconds from now until the last result must have arrived.
            chunksize: Number of calls in one task, which run one after the other in one process;
                see `Task.map`.
            buffersize: Maximum number of chunks that are in flight or waiting to be collected; the
                iterables are read further as results are collected. None for all chunks.
            progress: Show on stderr how many calls are done, running and queued. All calls are
                submitted at once, so it excludes ``buffersize`` and ``max_workers``.

        Raises:
            TypeError: The arguments do not fit the function, or ``buffersize`` is not an integer.
            ValueError: ``chunksize`` or ``buffersize`` is below 1.
            RuntimeError: See `submit`.
        """
        ends_at = None if timeout is None else time.monotonic() + timeout
        if buffersize is not None and not isinstance(buffersize, int):
            raise TypeError("buffersize must be an integer or None")
        if buffersize is not None and buffersize < 1:
            raise ValueError("buffersize must be None or > 0")
        check_chunksize(chunksize)
        if progress and (buffersize is not None or self._limit is not None):
            raise SettingsError(
                "progress=True does not work with buffersize or max_workers, because it shows all "
                "calls and they submit only some at a time; leave them out",
                option="progress",
            )
        task = self._task(function)
        check_iterables(iterables)
        calls = zip(*iterables, strict=False)
        source: Source
        if buffersize is None and self._limit is None:
            source = self._start_sweep(task, list(calls), chunksize, progress=progress)
        else:
            source = Chunks(partial(self._start_chunk, task), calls, chunksize, buffersize)
        return MapValues(source, ends_at)

    def put(self, value: T) -> Shared[T]:
        """Store a value in the bucket once, and pass it to any number of calls.

        See `BatchExecutor.put`. The value is deleted by `discard`, or when the pool is shut down
        and its calls have finished.

        Raises:
            TaskNotPicklableError: The value cannot be pickled.
            SettingsError: A resource that the options name does not exist.
            ServiceError: S3 refused a request or could not be reached.
            RuntimeError: See `submit`.
        """
        return self._calls.wait_for(lambda: self.executor.put(value))

    def discard(self, shared: Shared[Any]) -> None:
        """Delete a value that `put` has stored; see `Shared.discard`.

        Raises:
            FarcallError: Another pool or event loop stored the value.
            ServiceError: S3 refused a request or could not be reached.
            RuntimeError: See `submit`.
        """
        self._calls.wait_for(shared.discard)

    def _task(self, function: Callable[P, R]) -> Task[P, R]:
        if isinstance(function, Task):
            function = function.function  # this pool's options apply, not the task's
        return Task(function, self.executor)

    def _start_sweep(
        self, task: Task[..., Any], calls: list[tuple[Any, ...]], chunksize: int, *, progress: bool
    ) -> Source:
        """Start calls that can all be submitted at once."""
        if not calls:
            return Chunks(partial(self._start_chunk, task), iter(()), chunksize, None)
        columns = zip(*calls, strict=True)
        sweep = task.map(*columns, chunksize=chunksize, progress=progress)
        work = SweepWork(sweep, len(calls), self._calls.call_soon)
        self._calls.start(work).add_done_callback(work.wake)
        return work

    def _start_chunk(
        self, task: Task[..., Any], chunk: Sequence[tuple[Any, ...]]
    ) -> BatchFuture[list[Result]]:
        calls: list[Call] = [(args, {}) for args in chunk]
        task._bind(*calls[0])
        return self._calls.start(TaskWork.of_calls(self.executor, task.function, calls, all_of))

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Accept no more calls. Unfinished calls continue.

        Args:
            wait: Wait until all calls have finished and all connections are closed.
            cancel_futures: Cancel the calls that Batch has not accepted yet. A map continues if
                Batch has accepted one of its arrays.

        Raises:
            RuntimeError: The caller would wait on farcall's own event loop, which runs the calls.
        """
        if self._calls.is_of_parent:
            return  # a forked child has none of the calls
        self._calls.shut()
        if cancel_futures:
            self._calls.cancel_pending()
        if wait:
            self._calls.wait()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        stack: TracebackType | None,
    ) -> None:
        try:
            self._calls.shut()
            unfinished = self._calls.unfinished
            if isinstance(error, KeyboardInterrupt):
                self._calls.leave(error)
            elif error is not None and unfinished:
                text = "%s; waiting for %s; Ctrl-C cancels their jobs"
                _log.warning(text, left_by(error), counted(unfinished, "unfinished call"))
            self.shutdown()
        except KeyboardInterrupt as interrupt:
            self._calls.leave(interrupt)
            raise
