"""Stdout and stderr of the container itself, which may have no reader.

A log driver that does not read blocks the writer indefinitely. So each stream has a writing
thread, and callers never wait for it.
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
"""Time in seconds after which a stream that accepts nothing counts as unread.

It must not block a task, so farcall drops the output that does not fit; the bucket has it anyway.
"""


class ContainerStream:
    """One of the container's own streams."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._changed = threading.Condition()
        self._waiting = bytearray()
        self._moved_at = 0.0  # when bytes were last accepted, or began to wait
        self._thread: threading.Thread | None = None

    def write(self, data: bytes) -> None:
        """Write bytes in the background; drop them if the buffer is full and unread."""
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
        """Return whether callers should pause: the buffer is full, and it is being read."""
        if len(self._waiting) < _MOST_WAITING_BYTES:
            return False
        with self._changed:
            return len(self._waiting) >= _MOST_WAITING_BYTES and not self._is_stuck()

    def flush(self, until: float) -> None:
        """Wait until the buffer is written or the stream is stuck."""
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
            except BlockingIOError:  # another process has made it non-blocking
                self._wait_for_room()
                taken = 0
            except OSError:  # closed
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
        """Write without a thread; a pipe with room accepts PIPE_BUF bytes at once."""
        with contextlib.suppress(OSError):
            while self._waiting and self._wait_for_room(0):
                taken = os.write(self._descriptor, self._waiting[: select.PIPE_BUF])
                del self._waiting[:taken]
        self._waiting.clear()


stdout, stderr = ContainerStream(1), ContainerStream(2)


def log(text: str) -> None:
    """Write a line to the container's stderr."""
    stderr.write(f"farcall: {text}\n".encode(errors="backslashreplace"))


def flush(most_s: float) -> None:
    """Wait up to ``most_s`` seconds until both streams are written or stuck."""
    until = time.monotonic() + most_s
    for stream in (stdout, stderr):
        stream.flush(until)
