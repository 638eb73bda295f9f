"""Output chunks, which a running task stores; its outcome contains the rest.

Most output is never read, so chunks are fetched on demand, several at once, and verified and
joined in threads.
"""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import heapq
from collections import deque
from collections.abc import AsyncGenerator, Coroutine, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple, TypeVar

from farcall.model import output
from farcall.model.errors import IntegrityError
from farcall.model.output import Bytes
from farcall.model.submission import Submission
from farcall.storage.outcomes import verified
from farcall.storage.rereads import until_intact
from farcall.storage.store import Store, is_chunk, number_in
from farcall_runtime import envelope
from farcall_runtime.contract import STDERR, STDOUT, STREAMS
from farcall_runtime.envelope import Outcome

_PARALLEL = 8
_AHEAD = 4
"""Maximum number of a stream's chunks that are fetched in parallel."""

CHUNK_BYTES = 8 * 1024 * 1024
"""Maximum bytes of a stream in a chunk."""

_LARGEST_CHUNK_BYTES = envelope.CHUNK_HEAD_BYTES + CHUNK_BYTES
"""Maximum size of a fetched object.

Other writers can store anything, which must not fill the memory.
"""

END_BYTES = 64 * 1024
"""Maximum bytes of a stream's end in an error."""

FETCHED_END_BYTES = END_BYTES + CHUNK_BYTES
"""Maximum bytes of a stream that are fetched for its end, in entire chunks."""

_MOST_END_CHUNKS = 8

SMALL_BYTES = 256 * 1024
"""Maximum bytes of output that are fetched with a result, because it costs little."""

_SMALL_CHUNKS = 8

T = TypeVar("T")


class Piece(NamedTuple):
    """A stream, or its end.

    Attributes:
        data: Its bytes, with a note at each gap.
        left_out: Number of bytes before them.
    """

    data: Bytes = b""
    left_out: int = 0


@dataclass(frozen=True)
class Written:
    """Output of one attempt, as described by its outcome.

    Attributes:
        submission: The task's job.
        index: Index of the task in the job.
        attempt: The attempt, from 1.
        records: Description of each stream: number of chunks, their bytes, and gaps.
        tails: By stream, the bytes that are in no chunk.
        at: Time at which the outcome was stored; None if unknown.
    """

    submission: Submission
    index: int
    attempt: int
    records: Mapping[str, Mapping[str, Any]]
    tails: Mapping[str, bytes] = field(repr=False)
    at: datetime | None = None

    @classmethod
    def of(
        cls, submission: Submission, index: int, outcome: Outcome, at: datetime | None = None
    ) -> Written:
        """Return the output that a verified outcome describes."""
        records = {stream: outcome.meta[stream] for stream in STREAMS}
        tails = {STDOUT: bytes(outcome.stdout), STDERR: bytes(outcome.stderr)}
        return cls(submission, index, int(outcome.meta["attempt"]), records, tails, at)

    @property
    def stored_bytes(self) -> int:
        """Number of bytes in chunks."""
        return sum(int(record.get("stored", 0)) for record in self.records.values())

    @property
    def is_small(self) -> bool:
        """Whether fetching all of it is cheap."""
        chunks = sum(int(record["chunks"]) for record in self.records.values())
        return chunks <= _SMALL_CHUNKS and self.stored_bytes <= SMALL_BYTES

    def keys(self) -> list[str]:
        """Return the keys of its chunks."""
        where, index, attempt = self.submission.where, self.index, self.attempt
        return [
            where.chunk_key(index, attempt, stream, n)
            for stream in STREAMS
            for n in range(self.records[stream]["chunks"])
        ]

    def here(self) -> tuple[Piece, Piece]:
        """Return the bytes of both streams in the outcome, without a request."""
        out, err = [self._piece(stream, [self.tails[stream]], 0) for stream in STREAMS]
        return out, err

    def _piece(self, stream: str, pieces: Iterable[bytes], size: int) -> Piece:
        """Join the last pieces of a stream: the outcome's, and the given chunks.

        Args:
            stream: The stream.
            pieces: The pieces, in their order.
            size: Total size of the chunks among them in bytes.
        """
        record = self.records[stream]
        before, gaps = record["stored"] - size, record.get("gaps", ())
        notes = output.Notes(gaps, before)
        data = b"".join([*(part for piece in pieces for part in notes.add(piece)), *notes.end()])
        return Piece(data, before + output.noted_before(before, gaps) if before else 0)

    async def whole(self, store: Store) -> tuple[Piece, Piece]:
        """Return both streams completely, with a note at each gap.

        Raises:
            IntegrityError: A chunk is not the one the container wrote.
            ServiceError: S3 refused.
        """
        out, err = [await self._whole(store, stream) for stream in STREAMS]
        return Piece(out), Piece(err)

    async def _whole(self, store: Store, stream: str) -> Bytes:
        record, tail = self.records[stream], self.tails[stream]
        if not record["chunks"]:
            return output.join(tail, record["gaps"]) if "gaps" in record else tail
        whole = bytearray()
        async with contextlib.aclosing(self._pieces(store, stream)) as pieces:
            async for piece in pieces:
                whole += piece
        return whole

    async def end(self, store: Store) -> tuple[Piece, Piece]:
        """Return the end of both streams: up to 64 KiB of each, or the outcome's bytes.

        Raises:
            IntegrityError: A chunk is not the one the container wrote.
            ServiceError: S3 refused.
        """
        out, err = [await self._end(store, stream) for stream in STREAMS]
        return out, err

    async def _end(self, store: Store, stream: str) -> Piece:
        number, size = self.records[stream]["chunks"], 0
        chunks: deque[bytes] = deque([self.tails[stream]])
        oldest = max(0, number - _MOST_END_CHUNKS)
        while number > oldest and size + len(self.tails[stream]) < END_BYTES:
            number -= 1
            chunk = await self._chunk(store, stream, number)
            if chunk is None:
                break
            size += len(chunk)
            chunks.appendleft(chunk)
        piece = self._piece(stream, chunks, size)
        more = len(piece.data) - END_BYTES
        if more <= 0 or not size:  # the outcome's bytes are here anyway
            return piece
        return Piece(piece.data[more:], piece.left_out + more)

    async def text(self, store: Store, stream: str) -> str:
        """Return a complete stream as UTF-8, with a note at each gap.

        Memory holds it once, together with the few chunks that are being fetched.

        Raises:
            IntegrityError: A chunk is not the one the container wrote.
            ServiceError: S3 refused.
        """
        return await _decoded(self._pieces(store, stream))

    async def _pieces(self, store: Store, stream: str) -> AsyncGenerator[bytes, None]:
        """Yield a complete stream in order."""
        record, tail = self.records[stream], self.tails[stream]
        notes = output.Notes(record.get("gaps", ()))
        kept, number = 0, 0
        is_whole = True
        async with contextlib.aclosing(self._chunks(store, stream)) as chunks:
            async for chunk in chunks:
                number += 1
                if chunk is None:
                    if is_whole:  # one note covers all missing chunks
                        is_whole = False
                        missing = record.get("stored", 0) - kept
                        missing -= await self._stored_from(store, stream, number)
                        yield output.deleted(missing) if missing > 0 else b""
                    continue
                kept += len(chunk)
                for piece in notes.add(chunk) if is_whole else [chunk]:
                    yield piece
        for piece in [*notes.add(tail), *notes.end()] if is_whole else [tail]:
            yield piece

    async def _stored_from(self, store: Store, stream: str, first: int) -> int:
        """Return the total size of a stream's chunks from a given number on, in bytes."""
        where, index, attempt = self.submission.where, self.index, self.attempt
        listed = dict(await store.list_keys(f"{where.streams_prefix(index)}{attempt}/{stream}/"))
        keys = [
            where.chunk_key(index, attempt, stream, n)
            for n in range(first, self.records[stream]["chunks"])
        ]
        return sum(
            max(0, listed[key] - envelope.CHUNK_HEAD_BYTES) for key in keys if key in listed
        )

    async def _chunks(self, store: Store, stream: str) -> AsyncGenerator[bytes | None, None]:
        """Yield a stream's chunks in order, None for a missing one."""
        numbers = range(self.records[stream]["chunks"])
        reads = (self._chunk(store, stream, sequence) for sequence in numbers)
        async with contextlib.aclosing(_ahead(reads, _AHEAD)) as chunks:
            async for chunk in chunks:
                yield chunk

    async def _chunk(self, store: Store, stream: str, sequence: int) -> bytes | None:
        chunks = Chunks(store, self.submission, self.index)
        dated = await chunks.get(self.attempt, stream, sequence)
        return None if dated is None else dated[0]


class ChunkPlace(NamedTuple):
    """Location of a chunk.

    Attributes:
        attempt: Number of the attempt, from 1.
        stream: ``"stdout"`` or ``"stderr"``.
        sequence: Number of the chunk, from 0.
        at: When it was stored.
    """

    attempt: int
    stream: str
    sequence: int
    at: datetime


def chunk_in(name: str) -> tuple[int, str, int] | None:
    """Parse a chunk's name, such as ``1/stdout/0``; None for other objects."""
    number, _, rest = name.partition("/")
    stream, _, sequence = rest.partition("/")
    attempt = number_in(number)
    if not attempt or stream not in STREAMS or not is_chunk(sequence):
        return None
    return attempt, stream, int(sequence)


class Chunks:
    """The chunks of one task's output."""

    def __init__(self, store: Store, submission: Submission, index: int) -> None:
        self._store = store
        self._submission = submission
        self._index = index

    async def places(self, attempt: int | None = None) -> list[ChunkPlace]:
        """List the existing chunks in the order in which they were stored.

        Args:
            attempt: Only chunks of this attempt; by default of all attempts, the first one's
                first.

        Raises:
            ServiceError: S3 refused.
        """
        below = "" if attempt is None else f"{attempt}/"
        prefix = f"{self._submission.where.streams_prefix(self._index)}{below}"
        streams: dict[tuple[int, str], list[ChunkPlace]] = {}
        for name, stored in sorted((await self._store.list_stored(prefix)).items()):
            parts = chunk_in(f"{below}{name}")
            if parts is not None:
                streams.setdefault(parts[:2], []).append(ChunkPlace(*parts, stored.at))
        # S3's times have a resolution of a second, so a stream's own order must not depend on
        # them.
        order = heapq.merge(*streams.values(), key=lambda place: (place.attempt, place.at))
        return list(order)

    async def read(
        self, places: Iterable[ChunkPlace]
    ) -> AsyncGenerator[tuple[ChunkPlace, bytes], None]:
        """Yield the bytes of chunks in the given order; missing ones are skipped.

        Raises:
            IntegrityError: A chunk is not the one the container wrote.
            ServiceError: S3 refused.
        """
        wanted = list(places)
        reads = (self.get(*place[:3]) for place in wanted)
        async with contextlib.aclosing(_ahead(reads, _PARALLEL)) as chunks:
            for place in wanted:
                read = await anext(chunks)
                if read is not None:
                    yield place, read[0]

    async def get(self, attempt: int, stream: str, sequence: int) -> tuple[bytes, datetime] | None:
        """Return the bytes and the storage time of a chunk; None if it does not exist.

        Raises:
            IntegrityError: The chunk is not the one the container wrote.
            ServiceError: S3 refused.
        """
        store, submission = self._store, self._submission
        key = submission.where.chunk_key(self._index, attempt, stream, sequence)

        async def read() -> tuple[bytes, datetime] | None:
            dated = await store.get_dated(key, most=_LARGEST_CHUNK_BYTES)
            if dated is None:
                return None
            data, at = dated
            return await verified(_opened, submission, key, data), at

        try:
            return await until_intact(read)
        except envelope.EnvelopeError as error:
            raise IntegrityError(
                f"output s3://{store.bucket}/{key} is not what the job wrote ({error})",
                job_id=submission.job_id,
            ) from error

    async def text(self, stream: str) -> str:
        """Return a stream of all attempts, one after the other, as far as chunks exist.

        Raises:
            IntegrityError: A chunk is not the one the container wrote.
            ServiceError: S3 refused.
        """
        places = [place for place in await self.places() if place.stream == stream]
        return await _decoded(data async for _, data in self.read(places))

    async def written(self, attempt: int) -> Written:
        """Return the output of an attempt without an outcome, from its chunks.

        Raises:
            ServiceError: S3 refused.
        """
        records = {stream: {"chunks": 0, "stored": 0} for stream in STREAMS}
        where = self._submission.where
        listed = await self._store.list_keys(f"{where.streams_prefix(self._index)}{attempt}/")
        for stream, counts in records.items():
            for key, size in listed:  # sorted by their numbers
                if key == where.chunk_key(self._index, attempt, stream, counts["chunks"]):
                    counts["chunks"] += 1
                    counts["stored"] += max(0, size - envelope.CHUNK_HEAD_BYTES)
        return Written(
            self._submission, self._index, attempt, records, dict.fromkeys(STREAMS, b"")
        )


async def _ahead(reads: Iterable[Coroutine[Any, Any, T]], most: int) -> AsyncGenerator[T, None]:
    """Yield results in order, while up to ``most`` are fetched."""
    coming: deque[asyncio.Task[T]] = deque()
    try:
        for read in reads:
            coming.append(asyncio.ensure_future(read))
            if len(coming) >= most:
                yield await coming.popleft()
        while coming:
            yield await coming.popleft()
    finally:
        for each in coming:
            each.cancel()
        await asyncio.gather(*coming, return_exceptions=True)


async def _decoded(pieces: AsyncGenerator[bytes, None]) -> str:
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    text = ""
    async with contextlib.aclosing(pieces):
        async for piece in pieces:
            more = decoder.decode(piece)
            text += more  # CPython extends a str in place
    return text + decoder.decode(b"", final=True)


def _opened(signing_key: bytes, key: str, data: bytearray) -> bytes:
    return bytes(envelope.open_chunk(signing_key, key, data))
