"""Future of a call that runs as an AWS Batch job, for code that waits without ``async``."""

from __future__ import annotations

import concurrent.futures
from collections.abc import Callable, Mapping
from concurrent.futures._base import CANCELLED, FINISHED, PENDING, RUNNING
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, TypeVar

from farcall.client.condition import Condition
from farcall.client.frames import hide
from farcall.engine.delivered import Usage
from farcall.model.errors import FarcallError, TaskNotPicklableError
from farcall.model.option_signatures import shows_options

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from farcall.model.settings import Options

R = TypeVar("R")


class Owner(Protocol):
    """What a future asks of the one who runs its call."""

    def check_process(self) -> None:
        """Refuse what would wait forever in a fork's child.

        Raises:
            RuntimeError: The call is the parent process's.
        """

    def check_thread(self) -> None:
        """Refuse what would wait for itself.

        Raises:
            RuntimeError: It is asked on the event loop's own thread.
        """

    def end(self, future: BatchFuture[Any], /) -> None:
        """End the job of a future that was cancelled, and wait for nothing."""

    def start(self, work: Any, /) -> BatchFuture[Any]:
        """Start calls, and return their future at once.

        Raises:
            RuntimeError: There are to be no more, or it is asked in a fork's child.
        """


class BatchFuture(concurrent.futures.Future[R]):
    """What comes of a call of `BatchPoolExecutor.submit`: a `concurrent.futures.Future`.

    It is pending until Batch has accepted the job, and running from then on, also while the job
    waits in its queue.

    What is given to `add_done_callback` is called on farcall's event loop, or by `cancel`. It is
    to be brief, and may wait for no other call.

    Args:
        owner: Runs the call; without one it is a plain future.

    Attributes:
        job_id: The job's ID; an array job's child is ``"<parent>:<index>"``. None until Batch has
            accepted it.
    """

    def __init__(self, owner: Owner | None = None) -> None:
        super().__init__()
        self._condition = Condition()
        self.job_id: str | None = None
        self._owner = owner
        self._again: Callable[[Mapping[str, Any]], Any] | None = None
        self._raised_at: TracebackType | None = None
        self._used: Usage | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        raise TaskNotPicklableError(
            "a BatchFuture cannot travel: pass what its result() gives to the other call"
        )

    if not TYPE_CHECKING:  # to checkers it stays the error that it is

        def __await__(self) -> NoReturn:
            raise TypeError(
                "a BatchFuture is not awaited itself: write await asyncio.wrap_future(future), or "
                "call the function by a BatchExecutor"
            )

    def cancel(self) -> bool:
        """End the call, also where its job runs already: that gets terminated.

        Returns:
            Whether it is cancelled; False where the result was here before. What the job still
            gives is dropped.

        Raises:
            RuntimeError: It is asked in a fork's child.
        """
        return self._cancel(FINISHED)

    @shows_options
    def retry(self, **options: Unpack[Options]) -> BatchFuture[R]:
        """Run the failed call again, and return the new future at once.

        Function and arguments are read from the bucket as they were submitted. What `Job.retry`
        raises comes by the new future.

        Args:
            **options: Those that are to be others, such as ``memory=8``; see `Job.retry`.

        Raises:
            FarcallError: Batch has not accepted the call.
            RuntimeError: The pool was shut down, the interpreter ends, or it is another process's.
        """
        if self._again is None or self._owner is None:
            raise FarcallError(
                "there is no job of this call to be run again: it was not accepted yet; submit "
                "the call again"
            )
        return self._owner.start(self._again(options))

    def cancel_pending(self) -> bool:
        """End the call where Batch has not accepted it yet; say whether it is cancelled."""
        return self._cancel(FINISHED, RUNNING)

    def _cancel(self, *kept: str) -> bool:
        """End the call but in some states; say whether it is cancelled."""
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
        try:  # without the lock: a callback may wait for a thread that asks for the state
            self._invoke_callbacks()  # type: ignore[attr-defined]
        finally:
            self._owner.end(self)
        return True

    def result(self, timeout: float | None = None) -> R:
        """Wait for the call's end and return the function's value.

        Args:
            timeout: For so many seconds at most; by default forever.

        Raises:
            concurrent.futures.TimeoutError: The call has not ended by then. It goes on.
            concurrent.futures.CancelledError: The call was cancelled.
            RuntimeError: The wait would not end: it is asked on farcall's own event loop, or in a
                fork's child.
            Exception: See `Job.result`.
        """
        __tracebackhide__ = True
        try:
            self.check_wait()
            if self._exception is not None:  # or it would have more frames each time
                self._exception.__traceback__ = self._raised_at
            return super().result(timeout)
        except BaseException as error:
            if self._raised_at is None or isinstance(error, FarcallError):
                hide(error)
            raise
        finally:
            del self  # which the error's traceback would hold, and that the error

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait for the call's end and return what `result` would raise, or None.

        Args:
            timeout: As that of `result`.

        Raises:
            concurrent.futures.TimeoutError: The call has not ended by then.
            concurrent.futures.CancelledError: The call was cancelled.
            RuntimeError: As by `result`.
        """
        self.check_wait()
        return super().exception(timeout)

    def usage(self, timeout: float | None = None) -> Usage:
        """Wait for the call's end and return what its job used: time, CPU, peak memory.

        Args:
            timeout: As that of `result`.

        Raises:
            concurrent.futures.TimeoutError: The call has not ended by then.
            concurrent.futures.CancelledError: The call was cancelled.
            RuntimeError: As by `result`.
            Exception: What `result` raises, if the job could not be submitted or followed.
        """
        error = self.exception(timeout)
        if self._used is None:
            raise error or FarcallError("this future is of a map, whose calls share its jobs")
        return self._used

    def note_used(self, usage: Usage) -> None:
        """Record what the job used; called by the owner of the call."""
        self._used = usage

    def set_exception(self, exception: BaseException | None) -> None:
        """Set what came of the call; for the one who runs it."""
        self._raised_at = None if exception is None else exception.__traceback__
        super().set_exception(exception)

    def note_accepted(self, job_id: str, again: Callable[[Mapping[str, Any]], Any]) -> None:
        """Take in that Batch has accepted the job; for the one who runs the call.

        Args:
            job_id: Its ID.
            again: Makes of options what the owner starts to run it again.
        """
        self.job_id = job_id
        self._again = again
        with self._condition:
            if self._state == PENDING:
                self.set_running_or_notify_cancel()

    def check_wait(self) -> None:
        """Refuse a wait that would not end; see `result`.

        Raises:
            RuntimeError: It is asked on farcall's own event loop, or in a fork's child.
        """
        if self._owner is None:
            return
        self._owner.check_process()
        if not self.done():
            self._owner.check_thread()
