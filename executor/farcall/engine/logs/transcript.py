"""Transcript of one attempt: its output as lines from all sources.

Each line is yielded once. Chunks come first: they are verified and separate stdout from stderr.
The rest of the output comes from the attempt's outcome. If there is no outcome, because the
container was killed or the result was collected, the rest comes from CloudWatch, without the lines
that were already yielded.

A progress bar's line is yielded once, in its last state. Followers also get its earlier states.
"""

from __future__ import annotations

import contextlib
import math
import re
import sys
from array import array
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator
from datetime import datetime

from farcall.engine.delivered import Delivered
from farcall.model import clock, output
from farcall.model.output import LOG, Lines, LogLine
from farcall.storage.chunks import ChunkPlace, Chunks, Written
from farcall_runtime.contract import STREAMS

_STATES_S = 0.25
_REPLACED = re.compile("\ufffd+")


class Transcript:
    """The output of one attempt.

    Args:
        chunks: The task's chunks.
        number: Number of the attempt.
        cut_bytes: Length in bytes at which the platform's own log cuts a line.

    Attributes:
        number: Number of the attempt.
        next: Next chunk to read, by stream.
        line_count: Number of yielded lines.
    """

    def __init__(self, chunks: Chunks, number: int, cut_bytes: int = sys.maxsize) -> None:
        self.number = number
        self.next = dict.fromkeys(STREAMS, 0)
        self.line_count = 0
        self._chunks = chunks
        self._cut_bytes = cut_bytes
        self._lines = Lines()
        self._remembered = array("q")
        self._unmatched: Counter[int] = Counter()
        self._left_out_until: datetime | None = None
        self._states: dict[str, str] = {}
        self._states_at = -math.inf

    def begin_at(
        self, stream: str, sequence: int, begun: bytes, left_out: ChunkPlace | None
    ) -> None:
        """Skip the first chunks of a stream.

        Args:
            stream: The stream.
            sequence: The first chunk to read.
            begun: The beginning of the line that continues in this chunk.
            left_out: The chunk before it; None if there is none.
        """
        self.next[stream] = sequence
        self._lines.add(stream, begun)
        if left_out is not None:
            until = self._left_out_until
            self._left_out_until = left_out.at if until is None else max(until, left_out.at)

    async def catch_up(self) -> AsyncGenerator[list[LogLine], None]:
        """Yield the existing chunks' lines of both streams in the order of storing.

        Nothing is yielded after a missing chunk.

        Raises:
            IntegrityError: A chunk is not the one the container wrote.
            ServiceError: S3 refused a request.
        """
        places = []
        coming = dict(self.next)
        for place in await self._chunks.places(self.number):
            if place.sequence == coming[place.stream]:
                coming[place.stream] += 1
                places.append(place)
        async with contextlib.aclosing(self._chunks.read(places)) as chunks:
            async for place, data in chunks:
                if place.sequence == self.next[place.stream]:
                    self.next[place.stream] += 1
                    yield self._give(self._lines.add(place.stream, data), place.stream, place.at)

    async def read_new(self) -> AsyncIterator[list[LogLine]]:
        """Yield the lines of each new chunk, up to each stream's first missing one.

        Raises:
            IntegrityError: A chunk is not the one the container wrote.
            ServiceError: S3 refused a request.
        """
        for stream in STREAMS:
            async for lines in self.read_stream(stream, None):
                yield lines

    async def read_stream(self, stream: str, end: int | None) -> AsyncIterator[list[LogLine]]:
        """Yield the lines of each of a stream's next chunks.

        Args:
            stream: The stream.
            end: The first chunk that is not read; None for the first missing one.

        Raises:
            IntegrityError: A chunk is not the one the container wrote.
            ServiceError: S3 refused a request.
        """
        while end is None or self.next[stream] < end:
            chunk = await self._chunks.get(self.number, stream, self.next[stream])
            if chunk is None:
                return
            self.next[stream] += 1
            yield self._give(self._lines.add(stream, chunk[0]), stream, chunk[1])

    def seen(self, stream: str) -> int:
        """Return the number of bytes of a stream that were read or skipped."""
        return self._lines.seen(stream)

    def skip(self, stream: str, sequence: int, size_bytes: int) -> list[LogLine]:
        """Skip unread chunks.

        Args:
            stream: The stream.
            sequence: The next chunk to read.
            size_bytes: Total size in bytes of the chunks before it.

        Returns:
            The line that would have continued in them.
        """
        self.next[stream] = sequence
        lines = self._end(stream, None)
        self._lines.skip(stream, size_bytes)
        return lines

    async def close(self, written: Written, *, with_notes: bool = False) -> list[LogLine] | None:
        """Return the remaining lines of the attempt; None if chunks of them are missing.

        Args:
            written: The outcome's record of the output.
            with_notes: Whether to return a note instead of missing chunks.

        Raises:
            IntegrityError: A chunk is not the one the container wrote.
            ServiceError: S3 refused a request.
        """
        rests = {
            stream: await self._rest(stream, written, with_notes=with_notes) for stream in STREAMS
        }
        if None in rests.values():
            return None
        lines: list[LogLine] = []
        for stream, rest in rests.items():
            texts = self._lines.add(stream, rest or b"")
            lines += self._give(texts, stream, written.at) + self._end(stream, written.at)
        return lines

    async def _rest(self, stream: str, written: Written, *, with_notes: bool) -> bytes | None:
        """Return the output after the chunks that were read, with a note at each gap."""
        record, tail = written.records[stream], written.tails[stream]
        chunks = [
            await self._chunks.get(self.number, stream, sequence)
            for sequence in range(self.next[stream], record["chunks"])
        ]
        kept = b"".join(chunk[0] for chunk in chunks if chunk is not None)
        if None in chunks:
            if not with_notes:
                return None
            missing = record["stored"] - self._lines.seen(stream) - len(kept)
            return output.deleted(missing) + kept + tail
        before = record["stored"] - len(kept)
        gaps = [(max(0, at - before), length) for at, length in record.get("gaps", ())]
        return output.join(kept + tail, gaps)

    async def close_delivered(self, delivered: Delivered) -> list[LogLine]:
        """Return the remaining lines of an attempt whose outcome was already fetched.

        Raises:
            IntegrityError: A chunk is not the one the container wrote.
            ServiceError: S3 refused a request.
        """
        written = delivered.elsewhere()
        if written is not None:
            return await self.close(written, with_notes=True) or []
        lines: list[LogLine] = []
        whole = delivered.stdout, delivered.stderr
        for stream, data in zip(STREAMS, whole, strict=True):
            texts = self._lines.add_rest_of(stream, data)
            lines += self._give(texts, stream, None) + self._end(stream, None)
        return lines

    def end(self) -> list[LogLine]:
        """Return the unfinished lines, as far as they are known."""
        return [line for stream in STREAMS for line in self._end(stream, None)]

    def _end(self, stream: str, at: datetime | None) -> list[LogLine]:
        # A progress bar may clear itself at its end.
        return self._give(self._lines.end(stream), stream, at) + self._wipe(stream)

    def _wipe(self, stream: str) -> list[LogLine]:
        return self._give_state("", stream) if self._states.get(stream) else []

    def states(self) -> list[LogLine]:
        """Return new states of unfinished lines, at most 4 times per second.

        Only followers need them. `LogLine.goes_on` is set in these lines.
        """
        if clock.now() - self._states_at < _STATES_S:
            return []
        shown = {stream: self._lines.state(stream) for stream in STREAMS}
        lines = [
            line
            for stream, state in shown.items()
            if state is not None and state != self._states.get(stream, "")
            for line in self._give_state(state, stream)
        ]
        if lines:
            self._states_at = clock.now()
        return lines

    def _give_state(self, state: str, stream: str) -> list[LogLine]:
        self._states[stream] = state
        return [LogLine(state, stream, self.number, None, goes_on=True)]

    def begin_log(self) -> list[LogLine]:
        """Prepare for `unseen`; return lines that clear the shown states."""
        self._unmatched = Counter(self._remembered)
        return [line for stream in STREAMS for line in self._wipe(stream)]

    def unseen(self, lines: list[LogLine]) -> list[LogLine]:
        """Return the next lines of the platform's log that are not in the chunks.

        Args:
            lines: Lines of the log, all of them in order.
        """
        new = [line for line in lines if self._is_new(line)]
        self.line_count += len(new)
        return new

    def missing(self) -> LogLine:
        """Return a note that output may be missing."""
        return self._note("the last output was not stored, and there is no CloudWatch log")

    def _note(self, text: str) -> LogLine:
        return LogLine(f"[farcall: attempt {self.number}: {text}]", LOG, self.number, None)

    def _is_new(self, line: LogLine) -> bool:
        until = self._left_out_until
        if until is not None and line.at is not None and line.at <= until:
            return False
        number = _recognize(line.text)
        if self._unmatched[number]:
            self._unmatched[number] -= 1
            return False
        return True

    def _give(self, texts: list[str], stream: str, at: datetime | None) -> list[LogLine]:
        self.line_count += len(texts)
        if texts:
            self._states.pop(stream, None)  # its state is replaced
        for text in texts:
            self._remembered.extend(map(_recognize, _pieces(text, self._cut_bytes)))
        return [LogLine(text, stream, self.number, at) for text in texts]


def _pieces(text: str, most_bytes: int) -> list[str]:
    """Split a line as the platform's log does: long lines are cut, empty ones dropped."""
    if not text:
        return []
    if len(text) <= most_bytes // 4:
        return [text]
    data = text.encode()
    return [
        data[at : at + most_bytes].decode(errors="replace")
        for at in range(0, len(data), most_bytes)
    ]


def _recognize(text: str) -> int:
    """Return a hash that is the same for a line in S3 and in CloudWatch.

    Bytes that are not UTF-8 have one replacement character here, and perhaps several there.
    """
    return hash(_REPLACED.sub("\ufffd", text) if "\ufffd" in text else text)
