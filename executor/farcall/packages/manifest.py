"""Manifest of an environment: the archives that a job unpacks, by digest."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from typing import NamedTuple

from farcall.packages.target import Target

FORMAT = "zip"


class Packed(NamedTuple):
    """A synced distribution.

    Attributes:
        name: Its name.
        version: Its version.
        sha256: Digest of its archive, hexadecimal.
        size: Size of its archive in bytes.
        unpacked_bytes: Total size of its files in bytes.
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
        sha256: Their digest, hexadecimal.
    """

    data: bytes
    sha256: str

    @property
    def fact(self) -> list[str | int]:
        """The bundle's fact about it: digest and size."""
        return [self.sha256, len(self.data)]


def seal(target: Target, packed: Iterable[Packed]) -> Manifest:
    """Return the manifest of an environment; equal environments have equal manifests."""
    document = {
        "format": FORMAT,
        "python": target.python,
        "architecture": target.architecture,
        "distributions": sorted(packed),
    }
    data = json.dumps(document, sort_keys=True, separators=(",", ":")).encode()
    return Manifest(data, hashlib.sha256(data).hexdigest())
