"""Metadata of distributions that are installed as editable: their files are the project's.

Their names, versions and entry points are sent with the project, for `importlib.metadata`.

https://packaging.python.org/en/latest/specifications/direct-url/
"""

from __future__ import annotations

import functools
import json
import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

from farcall.payload.folders import is_below
from farcall.payload.walk import File

PLACE = "metadata"
"""Place of the metadata in the archive."""

_SENT = ("METADATA", "entry_points.txt", "top_level.txt")


def metadata_of(sent: Iterable[str]) -> Iterator[File]:
    """Yield the metadata of the distributions to which sent files belong."""
    paths = [*sent]
    for folder, info in _installed(tuple(_stamps())):
        if any(is_below(path, folder) for path in paths):
            yield from _files(info)


def _stamps() -> Iterator[tuple[str, int]]:
    """Yield the folders on the import path, with times that change with their contents."""
    for entry in sys.path:
        try:
            yield entry, os.stat(entry or os.curdir).st_mtime_ns  # noqa: PTH116
        except OSError:
            continue


@functools.lru_cache(8)
def _installed(stamps: tuple[tuple[str, int], ...]) -> list[tuple[str, Path]]:
    """Return project folders, and the metadata folders of their distributions."""
    infos: dict[str, Path] = {}
    for entry, _ in stamps:
        try:
            names = sorted(os.listdir(entry or os.curdir))  # noqa: PTH208
        except OSError:  # a zip file
            continue
        for name in names:
            if name.endswith(".dist-info"):
                infos.setdefault(name, Path(entry, name))
    return [(folder, info) for info in infos.values() if (folder := _project_of(info))]


def _project_of(info: Path) -> str:
    """Return the folder of an editable distribution; empty for others."""
    try:
        origin = json.loads((info / "direct_url.json").read_text(encoding="utf-8"))
        is_editable = origin["dir_info"].get("editable")
        return url2pathname(urlsplit(origin["url"]).path).rstrip(os.sep) if is_editable else ""
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return ""


def _files(info: Path) -> Iterator[File]:
    for name in _SENT:
        path = info / name
        try:
            about = path.stat()
        except OSError:
            continue
        yield File(str(path), f"{PLACE}/{info.name}/{name}", about.st_size, about.st_mtime_ns)
