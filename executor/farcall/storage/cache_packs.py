"""Packs of cached results: many results in one object, signed with the user's key.

A pack is ``FARCALLC``, a signature, the size of its index, the index in JSON, and the values that
are small. Large values are objects of their own, whose digests the index contains. The signature
covers the pack's folder, so a pack cannot be moved to another function. No I/O.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import struct
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from farcall_runtime.contract import VALUE_PART_BYTES, is_digest
from farcall_runtime.envelope import Buffer, IntegrityError

_MAGIC = b"FARCALLC"
_HEAD = struct.Struct(">8s32sI")  # magic, signature, bytes of the index


class Place(NamedTuple):
    """Where a large value is stored.

    Attributes:
        name: Name of its folder.
        size: Size of the value in bytes.
        sha256: Digest of the value, hexadecimal.
        offset: Position of the value in its only object.
        total: Size of this object; 0 if the value is stored in parts of `VALUE_PART_BYTES`.
    """

    name: str
    size: int
    sha256: str
    offset: int = 0
    total: int = 0

    def key(self, folder: str, part: int = 0) -> str:
        """Return the key of a part."""
        return f"{folder}large/{self.name}/{part:08d}"

    def sizes(self) -> list[int]:
        """Return the sizes of the parts in bytes."""
        if self.total:
            return [self.total]
        whole, rest = divmod(self.size, VALUE_PART_BYTES)
        return [VALUE_PART_BYTES] * whole + [rest] * bool(rest)


class Entry(NamedTuple):
    """Cached result of a task.

    Attributes:
        records: Description of each call, as in an outcome.
        value: The packed values, if they are small.
        place: Where they are otherwise.
    """

    records: Sequence[Mapping[str, Any]]
    value: Buffer = b""
    place: Place | None = None


def seal(key: bytes, folder: str, entries: Mapping[bytes, Entry]) -> bytes:
    """Return a signed pack.

    Args:
        key: The user's key.
        folder: Key prefix of the function's packs.
        entries: The results by their calls' digests.
    """
    index = []
    values = []
    at = 0
    for digest, entry in entries.items():
        index.append([digest.hex(), entry.records, at, len(entry.value), entry.place])
        values.append(bytes(entry.value))
        at += len(entry.value)
    text = json.dumps(index, separators=(",", ":")).encode()
    body = struct.pack(">I", len(text)) + text + b"".join(values)
    return b"".join((_MAGIC, _sign(key, folder, body), body))


def open_pack(key: bytes, folder: str, data: Buffer) -> dict[bytes, Entry]:
    """Verify a pack, and return its results by their calls' digests.

    Raises:
        IntegrityError: It was not signed with the key, is of another folder, or is damaged.
    """
    if len(data) < _HEAD.size:
        raise IntegrityError(f"{len(data)} bytes are too few for cached results")
    magic, signature, length = _HEAD.unpack_from(data)
    view = memoryview(data)
    signed = view[_HEAD.size - struct.calcsize(">I") :]
    if magic != _MAGIC or not hmac.compare_digest(signature, _sign(key, folder, signed)):
        raise IntegrityError("cached results are not signed with this user's key")
    values = view[_HEAD.size + length :]
    return {
        bytes.fromhex(digest): Entry(
            records, values[at : at + size], None if place is None else _place(place)
        )
        for digest, records, at, size, place in json.loads(
            bytes(view[_HEAD.size : _HEAD.size + length])
        )
    }


def _place(fields: Sequence[Any]) -> Place:
    place = Place(*fields)
    if not is_digest(place.sha256) or not place.name.isalnum():
        raise IntegrityError("cached results have an invalid place")
    return place


def _sign(key: bytes, folder: str, body: Buffer) -> bytes:
    signature = hmac.new(key, folder.encode() + b"\0", hashlib.sha256)
    signature.update(body)
    return signature.digest()
