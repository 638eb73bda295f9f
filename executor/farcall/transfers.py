"""Large objects in pieces: made while they are sent, hashed while they are fetched. No I/O."""

from __future__ import annotations

import asyncio
import hashlib
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from itertools import islice

from farcall_runtime.envelope import Buffer

SINGLE_PUT_BYTES = 16 * 1024 * 1024
"""Objects up to this size are stored by one request."""

PART_BYTES = 8 * 1024 * 1024
PARALLEL_PARTS = 6

_JOIN_BYTES = 64 * 1024
_JOINED_BYTES = 1024 * 1024


def joined(pieces: Iterable[Buffer]) -> Iterator[Buffer]:
    """Join small pieces, of which a bundle of many tasks has several for each."""
    small: list[Buffer] = []
    size = 0
    for piece in pieces:
        if len(piece) <= _JOIN_BYTES:
            small.append(piece)
            size += len(piece)
        if small and (len(piece) > _JOIN_BYTES or size >= _JOINED_BYTES):
            yield b"".join(small)
            small, size = [], 0
        if len(piece) > _JOIN_BYTES:
            yield piece
    if small:
        yield b"".join(small)


def take(chunks: Iterator[Buffer]) -> list[Buffer]:
    """Return as many as make one request, and one more where there are more."""
    taken: list[Buffer] = []
    size = 0
    while size <= SINGLE_PUT_BYTES and (chunk := next(chunks, None)) is not None:
        taken.append(chunk)
        size += len(chunk)
    return taken


class Rest:
    """The chunks of a large object, the next of which is made while others are on their way.

    Attributes:
        error: What the making of them raised.
    """

    def __init__(self, first: list[Buffer], chunks: Iterator[Buffer]) -> None:
        self._first = first
        self._chunks = chunks
        self.error: Exception | None = None

    async def __aiter__(self) -> AsyncIterator[Buffer]:
        while self._first:
            yield self._first.pop(0)
        try:
            while (chunk := await asyncio.to_thread(next, self._chunks, None)) is not None:
                yield chunk
        except Exception as error:
            self.error = error
            raise


async def fetch_in_parts(
    part: Callable[[int, int], Awaitable[Buffer | None]],
    size: int,
    write: Callable[[Buffer], object],
) -> str | None:
    """Have an object written in its order, while its next parts are on their way.

    Args:
        part: Fetches the bytes from the first number up to, not including, the second; None
            where the object is not what it should be.
        size: The object's size in bytes.
        write: Takes the bytes; it is called in a thread.

    Returns:
        SHA-256 of the bytes, hexadecimal; None if a part was.
    """
    digest = hashlib.sha256()

    def take_in(data: Buffer) -> None:
        digest.update(data)
        write(data)

    starts = iter(range(0, size, PART_BYTES))
    parts: deque[asyncio.Task[Buffer | None]] = deque()
    try:
        while True:
            for start in islice(starts, PARALLEL_PARTS - len(parts)):
                parts.append(asyncio.ensure_future(part(start, min(start + PART_BYTES, size))))
            if not parts:
                return digest.hexdigest()
            data = await parts.popleft()
            if data is None:
                return None
            await asyncio.to_thread(take_in, data)
    finally:
        for each in parts:
            each.cancel()
        await asyncio.gather(*parts, return_exceptions=True)


class Filling:
    """A buffer that is written like a file."""

    def __init__(self, target: memoryview) -> None:
        self._target = target
        self._at = 0

    def write(self, data: Buffer) -> None:
        """Put bytes behind those that are there."""
        self._target[self._at : self._at + len(data)] = data
        self._at += len(data)
