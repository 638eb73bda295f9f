"""What a task has written, put together, and which part of it is whose. No I/O."""

from __future__ import annotations

from collections.abc import Iterable

_Gap = tuple[int, int]
"""How many bytes were kept before it, and how many were not kept."""


def join(kept: bytes, gaps: Iterable[_Gap]) -> bytes:
    """Return a stream with a note at each gap.

    Args:
        kept: The bytes that were stored.
        gaps: Where the container had to give some up, as the outcome says.
    """
    pieces = []
    start = 0
    for at, length in gaps:
        pieces += [kept[start:at], _note(length)]
        start = at
    return b"".join([*pieces, kept[start:]])


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
    """Return what stands in the place of bytes that were stored and are no longer there."""
    return f"\n[farcall: {length} bytes were deleted from the bucket]\n".encode()


def _note(length: int) -> bytes:
    return f"\n[farcall: {length} bytes could not be stored]\n".encode()
