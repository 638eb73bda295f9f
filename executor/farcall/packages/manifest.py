"""Manifest of an environment: the archives that a job unpacks, by digest."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from typing import NamedTuple

from farcall.packages.target import Target

FORMAT = "zip"


class Packed(NamedTuple):
    """Synced distribution.

    Attributes:
        name: Name of the distribution.
        version: Version of the distribution.
        sha256: Digest of the archive, hexadecimal.
        size: Size of the archive in bytes.
        unpacked_bytes: Total size of the files in bytes.
    """

    name: str
    version: str
    sha256: str
    size: int
    unpacked_bytes: int


class Manifest(NamedTuple):
    """Manifest of an environment.

    Attributes:
        data: Content, JSON.
        sha256: Digest of the content, hexadecimal.
    """

    data: bytes
    sha256: str

    @property
    def fact(self) -> list[str | int]:
        """Reference to the manifest in a bundle: digest and size."""
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
