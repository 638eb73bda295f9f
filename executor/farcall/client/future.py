"""Future of a call that runs as a job, for code without ``async``."""

from __future__ import annotations

import concurrent.futures
from collections.abc import Callable, Mapping
from concurrent.futures._base import CANCELLED, FINISHED, PENDING, RUNNING
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, Unpack

from farcall.client.frames import hide
from farcall.config.help import shows_options
from farcall.engine.delivered import Usage
from farcall.model.errors import FarcallError, NothingToRetryError, TaskNotPicklableError

if TYPE_CHECKING:
    from farcall.client.blocking_calls import BlockingCalls
    from farcall.config.settings import Options

import threading


class Condition(threading.Condition):
    """Condition variable for locks that the main thread takes.

    The methods ``__enter__`` and ``__exit__`` of `threading.Condition` are Python functions. If
    KeyboardInterrupt is raised in one of them, the lock is never released
    (https://github.com/python/cpython/issues/74174), and farcall's event loop waits for it
    forever. Here ``with`` calls the lock's own methods, which are not interrupted.
    """

    @property
    def __enter__(self) -> Any:
        return self._lock.__enter__  # type: ignore[attr-defined]

    @property
    def __exit__(self) -> Any:  # noqa: PYI036  # a property
        return self._lock.__exit__  # type: ignore[attr-defined]


R = TypeVar("R")


class BatchFuture(concurrent.futures.Future[R]):
    """Result of `BatchPoolExecutor.submit`: a `concurrent.futures.Future`.

    It is pending until Batch accepts the job, and then running, even while the job waits in its
    queue.

    Callbacks of `add_done_callback` are called on farcall's event loop or by `cancel`. They must
    be short, and must not wait for another call.

    Args:
        owner: Runs the call. None for a plain future.

    Attributes:
        job_id: The job's ID, for an array task ``"<array job>:<index>"``. None until Batch has
            accepted the job.
    """

    def __init__(self, owner: BlockingCalls | None = None) -> None:
        super().__init__()
        self._condition = Condition()
        self.job_id: str | None = None
        self._owner = owner
        self._again: Callable[[Mapping[str, Any]], Any] | None = None
        self._raised_at: TracebackType | None = None
        self._used: Usage | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        raise TaskNotPicklableError(
            "a BatchFuture cannot be pickled. Pass its result() to the other call"
        )

    if not TYPE_CHECKING:  # type checkers still report it as an error

        def __await__(self) -> NoReturn:
            raise TypeError(
                "a BatchFuture cannot be awaited. Write await asyncio.wrap_future(future), or "
                "call the function with a BatchExecutor"
            )

    def cancel(self) -> bool:
        """Cancel the call and terminate its job, even if it is running.

        Returns:
            Whether the call is cancelled; False if it had finished before. A later result
            of the job is discarded.

        Raises:
            RuntimeError: The future belongs to the parent process.
        """
        return self._cancel(FINISHED)

    @shows_options
    def retry(self, **options: Unpack[Options]) -> BatchFuture[R]:
        """Run the failed call again, and return the new future at once.

        farcall reads the original function and arguments from the bucket. Calls of an array job
        that are retried together with the same options share an array job again. The new future
        raises the errors of `Job.retry`.

        Args:
            **options: Options to change, such as ``memory=8``; see `Job.retry`.

        Raises:
            NothingToRetryError: The call has succeeded.
            FarcallError: Batch has not accepted the call.
            RuntimeError: The pool was shut down, the interpreter is exiting, or the pool belongs
                to another process.
        """
        if self._again is None or self._owner is None:
            raise FarcallError(
                "the call has no job to retry, because Batch has not accepted it. Submit the call "
                "again"
            )
        if self._state == FINISHED and self._exception is None:
            raise NothingToRetryError(
                f"job {self.job_id} has succeeded, so there is nothing to retry. Its result() "
                "returns the value"
            )
        return self._owner.start(self._again(options))

    def _cancel_pending(self) -> bool:
        """Cancel the call unless Batch has accepted it; return whether it is cancelled."""
        return self._cancel(FINISHED, RUNNING)

    def _cancel(self, *kept: str) -> bool:
        """Cancel the call unless its state is in ``kept``; return whether it is cancelled."""
        if self._owner is None:
            return super().cancel()
        self._owner.check_process()
        with self._condition:
            if self._state in kept:
                return False
            if self.cancelled():
                return True
            self._state = CANCELLED
            self._condition.notify_all()
            self.set_running_or_notify_cancel()  # so `wait` and `as_completed` see it now
        try:  # without the lock: a callback may wait for a thread that reads the state
            self._invoke_callbacks()  # type: ignore[attr-defined]
        finally:
            self._owner.end(self)
        return True

    def result(self, timeout: float | None = None) -> R:
        """Wait until the call has finished, and return the function's result.

        Args:
            timeout: Maximum wait in seconds; by default there is no limit.

        Raises:
            concurrent.futures.TimeoutError: The call has not finished by then. It continues.
            concurrent.futures.CancelledError: The call was cancelled.
            RuntimeError: The wait would never end: the caller runs on farcall's own event loop, or
                in a forked child.
            Exception: See `Job.result`.
        """
        __tracebackhide__ = True
        try:
            self._check_wait()
            if self._exception is not None:  # otherwise each raise would add frames
                self._exception.__traceback__ = self._raised_at
            return super().result(timeout)
        except BaseException as error:
            if isinstance(error, concurrent.futures.TimeoutError) and not self.done():
                name = f"job {self.job_id}" if self.job_id else "the call"
                error.args = (f"{name} has not finished within {timeout:g} s, and continues",)
            if self._raised_at is None or isinstance(error, FarcallError):
                hide(error)
            raise
        finally:
            del self  # avoids a reference cycle: error, traceback, frame, future

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait until the call has finished, and return the exception of `result`, or None.

        Args:
            timeout: See `result`.

        Raises:
            concurrent.futures.TimeoutError: The call has not finished by then.
            concurrent.futures.CancelledError: The call was cancelled.
            RuntimeError: See `result`.
        """
        self._check_wait()
        return super().exception(timeout)

    def usage(self, timeout: float | None = None) -> Usage:
        """Wait until the call has finished; return its duration, CPU time and peak memory.

        Args:
            timeout: See `result`.

        Raises:
            concurrent.futures.TimeoutError: The call has not finished by then.
            concurrent.futures.CancelledError: The call was cancelled.
            RuntimeError: See `result`.
            Exception: The exception of `result`, if the job could not be submitted or tracked.
        """
        error = self.exception(timeout)
        if self._used is None:
            raise error or FarcallError("this future belongs to a map, whose calls share jobs")
        return self._used

    def _record_used(self, usage: Usage) -> None:
        """Record the task's duration, CPU time and peak memory. Only farcall calls this."""
        self._used = usage

    def set_exception(self, exception: BaseException | None) -> None:
        """Set the exception; called by the owner of the call."""
        self._raised_at = None if exception is None else exception.__traceback__
        super().set_exception(exception)

    def _record_accepted(self, job_id: str, again: Callable[[Mapping[str, Any]], Any]) -> None:
        """Record that the platform has accepted the job. Only farcall calls this.

        Args:
            job_id: The job's ID.
            again: Function that takes options and returns the work of a retry with them.
        """
        self.job_id = job_id
        self._again = again
        with self._condition:
            if self._state == PENDING:
                self.set_running_or_notify_cancel()

    def _check_wait(self) -> None:
        """Raise an error if a wait would never end; see `result`.

        Raises:
            RuntimeError: The caller runs on farcall's own event loop, or in a forked child.
        """
        if self._owner is None:
            return
        self._owner.check_process()
        if not self.done():
            self._owner.check_thread()
