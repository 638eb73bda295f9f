"""Installed distributions on the import path, from their metadata and RECORD.

A distribution consists of the files in its RECORD. Files below its site folder are synced, as are
those in ``bin``, ``share`` and ``etc`` of the environment; headers in ``include`` are not. Files
in no RECORD belong to no distribution, and are not synced.

https://packaging.python.org/en/latest/specifications/recording-installed-packages/
"""

from __future__ import annotations

import csv
import io
import json
import os
import posixpath
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from email import message_from_string
from importlib.metadata import PathDistribution
from pathlib import Path
from typing import Any, NamedTuple

from packaging.utils import canonicalize_name

from farcall.model.errors import SettingsError
from farcall.packages.archives import File, is_name

SITE = f"lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"
"""Site folder in a job, relative to its environment's folder."""

_DATA = ("bin", "share", "etc")
_HEADERS = "include"
_SITE_NAMES = ("site-packages", "dist-packages")
_CLIENTS = {
    *("INSTALLER", "REQUESTED", "RECORD", "RECORD.jws", "RECORD.p7s"),
    *("direct_url.json", "uv_cache.json", "uv_build.json"),
}
"""Files of a dist-info folder that describe this machine; a new RECORD is written."""

_NO_RECORD = "has no RECORD of its files; reinstall it in a virtual environment"
_CACHE = "__pycache__"
_SHEBANG = re.compile(rb"\A#!(?:/bin/sh\n'''exec' [^\n]*\n' '''\n|[^\n]*python[^\n]*\n)")
_PORTABLE = b"#!/usr/bin/env python3\n"
_SHOWN = 3
_COLUMNS = 3


class Found(NamedTuple):
    """Metadata on the import path.

    Attributes:
        key: The distribution's normalized name.
        info: The distribution's dist-info or egg-info folder, or egg-link.
    """

    key: str
    info: Path

    @property
    def record_bytes(self) -> int:
        """Size of RECORD in bytes, which grows with the files; 0 if there is none."""
        try:
            return (self.info / "RECORD").stat().st_size
        except OSError:
            return 0

    @property
    def stamp(self) -> str:
        """Text that changes if the distribution is reinstalled; costs one stat call."""
        path = self.info / "RECORD"
        try:
            stat = path.stat()
        except OSError:
            return f"{self.info}:"
        return f"{self.info}:{stat.st_mtime_ns}:{stat.st_size}"


@dataclass(frozen=True)
class About:
    """Metadata of an installed distribution.

    Attributes:
        name: Name as spelled in the metadata.
        version: Version of the distribution.
        requires: Requirements in the metadata.
        is_pure: Whether it is the same on all platforms.
        is_editable: Whether its files are the user's sources.
        is_conda: Whether conda installed it, which also installs libraries that no RECORD lists.
        source: Source if it is not an index, without secrets.
        problem: Reason why it cannot be synced, and the remedy; otherwise empty.
    """

    name: str
    version: str
    requires: tuple[str, ...] = ()
    is_pure: bool = False
    is_editable: bool = False
    is_conda: bool = False
    source: str = ""
    problem: str = ""


def scan(path: Sequence[str] | None = None) -> list[Found]:
    """Return the first distribution of each name on a path, as in Python's imports."""
    distributions: dict[str, Found] = {}
    for entry in sys.path if path is None else path:
        for each in _in_folder(entry or os.curdir):
            distributions.setdefault(each.key, each)
    return sorted(distributions.values())


def _in_folder(folder: str) -> Iterator[Found]:
    if folder.rstrip("/\\").endswith(".egg"):
        yield Found(_key(Path(folder).name), Path(folder).absolute())
    try:
        names = sorted(os.listdir(folder))  # noqa: PTH208  # only names are needed
    except OSError:  # missing, or a zip file, which contains at most the standard library
        return
    for name in names:
        if name.endswith((".dist-info", ".egg-info", ".egg-link")):
            yield Found(_key(name), Path(folder, name).absolute())


def _key(name: str) -> str:
    return canonicalize_name(name.rpartition(".")[0].partition("-")[0])


def describe(distribution: Found) -> About:
    """Read a distribution's metadata, without running any of its code."""
    info = distribution.info
    if info.suffix != ".dist-info":
        return _describe_egg(distribution)
    metadata = message_from_string(_read(info / "METADATA"))
    name, version = metadata.get("Name", distribution.key), metadata.get("Version", "")
    if not version:
        return About(name, "", problem="has no METADATA; reinstall it")
    wheel = message_from_string(_read(info / "WHEEL"))
    tags = wheel.get_all("Tag", [])
    try:
        origin = json.loads(_read(info / "direct_url.json") or "{}")
    except ValueError:
        origin = {}
    return About(
        name,
        version,
        tuple(metadata.get_all("Requires-Dist", [])),
        is_pure=wheel.get("Root-Is-Purelib", "").lower() == "true"
        and all(tag.endswith("-none-any") for tag in tags),
        is_editable=bool(_part(origin, "dir_info").get("editable")),
        is_conda=_read(info / "INSTALLER").strip() == "conda",
        source=_source(origin),
        problem="" if _read(info / "RECORD") else _NO_RECORD,
    )


def _describe_egg(distribution: Found) -> About:
    info = distribution.info
    is_here = info.suffix == ".egg-link" or not _is_site(info.parent)
    is_editable = is_here and info.suffix != ".egg"
    metadata = message_from_string(_read(info / "PKG-INFO") or _read(info))
    return About(
        metadata.get("Name", distribution.key),
        metadata.get("Version", ""),
        is_editable=is_editable,
        problem="" if is_editable else _NO_RECORD,
    )


def _is_site(folder: Path) -> bool:
    return any(name in folder.parts for name in _SITE_NAMES)


def _part(document: Any, name: str) -> dict[str, Any]:
    part = document.get(name) if isinstance(document, dict) else None
    return part if isinstance(part, dict) else {}


def _source(origin: Any) -> str:
    if _part(origin, "vcs_info"):
        return f"a commit, {_part(origin, 'vcs_info').get('commit_id', '')[:12]}"
    if isinstance(origin, dict) and origin:
        return "a folder" if "dir_info" in origin else "a file"
    return ""


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


# --- files -----------------------------------------------------------------------------------


def content(distribution: Found, about: About) -> list[File]:
    """Return a distribution's synced files, with their paths in a job's environment.

    Raises:
        SettingsError: A file is missing, or has no path in a job's environment.
    """
    info = distribution.info
    scripts = _scripts(info)
    files: list[File] = []
    rows: list[list[str]] = []
    gone: list[str] = []
    elsewhere: list[str] = []
    for row in _rows(info):
        name = _name_in_job(info.parent, row[0])
        path = Path(os.path.normpath(info.parent / row[0]))
        if _stays(info, path, name, scripts):
            continue
        if not is_name(name) or not name.startswith((f"{SITE}/", *(f"{d}/" for d in _DATA))):
            elsewhere.append(row[0])
        elif not path.is_file():
            gone.append(row[0])
        else:
            files.append(_file(name, path))
            rows.append(row)
    if elsewhere:
        what = "outside its environment's folders"
        raise _refused(about, elsewhere, what, "build it into an image")
    if gone:
        raise _refused(about, gone, "listed in its RECORD but missing", "reinstall it")
    record = f"{info.name}/RECORD"
    return [*files, File(f"{SITE}/{record}", _record(rows, record))]


def _rows(info: Path) -> Iterator[list[str]]:
    """Yield path, hash and size of each file in a RECORD."""
    for row in csv.reader(io.StringIO(_read(info / "RECORD"))):
        if row and row[0]:
            yield [row[0].replace("\\", "/"), *row[1:_COLUMNS], "", ""][:_COLUMNS]


def _stays(info: Path, path: Path, name: str, scripts: set[str]) -> bool:
    """Return whether a file is recreated in the job, specific to this machine, or a header."""
    is_of_client = path.parent == info and path.name in _CLIENTS
    is_script = name.startswith("bin/") and _stem(name) in scripts
    is_header = name.startswith(f"{_HEADERS}/")
    return _CACHE in path.parts or is_of_client or is_script or is_header


def _name_in_job(site: Path, recorded: str) -> str:
    """Return a recorded file's path in an environment; empty if it is outside.

    The site folder is three levels below the environment's folder, and on Windows two.
    """
    name = posixpath.normpath(recorded)
    if name.startswith("/") or name[1:2] == ":":
        return ""
    *ups, rest = re.split(r"(?<=\.\./)(?=.)", name) if name.startswith("../") else [name]
    ups_allowed = 2 if site.parent.name == "Lib" else 3
    if not ups:
        return f"{SITE}/{rest}"
    is_site = site.name in _SITE_NAMES and "".join(ups) == "../" * ups_allowed
    return re.sub(r"\AScripts/", "bin/", rest) if is_site else ""


def _scripts(info: Path) -> set[str]:
    """Return the names of the scripts in entry_points.txt, which the job recreates."""
    groups = ("console_scripts", "gui_scripts")
    return {each.name for each in PathDistribution(info).entry_points if each.group in groups}


def _stem(name: str) -> str:
    base = posixpath.basename(name)
    for end in (".exe", "-script.py", "-script.pyw", ".exe.manifest"):
        base = base.removesuffix(end)
    return base


def _file(name: str, path: Path) -> File:
    """Return a synced file; a script's first line is changed to find the job's Python."""
    if name.startswith("bin/"):
        with path.open("rb") as file:
            if file.read(2) == b"#!":
                data = path.read_bytes()
                return File(name, _SHEBANG.sub(_PORTABLE, data, count=1), is_executable=True)
        return File(name, path, is_executable=True)
    return File(name, path, is_executable=os.access(path, os.X_OK))


def _record(rows: Sequence[list[str]], own: str) -> bytes:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    for row in sorted(rows):
        # Rewritten files have no hash.
        writer.writerow([row[0], "", ""] if row[0].startswith("../") else row)
    writer.writerow([own, "", ""])
    return text.getvalue().encode()


def _refused(about: About, names: Sequence[str], what: str, remedy: str) -> SettingsError:
    shown = ", ".join(repr(name) for name in names[:_SHOWN])
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return SettingsError(
        f"{about.name} {about.version} has files that are {what}: {shown}{more}; "
        f"{remedy}, or leave it out with exclude_packages=[{about.name!r}]",
        option="packages",
    )
