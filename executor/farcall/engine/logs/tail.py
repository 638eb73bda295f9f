"""Log tail: from which chunk a task's output is read, where only its end is asked for.

It is looked for from the end, so that the last lines of much output cost little.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime
from typing import NamedTuple

from farcall.engine.logs.attempt_history import AttemptHistory
from farcall.engine.logs.transcript import Ending, Transcript
from farcall.model.output import LOG, LogLine, last_state
from farcall.storage.chunks import ChunkPlace, Chunks
from farcall_runtime.contract import STREAMS


class Part(NamedTuple):
    """Which part of the output is asked for.

    Attributes:
        since: What was stored at this moment or later; None for all.
        tail: So many lines at the end, or all.
        streams: Of which streams.
    """

    since: datetime | None = None
    tail: int | None = None
    streams: Collection[str] = STREAMS


EVERYTHING = Part()


class Prepared(NamedTuple):
    """An attempt that is not read from its start, perhaps.

    Attributes:
        transcript: It.
        lines: All its lines that are asked for where they are from CloudWatch; else None.
    """

    transcript: Transcript
    lines: list[LogLine] | None = None


async def prepare(
    history: AttemptHistory, first: int, last: int, part: Part
) -> dict[int, Prepared]:
    """Go back from the end as far as is asked for.

    Returns:
        The attempts to be read, by number.

    Raises:
        IntegrityError: A chunk is not the one the container wrote.
        ServiceError: AWS refused a call.
    """
    prepared: dict[int, Prepared] = {}
    for number in range(last, first - 1, -1):
        prepared[number], count = await _prepare(history, number, part)
        started = history.tried(number).started_at
        if part.tail is not None:
            part = part._replace(tail=max(0, part.tail - count))
            if not part.tail:
                break
        if part.since is not None and started is not None and started < part.since:
            break
    return prepared


async def _prepare(history: AttemptHistory, number: int, part: Part) -> tuple[Prepared, int]:
    """Return an attempt, and how many lines of it are left."""
    chunks = history.chunks
    transcript = history.transcript(number)
    is_over = await history.is_over(number)
    ending = await history.ending(number) if is_over else None
    places = await chunks.places(number)
    if is_over and not _is_whole(ending, places):
        found = [] if part.tail is None else await history.log(number).last(part.tail)
        lines = [LogLine(last_state(event.text), LOG, number, event.at) for event in found]
        return Prepared(transcript, lines or None), len(lines)
    count = 0
    if ending is not None:
        count = sum(ending.tails[stream].count(b"\n") for stream in part.streams)
    begin = dict.fromkeys(STREAMS, 0)
    begin.update({place.stream: place.sequence + 1 for place in places})
    for place in reversed(places):
        is_enough = part.tail is not None and count >= part.tail
        if is_enough or (part.since is not None and place.at < part.since):
            break
        begin[place.stream] = place.sequence
        if part.tail is not None and place.stream in part.streams:
            chunk = await chunks.get(number, place.stream, place.sequence)
            count += 0 if chunk is None else chunk[0].count(b"\n")
    left_out = {(place.stream, place.sequence): place for place in places}
    for stream, sequence in begin.items():
        begun = await _begun(chunks, number, stream, sequence)
        transcript.begin_at(stream, sequence, begun, left_out.get((stream, sequence - 1)))
    return Prepared(transcript), count


async def _begun(chunks: Chunks, number: int, stream: str, sequence: int) -> bytes:
    """Return the beginning of the line that goes on in a chunk."""
    begun = b""
    for before in range(sequence - 1, -1, -1):
        chunk = await chunks.get(number, stream, before)
        _, end, last = (chunk[0] if chunk is not None else b"\n").rpartition(b"\n")
        begun = last + begun
        if end or b"\r" in begun.rstrip(b"\r"):
            break  # what comes before was replaced
    return begun


def _is_whole(ending: Ending | None, places: list[ChunkPlace]) -> bool:
    """Return whether S3 has all that an attempt wrote."""
    if ending is None:
        return False
    there = {(place.stream, place.sequence) for place in places}
    return all(
        (stream, number) in there
        for stream in STREAMS
        for number in range(ending.meta[stream]["chunks"])
    )
