"""Output of a task, put together or cut into lines, and which part of it is whose. No I/O.

Progress bars write their line again and again, each *state* after a carriage return, and no end of
the line before the last one. Of such a line its last state counts; the others were replaced by it.
"""

from __future__ import annotations

import codecs
from collections import deque
from collections.abc import Iterable
from datetime import datetime
from typing import NamedTuple, TypeAlias

Bytes: TypeAlias = "bytes | bytearray"
"""What was put together piece by piece stays where it lies: copying much of it takes long."""

_Gap = tuple[int, int]
"""How many bytes were kept before it, and how many were not kept."""

LOG = "log"
"""Stream of a line of the platform's own log, which merges stdout and stderr."""


class LogLine(NamedTuple):
    """A line of a job's output.

    Attributes:
        text: The line without its line end.
        stream: ``"stdout"``, ``"stderr"``, or ``"log"`` if the line is from the platform's own
            log, which merges both.
        attempt: Number of the job's attempt, from 1.
        at: Time at which the line was stored, some seconds after it was written; for a line from
            the platform's own log the time at which it was written. None if unknown.
        goes_on: Whether the text is one state of a progress bar, which the next line or state of
            its stream replaces; an empty text clears it.
        node: For a command job, index of the node; 0 for the only node.
    """

    text: str
    stream: str
    attempt: int
    at: datetime | None
    goes_on: bool = False
    node: int = 0


def join(kept: bytes, gaps: Iterable[_Gap]) -> bytes:
    """Return a stream with a note at each gap.

    Args:
        kept: The bytes that were stored.
        gaps: Where the container had to give some up, as the outcome says.
    """
    notes = Notes(gaps)
    return b"".join([*notes.add(kept), *notes.end()])


class Notes:
    """Puts a note at each gap of a stream that comes in pieces.

    Args:
        gaps: Where the container had to give some bytes up, as the outcome says.
        first: How many bytes were stored before the first piece.
    """

    def __init__(self, gaps: Iterable[_Gap], first: int = 0) -> None:
        self._left = deque(gap for gap in gaps if gap[0] >= first)
        self._at = first

    def add(self, piece: bytes) -> list[bytes]:
        """Return the next piece, in as many as there are notes in it and one more."""
        end = self._at + len(piece)
        found, begin = [], 0
        while self._left and self._left[0][0] < end:
            at, length = self._left.popleft()
            found += [piece[begin : at - self._at], _note(length)]
            begin = at - self._at
        self._at = end
        return [*found, piece[begin:]]

    def end(self) -> list[bytes]:
        """Return the notes behind the last piece."""
        return [_note(length) for _, length in self._left]


def last_state(line: str) -> str:
    """Return what a line shows at last, without its end: what comes after a return replaces it.

    A state that is empty replaces nothing, and one of blanks wipes the line.
    """
    if "\r" not in line:
        return line
    state = line.rstrip("\r").rpartition("\r")[2]
    return "" if state.isspace() else state


class Lines:
    """Cuts the chunks of an attempt's streams into lines, and knows how much it has seen.

    Of a line that has states, the last one alone is returned, and kept.
    """

    def __init__(self) -> None:
        self._decoders: dict[str, codecs.IncrementalDecoder] = {}
        self._begun: dict[str, str] = {}
        self._seen: dict[str, int] = {}

    def add(self, stream: str, data: Bytes) -> list[str]:
        """Return the lines that end in a chunk."""
        decoder = self._decoders.setdefault(
            stream, codecs.getincrementaldecoder("utf-8")(errors="replace")
        )
        self._seen[stream] = self._seen.get(stream, 0) + len(data)
        text = self._begun.get(stream, "") + decoder.decode(data)
        *lines, rest = text.split("\n")
        # A return stays: it says that there are states, and at the end it may be a line end's.
        self._begun[stream] = rest[max(0, rest.rstrip("\r").rfind("\r")) :]
        return [last_state(line) for line in lines] if "\r" in text else lines

    def state(self, stream: str) -> str | None:
        """Return what the line that goes on shows by now; None where it has no states."""
        begun = self._begun.get(stream, "")
        return last_state(begun) if "\r" in begun else None

    def add_rest_of(self, stream: str, whole: Bytes) -> list[str]:
        """Return the lines that end in what was not seen yet, given the whole stream."""
        return self.add(stream, whole[self._seen.get(stream, 0) :])

    def seen(self, stream: str) -> int:
        """Return how many bytes were seen."""
        return self._seen.get(stream, 0)

    def skip(self, stream: str, size_bytes: int) -> None:
        """Leave out so many bytes; the line before them has ended."""
        self._seen[stream] = self._seen.get(stream, 0) + size_bytes

    def end(self, stream: str) -> list[str]:
        """Return the last line if it does not end; nothing comes after it."""
        decoder = self._decoders.get(stream)
        rest = decoder.decode(b"", final=True) if decoder is not None else ""
        last = last_state(self._begun.pop(stream, "") + rest)
        return [last] if last else []


def noted_before(first: int, gaps: Iterable[_Gap]) -> int:
    """Return how many bytes the notes have that come before the stored byte of a number."""
    return sum(len(_note(length)) for at, length in gaps if at < first)


def place(written: int, gaps: Iterable[_Gap]) -> int:
    """Return where in what `join` returns the next byte lies when so many had been written."""
    lost = noted = 0
    for at, length in gaps:
        if written <= at + lost:
            break
        lost += min(length, written - at - lost)
        noted += len(_note(length))
    return written - lost + noted


def deleted(length: int) -> bytes:
    """Return what stands instead of bytes that were stored and are no longer there."""
    return f"\n[farcall: {length} bytes were deleted from the bucket]\n".encode()


def told(data: Bytes, left_out: int) -> str:
    """Return output as UTF-8, with a note where it is the end of more alone."""
    text = data.decode(errors="replace")
    return (
        f"[farcall: {left_out} bytes before this are left out here]\n{text}" if left_out else text
    )


def _note(length: int) -> bytes:
    return f"\n[farcall: {length} bytes could not be stored]\n".encode()
