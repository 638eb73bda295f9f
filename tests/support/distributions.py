"""Small and malformed packed distributions, in the format in which clients store them."""

from __future__ import annotations

import hashlib
import io
import json
import os
import sys
import zipfile
from typing import NamedTuple

PYTHON = ".".join(map(str, sys.version_info[:2]))
SITE = f"lib/python{PYTHON}/site-packages"
ARCHITECTURE = {"aarch64": "arm64"}.get(os.uname().machine, os.uname().machine)


class Stored(NamedTuple):
    """A packed distribution.

    Attributes:
        row: Its row in a manifest.
        data: Its archive.
    """

    row: list
    data: bytes

    @property
    def sha256(self):
        return self.row[2]


def entry(name, mode=0o100644):
    """Return the metadata of a file in a zip file."""
    info = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
    info.create_system = 3
    info.external_attr = mode << 16
    info.compress_type = zipfile.ZIP_DEFLATED
    return info


def zipped(*files):
    """Return a zip file of pairs of `entry` and content, without any checks."""
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w") as archive:
        for info, content in files:
            archive.writestr(info, content)
    return sink.getvalue()


def stored(name, data, version="1.0", *, unpacked=None):
    """Return an archive with its row in a manifest."""
    if unpacked is None:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            unpacked = sum(info.file_size for info in archive.infolist())
    row = [name, version, hashlib.sha256(data).hexdigest(), len(data), unpacked]
    return Stored(row, data)


def distribution(name, files, version="1.0", *, entry_points="", unpacked=None):
    """Pack a distribution.

    Args:
        files: Name to content. A name that begins with a slash is relative to the prefix, other
            names are relative to site-packages.
        entry_points: Content of entry_points.txt.
        unpacked: A wrong unpacked size for the manifest, in bytes.
    """
    info = f"{name.replace('-', '_')}-{version}.dist-info"
    every = {
        **files,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/RECORD": "",
    }
    if entry_points:
        every[f"{info}/entry_points.txt"] = entry_points
    named = {
        key.removeprefix("/") if key.startswith("/") else f"{SITE}/{key}": content
        for key, content in every.items()
    }
    data = zipped(
        *(
            (entry(key, 0o100755 if key.startswith("bin/") else 0o100644), content)
            for key, content in sorted(named.items())
        )
    )
    return stored(name, data, version, unpacked=unpacked)


def manifest(*distributions, **differs):
    """Return the manifest of some distributions."""
    document = {
        "format": "zip",
        "python": PYTHON,
        "architecture": ARCHITECTURE,
        "distributions": sorted(each.row for each in distributions),
        **differs,
    }
    return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()


def fact(data):
    """Return the digest and size of a manifest, as in a bundle."""
    return [hashlib.sha256(data).hexdigest(), len(data)]
