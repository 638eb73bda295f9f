"""Blocking calls: calls that code without ``async`` makes, and the jobs they are on Batch.

They run on the event loop that a process's waiting code shares (see `LoopThread`), each from its
submission to the result in its future. The loop's side of a call takes one asyncio task; calls
that come in a burst reach the loop together, and their jobs are gathered as those of coroutines.

At the interpreter's end calls that have not ended are waited for, as those of the standard pools.
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
from typing import Any, Protocol, TypeVar

from farcall.client.condition import Condition
from farcall.client.future import BatchFuture
from farcall.client.job import Job
from farcall.client.loop_thread import LoopThread
from farcall.engine.fetcher import Output
from farcall.engine.session import check_import
from farcall.engine.task_handle import TaskHandle
from farcall.model.errors import FarcallError
from farcall.model.interrupts import left_by
from farcall.model.names import counted, named
from farcall.model.settings import Settings
from farcall.payload.pickling import Call
from farcall.payload.results import Result

_log = logging.getLogger("farcall")

R = TypeVar("R")


class Executor(Protocol):
    """What a call asks of the `BatchExecutor` that it runs on."""

    @property
    def settings(self) -> Settings:
        """The options."""

    async def submit_calls(
        self, function: Callable[..., R], calls: Sequence[Call], output: Output, /
    ) -> Job[R]:
        """Submit calls that were checked as one task; its job fetches so much of its output."""


class Work(ABC):
    """What a future stands for, from its submission to its end.

    Attributes:
        future: What comes of it.
        context: Of the one who began it.
        running: The loop's side of it; None until it begins.
        reason: Why its jobs are ended, where they are.
        may_run: Whether some of them could not be ended.
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
        """How many calls have no result yet; those that were cancelled are ended first."""

    @property
    def is_settled(self) -> bool:
        """Whether its result is there."""
        return self.future.done() and not self.future.cancelled()

    @property
    @abstractmethod
    def job_ids(self) -> list[str]:
        """The jobs, as far as they are submitted."""

    @abstractmethod
    async def run(self) -> Result:
        """Do it on the loop; cancelled, end the jobs where the future is cancelled, too."""


class TaskWork(Work):
    """Calls that are one task.

    Args:
        executor: Runs them.
        submit: Submits the task.
        size: How many calls it makes.
        join: Makes the future's result of theirs.
    """

    __slots__ = ("_executor", "_join", "_size", "_submit")

    def __init__(
        self,
        executor: Executor,
        submit: Callable[[], Coroutine[Any, Any, Job[Any]]],
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
        executor: Executor,
        function: Callable[..., Any],
        calls: Sequence[Call],
        join: Callable[[list[Result]], Result],
    ) -> TaskWork:
        """Return calls that were checked.

        Args:
            executor: Runs them.
            function: The function.
            calls: The arguments of each.
            join: Makes the future's result of theirs.
        """
        submit = partial(executor.submit_calls, function, calls, Output.NONE)
        return cls(executor, submit, len(calls), join)

    @classmethod
    def again(cls, executor: Executor, job_id: str, options: Mapping[str, Any]) -> TaskWork:
        """Return a task of one call that is to run again; see `Job.retry`."""

        async def submit() -> Job[Any]:
            job: Job[Any] = Job(TaskHandle(job_id, executor.settings), Output.NONE)
            return await job.retry(**options)

        return cls(executor, submit, 1, only)

    @property
    def unfinished(self) -> int:
        """All of the calls until the task has ended."""
        return 0 if self.is_settled else self._size

    @property
    def job_ids(self) -> list[str]:
        """The task's job."""
        return [self.future.job_id] if self.future.job_id is not None else []

    async def run(self) -> Result:
        """Submit the task, and wait for its end."""
        job = await self._submit()
        self.future.note_accepted(job.id, partial(TaskWork.again, self._executor, job.id))
        try:
            results = await job.outcome()
            self.future.note_used(await job.usage())
            return self._join(results)
        except asyncio.CancelledError:
            if self.future.cancelled():  # and not the loop closed
                await self._end(job)
            raise

    async def _end(self, job: Job[Any]) -> None:
        try:
            await job.cancel(self.reason)
        except FarcallError as error:
            self.may_run = True
            _log.warning("%s may still run: %s", job.id, error)


def only(results: list[Result]) -> Result:
    """Return the result of the one call that there is."""
    return results[0]


class BlockingCalls:
    """Calls of one owner, from any thread of a process.

    They hold the process's shared loop from the first call on, until there are to be no more and
    all have ended.

    Args:
        limit: How many are on Batch at a time; others wait here. None for no limit.
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
        # The loop's side, of its thread alone.
        self._begun = 0
        self._waiting: deque[Work] = deque()
        _all.add(self)

    @property
    def unfinished(self) -> int:
        """How many calls have no result yet."""
        return sum(work.unfinished for work in list(self._works.values()))

    @property
    def is_of_parent(self) -> bool:
        """Whether this is a fork's child, where nothing of them is."""
        return self._pid != os.getpid()

    def start(self, work: Work) -> BatchFuture[Any]:
        """Start calls that were checked, and return their future at once.

        Raises:
            RuntimeError: There are to be no more, or it is asked in a fork's child.
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
            self.is_abandoned = False  # it is another time that somebody may leave
            try:
                self._loop.tell(partial(self._admit, work))
            except Exception:  # no thread or no file is left for the loop
                del self._works[future]  # which nothing would ever end
                raise
        return future

    def wait_for(self, begin: Callable[[], Coroutine[Any, Any, R]]) -> R:
        """Run what is no call on the loop, and wait for what it returns.

        Raises:
            RuntimeError: There are to be no more calls, or it is asked in a fork's child or on the
                event loop's own thread.
        """
        self.check_process()
        self.check_thread()
        if self.is_shut or _is_exiting:
            raise RuntimeError("cannot use a BatchPoolExecutor after shutdown")
        return self._loop.run(begin())

    def check_process(self) -> None:
        """Refuse what would wait forever in a fork's child.

        Raises:
            RuntimeError: The calls are the parent process's.
            UnguardedModuleError: A command is importing the module that makes them.
        """
        check_import()
        if self.is_of_parent:
            raise RuntimeError(
                "this BatchPoolExecutor is the parent process's, whose threads a fork's child has "
                'not; start processes by multiprocessing.get_context("spawn"), and make one there'
            )

    def check_thread(self) -> None:
        """Refuse what would wait for itself.

        Raises:
            RuntimeError: It is asked on the event loop's own thread.
        """
        if self._loop.is_own_thread:
            raise RuntimeError(
                "a call was waited for on farcall's own event loop, on which it runs: a callback "
                "of add_done_callback is to wait for nothing; let another thread wait"
            )

    def end(self, future: BatchFuture[Any]) -> None:
        """End the jobs of a future that was cancelled, and wait for nothing."""
        work = self._works.get(future)
        if work is not None:
            self.tell(partial(self._end, work))

    def shut(self) -> None:
        """Take no more calls, and let go of the loop when all have ended; wait for nothing."""
        if self.is_of_parent:
            return  # its loop is not here, and another one would never end
        with self._changed:
            self.is_shut = True
            if self._loop.is_held:
                self.tell(self._close_if_over)

    def cancel_pending(self) -> None:
        """Cancel the calls that Batch has not accepted yet."""
        for work in list(self._works.values()):
            if not work.job_ids:
                work.future.cancel_pending()

    def wait(self) -> None:
        """Wait until all calls have ended; where there are to be no more, until all is closed.

        Raises:
            RuntimeError: It is asked on the event loop's own thread.
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
        """End calls for one who goes away: wait until their jobs are ended, and say so.

        Args:
            error: Why somebody goes away.
            futures: The calls; by default all.

        Raises:
            KeyboardInterrupt: Somebody wants to leave at once.
        """
        found = map(self._works.get, futures or list(self._works))
        works = [work for work in found if work is not None and work.unfinished]
        if not works or self.is_abandoned:
            return
        what = counted(sum(work.unfinished for work in works), "unfinished call")
        reason = left_by(error)
        _log.warning("ending %s (%s); Ctrl-C leaves at once", what, reason)
        try:
            for work in works:
                work.reason = reason
                work.future.cancel()
            with self._changed:
                self._changed.wait_for(lambda: not any(map(self._has, works)))
        except KeyboardInterrupt:
            self.is_abandoned = True
            left = [job_id for work in works if self._has(work) for job_id in work.job_ids]
            text = "left without ending %s; farcall cancel JOB... ends jobs"
            _log.warning(text, named(left) if left else what)
            raise
        if not any(work.may_run for work in works):
            _log.warning("ended %s", what)

    def _has(self, work: Work) -> bool:
        return work.future in self._works

    def tell(self, function: Callable[[], object]) -> None:
        """Have the loop call something, and wait for nothing; where it was closed, nothing is."""
        with contextlib.suppress(FarcallError):  # the loop was closed, and so it has no calls
            self._loop.tell(function)

    # --- on the loop's thread -----------------------------------------------------------------

    def _admit(self, work: Work) -> None:
        if self._limit is not None and self._begun >= self._limit:
            self._waiting.append(work)
        elif work.future.cancelled():
            self._forget(work)
        else:
            self._begun += 1
            work.running = work.context.run(asyncio.ensure_future, _run(work))
            work.running.add_done_callback(partial(self._note_end, work))

    def _end(self, work: Work) -> None:
        if work.running is not None:
            work.running.cancel()
        else:  # it waits for its turn
            self._forget(work)

    def _note_end(self, work: Work, _running: object) -> None:
        if not work.future.done():
            text = "the event loop was closed while the call ran; a job that it has goes on"
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
        """Let go of the loop where it is of no more use; who waits for that does it."""
        if self.is_shut and not self._works and not self._closers:
            self._loop.close()


async def _run(work: Work) -> None:
    try:
        result = await work.run()
    except Exception as error:  # whatever it is, the one who waits is to have it
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
    except BaseException:  # what its callbacks raise must not end the loop
        _log.exception("a callback of %r failed", future)


# --- one call at a time -------------------------------------------------------------------------

_single: BlockingCalls | None = None


def run(executor: Executor, function: Callable[..., R], call: Call) -> R:
    """Make a call that was checked, and wait for its value; leaving the wait ends the job.

    Raises:
        Exception: See `Job.result`.
    """
    global _single
    __tracebackhide__ = True
    calls = _single = _single or BlockingCalls()  # other threads may begin in the same moment
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
    """Refuse a call that waits where an event loop runs, which it would hold up.

    Raises:
        RuntimeError: One runs in this thread.
    """
    __tracebackhide__ = True
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise RuntimeError(
        f"{call} waits, and would hold up the event loop that runs here: write `{instead}`"
    )


# --- processes ----------------------------------------------------------------------------------

_all: weakref.WeakSet[BlockingCalls] = weakref.WeakSet()
_is_exiting = False

_STARTS_NO_THREADS = (3, 12) <= sys.version_info < (3, 12, 2)
_TROUBLE = (
    f". Python {platform.python_version()} starts no threads while it ends, so those that are not "
    "submitted yet may fail: wait for them before, by `with` or shutdown(), or use 3.12.2"
    if _STARTS_NO_THREADS
    else ""
)
"""https://github.com/python/cpython/issues/113964"""


def _finish() -> None:
    """Wait for what has not ended: the interpreter ends."""
    global _is_exiting
    _is_exiting = True
    mine = [calls for calls in _all if not (calls.is_of_parent or calls.is_abandoned)]
    try:
        _wait_for(mine)
    except KeyboardInterrupt as error:
        with contextlib.suppress(KeyboardInterrupt):  # Python would call it ignored
            for each in mine:
                each.leave(error)


def _wait_for(mine: Sequence[BlockingCalls]) -> None:
    """Say what is unfinished, and wait for it; Ctrl-C may come as soon as it is said."""
    unfinished = sum(calls.unfinished for calls in mine)
    if unfinished:
        text = "waiting for %s before the process ends; Ctrl-C ends their jobs%s"
        _log.warning(text, counted(unfinished, "unfinished call"), _TROUBLE)
    for calls in mine:
        calls.shut()
    for calls in mine:
        calls.wait()


def _forget_parent() -> None:
    """Have a forked child make its calls on a loop of its own."""
    global _single
    _single = None


threading._register_atexit(_finish)  # type: ignore[attr-defined]
if hasattr(os, "register_at_fork"):  # Windows has no forks
    os.register_at_fork(after_in_child=_forget_parent)
