"""Project files: the caller's modules and data, sent to jobs as one archive.

Installed modules are imported in the job from its image or from synced packages. Everything else
that the caller can import is the project: the folders on ``sys.path`` without installed packages,
and the homes of other loaded modules. `farcall.payload.project` decides how functions and classes
are then pickled.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.util
import itertools
import logging
import os
import re
import site
import struct
import sys
import sysconfig
import tempfile
import threading
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import farcall
import farcall_runtime
from farcall.model.errors import SettingsError
from farcall.payload.ignore import NAME as IGNORE_FILE
from farcall.payload.ignore import Ignore
from farcall_runtime import sources as runtime
from farcall_runtime.sources import MAIN

_log = logging.getLogger("farcall")

AUTO = "auto"
"""Value of the option ``sources`` that detects the project's folders."""

MOST_FILES = 2000
MOST_BYTES = 20 * 1000**2
"""Limits for one folder; above them, only its loaded packages are sent."""

LARGEST_DATA_BYTES = 1000**2
"""Maximum size of a file that is not code."""

_MOST_SEEN = 20_000
"""Maximum number of a folder's entries that are examined."""

_CODE = (".py", ".so", ".pyd")
_SKIPPED = {"__pycache__", "node_modules", "site-packages", "dist-packages"}
_TOPS = (".git", "pyproject.toml")

_INSTALLED = tuple(
    {
        os.path.realpath(path)
        for path in (
            *map(
                sysconfig.get_path, ("stdlib", "platstdlib", "purelib", "platlib", "scripts")
            ),  # a command's folder is on its import path
            sysconfig.get_path("scripts", f"{os.name}_user"),
            *site.getsitepackages(),
            site.getusersitepackages(),
        )
        if path
    }
)
_OWN = tuple(
    os.path.dirname(os.path.realpath(str(module.__file__)))
    for module in (farcall, farcall_runtime)
)
_OWN_NAMES = {"farcall", "farcall_runtime", "torchx_plugins"}


class File(NamedTuple):
    """A file that is sent.

    Attributes:
        path: Local path.
        place: Path in the archive, with slashes.
        size: Size in bytes.
        changed: Modification time in nanoseconds.
    """

    path: str
    place: str
    size: int
    changed: int


class LeftOut(NamedTuple):
    """A file or folder of the project that is not sent.

    Attributes:
        path: Local path.
        why: The reason.
    """

    path: str
    why: str


@dataclass(frozen=True, eq=False)
class Sources:
    """The project's files at one moment, and their layout in a job.

    Attributes:
        files: The files, sorted by place.
        left_out: Files and folders that are not sent.
        archive: The packed files; see `farcall_runtime.sources.pack`.
        path: Places of the folders on the import path, in its order.
        roots: The folders and their places.
    """

    files: tuple[File, ...]
    left_out: tuple[LeftOut, ...]
    archive: Archive
    path: tuple[str, ...]
    roots: Mapping[str, str]
    places: Mapping[str, str] = field(repr=False)

    @property
    def size(self) -> int:
        """Total size of the files in bytes."""
        return sum(each.size for each in self.files)

    @functools.cached_property
    def digest(self) -> str:
        """Digest of the archive, as it appears in a job's paths."""
        return self.archive.sha256.hex()[: runtime.DIGEST_LENGTH]

    def place_of(self, path: str) -> str | None:
        """Return a file's path in the archive; None if the file is not sent."""
        found = self.places.get(path)
        if found is None:
            path = os.path.abspath(path)
            found = self.places.get(path)
        if found is None:  # the file may be in a zip archive
            archive, name = os.path.split(path)
            while name and archive not in self.places:
                archive, name = os.path.split(archive)
            if name:
                return f"{self.places[archive]}{path[len(archive) :]}"
        return found

    def folder_of(self, path: str) -> str | None:
        """Return a folder's path in the archive; None if it is outside the project."""
        path = os.path.abspath(path)
        for root in sorted(self.roots, key=len, reverse=True):
            if path == root or path.startswith(f"{root.rstrip('/')}/"):
                return f"{self.roots[root]}{path[len(root.rstrip('/')) :]}"
        return None


class Archive(bytes):
    """The packed files, which are shared from a smaller size on than other values."""

    @functools.cached_property
    def sha256(self) -> bytes:
        """Digest of the bytes."""
        return hashlib.sha256(self).digest()

    LEAST_BYTES = 40 * 1024
    """Size in bytes from which an archive is a separate object.

    A smaller one is at the end of the bundle, which the container's first request reads.
    """


# --- which folders ------------------------------------------------------------------------------


@functools.lru_cache(1024)
def is_installed(path: str) -> bool:
    """Return whether a path belongs to Python, an installed package, or farcall."""
    folder, name = os.path.split(path)
    resolved = os.path.join(_resolved(folder), name)
    if os.path.islink(resolved):
        resolved = os.path.realpath(resolved)
    parts = resolved.split(os.sep)
    if "site-packages" in parts or "dist-packages" in parts:
        return True
    return any(
        resolved == each or resolved.startswith(each + os.sep) for each in _INSTALLED + _OWN
    )


_resolved = functools.lru_cache(1024)(os.path.realpath)
"""Cached `os.path.realpath` for folders.

It reads every folder above a path, and a program has hundreds of modules in few folders.
"""


def home_of(module: ModuleType) -> tuple[str, str]:
    """Return the folder from which a module is imported, or its file if unknown."""
    file = str(module.__file__)
    return _home_of(module.__name__, file if file.startswith(os.sep) else os.path.abspath(file))


@functools.lru_cache(4096)
def _home_of(name: str, file: str) -> tuple[str, str]:
    parts = name.split(".")
    stem = os.path.splitext(file)[0].split(os.sep)
    if stem[-1] == "__init__":
        stem.pop()
    if stem[-len(parts) :] == parts and len(stem) > len(parts):
        return os.sep.join(stem[: -len(parts)]) or os.sep, ""
    return "", file


def _has_source(module: object) -> bool:
    if not isinstance(module, ModuleType):
        return False
    file = getattr(module, "__file__", None)
    return isinstance(file, str) and file.endswith(_CODE)


def project_modules() -> list[ModuleType]:
    """Return the project's loaded modules except the script, in import order."""
    global _modules_seen
    loaded = sys.modules.copy()
    newest = len(loaded), next(reversed(loaded)), id(next(reversed(loaded.values())))
    if newest != _modules_seen[0]:
        names = [n for n, m in loaded.items() if _is_of_project(n, m)]
        _modules_seen = newest, names
    return [loaded[name] for name in _modules_seen[1] if name in loaded]


_modules_seen: tuple[Any, list[str]] = (None, [])
_known: dict[str, bool] = {}


def _is_of_project(name: str, module: Any) -> bool:
    if name == MAIN or name.partition(".")[0] in _OWN_NAMES or not _has_source(module):
        return False
    if getattr(module, "__name__", None) != name:
        return False
    file = str(module.__file__)
    if file not in _known:
        _known[file] = not is_installed(file)
    return _known[file]


def main_file() -> str:
    """Return the running script's file; empty if it has none, or is installed.

    A script may have any name, and may be in a zip archive.
    """
    main = sys.modules.get(MAIN)
    file = getattr(main, "__file__", None)
    if not isinstance(file, str) or file.endswith(".pyc"):
        return ""
    file = os.path.abspath(file)
    is_file = os.path.isfile(file) or os.path.isfile(os.path.dirname(file))
    return file if is_file and not is_installed(file) else ""


def _found_roots() -> tuple[list[str], list[str], list[str]]:
    """Return the folders on the import path, other homes of modules, and other files."""
    on_path: list[str] = []
    for entry in sys.path:
        path = os.path.abspath(entry or os.curdir)
        if path not in on_path and os.path.isdir(path) and not _is_foreign(path):
            on_path.append(path)
    homes: list[str] = []
    files: list[str] = []
    for module in project_modules():
        home, file = home_of(module)
        if file or os.path.isfile(home):
            files.append(file or home)
        elif home not in on_path and home not in homes:
            homes.append(home)
    main = main_file()
    if main and os.path.isfile(os.path.dirname(main)):
        files.append(os.path.dirname(main))
    elif main and not any(main.startswith(f"{each.rstrip(os.sep)}{os.sep}") for each in on_path):
        files.append(main)
    return on_path, homes, files


@functools.cache
def _is_foreign(path: str) -> bool:
    """Return whether a folder contains installed packages, or farcall itself."""
    homes = {os.path.dirname(each) for each in _OWN}
    return is_installed(path) or os.path.realpath(path) in homes


# --- which files --------------------------------------------------------------------------------


class _TooManyError(Exception):
    """A folder exceeds the limits of one folder."""


class _Rules(NamedTuple):
    """Patterns of excluded paths, and the folder that they apply to."""

    ignore: Ignore
    folder: str

    def leaves_out(self, path: str) -> bool:
        return self.ignore.leaves_out(os.path.relpath(path, self.folder))

    def leaves_out_all_of(self, path: str) -> bool:
        name = os.path.relpath(path, self.folder)
        return self.ignore.leaves_out(name) and self.ignore.leaves_out_all_of(name)


@functools.lru_cache(64)
def _ignore(lines: tuple[str, ...], where: str) -> Ignore:
    return Ignore(lines, where)


def _ignored_by(root: str) -> _Rules | None:
    """Return the ignore file of a folder, or of a folder above it in its project."""
    folder = root
    while True:
        file = Path(folder, IGNORE_FILE)
        if file.is_file():
            text = file.read_text(encoding="utf-8-sig", errors="surrogateescape")
            return _Rules(_ignore(tuple(text.splitlines()), str(file)), folder)
        parent = os.path.dirname(folder)
        is_top = any(os.path.exists(os.path.join(folder, each)) for each in _TOPS)
        if is_top or parent == folder:
            return None
        folder = parent


class _Walk:
    """A walk over the folders of a project."""

    def __init__(self, exclude: Sequence[str]) -> None:
        self.files: dict[str, File] = {}
        self.left_out: list[LeftOut] = []
        self._exclude = _ignore(tuple(exclude), "exclude_sources") if exclude else None

    def add_folder(self, root: str, place: str, only: Sequence[str] | None = None) -> None:
        """Add the files of a folder.

        Args:
            root: The folder.
            place: Its path in the archive.
            only: Names of the entries to add; None for all.

        Raises:
            _TooManyError: The folder exceeds the limits; nothing was added.
        """
        rules = self._rules(root)
        files: dict[str, File] = {}
        left_out: list[LeftOut] = []
        size = seen = 0
        folders = [root]
        while folders:
            folder = folders.pop()
            entries = _entries(folder, left_out)
            seen += len(entries)
            if seen >= _MOST_SEEN:
                raise _TooManyError
            for entry in entries:
                if folder == root and only is not None and entry.name not in only:
                    continue
                stat = _judge(entry, root, rules, left_out)
                if stat is None:
                    continue
                if entry.is_dir():
                    folders.append(entry.path)
                    continue
                size += stat.st_size
                name = f"{place}{entry.path[len(root.rstrip(os.sep)) :]}"
                files[entry.path] = File(entry.path, name, stat.st_size, stat.st_mtime_ns)
                if len(files) > MOST_FILES or size > MOST_BYTES:
                    raise _TooManyError
        self.files.update(files)
        self.left_out += left_out

    def add_files(self, root: str, place: str, paths: Iterable[str]) -> None:
        """Add some files of a folder, unless they are excluded."""
        rules = self._rules(root)
        for path in paths:
            if path not in self.files and not any(each.leaves_out(path) for each in rules):
                with contextlib.suppress(OSError):
                    stat = os.stat(path)
                    name = f"{place}{path[len(root.rstrip(os.sep)) :]}"
                    self.files[path] = File(path, name, stat.st_size, stat.st_mtime_ns)

    def _rules(self, root: str) -> list[_Rules]:
        found = [_ignored_by(root)]
        if self._exclude is not None:
            found.append(_Rules(self._exclude, root))
        return [each for each in found if each is not None]


def _entries(folder: str, left_out: list[LeftOut]) -> list[os.DirEntry[str]]:
    """Return the entries of a folder; none for a virtual environment."""
    try:
        with os.scandir(folder) as found:
            entries = list(itertools.islice(found, _MOST_SEEN))
    except OSError as error:
        left_out.append(LeftOut(folder, str(error.strerror)))
        return []
    return [] if "pyvenv.cfg" in [each.name for each in entries] else entries


def _judge(
    entry: os.DirEntry[str], root: str, rules: Sequence[_Rules], left_out: list[LeftOut]
) -> os.stat_result | None:
    """Return the stat result of a file to send or a folder to walk; None for others."""
    name = entry.name
    if name.startswith(".") or name in _SKIPPED or name.endswith((".pyc", ".pyo")):
        return None  # too common to report
    try:
        stat = entry.stat()
    except OSError as error:
        left_out.append(LeftOut(entry.path, str(error.strerror)))
        return None
    why = _why_not(entry, root, stat.st_size)
    leaves_out = _Rules.leaves_out_all_of if entry.is_dir() else _Rules.leaves_out
    if not why and rules and any(leaves_out(each, entry.path) for each in rules):
        why = "excluded"
    if why:
        left_out.append(LeftOut(entry.path, why))
    return None if why else stat


def _why_not(entry: os.DirEntry[str], root: str, size: int) -> str:
    """Return why a file or folder cannot be sent, whatever the rules; empty if it can."""
    if entry.is_symlink():
        if entry.is_dir():
            return "a link to a folder"
        if not os.path.realpath(entry.path).startswith(os.path.realpath(root) + os.sep):
            return "a link to a place outside the project"
    if entry.is_dir():
        return "farcall itself" if entry.path in _OWN else ""
    if not entry.is_file():
        return "not a regular file"
    if not entry.name.isprintable():
        return "its name is not printable"
    if size > LARGEST_DATA_BYTES and not entry.name.endswith(_CODE):
        return f"{size / 1e6:,.1f} MB; data files up to 1 MB are sent"
    return ""


def _is_home(path: str) -> bool:
    """Return whether a folder typically contains several projects."""
    others = (os.sep, os.path.expanduser("~"), tempfile.gettempdir())
    return os.path.realpath(path) in {os.path.realpath(each) for each in others}


_warned: set[str] = set()
"""Folders that exceed the limits; walking one again would take too long."""

_first_seen: dict[str, tuple[Any, int]] = {}


def _add_root(walk: _Walk, root: str, place: str, *, is_whole: bool) -> None:
    """Add the files of a folder; if they are too many, only the loaded ones."""
    if is_whole and not _is_home(root) and root not in _warned:
        with contextlib.suppress(_TooManyError):
            walk.add_folder(root, place)
            return
    names = _loaded_in(root)
    try:
        walk.add_folder(root, place, names)
    except _TooManyError:
        walk.add_files(root, place, _loaded_files(root))
    if is_whole and not _is_home(root) and root not in _warned:
        _warned.add(root)
        _log.warning(
            "%s holds more than %d files or %d MB, so jobs get only what is imported from it "
            "(%s). Name the folders that they need in sources=[...], or leave others out with "
            "exclude_sources",
            *(root, MOST_FILES, MOST_BYTES / 1e6, ", ".join(names[:9])),
        )


def _loaded_files(root: str) -> list[str]:
    start = f"{root.rstrip(os.sep)}{os.sep}"
    files = [os.path.abspath(str(each.__file__)) for each in project_modules()]
    return [each for each in [*files, main_file()] if each.startswith(start)]


def _loaded_in(root: str) -> list[str]:
    """Return the entries of a folder from which modules are loaded."""
    found = {os.path.relpath(each, root).split(os.sep)[0] for each in _loaded_files(root)}
    return sorted(found)


# --- finding them -------------------------------------------------------------------------------

_lock = threading.RLock()
_found: dict[str, tuple[tuple[Any, ...], Sources]] = {}
_by_digest: dict[str, Sources] = {}
"""Sent sources by digest, without the archives."""

_MOST_KNOWN = 64


def find(option: str | Sequence[str] | None, exclude: Sequence[str] = ()) -> Sources | None:
    """Return the project's current files; repack them only if something changed.

    Args:
        option: The option ``sources``: ``"auto"``, folders, or None.
        exclude: The option ``exclude_sources``.

    Returns:
        None if the option is None.

    Raises:
        SettingsError: A folder of the option does not exist.
    """
    if option is None:
        return None
    with _lock:
        on_path, homes, files = _found_roots()
        wanted = None if option == AUTO else [_folder(each) for each in option]
        if wanted is not None:
            on_path = [each for each in on_path if each in wanted]
            homes, files = [each for each in wanted if each not in on_path], []
        roots = _layout([*on_path, *homes])
        walk = _Walk(exclude)
        for root, place in roots.items():
            if "/" not in place:
                _add_root(walk, root, place, is_whole=root in on_path or wanted is not None)
        for number, file in enumerate(dict.fromkeys(files)):
            walk.add_files(os.path.dirname(file), f"f{number}", [file])
        sent = tuple(sorted(walk.files.values(), key=attrgetter("place")))
        zips = [walk.files[each].place for each in dict.fromkeys(files) if _is_zip(walk, each)]
        path = tuple(zips) + tuple(
            roots[each]
            for each in [*on_path, *homes]
            if any(file.place.startswith(f"{roots[each]}/") for file in sent)
        )
        key = repr((option, list(exclude)))
        _warn_of_changes(walk.files)
        stamp = sent, path, tuple(roots)
        before = _found.get(key)
        if before is None or before[0] != stamp:
            made = _pack(sent, walk.left_out, path, roots)
            before = _found[key] = stamp, made
            _by_digest[made.digest] = replace(made, archive=Archive())
            if len(_by_digest) > _MOST_KNOWN:
                del _by_digest[next(iter(_by_digest))]
        return before[1]


def _is_zip(walk: _Walk, file: str) -> bool:
    """Return whether a file that is sent is a zip archive of modules, such as a zipapp."""
    return file in walk.files and not file.endswith(_CODE) and zipfile.is_zipfile(file)


def _warn_of_changes(files: Mapping[str, File]) -> None:
    """Warn about modules that were edited since their import: a job runs the new file."""
    for module in project_modules():
        file = files.get(str(module.__file__))
        if file is None:
            continue
        spec, changed = _first_seen.setdefault(file.path, (module.__spec__, file.changed))
        if changed == file.changed:
            continue
        _first_seen[file.path] = module.__spec__, file.changed
        if spec is module.__spec__:  # otherwise it was imported again
            _log.warning(
                "%s has changed since it was imported: jobs run the new version, but this process "
                "runs the old one. Restart the process, or use importlib.reload",
                file.path,
            )


def why_left_out(module: str) -> str:
    """Return which path of a top-level module was not sent, and why; empty for none."""
    for found in _by_digest.values():
        for each in found.left_out:
            if os.path.splitext(os.path.basename(each.path))[0] == module:
                return f"{each.path} was not sent ({each.why})"
    return ""


def _folder(named: str) -> str:
    path = os.path.abspath(os.path.expanduser(named))
    if not os.path.isdir(path):
        raise SettingsError(
            f"sources: {named!r} is not a folder. Name folders of your project, or set sources "
            'to "auto"',
            option="sources",
        )
    return path


def _layout(roots: Iterable[str]) -> dict[str, str]:
    """Return the place of each folder; a folder inside another is placed inside it."""
    places: dict[str, str] = {}
    number = 0
    for root in sorted(dict.fromkeys(roots), key=len):
        above = next(
            (each for each in places if root.startswith(f"{each.rstrip(os.sep)}{os.sep}")), None
        )
        if above is None or _is_home(above):
            places[root] = str(number)
            number += 1
        else:
            places[root] = f"{places[above]}/{os.path.relpath(root, above)}"
    return places


def _pack(
    files: Sequence[File], left_out: Sequence[LeftOut], path: Sequence[str], roots: dict[str, str]
) -> Sources:
    read: list[tuple[str, bytes]] = []
    sent: list[File] = []
    left = list(left_out)
    for each in files:
        try:
            read.append((each.place, Path(each.path).read_bytes()))
            read += _compiled(each)
            sent.append(each)
        except OSError as error:
            left.append(LeftOut(each.path, str(error.strerror)))
    archive = Archive(runtime.pack(read))
    places = {each.path: each.place for each in sent}
    return Sources(tuple(sent), tuple(left), archive, tuple(path), roots, places)


_IN_JOB = re.compile(
    rf"{runtime.MARKER}(?P<digest>[0-9a-f]{{{runtime.DIGEST_LENGTH}}})/(?P<place>[^\"'\n:,)]*)"
)


def _compiled(file: File) -> list[tuple[str, bytes]]:
    """Return the local bytecode of a module, because a job would compile it each time.

    Its header is replaced by one that requires no comparison with the source
    (https://docs.python.org/3/reference/import.html#cached-bytecode-invalidation), and the path in
    it by the place, which an import replaces with the job's path.
    """
    if not file.path.endswith(".py"):
        return []
    try:
        path = importlib.util.cache_from_source(file.path)
        data = Path(path).read_bytes()
        magic, flags, changed, size = data[:4], *struct.unpack_from("<III", data, 4)
    except (OSError, NotImplementedError, struct.error):
        return []  # there is none, Python caches none, or the file is truncated
    is_current = (flags, changed, size) == (0, file.changed // 10**9 & 0xFFFFFFFF, file.size)
    own = file.path.encode()  # found more than once if the module has its path in a string, too
    if magic != importlib.util.MAGIC_NUMBER or not is_current or data.count(own) != 1:
        return []
    folder, _, _ = file.place.rpartition("/")
    place = file.place.encode()[-len(own) :].rjust(len(own), b"/")
    compiled = magic + struct.pack("<I8s", 1, b"") + data[16:].replace(own, place)
    return [(f"{folder}/__pycache__/{os.path.basename(path)}", compiled)]


def localized(said: Any) -> Any:
    """Replace the job's paths in parts of an outcome with local paths."""
    if isinstance(said, str):
        if runtime.MARKER not in said:
            return said
        return _IN_JOB.sub(lambda found: local_path(found["digest"], found["place"]), said)
    if isinstance(said, dict):
        return {name: localized(value) for name, value in said.items()}
    return [*map(localized, said)] if isinstance(said, list) else said


def local_path(digest: str, place: str) -> str:
    """Return the local path of a file in an archive; its place if unknown."""
    sources = _by_digest.get(digest)
    if sources is not None:
        for root, start in sources.roots.items():
            if place.startswith(f"{start}/"):
                return os.path.join(root, place[len(start) + 1 :])
        for path, known in sources.places.items():
            if place == known or place.startswith(f"{known}/"):
                return f"{path}{place[len(known) :]}"
    return place.partition("/")[2]
