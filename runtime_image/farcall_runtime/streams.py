"""Task output: forwarded, buffered, and stored in chunks while the task runs."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from farcall_runtime import container_output, envelope
from farcall_runtime.container_output import ContainerStream, log
from farcall_runtime.contract import ENV_STREAM_S, FOLLOWED_S, SOON_CHUNKS, STREAMS, Location
from farcall_runtime.storage import DeniedError, Storage, UnfitError
from farcall_runtime.waiting import POLL_S, NoThreadError, start_thread

INLINE_BYTES = 1024 * 1024
"""Maximum unstored output of a stream that is stored inside the outcome: 1 MiB."""

_READ_BYTES = 256 * 1024
_PIPE_BYTES = 1024 * 1024  # Linux's default limit for an unprivileged process
_STEP_S, _LEAST_STEP_S = 0.25, 0.02
_GIVE_UP_S = 1.0  # later than the deadline of its own requests
_F_SETPIPE_SZ = getattr(fcntl, "F_SETPIPE_SZ", None)

MARK_POLL_S = 8.0
"""Interval between checks of the follow marker in seconds.

A check costs a tenth of a chunk's request, and a followed task stores a chunk about this often.
"""


class Mark:
    """Follow marker of one task: an object that a reader of its live output refreshes.

    Args:
        where: The task's location in the bucket.
        index: Array index of the task.
        poll_s: Minimum interval between two checks in seconds.
    """

    def __init__(self, where: Location, index: int, poll_s: float = MARK_POLL_S) -> None:
        self._key = where.followed_key(index)
        self._poll_s = poll_s
        self._next_poll = -math.inf
        self._version: object = None
        self._followed_until = -math.inf

    def is_followed(self, storage: Storage) -> bool:
        """Return whether a reader follows the output and has refreshed the marker.

        Clocks are not compared: a marker version counts from the moment this process first sees
        it.
        """
        now = time.monotonic()
        if now >= self._next_poll:
            self._next_poll = now + self._poll_s
            try:
                version = storage.version(self._key)
            except (DeniedError, UnfitError):
                self._next_poll = math.inf
                version = self._version
            except Exception:  # most likely the marker does not exist; the caller continues
                version = self._version
            if version != self._version:
                self._version, self._followed_until = version, now + FOLLOWED_S
        return now < self._followed_until


class Limits(NamedTuple):
    """Frequency of storing output, and limits of unstored output.

    Attributes:
        soon_s: Maximum wait of a stream's first bytes for more, in seconds.
        later_s: Maximum wait after many chunks, if no reader follows, in seconds.
        chunk_bytes: Size of a chunk; this much output is stored without waiting.
        pending_bytes: Maximum unstored bytes; beyond it, the pipe is left to fill.
        mark_poll_s: Minimum interval between two checks of the follow marker, in seconds.
    """

    soon_s: float = 2.0
    later_s: float = 10.0
    chunk_bytes: int = 8 * 1024 * 1024
    pending_bytes: int = 64 * 1024 * 1024
    mark_poll_s: float = MARK_POLL_S

    @classmethod
    def read(cls, environment: Mapping[str, str]) -> Limits:
        """Return a container's limits; the local AWS emulator may set shorter ones."""
        stream_s = environment.get(ENV_STREAM_S)
        if not stream_s:
            return cls()
        seconds = float(stream_s)
        return cls(soon_s=seconds, later_s=seconds, mark_poll_s=min(seconds, MARK_POLL_S))


class Stream:
    """Stream of one attempt.

    Args:
        name: ``"stdout"`` or ``"stderr"``.
        own: The container's own stream, to which all output is forwarded.

    Attributes:
        read_fd: The supervisor's end of the pipe.
        write_fd: The child's end.
        pending: Bytes read and not stored.
        trying: Number of the first pending bytes that form the chunk being stored; 0 for none.
        chunks: Number of chunks stored so far.
        stored: Bytes in these chunks.
        dropped: Bytes dropped because the bucket could not be reached.
        gaps: For each gap, the number of kept bytes before it and the number of dropped bytes.
        since: When the oldest pending byte arrived, `time.monotonic`.
        at_end: Whether every process that could write to it has closed it.
        is_watched: Whether the supervisor's selector watches it.
    """

    def __init__(self, name: str, own: ContainerStream) -> None:
        self.name = name
        self.own = own
        self.read_fd, self.write_fd = os.pipe()
        self.pending = bytearray()
        self.trying = 0
        self.chunks = 0
        self.stored = 0
        self.dropped = 0
        self.gaps: list[tuple[int, int]] = []
        self.since = 0.0
        self.at_end = False
        self.is_watched = False
        os.set_blocking(self.read_fd, False)
        if _F_SETPIPE_SZ is not None:
            with contextlib.suppress(OSError):
                fcntl.fcntl(self.read_fd, _F_SETPIPE_SZ, _PIPE_BYTES)

    def describe(self) -> dict[str, Any]:
        """Return the outcome's description of the stream, without its bytes."""
        counts = {"chunks": self.chunks, "stored": self.stored, "dropped": self.dropped}
        return {**counts, "gaps": self.gaps} if self.gaps else counts


class Streams:
    """Both streams of an attempt, and the thread that stores them.

    Args:
        where: The task's location in the bucket.
        index: Array index of the task.
        attempt: The attempt's number, from 1.
        key: The bundle's outcome key; chunks are signed with it.
        limits: How often output is stored, and how much may wait.

    Attributes:
        mark: The follow marker of the task.
    """

    def __init__(
        self,
        where: Location,
        index: int,
        attempt: int,
        key: bytes,
        limits: Limits = Limits(),  # noqa: B008  # immutable
    ) -> None:
        self.limits = limits
        self.stdout, self.stderr = self.both = tuple(
            Stream(name, getattr(container_output, name)) for name in STREAMS
        )
        self._where, self._index, self._attempt, self._key = where, index, attempt, key
        self.mark = Mark(where, index, limits.mark_poll_s)
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._closing = False
        self._is_given_up = False
        self._storage: Storage | None = None
        self._thread: threading.Thread | None = None

    def become_standard(self) -> None:
        """Make the pipes the child's descriptors 1 and 2, for C code and subprocesses."""
        for descriptor, stream in enumerate(self.both, start=1):
            os.dup2(stream.write_fd, descriptor)
            os.close(stream.write_fd)
            os.close(stream.read_fd)

    def close_child_ends(self) -> None:
        """Close the child's ends of the pipes in the supervisor."""
        for stream in self.both:
            os.close(stream.write_fd)

    def start(self, storage: Storage) -> None:
        """Start to store chunks in a thread.

        Args:
            storage: The bucket; output that it does not accept in time is dropped.
        """
        self._storage = storage
        self._is_being_stored(storage)

    def _is_being_stored(self, storage: Storage) -> bool:
        """Return whether the storing thread runs; start it if it does not."""
        if self._thread is None or not self._thread.is_alive():
            run = functools.partial(self._store_while_running, storage)
            try:
                self._thread = start_thread(run, "farcall-streams")
            except NoThreadError as error:
                log(f"output cannot be stored while the task runs: {error}")
                return False
        return True

    def holds(self, stream: Stream) -> bool:
        """Return whether the pipe should be left to fill, so that the task waits.

        This is so if too much output waits to be stored, or to be written to the container's own
        stream.
        """
        if len(stream.pending) >= self.limits.pending_bytes:
            if self._storage is None or self._is_being_stored(self._storage):
                return True
            self._drop(stream, self.limits.pending_bytes // 2)
        return stream.own.holds()

    def pump(self, stream: Stream) -> int:
        """Read the available bytes of a pipe; return their number."""
        try:
            data = os.read(stream.read_fd, _READ_BYTES)
        except BlockingIOError:
            return 0
        if not data:
            stream.at_end = True
            return 0
        stream.own.write(data)
        with self._lock:
            if not stream.pending:
                stream.since = time.monotonic()
            stream.pending += data
            if len(stream.pending) >= self.limits.chunk_bytes:
                self._wake.set()
        return len(data)

    def drain(self) -> None:
        """Read the pipes' current content, without waiting for more.

        A process that the task left behind may write forever, so at most one pipe capacity is
        read.
        """
        for stream in self.both:
            left = _PIPE_BYTES
            while left > 0 and (read := self.pump(stream)):
                left -= read

    def written(self) -> list[int]:
        """Return the total bytes written to each stream, unread bytes included."""
        with self._lock:
            return [s.stored + s.dropped + len(s.pending) + _unread(s) for s in self.both]

    def finish(self, deadline: Callable[[], float] = lambda: math.inf) -> None:
        """Stop the thread, and store output that is too large for the outcome.

        Args:
            deadline: Returns when to stop waiting for the thread, `time.monotonic`. It is called
                repeatedly.
        """
        self._closing = True
        self._wake.set()
        if self._storage is None:
            return
        while self._thread is not None and self._thread.is_alive():
            # By then the thread has given up its request. If not, its result no longer counts.
            if time.monotonic() > deadline() + _GIVE_UP_S:
                with self._lock:
                    self._is_given_up = True
                break
            self._thread.join(POLL_S)
        self._thread = None
        for stream in self.both:
            while len(stream.pending) > INLINE_BYTES:
                if self._is_given_up or not self._store_chunk(self._storage, stream):
                    stream.trying = 0  # final: no other chunk is stored under its name
                    self._drop(stream, INLINE_BYTES)

    def _store_while_running(self, storage: Storage) -> None:
        while not self._closing:
            self._wake.wait(min(_STEP_S, max(_LEAST_STEP_S, self.limits.soon_s)))
            self._wake.clear()
            for stream in self.both:
                due = self._is_due(storage, stream)
                while (
                    due or len(stream.pending) >= self.limits.chunk_bytes
                ) and not self._closing:
                    due = False
                    if not self._store_chunk(storage, stream):
                        self._drop(stream, self.limits.pending_bytes // 2)
                        break

    def _is_due(self, storage: Storage, stream: Stream) -> bool:
        waited_s = time.monotonic() - stream.since
        if not stream.pending or waited_s < self.limits.soon_s:
            return False
        is_slow = stream.chunks >= SOON_CHUNKS and waited_s < self.limits.later_s
        return not is_slow or self.mark.is_followed(storage)

    def _store_chunk(self, storage: Storage, stream: Stream) -> bool:
        """Store one chunk; return whether it succeeded.

        An abandoned request may still arrive, even after a later one. So the same bytes are sent
        under a name until they are stored.
        """
        name = self._where.chunk_key(self._index, self._attempt, stream.name, stream.chunks)
        try:
            with self._lock:
                stream.trying = stream.trying or min(len(stream.pending), self.limits.chunk_bytes)
                data = bytes(stream.pending[: stream.trying])
            storage.put(name, envelope.seal_chunk(self._key, name, data))
        except Exception as error:  # the task continues after any error
            log(f"output could not be stored: {error}")
            return False
        with self._lock:
            if self._is_given_up:
                return False
            del stream.pending[: len(data)]
            stream.trying = 0
            stream.since = time.monotonic()
            stream.chunks += 1
            stream.stored += len(data)
        return True

    def _drop(self, stream: Stream, keep: int) -> None:
        """Drop the oldest bytes beyond ``keep``.

        An unreachable bucket must not stop a task. The chunk being stored is kept.
        """
        with self._lock:
            excess = max(0, len(stream.pending) - keep)
            del stream.pending[stream.trying : stream.trying + excess]
            stream.dropped += excess
            if excess:
                stream.gaps.append((stream.stored + stream.trying, excess))


def _unread(stream: Stream) -> int:
    """Return the number of unread bytes in a stream's pipe."""
    import termios  # few tasks need it

    return int.from_bytes(fcntl.ioctl(stream.read_fd, termios.FIONREAD, bytes(4)), sys.byteorder)
