"""Messages between the supervisor and the task's process.

They share a socket that preserves message boundaries. It is open in the function's process too:
the function may write to it, close it, or replace it with another file, on purpose or because it
closes every descriptor. So each message contains a secret that only the two ends know, and
messages without it are ignored. If the socket is lost, shared memory remains, for a small result
and for a text.
"""

from __future__ import annotations

import contextlib
import enum
import errno
import fcntl
import json
import mmap
import os
import resource
import select
import socket
import struct
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from farcall_runtime import envelope
from farcall_runtime.envelope import Buffer

# macOS, on which jobs are processes, lacks SOCK_SEQPACKET, which reports hang-ups.
_KIND = socket.SOCK_SEQPACKET if sys.platform == "linux" else socket.SOCK_DGRAM

_MARK_BYTES = 16
# Mark, kind, number; for a result also: bytes of its description, and bytes of its parts.
_HEAD = struct.Struct("=16sBQQQ")
_MOST_BYTES, _MOST_PIECES = 128 * 1024, 256  # limits of one message
_ROOM_BYTES = 4 * _MOST_BYTES  # the kernel may lower it
_LARGE_BYTES = 1024 * 1024
_HIGHEST_DESCRIPTOR = 4096  # a process has a descriptor table as long as its highest descriptor
_BELOW_LIMIT = 16
_HANGS_UP = getattr(select, "POLLRDHUP", 0)  # only Linux has it
_PATIENCE_S = 5.0
_TIME = struct.Struct("@ll")
_FULL_S = 0.001

_SLATE_BYTES = 4096
_LENGTH = struct.Struct("=H")
_REFUGE_BYTES = 1024 * 1024


class _Kind(enum.IntEnum):
    GO = 1
    REPLY = 2
    WRITTEN = 3
    """Request for the number of bytes written to each stream."""
    NEXT_CALL = 4
    """Request to begin the next call."""
    RESULT = 5
    """The first bytes of a result."""
    DATA = 6
    """Further bytes of a result."""


class BrokenError(Exception):
    """The function has closed, replaced or corrupted its process's descriptor."""


class Result(NamedTuple):
    """Result of a call.

    Attributes:
        record: Its description.
        parts: The bytes that belong to it.
        left: Number of calls of the task that follow.
    """

    record: dict[str, Any]
    parts: list[memoryview]
    left: int


class Slate:
    """Text in memory that a process shares with its forks; the last write counts.

    It needs no descriptor, and reading does not block.
    """

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, _SLATE_BYTES)

    def write(self, text: str) -> None:
        """Write a text, cut to the available size."""
        data = text.encode(errors="replace")[: _SLATE_BYTES - _LENGTH.size]
        self._memory[_LENGTH.size : _LENGTH.size + len(data)] = data
        self._memory[: _LENGTH.size] = _LENGTH.pack(len(data))

    def read(self) -> str:
        """Return the text; empty if none was written."""
        (length,) = _LENGTH.unpack(self._memory[: _LENGTH.size])
        return self._memory[_LENGTH.size : _LENGTH.size + length].decode(errors="replace")


def pair() -> tuple[SupervisorEnd, TaskEnd]:
    """Create both ends, before the fork."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, _KIND)
    for end in (ours, theirs):
        for buffer in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            with contextlib.suppress(OSError):
                end.setsockopt(socket.SOL_SOCKET, buffer, _ROOM_BYTES)
    mark, other = os.urandom(_MARK_BYTES), os.urandom(_MARK_BYTES)
    refuge = mmap.mmap(-1, _REFUGE_BYTES)
    return SupervisorEnd(ours, mark, other, refuge), TaskEnd(theirs, other, mark, refuge)


class SupervisorEnd:
    """Supervisor's end of the channel. It never fails on a message and never blocks.

    Args:
        ours: The socket.
        own_mark: Secret in all messages that it sends.
        their_mark: Secret in all messages that the task's end sends.
        refuge: Memory that both ends share.

    Attributes:
        has_noise: Whether the socket received messages without the secret.
        trouble: Why a call's result is lost, if so; no further call may begin then.
    """

    def __init__(
        self, ours: socket.socket, own_mark: bytes, their_mark: bytes, refuge: mmap.mmap
    ) -> None:
        self._socket = ours
        self._own_mark, self._their_mark = own_mark, their_mark
        self._refuge = refuge
        self.has_noise = False
        self.trouble = ""
        self._head = bytearray(_HEAD.size)
        self._body = memoryview(bytearray(_MOST_BYTES))
        self._results = 0
        self._partial: _PartialResult | None = None
        self._last_reply: tuple[int, Any] = (0, None)

    def fileno(self) -> int:
        """Return the socket's descriptor."""
        return self._socket.fileno()

    def close(self) -> None:
        """Close this end in the task's process."""
        self._socket.close()

    def go(self, task: Any) -> None:
        """Start the task; from now on no call of this class blocks."""
        self._send(_Kind.GO, 0, task)
        self._socket.setblocking(False)

    def _send(self, kind: _Kind, number: int, content: Any) -> None:
        with contextlib.suppress(OSError):  # the process has died, or does not read
            head = _HEAD.pack(self._own_mark, kind, number, 0, 0)
            self._socket.send(head + json.dumps(content).encode())

    def receive(
        self, on_result: Callable[[Result], None], reply_to: Callable[[bool], Any]
    ) -> bool:
        """Receive the next message; return whether there was one.

        Args:
            on_result: Called with each complete result.
            reply_to: Returns the reply to a question: whether the next call may begin (argument
                True), or the number of bytes written (False).

        Raises:
            EOFError: No further message can arrive.
        """
        try:
            size = self._receive()
        except BlockingIOError:
            return False
        except OSError as error:
            raise EOFError from error
        if size == 0 and self._is_gone():
            raise EOFError
        mark, kind, number, *sizes = _HEAD.unpack(self._head)
        if size < _HEAD.size or mark != self._their_mark:
            self.has_noise = True
        elif kind in (_Kind.WRITTEN, _Kind.NEXT_CALL):
            self._reply(number, kind == _Kind.NEXT_CALL, reply_to)
        elif number == self._results:
            result = self._take(kind, size - _HEAD.size, *sizes)
            if result is not None:
                on_result(result)
        return True

    def is_receiving(self) -> bool:
        """Return whether a result has been received in part."""
        return self._partial is not None

    def _reply(self, number: int, is_next_call: bool, reply_to: Callable[[bool], Any]) -> None:
        """Reply to a question; repeat the same reply if it was lost."""
        if self._last_reply[0] != number:
            is_over = is_next_call and self.trouble != ""
            self._last_reply = number, False if is_over else reply_to(is_next_call)
        self._send(_Kind.REPLY, *self._last_reply)

    def abandoned_result(self) -> Result | None:
        """Return the result that the task's process could not send, if there is one."""
        mark, _, number, description, parts = _HEAD.unpack(self._refuge[: _HEAD.size])
        if (mark, number) != (self._their_mark, self._results):
            return None
        data = self._refuge[_HEAD.size : _HEAD.size + description + parts]
        with contextlib.suppress(ValueError, TypeError):
            return _parse_result(memoryview(data), description)
        return None

    def _receive(self) -> int:
        """Receive a message, a result's bytes directly at their place; return its size."""
        if self._partial is None:
            return self._socket.recvmsg_into([self._head, self._body])[0]
        return self._socket.recvmsg_into([self._head, self._partial.room(), self._body])[0]

    def _take(self, kind: int, length: int, description: int, parts: int) -> Result | None:
        """Receive a part of a result; return the result when it is complete."""
        try:
            if kind == _Kind.RESULT:
                data = self._beginning(length)
                self._partial, self.trouble = None, ""
                if length == description + parts:
                    result = _parse_result(memoryview(bytes(data)), description)
                    self._results += 1
                    return result
                self._partial = _PartialResult(description, parts)
                self._partial.begin(data)
            elif self._partial is not None:
                self._partial.received += length
            if self._partial is None or not self._partial.is_complete():
                return None
            result = self._partial.result()
        except (OSError, ValueError, TypeError, MemoryError, RecursionError) as error:
            self.trouble = f"{type(error).__name__}: {error}"
            self._partial = None
            return None
        self._partial = None
        self._results += 1
        return result

    def _beginning(self, length: int) -> Buffer:
        """Return the bytes of a message that was received at an unexpected place."""
        room = self._partial.room() if self._partial is not None else memoryview(b"")
        if not room:
            return self._body[:length]
        return bytes(room[:length]) + bytes(self._body[: max(0, length - len(room))])

    def _is_gone(self) -> bool:
        """Return whether the other end is closed, as opposed to an empty message."""
        poller = select.poll()
        poller.register(self._socket, _HANGS_UP)
        return bool(poller.poll(0))


class _PartialResult:
    """Partly received result.

    Args:
        description: Size of its description in bytes.
        parts: Size of its parts in bytes.

    Attributes:
        received: Number of bytes received.
    """

    def __init__(self, description: int, parts: int) -> None:
        self._description = description
        self.received = 0
        size = description + parts
        if size < _LARGE_BYTES:
            self._data = memoryview(bytearray(size))
        else:  # memory without pages until the bytes are written
            flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
            self._data = memoryview(mmap.mmap(-1, size, flags=flags))

    def begin(self, data: Buffer) -> None:
        """Store its first bytes."""
        self._data[: len(data)] = data
        self.received = len(data)

    def room(self) -> memoryview:
        """Return the memory for the next bytes."""
        return self._data[self.received : self.received + _MOST_BYTES]

    def is_complete(self) -> bool:
        """Return whether all bytes have been received."""
        return self.received >= len(self._data)

    def result(self) -> Result:
        """Return the complete result."""
        return _parse_result(self._data, self._description)


def _parse_result(data: memoryview, description: int) -> Result:
    record, lengths, left = json.loads(bytes(data[:description]))
    parts, at = [], description
    for length in lengths:
        parts.append(data[at : at + length])
        at += length
    if not isinstance(record, dict) or not isinstance(left, int) or at != len(data):
        raise TypeError("a result does not match its announcement")
    return Result(record, parts, left)


class TaskEnd:
    """Task process's end of the channel."""

    def __init__(
        self, theirs: socket.socket, own_mark: bytes, their_mark: bytes, refuge: mmap.mmap
    ) -> None:
        self._socket = theirs
        self._own_mark, self._their_mark = own_mark, their_mark
        self._refuge = refuge
        status = os.fstat(theirs.fileno())
        self._identity = status.st_dev, status.st_ino
        self._sent_results = 0
        self._requests = 0
        self._lost: BrokenError | None = None  # set when a result was left in shared memory

    def close(self) -> None:
        """Close this end in the supervisor."""
        self._socket.close()

    def settle(self) -> None:
        """Move to a high descriptor, which functions seldom close."""
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if limit == resource.RLIM_INFINITY:
            limit = _HIGHEST_DESCRIPTOR
        least = max(3, min(limit, _HIGHEST_DESCRIPTOR) - _BELOW_LIMIT)
        with contextlib.suppress(OSError):
            high = fcntl.fcntl(self._socket, fcntl.F_DUPFD_CLOEXEC, least)
            self._socket.close()
            self._socket = socket.socket(socket.AF_UNIX, _KIND, 0, high)
        patience = _TIME.pack(int(_PATIENCE_S), int(_PATIENCE_S % 1 * 1e6))
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, patience)

    def forget(self) -> None:
        """Detach a forked process from the original's socket."""
        self._own_mark = bytes(_MARK_BYTES)
        with contextlib.suppress(BrokenError):
            self._check()
            self._socket.close()

    def wait(self) -> Any:
        """Wait until the supervisor starts the task.

        Returns:
            The supervisor's data; None if it closes the socket instead.
        """
        while True:
            with contextlib.suppress(BlockingIOError):
                data = self._socket.recv(_MOST_BYTES)
                return json.loads(data[_HEAD.size :]) if data else None

    def hand_over(
        self, record: dict[str, Any], parts: Sequence[Sequence[Buffer]], left: int
    ) -> None:
        """Hand a call's result over; resend it if the last attempt was interrupted.

        Args:
            record: Its description, JSON.
            parts: The bytes that belong to it.
            left: Number of calls of the task that follow.

        Raises:
            BrokenError: The supervisor cannot be reached.
        """
        lengths = [envelope.size(part) for part in parts]
        description = json.dumps([record, lengths, left]).encode()
        sizes = len(description), sum(lengths)
        pieces = [description, *(piece for part in parts for piece in part)]
        try:
            self._check()
            kind = _Kind.RESULT
            for portion in _messages(pieces, sum(sizes), self._most_bytes()):
                self._send(kind, self._sent_results, sizes, portion)
                kind = _Kind.DATA
        except BrokenError as error:
            if _HEAD.size + sum(sizes) > len(self._refuge):
                raise
            self._store_in_refuge(sizes, pieces)
            self._lost = error
        self._sent_results += 1

    def _most_bytes(self) -> int:
        """Return the limit of one message; the kernel may have lowered the buffer's size."""
        buffer_bytes = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
        return min(_MOST_BYTES, buffer_bytes // 4)

    def _store_in_refuge(self, sizes: tuple[int, int], pieces: Sequence[Buffer]) -> None:
        """Store a result in shared memory, which the supervisor reads after the end."""
        self._refuge[_HEAD.size : _HEAD.size + sum(sizes)] = b"".join(pieces)
        head = _HEAD.pack(self._own_mark, _Kind.RESULT, self._sent_results, *sizes)
        self._refuge[: _HEAD.size] = head

    def written(self) -> list[int]:
        """Return the number of bytes written to each stream so far.

        Raises:
            BrokenError: The supervisor cannot be reached.
        """
        return list(self._request(_Kind.WRITTEN))

    def request_next_call(self) -> bool:
        """Return whether the next call may begin; output from now on belongs to that call.

        Raises:
            BrokenError: The supervisor cannot be reached.
        """
        return bool(self._request(_Kind.NEXT_CALL))

    def _request(self, kind: _Kind) -> Any:
        if self._lost is not None:
            raise self._lost
        self._requests += 1
        while True:
            self._check()
            self._send(kind, self._requests)
            with contextlib.suppress(BlockingIOError):  # the function may have read the reply
                while True:
                    mark, reply_kind, number, body = self._receive()
                    is_theirs = mark == self._their_mark and number == self._requests
                    if is_theirs and reply_kind == _Kind.REPLY:
                        return json.loads(body)
            os.set_blocking(self._socket.fileno(), True)  # the function may have changed it

    def _receive(self) -> tuple[bytes, int, int, bytes]:
        """Return mark, kind, number and body of the next message."""
        try:
            data = self._socket.recv(_MOST_BYTES)
        except BlockingIOError:
            raise
        except OSError as error:
            raise self._meaning(error) from error
        if not data:
            raise self._broken("the supervisor has exited")
        mark, kind, number, *_ = _HEAD.unpack_from(data.ljust(_HEAD.size))
        return mark, kind, number, data[_HEAD.size :]

    def _send(
        self,
        kind: _Kind,
        number: int,
        sizes: tuple[int, int] = (0, 0),
        pieces: Iterable[Buffer] = (),
    ) -> None:
        head = _HEAD.pack(self._own_mark, kind, number, *sizes)
        while True:
            try:
                self._socket.sendmsg([head, *pieces])
            except BlockingIOError:  # the function has made it non-blocking
                os.set_blocking(self._socket.fileno(), True)
            except OSError as error:
                if error.errno != errno.ENOBUFS:  # macOS does not wait for room
                    raise self._meaning(error) from error
                time.sleep(_FULL_S)
            else:
                return

    def _check(self) -> None:
        """Check that the descriptor still is the original socket."""
        try:
            status = os.fstat(self._socket.fileno())
        except OSError as error:
            raise self._meaning(error) from error
        if (status.st_dev, status.st_ino) != self._identity:
            raise self._broken("it is a different file now")

    def _meaning(self, error: OSError) -> Exception:
        """Return the error that an exception of a call on the descriptor means.

        An OSError without a number is not from the kernel, but from one of the function's signal
        handlers, such as a `TimeoutError`.
        """
        if error.errno is None:
            return error
        return self._broken(str(error))

    def _broken(self, how: str) -> BrokenError:
        return BrokenError(
            f"descriptor {self._socket.fileno()}, which hands over a call's result, was closed, "
            f"replaced or corrupted while the function ran ({how})"
        )


def _messages(pieces: Sequence[Buffer], size: int, most_bytes: int) -> Iterable[list[Buffer]]:
    """Return the bytes in portions that fit into messages."""
    if size <= most_bytes:
        return [[b"".join(pieces)]]
    portions = envelope.portions(pieces, most_bytes)
    return (each if len(each) <= _MOST_PIECES else [b"".join(each)] for each in portions)
