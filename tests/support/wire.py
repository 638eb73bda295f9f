"""Objects in the bucket, written from their format, without farcall's client.

They have the format of existing objects: a change that makes them unreadable breaks the protocol.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from collections.abc import Sequence

ROOT_HEAD = struct.Struct(">12sQQIII")
"""Head of a root: prefix, offsets of root and pages, bytes of meta, functions, entries."""

ROOT_SIZE = struct.Struct(">I")
"""Size of the root, the last bytes of a bundle."""

ROW = struct.Struct(">QQ32sI")
"""Row of an index: offset, length, SHA-256, and number of the entry's function."""

COUNT = struct.Struct(">I")
"""Number of packed buffers, or length of the description in an outcome."""

LENGTH = struct.Struct(">Q")
"""Length of a packed buffer."""


def row(offset: int, data: bytes, function: int = 0) -> bytes:
    """Return the index row of some bytes at an offset."""
    return ROW.pack(offset, len(data), hashlib.sha256(data).digest(), function)


def root(
    prefix: bytes, offsets: tuple[int, int], counts: tuple[int, int, int], body: bytes
) -> bytes:
    """Return the root of an index without any checks.

    Args:
        prefix: The first twelve bytes.
        offsets: Offsets of the root and of the pages.
        counts: Bytes of meta, number of functions and of entries.
        body: The rest, with the size at the end.
    """
    return ROOT_HEAD.pack(prefix, *offsets, *counts) + body


def packed(count: int, lengths: Sequence[int]) -> bytes:
    """Return the beginning of packed buffers."""
    return COUNT.pack(count) + b"".join(map(LENGTH.pack, lengths))


def outcome(key: bytes, place: str, prefix: bytes, length: int, body: bytes) -> bytes:
    """Return an outcome with a valid signature.

    Args:
        key: Outcome key for the signature.
        place: Key in the bucket, which is signed, too.
        prefix: The first twelve bytes.
        length: Declared length of the description.
        body: The description and the rest.
    """
    name = place.encode()
    said = COUNT.pack(length)
    signed = b"".join([struct.pack(">H", len(name)), name, prefix, said, body])
    return prefix + hmac.digest(key, signed, "sha256") + said + body
