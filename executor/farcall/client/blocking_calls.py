"""Blocking calls: calls of code without ``async``, and their jobs.

They run on the event loop that all blocking code of a process shares (see `LoopThread`), from
submission until the future has its result. Each call is one asyncio task. Calls made in a burst
reach the loop together and share array jobs, as calls of coroutines do.

At exit, the interpreter waits for unfinished calls, as with the standard pools.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
import os
import platform
import sys
import threading
import weakref
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from concurrent.futures import InvalidStateError
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from farcall.client.future import BatchFuture, Condition
from farcall.client.loop_thread import LoopThread
from farcall.engine.delivered import Output, Wanted
from farcall.engine.run import TaskRun
from farcall.engine.unguarded_modules import check_blocking_import
from farcall.model.errors import FarcallError
from farcall.model.interrupts import left_by
from farcall.model.names import counted, named
from farcall.payload.pickling import Call
from farcall.payload.results import Result

if TYPE_CHECKING:
    from farcall.client.executor import BatchExecutor

_log = logging.getLogger("farcall")

R = TypeVar("R")


class Work(ABC):
    """Calls behind one future, from submission to the last result.

    Attributes:
        future: Receives the result.
        context: Context variables of the caller.
        running: The asyncio task; None until it starts.
        reason: Reason for terminating the jobs.
        may_run: Whether some jobs could not be terminated.
    """

    __slots__ = ("context", "future", "may_run", "reason", "running")

    def __init__(self) -> None:
        self.future: BatchFuture[Any]
        self.context = contextvars.copy_context()
        self.running: asyncio.Task[None] | None = None
        self.reason = "cancelled by its owner"
        self.may_run = False

    @property
    @abstractmethod
    def unfinished(self) -> int:
        """Number of calls without a result, including cancelled calls still running."""

    @property
    def is_settled(self) -> bool:
        """Whether the future has a result."""
        return self.future.done() and not self.future.cancelled()

    @property
    @abstractmethod
    def job_ids(self) -> list[str]:
        """IDs of the jobs submitted so far."""

    @abstractmethod
    async def run(self) -> Result:
        """Run on the loop; if it and the future are cancelled, terminate the jobs."""


class TaskWork(Work):
    """Calls that share one task.

    Args:
        executor: Runs the calls.
        submit: Submits the task.
        size: Number of calls.
        join: Combines the calls' results into the future's result.
    """

    __slots__ = ("_executor", "_join", "_size", "_submit")

    def __init__(
        self,
        executor: BatchExecutor,
        submit: Callable[[], Coroutine[Any, Any, TaskRun]],
        size: int,
        join: Callable[[list[Result]], Result],
    ) -> None:
        super().__init__()
        self._executor = executor
        self._submit = submit
        self._size = size
        self._join = join

    @classmethod
    def of_calls(
        cls,
        executor: BatchExecutor,
        function: Callable[..., Any],
        calls: Sequence[Call],
        join: Callable[[list[Result]], Result],
    ) -> TaskWork:
        """Create the work for checked calls; see `TaskWork`."""
        submit = partial(executor._start_run, function, calls, Output.NONE)
        return cls(executor, submit, len(calls), join)

    @classmethod
    def again(cls, executor: BatchExecutor, job_id: str, options: Mapping[str, Any]) -> TaskWork:
        """Return the work that retries a task of one call; see `Job.retry`."""
        run = TaskRun(job_id, executor.settings, wanted=Wanted(output=Output.NONE))
        return cls(executor, partial(run.retry, options), 1, only)

    @property
    def unfinished(self) -> int:
        """Number of all calls until the task has finished, then 0."""
        return 0 if self.is_settled else self._size

    @property
    def job_ids(self) -> list[str]:
        """ID of the task's job."""
        return [self.future.job_id] if self.future.job_id is not None else []

    async def run(self) -> Result:
        """Submit the task, and wait until it has finished."""
        run = await self._submit()
        self._record_accepted(run)
        try:
            results = await run.results()
            self._record_accepted(run)  # a second chance is another job
            self.future._record_used((await run.delivered()).usage)
            return self._join(results)
        except asyncio.CancelledError:
            if self.future.cancelled():  # rather than the loop closed
                await self._end(run)
            raise

    def _record_accepted(self, run: TaskRun) -> None:
        if run.is_cached:
            return
        self.future._record_accepted(run.id, partial(TaskWork.again, self._executor, run.id))

    async def _end(self, run: TaskRun) -> None:
        try:
            self.may_run = not await run.end(self.reason)
        except FarcallError as error:
            self.may_run = True
            _log.warning("%s may still run: %s", run.id, error)


def only(results: list[Result]) -> Result:
    """Return the result of a single call."""
    return results[0]


class BlockingCalls:
    """Calls of one owner, from any thread of the process.

    They hold the process's shared loop from the first call until the owner was shut down and all
    calls have finished.

    Args:
        limit: Maximum number of submitted, unfinished calls; others wait here. None for no limit.
    """

    def __init__(self, limit: int | None = None) -> None:
        self.is_shut = False
        self.is_abandoned = False
        self._pid = os.getpid()
        self._loop = LoopThread()
        self._limit = limit
        self._changed = Condition()
        self._closers = 0
        self._works: dict[BatchFuture[Any], Work] = {}
        # Used only on the loop's thread.
        self._begun = 0
        self._waiting: deque[Work] = deque()
        _all.add(self)

    @property
    def unfinished(self) -> int:
        """Number of calls without a result."""
        return sum(work.unfinished for work in list(self._works.values()))

    @property
    def is_of_parent(self) -> bool:
        """Whether the caller is a forked child, which has none of these calls."""
        return self._pid != os.getpid()

    def start(self, work: Work) -> BatchFuture[Any]:
        """Start checked calls, and return their future at once.

        Raises:
            RuntimeError: The owner was shut down, or the caller is a forked child.
        """
        self.check_process()
        with self._changed:
            if _is_exiting:
                raise RuntimeError("cannot schedule new futures after interpreter shutdown")
            if self.is_shut:
                raise RuntimeError("cannot schedule new futures after shutdown")
            future: BatchFuture[Any] = BatchFuture(self)
            work.future = future
            self._works[future] = work
            self.is_abandoned = False  # a new block can be left again
            try:
                self._loop.call_soon(partial(self._admit, work))
            except Exception:  # the process has no threads or files left for the loop
                del self._works[future]  # it would never finish
                raise
        return future

    def wait_for(self, begin: Callable[[], Coroutine[Any, Any, R]]) -> R:
        """Run another coroutine on the loop, and wait for its result.

        Raises:
            RuntimeError: The owner was shut down, or the caller is a forked child or runs on the
                event loop's own thread.
        """
        self.check_process()
        self.check_thread()
        if self.is_shut or _is_exiting:
            raise RuntimeError("cannot use a BatchPoolExecutor after shutdown")
        return self._loop.run(begin())

    def check_process(self) -> None:
        """Raise an error in a forked child, in which a wait would never end.

        Raises:
            RuntimeError: The calls belong to the parent process.
            UnguardedModuleError: The module that makes the calls is being imported.
        """
        check_blocking_import()
        if self.is_of_parent:
            raise RuntimeError(
                "this BatchPoolExecutor belongs to the parent process and does not survive "
                'fork(). Start processes with multiprocessing.get_context("spawn"), and create '
                "a pool in the child"
            )

    def check_thread(self) -> None:
        """Raise an error on the loop's thread, on which a wait would block itself.

        Raises:
            RuntimeError: The caller runs on the event loop's own thread.
        """
        if self._loop.is_own_thread:
            raise RuntimeError(
                "cannot wait for a call on farcall's own event loop, which runs the call: "
                "callbacks of add_done_callback must not wait. Wait in another thread"
            )

    def end(self, future: BatchFuture[Any]) -> None:
        """Terminate the jobs of a cancelled future, without waiting."""
        work = self._works.get(future)
        if work is not None:
            self.call_soon(partial(self._end, work))

    def shut(self) -> None:
        """Accept no more calls, and release the loop after the last one, without waiting."""
        if self.is_of_parent:
            return  # its loop belongs to the parent, and a new one would never end
        with self._changed:
            self.is_shut = True
            if self._loop.is_held:
                self.call_soon(self._close_if_over)

    def cancel_pending(self) -> None:
        """Cancel the calls that Batch has not accepted yet."""
        for work in list(self._works.values()):
            if not work.job_ids:
                work.future._cancel_pending()

    def wait(self) -> None:
        """Wait until all calls have finished, and after `shut` for the loop's release.

        Raises:
            RuntimeError: The caller runs on the event loop's own thread.
        """
        if self._works:
            self.check_thread()
        with self._changed:
            self._closers += 1
            try:
                self._changed.wait_for(lambda: not self._works)
            finally:
                self._closers -= 1
        if self.is_shut:
            self._loop.close()

    def leave(self, error: BaseException, futures: Collection[BatchFuture[Any]] = ()) -> None:
        """Cancel calls whose caller is leaving, and wait until their jobs are terminated.

        Args:
            error: The exception with which the caller leaves.
            futures: The calls; by default all.

        Raises:
            KeyboardInterrupt: The user pressed Ctrl-C again, to leave at once.
        """
        known = map(self._works.get, futures or list(self._works))
        works = [work for work in known if work is not None and work.unfinished]
        if not works or self.is_abandoned:
            return
        what = counted(sum(work.unfinished for work in works), "unfinished call")
        reason = left_by(error)
        _log.warning("cancelling %s (%s); press Ctrl-C to exit at once", what, reason)
        try:
            for work in works:
                work.reason = reason
                work.future.cancel()
            with self._changed:
                self._changed.wait_for(lambda: not any(map(self._has, works)))
        except KeyboardInterrupt:
            self.is_abandoned = True
            left = [job_id for work in works if self._has(work) for job_id in work.job_ids]
            text = "exited without cancelling %s; cancel jobs with `farcall cancel JOB...`"
            _log.warning(text, named(left) if left else what)
            raise
        if not any(work.may_run for work in works):
            _log.warning("cancelled %s", what)

    def _has(self, work: Work) -> bool:
        return work.future in self._works

    def call_soon(self, function: Callable[[], object]) -> None:
        """Call a function on the loop, without waiting; do nothing if the loop was closed."""
        with contextlib.suppress(FarcallError):  # the loop was closed, and so it has no calls
            self._loop.call_soon(function)

    # --- on the loop's thread -----------------------------------------------------------------

    def _admit(self, work: Work) -> None:
        if self._limit is not None and self._begun >= self._limit:
            self._waiting.append(work)
        elif work.future.cancelled():
            self._forget(work)
        else:
            self._begun += 1
            work.running = work.context.run(asyncio.ensure_future, _run(work))
            work.running.add_done_callback(partial(self._record_end, work))

    def _end(self, work: Work) -> None:
        if work.running is not None:
            work.running.cancel()
        else:  # it waits for capacity
            self._forget(work)

    def _record_end(self, work: Work, _running: object) -> None:
        if not work.future.done():
            text = "the event loop was closed while the call ran; its job, if any, continues"
            _settle(work.future, Result(error=FarcallError(text)))
        self._forget(work)
        self._begun -= 1
        while self._waiting and (self._limit is None or self._begun < self._limit):
            self._admit(self._waiting.popleft())

    def _forget(self, work: Work) -> None:
        with self._changed:
            self._works.pop(work.future, None)
            self._changed.notify_all()
        self._close_if_over()

    def _close_if_over(self) -> None:
        """Release the loop if no call needs it; a thread in `wait` does so itself."""
        if self.is_shut and not self._works and not self._closers:
            self._loop.close()


async def _run(work: Work) -> None:
    try:
        result = await work.run()
    except Exception as error:  # the waiting caller receives any error
        result = Result(error=error)
    _settle(work.future, result)


def _settle(future: BatchFuture[Any], result: Result) -> None:
    try:
        if result.error is not None:
            future.set_exception(result.error)
        else:
            future.set_result(result.value)
    except InvalidStateError:  # it was cancelled
        pass
    except BaseException:  # errors of callbacks must not end the loop
        _log.exception("callback of %r failed", future)


# --- one call at a time -------------------------------------------------------------------------

_single: BlockingCalls | None = None


def run(executor: BatchExecutor, function: Callable[..., R], call: Call) -> R:
    """Make a checked call and wait for its result; leaving the wait cancels the job.

    Raises:
        Exception: See `Job.result`.
    """
    global _single
    __tracebackhide__ = True
    calls = _single = _single or BlockingCalls()  # other threads may start at the same time
    future: BatchFuture[R] = calls.start(TaskWork.of_calls(executor, function, [call], only))
    try:
        return future.result()
    except BaseException as error:
        if not future.done():
            calls.leave(error, [future])
        raise
    finally:
        del future


def refuse_running_loop(call: str, instead: str) -> None:
    """Raise an error if a blocking call would block a running event loop.

    Raises:
        RuntimeError: An event loop runs in this thread.
    """
    __tracebackhide__ = True
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise RuntimeError(
        f"{call} would block the event loop that is running in this thread. Write `{instead}`"
    )


# --- processes ----------------------------------------------------------------------------------

_all: weakref.WeakSet[BlockingCalls] = weakref.WeakSet()
_is_exiting = False

_STARTS_NO_THREADS = (3, 12) <= sys.version_info < (3, 12, 2)
_TROUBLE = (
    f". Python {platform.python_version()} cannot start threads at exit, so calls that are not "
    "submitted yet may fail. Wait for them earlier, with `with` or shutdown(), or use 3.12.2"
    if _STARTS_NO_THREADS
    else ""
)
"""https://github.com/python/cpython/issues/113964"""


def _finish() -> None:
    """Wait for unfinished calls when the interpreter exits."""
    global _is_exiting
    _is_exiting = True
    mine = [calls for calls in _all if not (calls.is_of_parent or calls.is_abandoned)]
    try:
        _wait_for(mine)
    except KeyboardInterrupt as error:
        with contextlib.suppress(KeyboardInterrupt):  # Python would report it as ignored
            for each in mine:
                each.leave(error)


def _wait_for(mine: Sequence[BlockingCalls]) -> None:
    """Log the number of unfinished calls and wait; Ctrl-C can interrupt any step."""
    unfinished = sum(calls.unfinished for calls in mine)
    if unfinished:
        text = "waiting for %s before the process exits; Ctrl-C cancels their jobs%s"
        _log.warning(text, counted(unfinished, "unfinished call"), _TROUBLE)
    for calls in mine:
        calls.shut()
    for calls in mine:
        calls.wait()


def _forget_parent() -> None:
    """Replace the parent's objects in a forked child."""
    global _single
    _single = None


threading._register_atexit(_finish)  # type: ignore[attr-defined]
if hasattr(os, "register_at_fork"):  # Windows has no forks
    os.register_at_fork(after_in_child=_forget_parent)
