"""Output of a task: joined, split into lines, and assigned to calls. No I/O.

Progress bars rewrite their line repeatedly, each *state* after a carriage return, and end the line
only after the last one. Of such a line, only the last state is kept.
"""

from __future__ import annotations

import codecs
from collections import deque
from collections.abc import Iterable
from datetime import datetime
from typing import NamedTuple, TypeAlias

Bytes: TypeAlias = "bytes | bytearray"
"""Joined output keeps its type, because copying much of it takes long."""

_Gap = tuple[int, int]
"""Number of kept bytes before the gap, and number of lost bytes."""

LOG = "log"
"""Stream of a line of the platform's own log, which merges stdout and stderr."""


class LogLine(NamedTuple):
    """Line of a job's output.

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
        kept: The stored bytes.
        gaps: Positions of dropped bytes, from the outcome.
    """
    notes = Notes(gaps)
    return b"".join([*notes.add(kept), *notes.end()])


class Notes:
    """Notes at the gaps of a stream that arrives in pieces.

    Args:
        gaps: Positions of dropped bytes, from the outcome.
        first: Number of stored bytes before the first piece.
    """

    def __init__(self, gaps: Iterable[_Gap], first: int = 0) -> None:
        self._left = deque(gap for gap in gaps if gap[0] >= first)
        self._at = first

    def add(self, piece: bytes) -> list[bytes]:
        """Return the next piece, split at the notes in it."""
        end = self._at + len(piece)
        parts, begin = [], 0
        while self._left and self._left[0][0] < end:
            at, length = self._left.popleft()
            parts += [piece[begin : at - self._at], _note(length)]
            begin = at - self._at
        self._at = end
        return [*parts, piece[begin:]]

    def end(self) -> list[bytes]:
        """Return the notes after the last piece."""
        return [_note(length) for _, length in self._left]


def last_state(line: str) -> str:
    """Return the last state of a line; a carriage return starts a state.

    An empty state replaces nothing, and a state of spaces clears the line.
    """
    if "\r" not in line:
        return line
    state = line.rstrip("\r").rpartition("\r")[2]
    return "" if state.isspace() else state


class Lines:
    """Splitter of an attempt's streams into lines, which counts their bytes.

    Of a line with several states, only the last one is returned and kept.
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
        # The carriage return is kept: it marks a line with states, or may belong to the line end.
        self._begun[stream] = rest[max(0, rest.rstrip("\r").rfind("\r")) :]
        return [last_state(line) for line in lines] if "\r" in text else lines

    def state(self, stream: str) -> str | None:
        """Return the current state of an unfinished line; None if it has no states."""
        begun = self._begun.get(stream, "")
        return last_state(begun) if "\r" in begun else None

    def add_rest_of(self, stream: str, whole: Bytes) -> list[str]:
        """Return the lines that end in the unseen part of a whole stream."""
        return self.add(stream, whole[self._seen.get(stream, 0) :])

    def seen(self, stream: str) -> int:
        """Return the number of bytes seen."""
        return self._seen.get(stream, 0)

    def skip(self, stream: str, size_bytes: int) -> None:
        """Skip bytes of a stream; the line before them has ended."""
        self._seen[stream] = self._seen.get(stream, 0) + size_bytes

    def end(self, stream: str) -> list[str]:
        """Return the last line if it is unfinished; no more output follows."""
        decoder = self._decoders.get(stream)
        rest = decoder.decode(b"", final=True) if decoder is not None else ""
        last = last_state(self._begun.pop(stream, "") + rest)
        return [last] if last else []


def noted_before(first: int, gaps: Iterable[_Gap]) -> int:
    """Return the total size of the notes before a stored byte."""
    return sum(len(_note(length)) for at, length in gaps if at < first)


def place(written: int, gaps: Iterable[_Gap]) -> int:
    """Return the position in the result of `join` after a number of written bytes."""
    lost = noted = 0
    for at, length in gaps:
        if written <= at + lost:
            break
        lost += min(length, written - at - lost)
        noted += len(_note(length))
    return written - lost + noted


def deleted(length: int) -> bytes:
    """Return the note for stored bytes that no longer exist."""
    return f"\n[farcall: {length} bytes were deleted from the bucket]\n".encode()


def decoded(data: Bytes, left_out: int) -> str:
    """Return output as UTF-8, with a note if its beginning is left out."""
    text = data.decode(errors="replace")
    return f"[farcall: {left_out} bytes before this are omitted]\n{text}" if left_out else text


def _note(length: int) -> bytes:
    return f"\n[farcall: {length} bytes could not be stored]\n".encode()
