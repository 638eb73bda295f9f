"""Event loop in a thread, for blocking calls and iterators in code without async.

All of them share one loop per process, in one daemon thread, so an account's connections are
opened once and requests of many threads are batched. The thread starts with the first call and
ends with its last holder, or with the process, which waits for it only briefly.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import contextlib
import os
import threading
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from typing import Any, TypeVar

from farcall.model.errors import FarcallError

_CLOSING_S = 5.0
"""Maximum time that `LoopThread.close` waits for work in progress, in seconds."""

_LAST_S = 1.0
"""Maximum wait for an open loop at the end of the process, in seconds."""

T = TypeVar("T")


class _ClosedError(FarcallError):
    """The loop was closed while a caller waited for it."""


class LoopThread:
    """Holder of the process's shared event loop.

    All threads except the loop's own can use it. A forked child gets its own loop.
    """

    def __init__(self) -> None:
        self._held: _Loop | None = None
        self._ended: _Loop | None = None
        self._waited_for: set[concurrent.futures.Future[Any]] = set()

    def call_soon(self, function: Callable[[], object]) -> None:
        """Call a function on the loop, without waiting.

        Functions passed in a burst reach the loop together and in order. A function must not
        raise, because that would delay the following ones until the next burst.

        Raises:
            FarcallError: The loop was closed meanwhile.
        """
        if not self._hold().call_soon(function):
            raise _ClosedError("the event loop was closed before this call started")

    @property
    def is_held(self) -> bool:
        """Whether this object holds a loop."""
        return self._held is not None

    @property
    def is_own_thread(self) -> bool:
        """Whether the caller runs on the loop's thread, which must not wait for the loop."""
        held = self._held
        return held is not None and held.is_own_thread

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop, and wait for its result.

        Ctrl-C, which Python raises in the main thread, ends the wait at once and cancels the
        coroutine.

        Raises:
            RuntimeError: The caller runs on the loop's own thread.
            FarcallError: The loop was closed meanwhile, with `close` or with the process.
        """
        return self._run(self._hold(), coroutine)

    def stream(self, batches: AsyncGenerator[list[T], None]) -> Iterator[T]:
        """Iterate over the items of an async generator's batches.

        The iteration ends when this holder or the loop is closed.

        Raises:
            RuntimeError: The caller runs on the loop's own thread.
        """
        loop = self._hold()
        try:
            while (batch := self._run(loop, _next(batches))) is not None:
                yield from batch
        except _ClosedError:
            return
        finally:
            # A generator that Ctrl-C has interrupted is still running, and ends by itself.
            with contextlib.suppress(_ClosedError, RuntimeError):
                self._run(loop, _close(batches))

    def close(self) -> None:
        """Release the loop, and cancel this holder's waits.

        The loop ends with its last holder. A later call acquires a loop again.
        """
        with _lock:
            held, self._held = self._held, None
            waited_for = list(self._waited_for)
            if held is not None:
                held.holders -= 1
            if held is not None and not held.holders and held.pid == os.getpid():
                held.end()  # before another holder acquires it
                self._ended, held = held, None
        if held is not None:
            for future in waited_for:
                future.cancel()
        elif self._ended is not None:  # another thread may have released it just now
            self._ended.join(_CLOSING_S)

    def _run(self, loop: _Loop, coroutine: Coroutine[Any, Any, T]) -> T:
        with _lock:
            if self._held is not loop:
                coroutine.close()
                raise _ClosedError("the event loop was closed before this call started")
            future = loop.start(coroutine)
            self._waited_for.add(future)
        try:
            return future.result()
        except concurrent.futures.CancelledError:
            raise _ClosedError("the event loop was closed while this call waited") from None
        finally:
            future.cancel()  # if the wait was interrupted; otherwise it does nothing
            with _lock:
                self._waited_for.discard(future)

    def _hold(self) -> _Loop:
        with _lock:
            if self._held is None or self._held.is_over:
                self._held = _shared_loop()
                self._held.holders += 1
            return self._held


class _Loop:
    """Event loop and its thread.

    Attributes:
        pid: Process that created it.
        holders: Number of holders.
    """

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.holders = 0
        self._is_closing = False
        # Functions passed before the end run first; garbage collection may pass more meanwhile.
        self._lock = threading.RLock()
        self._pending: deque[Callable[[], object]] = deque()
        self._is_awake = False
        self._loop = asyncio.new_event_loop()
        self._end = asyncio.Event()
        self._thread = threading.Thread(target=self._live, name="farcall-loop", daemon=True)
        self._thread.start()

    @property
    def is_over(self) -> bool:
        """Whether the loop is closed or the parent process's, so that it accepts no work."""
        return self._is_closing or self.pid != os.getpid()

    @property
    def is_own_thread(self) -> bool:
        """Whether the caller runs on this loop's thread."""
        return threading.current_thread() is self._thread

    def call_soon(self, function: Callable[[], object]) -> bool:
        """Call a function on the loop, without waiting; return whether it will be called."""
        with self._lock:
            if self.is_over:
                return False
            self._pending.append(function)
            if not self._is_awake:  # waking the loop is the most expensive step
                self._is_awake = True
                try:
                    self._loop.call_soon_threadsafe(self._listen)
                except BaseException:  # after Ctrl-C, later calls must still wake the loop
                    self._is_awake = False
                    raise
            return True

    def _listen(self) -> None:
        self._is_awake = False
        while self._pending:
            self._pending.popleft()()

    def end(self) -> None:
        """Cancel all work, without waiting."""
        with self._lock:
            if not self._is_closing:
                self._is_closing = True
                self._loop.call_soon_threadsafe(self._end.set)

    def join(self, timeout_s: float) -> None:
        """Wait up to ``timeout_s`` seconds for all work to end."""
        if not self.is_own_thread:
            self._thread.join(timeout_s)

    def start(self, coroutine: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        """Start a coroutine; its future is cancelled with the loop.

        Raises:
            RuntimeError: The caller runs on the loop's own thread.
            FarcallError: The loop was closed.
        """
        with self._lock:
            if not (self.is_own_thread or self.is_over):
                return asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        coroutine.close()
        if self.is_over and not self.is_own_thread:
            raise _ClosedError("the event loop was closed before this call started")
        raise RuntimeError(
            "a blocking call on farcall's own event loop would wait for itself. Await the "
            "asynchronous call there"
        )

    def _live(self) -> None:
        with contextlib.closing(self._loop):
            self._loop.run_until_complete(self._until_closed())

    async def _until_closed(self) -> None:
        await self._end.wait()
        while others := asyncio.all_tasks() - {asyncio.current_task()}:
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)
        await self._loop.shutdown_asyncgens()


async def _next(batches: AsyncGenerator[list[T], None]) -> list[T] | None:
    return await anext(batches, None)


async def _close(batches: AsyncGenerator[list[T], None]) -> None:
    await batches.aclose()


_lock = threading.RLock()
_shared: _Loop | None = None
_left: list[_Loop] = []
"""Loops of parent processes; garbage collection would close their sockets."""


def _shared_loop() -> _Loop:
    global _shared
    if _shared is None or _shared.is_over:
        _shared = _Loop()
    return _shared


def _forget_parent() -> None:
    """Replace the parent's loop in a forked child, which lacks its thread."""
    global _lock, _shared
    _lock = threading.RLock()
    if _shared is not None:
        _left.append(_shared)
        _shared = None


def close_shared() -> None:
    """End the loop for all holders; a later call starts another one."""
    if _shared is not None:
        _shared.end()
        _shared.join(_LAST_S)


if hasattr(os, "register_at_fork"):  # Windows has no forks
    os.register_at_fork(after_in_child=_forget_parent)
atexit.register(close_shared)
