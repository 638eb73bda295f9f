"""Objects of the bucket as a stranger writes them: by their format, whatever our code would do.

What is written here is what lies in buckets: a change that these do not follow breaks the
protocol.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from collections.abc import Sequence

ROOT_HEAD = struct.Struct(">12sQQIII")
"""Of a bundle's root: prefix, offsets of root and pages, bytes of meta, functions, entries."""

ROOT_SIZE = struct.Struct(">I")
"""The last bytes of a bundle."""

ROW = struct.Struct(">QQ32sI")
"""Of an index: offset, length, SHA-256, and number of the entry's function."""

COUNT = struct.Struct(">I")
"""Before packed buffers, and before the description in an outcome: how many, or how long."""

LENGTH = struct.Struct(">Q")
"""Of each packed buffer."""


def row(offset: int, data: bytes, function: int = 0) -> bytes:
    """Return the row of an index that these bytes fit, at this place."""
    return ROW.pack(offset, len(data), hashlib.sha256(data).digest(), function)


def root(
    prefix: bytes, offsets: tuple[int, int], counts: tuple[int, int, int], body: bytes
) -> bytes:
    """Return the root of an index, whatever it says.

    Args:
        prefix: The first twelve bytes.
        offsets: Of the root and of the pages.
        counts: Bytes of meta, functions, entries.
        body: What follows, with the size at the end.
    """
    return ROOT_HEAD.pack(prefix, *offsets, *counts) + body


def packed(count: int, lengths: Sequence[int]) -> bytes:
    """Return the beginning of packed buffers."""
    return COUNT.pack(count) + b"".join(map(LENGTH.pack, lengths))


def outcome(key: bytes, place: str, prefix: bytes, length: int, body: bytes) -> bytes:
    """Return an outcome with a signature that fits.

    Args:
        key: What it is signed with.
        place: Its key in the bucket, which is signed with it.
        prefix: The first twelve bytes.
        length: How long it says that its description is.
        body: The description and what follows.
    """
    name = place.encode()
    said = COUNT.pack(length)
    signed = b"".join([struct.pack(">H", len(name)), name, prefix, said, body])
    return prefix + hmac.digest(key, signed, "sha256") + said + body
