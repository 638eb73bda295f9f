"""Manifest of an environment: which archives a job unpacks, by their digests."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from typing import NamedTuple

from farcall.packages.target import Target

FORMAT = "zip"


class Packed(NamedTuple):
    """A distribution as it travels.

    Attributes:
        name: Its name.
        version: Its version.
        sha256: Of its archive, hexadecimal.
        size: Bytes of the archive.
        unpacked_bytes: Bytes of what is in it.
    """

    name: str
    version: str
    sha256: str
    size: int
    unpacked_bytes: int


class Manifest(NamedTuple):
    """A manifest.

    Attributes:
        data: Its bytes, JSON.
        sha256: Of these, hexadecimal.
    """

    data: bytes
    sha256: str

    @property
    def fact(self) -> list[str | int]:
        """What a bundle says of it."""
        return [self.sha256, len(self.data)]


def seal(target: Target, packed: Iterable[Packed]) -> Manifest:
    """Write down an environment; the same one is written in the same way."""
    document = {
        "format": FORMAT,
        "python": target.python,
        "architecture": target.architecture,
        "distributions": sorted(packed),
    }
    data = json.dumps(document, sort_keys=True, separators=(",", ":")).encode()
    return Manifest(data, hashlib.sha256(data).hexdigest())
