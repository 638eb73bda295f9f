"""Multipart transfers: generated while sent, hashed while fetched. No I/O."""

from __future__ import annotations

import asyncio
import hashlib
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator
from itertools import islice
from typing import NamedTuple, TypeVar

from farcall_runtime.envelope import Buffer

SINGLE_PUT_BYTES = 16 * 1024 * 1024
"""Maximum size in bytes of an object that is stored with one request."""

PART_BYTES = 8 * 1024 * 1024
PARALLEL_PARTS = 6

_JOIN_BYTES = 64 * 1024
_JOINED_BYTES = 1024 * 1024

T = TypeVar("T")


class Part(NamedTuple):
    """A part of an object to upload.

    Attributes:
        data: Its bytes. They are a copy, because the original may change during the upload.
        digest: SHA-256 of the bytes in hexadecimal.
    """

    data: bytes
    digest: str

    @classmethod
    def of(cls, pieces: Iterable[Buffer]) -> Part:
        """Join the pieces of a part."""
        data = b"".join(pieces)
        return cls(data, hashlib.sha256(data).hexdigest())


def joined(pieces: Iterable[Buffer]) -> Iterator[Buffer]:
    """Join small pieces; a bundle of many tasks has several for each task."""
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
    """Return the chunks of a single request, and one more chunk if there are more."""
    taken: list[Buffer] = []
    size = 0
    while size <= SINGLE_PUT_BYTES and (chunk := next(chunks, None)) is not None:
        taken.append(chunk)
        size += len(chunk)
    return taken


def in_parts(first: list[Buffer], chunks: Iterator[Buffer]) -> Iterator[Part]:
    """Split an object into parts of `PART_BYTES`; the last one may be smaller."""
    taken: list[Buffer] = []
    size = 0
    while (chunk := first.pop(0) if first else next(chunks, None)) is not None:
        rest = memoryview(chunk)
        while len(rest) >= PART_BYTES - size:
            cut = PART_BYTES - size
            made = [Part.of([*taken, rest[:cut]])]
            taken, size, rest = [], 0, rest[cut:]
            yield made.pop()  # pop it, so that nothing here retains it
        if rest:
            taken.append(rest)
            size += len(rest)
    if taken:
        yield Part.of(taken)


async def send_in_parts(
    make: Callable[[], Awaitable[Part | None]], send: Callable[[int, Part], Awaitable[T]]
) -> list[T]:
    """Send an object while its next parts are made.

    Args:
        make: Returns the next part; None after the last.
        send: Sends a part; parts are numbered from 1.

    Returns:
        The results of ``send``, in the order of the parts.

    Raises:
        Exception: The first exception that either function raises.
    """
    sent: list[asyncio.Future[T]] = []
    running: set[asyncio.Future[T]] = set()
    try:
        while (part := await make()) is not None:
            sent.append(asyncio.ensure_future(send(len(sent) + 1, part)))
            running.add(sent[-1])
            del part  # release it as soon as it is sent
            while len(running) >= PARALLEL_PARTS:
                done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                for each in done:
                    each.result()
        return await asyncio.gather(*sent)
    finally:
        for each in running:
            each.cancel()
        await asyncio.gather(*sent, return_exceptions=True)


async def fetch_in_parts(
    part: Callable[[int, int], Awaitable[Buffer | None]],
    size: int,
    write: Callable[[Buffer], object],
) -> str | None:
    """Write an object in order while its next parts are fetched.

    Args:
        part: Fetches the bytes from the first number up to, not including, the second; None
            if the object is not as expected.
        size: The object's size in bytes.
        write: Takes the bytes; it is called in a thread.

    Returns:
        SHA-256 of the bytes in hexadecimal; None if ``part`` returned None.
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
        """Append bytes."""
        self._target[self._at : self._at + len(data)] = data
        self._at += len(data)
