"""What a task writes, as it lies in the bucket: chunks while it runs, the rest in its outcome."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import AsyncIterator, Iterable, Mapping
from datetime import datetime
from typing import Any, NamedTuple

from farcall import output
from farcall.errors import IntegrityError
from farcall.store import Store, is_chunk, number_in
from farcall.submission import Submission
from farcall_runtime import envelope
from farcall_runtime.contract import STDERR, STDOUT, STREAMS
from farcall_runtime.envelope import Outcome

_PARALLEL = 8


async def read_chunks(
    store: Store,
    submission: Submission,
    index: int,
    attempt: int,
    stream: str,
    said: Mapping[str, Any],
) -> bytes:
    """Return the first chunks of one stream of one attempt, joined, with a note where one is gone.

    Args:
        store: The bucket.
        submission: The task's job.
        index: Its number there.
        attempt: The attempt, from 1.
        stream: ``"stdout"`` or ``"stderr"``.
        said: What the outcome says of the stream: how many chunks there are, and bytes in them.

    Raises:
        IntegrityError: A chunk is not the one the container wrote.
        ServiceError: S3 refused.
    """
    places = asyncio.Semaphore(_PARALLEL)

    async def read(sequence: int) -> bytes | None:
        async with places:
            key = submission.where.chunk_key(index, attempt, stream, sequence)
            found = await _read_chunk(store, submission, key)
            return None if found is None else found[0]

    chunks = await asyncio.gather(*map(read, range(said["chunks"])))
    if None in chunks:
        kept = sum(len(chunk) for chunk in chunks if chunk is not None)
        chunks[chunks.index(None)] = output.deleted(said["stored"] - kept)
    return b"".join(filter(None, chunks))


async def read_whole(
    store: Store, submission: Submission, index: int, outcome: Outcome
) -> tuple[bytes, bytes]:
    """Return all that an attempt wrote to stdout and to stderr, with a note where some is lost.

    Args:
        store: The bucket.
        submission: The task's job.
        index: Its number there.
        outcome: What the attempt stored at its end.

    Raises:
        IntegrityError: A chunk is not the one the container wrote.
        ServiceError: S3 refused.
    """
    attempt = int(outcome.meta["attempt"])
    found = []
    for stream, tail in ((STDOUT, outcome.stdout), (STDERR, outcome.stderr)):
        said, data = outcome.meta[stream], bytes(tail)
        if said["chunks"]:
            data = await read_chunks(store, submission, index, attempt, stream, said) + data
        found.append(output.join(data, said["gaps"]) if "gaps" in said else data)
    return found[0], found[1]


class Place(NamedTuple):
    """Where a chunk lies.

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


class Chunks:
    """The chunks of one task's output.

    Args:
        store: The bucket.
        submission: The task's job.
        index: Its number there.
    """

    def __init__(self, store: Store, submission: Submission, index: int) -> None:
        self._store = store
        self._submission = submission
        self._index = index

    async def places(self, attempt: int | None = None) -> list[Place]:
        """List the chunks there are in the order in which they were stored.

        Args:
            attempt: Only those of this attempt; by default all, the first attempt's first.

        Raises:
            ServiceError: S3 refused.
        """
        below = "" if attempt is None else f"{attempt}/"
        prefix = f"{self._submission.where.streams_prefix(self._index)}{below}"
        streams: dict[tuple[int, str], list[Place]] = {}
        for name, at in sorted((await self._store.list_times(prefix)).items()):
            number, _, rest = f"{below}{name}".partition("/")
            stream, _, sequence = rest.partition("/")
            tried = number_in(number)
            if tried and stream in STREAMS and is_chunk(sequence):
                place = Place(tried, stream, int(sequence), at)
                streams.setdefault((place.attempt, place.stream), []).append(place)
        # S3 tells the second; a stream's own order must not depend on it.
        order = heapq.merge(*streams.values(), key=lambda place: (place.attempt, place.at))
        return list(order)

    async def read(self, places: Iterable[Place]) -> AsyncIterator[tuple[Place, bytes]]:
        """Yield the bytes of chunks in the order given; those that are gone are left out.

        Raises:
            IntegrityError: A chunk is not the one the container wrote.
            ServiceError: S3 refused.
        """
        left = list(places)
        while left:
            now, left = left[:_PARALLEL], left[_PARALLEL:]
            found = await asyncio.gather(*(self.get(*place[:3]) for place in now))
            for place, read in zip(now, found, strict=True):
                if read is not None:
                    yield place, read[0]

    async def get(self, attempt: int, stream: str, sequence: int) -> tuple[bytes, datetime] | None:
        """Return the bytes of a chunk and when it was stored; None if it is not there.

        Raises:
            IntegrityError: It is not the one the container wrote.
            ServiceError: S3 refused.
        """
        key = self._submission.where.chunk_key(self._index, attempt, stream, sequence)
        return await _read_chunk(self._store, self._submission, key)

    async def joined(self, attempt: int | None = None) -> tuple[bytes, bytes]:
        """Return stdout and stderr as far as there are chunks.

        Args:
            attempt: Of this attempt; by default of all, one after the other.

        Raises:
            IntegrityError: A chunk is not the one the container wrote.
            ServiceError: S3 refused.
        """
        found: dict[str, list[bytes]] = {STDOUT: [], STDERR: []}
        async for place, data in self.read(await self.places(attempt)):
            found[place.stream].append(data)
        return b"".join(found[STDOUT]), b"".join(found[STDERR])


async def _read_chunk(
    store: Store, submission: Submission, key: str
) -> tuple[bytes, datetime] | None:
    """Return what is in a chunk and when it was stored; None if it is not there."""
    try:
        found = await store.get_dated(key)
        if found is None:
            return None
        return bytes(envelope.open_chunk(submission.key, key, found[0])), found[1]
    except envelope.EnvelopeError as error:
        raise IntegrityError(
            f"output s3://{store.bucket}/{key} is not what the job wrote ({error})",
            job_id=submission.job_id,
        ) from error
