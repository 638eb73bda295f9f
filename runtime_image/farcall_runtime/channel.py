"""What the supervisor and the task's process say to each other.

They share a socket that keeps messages apart. The function has it open, too: it may write to it,
close it, or put another file in its place, by design or because it closes every descriptor there
is. So each message bears a mark that the two ends alone know, and what bears none counts for
nothing. Where the socket is lost, memory that both share is left: for a result that is not too
large, and for a text.
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
from select import poll  # which the function may have put another in the place of
from typing import Any, NamedTuple

from farcall_runtime import envelope
from farcall_runtime.envelope import Buffer

# macOS lacks the one that tells an end, too, which a container's own host never is.
_KIND = socket.SOCK_SEQPACKET if sys.platform == "linux" else socket.SOCK_DGRAM

_MARK_BYTES = 16
_HEAD = struct.Struct("=16sBQQQ")  # mark, kind, number; bytes of a result's description and parts
_MOST_BYTES, _MOST_PIECES = 128 * 1024, 256  # of a message
_LARGE_BYTES = 1024 * 1024
_HIGHEST_DESCRIPTOR = 4096  # each process has a table as long as its highest one
_BELOW_LIMIT = 16
_HANGS_UP = getattr(select, "POLLRDHUP", 0)  # Linux alone has it
_PATIENCE_MS = 5000
_FULL_S = 0.001

_SLATE_BYTES = 4096
_LENGTH = struct.Struct("=H")
_REFUGE_BYTES = 1024 * 1024


class _Kind(enum.IntEnum):
    GO = 1
    ANSWER = 2
    WRITTEN = 3
    """How much has been written to each stream?"""
    GOES_ON = 4
    """May the next call begin?"""
    RESULT = 5
    """What came of a call follows."""
    DATA = 6


class BrokenError(Exception):
    """The function has closed, replaced or spoiled what its process speaks through."""


class Result(NamedTuple):
    """What came of a call.

    Attributes:
        record: Its description.
        parts: The bytes that belong to it.
        left: How many calls of the task come after it.
    """

    record: dict[str, Any]
    parts: list[memoryview]
    left: int


class Slate:
    """A text in memory that a process shares with those it forks; what is written last counts.

    It needs no descriptor, and who reads it does not wait.
    """

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, _SLATE_BYTES)

    def write(self, text: str) -> None:
        """Write a text, of which as much is kept as there is room for."""
        data = text.encode(errors="replace")[: _SLATE_BYTES - _LENGTH.size]
        self._memory[_LENGTH.size : _LENGTH.size + len(data)] = data
        self._memory[: _LENGTH.size] = _LENGTH.pack(len(data))

    def read(self) -> str:
        """Return the text; the empty one where nothing was written."""
        (length,) = _LENGTH.unpack(self._memory[: _LENGTH.size])
        return self._memory[_LENGTH.size : _LENGTH.size + length].decode(errors="replace")


def pair() -> tuple[SupervisorEnd, TaskEnd]:
    """Make both ends, before the fork."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, _KIND)
    mark, other = os.urandom(_MARK_BYTES), os.urandom(_MARK_BYTES)
    refuge = mmap.mmap(-1, _REFUGE_BYTES)
    return SupervisorEnd(ours, mark, other, refuge), TaskEnd(theirs, other, mark, refuge)


class SupervisorEnd:
    """The supervisor's end, which no message breaks and no call holds.

    Args:
        ours: The socket.
        own_mark: Is on all that it sends.
        their_mark: Is on all that the task's end sends.
        refuge: Memory that both ends share.

    Attributes:
        has_noise: Whether something else than the task's end wrote to the socket.
        trouble: Why something that the task's end sent is lost, where it is.
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
        self._results = 0
        self._coming: _Coming | None = None
        self._answered: tuple[int, Any] = (0, None)

    def fileno(self) -> int:
        """Return the descriptor."""
        return self._socket.fileno()

    def close(self) -> None:
        """Close it, in the task's process."""
        self._socket.close()

    def go(self, what: Any) -> None:
        """Let the task begin; from now on no call waits for its process.

        Args:
            what: Is passed on to it, JSON.
        """
        self._send(_Kind.GO, 0, what)
        self._socket.setblocking(False)

    def _send(self, kind: _Kind, number: int, what: Any) -> None:
        with contextlib.suppress(OSError):  # the process has died, or does not listen
            head = _HEAD.pack(self._own_mark, kind, number, 0, 0)
            self._socket.send(head + json.dumps(what).encode())

    def listen(self, answer: Callable[[bool], Any]) -> tuple[bool, Result | None]:
        """Take in the next message.

        Args:
            answer: Returns what to answer to a question: whether the next call may begin (True),
                or how much has been written.

        Returns:
            Whether there was a message, and the result that is complete with it.

        Raises:
            EOFError: No other can come.
        """
        try:
            size = self._receive()
        except BlockingIOError:
            return False, None
        except OSError as error:
            raise EOFError from error
        if size == 0 and self._is_gone():
            raise EOFError
        mark, kind, number, *sizes = _HEAD.unpack(self._head)
        if size < _HEAD.size or mark != self._their_mark:
            self.has_noise = True
        elif kind in (_Kind.WRITTEN, _Kind.GOES_ON):
            if self._answered[0] != number:  # else its answer was lost
                self._answered = number, answer(kind == _Kind.GOES_ON)
            self._send(_Kind.ANSWER, *self._answered)
        elif number == self._results:
            return True, self._take(kind, size - _HEAD.size, *sizes)
        return True, None

    def left_behind(self) -> Result | None:
        """Return the result that the task's process could not send, where there is one."""
        mark, _, number, description, parts = _HEAD.unpack(self._refuge[: _HEAD.size])
        if (mark, number) != (self._their_mark, self._results):
            return None
        data = self._refuge[_HEAD.size : _HEAD.size + description + parts]
        with contextlib.suppress(ValueError, TypeError):
            return _taken_apart(memoryview(data), description)
        return None

    def _receive(self) -> int:
        """Take in a message, what belongs to a result straight to its place; return its size."""
        into: list[bytearray | memoryview] = [self._head]
        if self._coming is not None:
            into.append(self._coming.room())
        return self._socket.recvmsg_into(into)[0]

    def _take(self, kind: int, length: int, description: int, parts: int) -> Result | None:
        """Take in a message about the result on its way; return it once it is whole."""
        try:
            return self._add(kind, length, description, parts)
        except (OSError, ValueError, TypeError, MemoryError) as error:
            self._coming = None
            self.trouble = f"{type(error).__name__}: {error}"
        return None

    def _add(self, kind: int, length: int, description: int, parts: int) -> Result | None:
        if kind == _Kind.RESULT:
            self._coming = _Coming(description, parts)
        elif self._coming is not None and self._coming.fills(length):
            result = self._coming.result()
            self._coming = None
            self._results += 1
            return result
        return None

    def _is_gone(self) -> bool:
        """Tell the other end's end from an empty message."""
        look = poll()
        look.register(self._socket, _HANGS_UP)
        return bool(look.poll(0))


class _Coming:
    """A result on its way.

    Args:
        description: Size of its description, in bytes.
        parts: The same of its parts.
    """

    def __init__(self, description: int, parts: int) -> None:
        self._description = description
        self._received = 0
        size = description + parts
        if size < _LARGE_BYTES:
            self._data = memoryview(bytearray(size))
        else:  # memory that nothing is written to before the bytes are
            flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
            self._data = memoryview(mmap.mmap(-1, size, flags=flags))

    def room(self) -> memoryview:
        """Return where the next bytes belong."""
        return self._data[self._received : self._received + _MOST_BYTES]

    def fills(self, length: int) -> bool:
        """Note that so many bytes more are there; tell whether these are all."""
        self._received += length
        return self._received >= len(self._data)

    def result(self) -> Result:
        """Return it, once all of it is there."""
        return _taken_apart(self._data, self._description)


def _taken_apart(data: memoryview, description: int) -> Result:
    record, lengths, left = json.loads(bytes(data[:description]))
    parts, at = [], description
    for length in lengths:
        parts.append(data[at : at + length])
        at += length
    return Result(record, parts, left)


class TaskEnd:
    """The end of the task's process.

    Args:
        theirs: The socket.
        own_mark: Is on all that it sends.
        their_mark: Is on all that the supervisor sends.
        refuge: Memory that both ends share.
    """

    def __init__(
        self, theirs: socket.socket, own_mark: bytes, their_mark: bytes, refuge: mmap.mmap
    ) -> None:
        self._socket = theirs
        self._own_mark, self._their_mark = own_mark, their_mark
        self._refuge = refuge
        found = os.fstat(theirs.fileno())
        self._identity = found.st_dev, found.st_ino
        self._handed = 0
        self._asked = 0

    def close(self) -> None:
        """Close it, in the supervisor."""
        self._socket.close()

    def settle(self) -> None:
        """Take a high descriptor, which is seldom among those that a function closes."""
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if limit == resource.RLIM_INFINITY:
            limit = _HIGHEST_DESCRIPTOR
        least = max(3, min(limit, _HIGHEST_DESCRIPTOR) - _BELOW_LIMIT)
        with contextlib.suppress(OSError):
            high = fcntl.fcntl(self._socket, fcntl.F_DUPFD_CLOEXEC, least)
            self._socket.close()
            self._socket = socket.socket(socket.AF_UNIX, _KIND, 0, high)

    def forget(self) -> None:
        """In a process that the function forks: leave what is the original's."""
        self._own_mark = bytes(_MARK_BYTES)
        with contextlib.suppress(BrokenError):
            self._check()
            self._socket.close()

    def wait(self) -> Any:
        """Wait until the supervisor lets the task begin.

        Returns:
            What it passes on; None where it does not.
        """
        data = self._socket.recv(_MOST_BYTES)
        return json.loads(data[_HEAD.size :]) if data else None

    def hand_over(
        self, record: dict[str, Any], parts: Sequence[Sequence[Buffer]], left: int
    ) -> None:
        """Hand over what came of a call; once more, if it did not come to its end.

        Args:
            record: Its description, JSON.
            parts: The bytes that belong to it.
            left: How many calls of the task come after it.

        Raises:
            BrokenError: The supervisor cannot be reached.
        """
        lengths = [envelope.size(part) for part in parts]
        description = json.dumps([record, lengths, left]).encode()
        sizes = len(description), sum(lengths)
        pieces = [description, *(piece for part in parts for piece in part)]
        try:
            self._check()
            self._send(_Kind.RESULT, self._handed, sizes)
            for portion in envelope.portions(pieces, _MOST_BYTES):
                together = portion if len(portion) <= _MOST_PIECES else [b"".join(portion)]
                self._send(_Kind.DATA, self._handed, pieces=together)
        except BrokenError:
            if _HEAD.size + sum(sizes) > len(self._refuge):
                raise
            self._leave_behind(sizes, pieces)
        self._handed += 1

    def _leave_behind(self, sizes: tuple[int, int], pieces: Sequence[Buffer]) -> None:
        """Put a result where the supervisor looks when this process has ended."""
        self._refuge[_HEAD.size : _HEAD.size + sum(sizes)] = b"".join(pieces)
        head = _HEAD.pack(self._own_mark, _Kind.RESULT, self._handed, *sizes)
        self._refuge[: _HEAD.size] = head

    def written(self) -> list[int]:
        """Ask how many bytes were written to each stream up to now.

        Raises:
            BrokenError: The supervisor cannot be reached.
        """
        return list(self._ask(_Kind.WRITTEN))

    def goes_on(self) -> bool:
        """Ask whether the next call may begin; what is written from now on is that one's.

        Raises:
            BrokenError: The supervisor cannot be reached.
        """
        return bool(self._ask(_Kind.GOES_ON))

    def _ask(self, kind: _Kind) -> Any:
        self._asked += 1
        while True:
            self._check()
            self._send(kind, self._asked)
            look = poll()
            look.register(self._socket, select.POLLIN)
            while look.poll(_PATIENCE_MS):  # else the function, which may read, too, took it
                try:
                    data = self._socket.recv(_MOST_BYTES, socket.MSG_DONTWAIT)
                except BlockingIOError:
                    break
                except OSError as error:
                    raise self._broken(str(error)) from error
                if not data:
                    raise self._broken("the supervisor has gone")
                mark, said, number, _, _ = _HEAD.unpack_from(data.ljust(_HEAD.size))
                if (mark, said, number) == (self._their_mark, _Kind.ANSWER, self._asked):
                    return json.loads(data[_HEAD.size :])

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
            except OSError as error:
                if error.errno != errno.ENOBUFS:  # macOS does not wait for room
                    raise self._broken(str(error)) from error
                time.sleep(_FULL_S)
            else:
                return

    def _check(self) -> None:
        """Look whether the descriptor is still what it was."""
        try:
            found = os.fstat(self._socket.fileno())
            if (found.st_dev, found.st_ino) == self._identity:
                os.set_blocking(self._socket.fileno(), True)
                return
            how = "it is another file now"
        except OSError as error:
            how = str(error)
        raise self._broken(how)

    def _broken(self, how: str) -> BrokenError:
        return BrokenError(
            f"descriptor {self._socket.fileno()}, by which it hands over what came of a call, "
            f"was closed, replaced or spoiled while the function ran ({how})"
        )
