"""The container's own stdout and stderr, which nobody may be reading.

A log driver that takes nothing holds whoever writes to it, for as long as it likes. So a thread
of each stream's own writes, and who has something to say never waits for it.
"""

from __future__ import annotations

import contextlib
import os
import select
import threading
import time

from farcall_runtime.waiting import NoThreadError, start_thread

_MOST_WAITING_BYTES = 1024 * 1024
_STALL_S = 5.0
"""A stream that takes nothing for so long is read by nobody: it must not hold a task, and what it
has no room for is left out of it. The bucket has that anyway."""


class Outlet:
    """One stream of the container's own."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._changed = threading.Condition()
        self._waiting = bytearray()
        self._moved_at = 0.0  # when anything was taken last, or had to wait first
        self._thread: threading.Thread | None = None

    def write(self, data: bytes) -> None:
        """Have bytes written; what there is no room for, because nobody reads, is left out."""
        with self._changed:
            if not self._waiting:
                self._moved_at = time.monotonic()
            if len(self._waiting) >= _MOST_WAITING_BYTES and self._is_stuck():
                return
            self._waiting += data
            if self._thread is None:
                try:
                    self._thread = start_thread(self._write_on, "farcall-outlet")
                except NoThreadError:
                    self._write_what_fits()
            self._changed.notify_all()

    def holds(self) -> bool:
        """Return whether who writes more should wait: much is waiting, and it is being read."""
        if len(self._waiting) < _MOST_WAITING_BYTES:
            return False
        with self._changed:
            return len(self._waiting) >= _MOST_WAITING_BYTES and not self._is_stuck()

    def flush(self, until: float) -> None:
        """Wait until all is written, or nobody reads."""
        with self._changed:
            while self._waiting and not self._is_stuck() and time.monotonic() < until:
                self._changed.wait(0.1)

    def _is_stuck(self) -> bool:
        return bool(self._waiting) and time.monotonic() - self._moved_at > _STALL_S

    def _write_on(self) -> None:
        while True:
            with self._changed:
                while not self._waiting:
                    self._changed.wait()
                piece = bytes(self._waiting[: select.PIPE_BUF])
            try:
                taken = os.write(self._descriptor, piece)
            except BlockingIOError:  # somebody else has made it so
                self._wait_for_room()
                taken = 0
            except OSError:  # closed, or gone
                taken = len(piece)
            with self._changed:
                del self._waiting[:taken]
                if taken:
                    self._moved_at = time.monotonic()
                self._changed.notify_all()

    def _wait_for_room(self, most_ms: int = 1000) -> bool:
        room = select.poll()
        room.register(self._descriptor, select.POLLOUT)
        return bool(room.poll(most_ms))

    def _write_what_fits(self) -> None:
        """Write without a thread: a pipe that has room takes PIPE_BUF bytes without waiting."""
        with contextlib.suppress(OSError):
            while self._waiting and self._wait_for_room(0):
                taken = os.write(self._descriptor, self._waiting[: select.PIPE_BUF])
                del self._waiting[:taken]
        self._waiting.clear()


stdout, stderr = Outlet(1), Outlet(2)


def say(text: str) -> None:
    """Write a line to the container's stderr."""
    stderr.write(f"farcall: {text}\n".encode(errors="backslashreplace"))


def flush(most_s: float) -> None:
    """Wait until all is written to both streams, or nobody reads, or the time is over.

    Args:
        most_s: For how long to wait at most, in seconds.
    """
    until = time.monotonic() + most_s
    for outlet in (stdout, stderr):
        outlet.flush(until)
