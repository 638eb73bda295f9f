"""Walk over the folders of a project: which files are sent, and why others are not.

Symbolic links are kept if their targets are sent. Links to other places of the project are
followed: a job gets a copy of the target.
"""

from __future__ import annotations

import functools
import itertools
import os
import posixpath
import stat
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import farcall
import farcall_runtime
from farcall.payload.folders import is_below
from farcall.payload.ignore import Ignore, Rules, ignored_by
from farcall.payload.private_files import PRIVATE, is_private
from farcall_runtime.sources import FILE, LINK, PROGRAM

MOST_FILES = 2000
MOST_BYTES = 20 * 1000**2
"""Limits for one folder; above them, only its loaded packages are sent."""

LARGEST_DATA_BYTES = 1000**2
"""Maximum size of a file that is not code."""

CODE = (".py", ".so", ".pyd")
OWN = tuple(
    os.path.dirname(os.path.realpath(str(module.__file__)))
    for module in (farcall, farcall_runtime)
)

_MOST_SEEN = 20_000
"""Maximum number of a folder's entries that are examined."""

_SKIPPED = {"__pycache__", "node_modules", "site-packages", "dist-packages"}
_COMPILED = (".pyc", ".pyo")
_ENVIRONMENT = "pyvenv.cfg"
PASS_IT = "pass its content as an argument"  # noqa: S105  # no password


class File(NamedTuple):
    """A file or link that is sent.

    Attributes:
        path: Local path.
        place: Path in the archive, with slashes.
        size: Size in bytes.
        changed: Modification time in nanoseconds.
        kind: Kind of the entry in the archive.
        target: Of a link that is kept, the relative target; of one that is followed, the file.
    """

    path: str
    place: str
    size: int
    changed: int
    kind: str = FILE
    target: str = ""


class LeftOut(NamedTuple):
    """A file or folder of the project that is not sent.

    Attributes:
        path: Local path.
        why: The reason.
        remedy: How to send it, or its content.
        rule: Ignore file or option that excludes it; empty for other reasons.
    """

    path: str
    why: str
    remedy: str = ""
    rule: str = ""


class TooManyError(Exception):
    """A folder exceeds the limits of one folder."""


def why_skipped(name: str) -> str:
    """Return why a file or folder of this name is not sent; empty if it may be."""
    if name.startswith("."):
        return "names that start with a dot are not sent"
    if name in _SKIPPED or name.endswith(_COMPILED):
        return "compiled files and installed packages are not sent"
    return ""


def way_to_send(path: str, root: str) -> str:
    """Return how to send a private file."""
    return f'add "!{os.path.relpath(path, root)}" to exclude_sources'


class Walk:
    """A walk over the folders of a project.

    Args:
        exclude: The option ``exclude_sources``.
        loaded: Returns the files of the project's loaded modules.
        project: Returns the real paths of folders whose contents belong to the project.
    """

    def __init__(
        self,
        exclude: Sequence[str],
        loaded: Callable[[], Iterable[str]] = tuple,
        project: Callable[[], Iterable[str]] = tuple,
    ) -> None:
        self.files: dict[str, File] = {}
        self.left_out: list[LeftOut] = []
        self._exclude = Ignore.of_option(exclude) if exclude else None
        self._loaded = functools.cache(loaded)  # each link needs them
        self._project = functools.cache(project)
        self._folders: dict[str, None] = {}
        self._places: set[str] = set()
        self._links: list[tuple[str, str, list[Rules]]] = []
        self._walked: dict[str, str] = {}
        """Places of the folders that were walked, by their real paths."""

    def is_taken_back(self, path: str, root: str) -> bool:
        """Return whether ``exclude_sources`` includes a path that is not sent otherwise."""
        return self._exclude is not None and self._exclude.takes_back(os.path.relpath(path, root))

    @property
    def empty_folders(self) -> list[str]:
        """Places of the folders from which nothing is sent."""
        places = [*self._folders, *(each.place for each in self.files.values())]
        full = {each.rpartition("/")[0] for each in places}
        return [each for each in self._folders if each not in full and "/" in each]

    def add_folder(self, root: str, place: str, only: Sequence[str] | None = None) -> None:
        """Add the files of a folder.

        Args:
            root: The folder.
            place: Its path in the archive.
            only: Names of the entries to add; None for all.

        Raises:
            TooManyError: The folder exceeds the limits; nothing was added.
        """
        part = _Part(root, place, self._rules(root))
        part.walk(only)
        self._take(part)

    def add_files(self, root: str, place: str, paths: Iterable[str]) -> None:
        """Add some files of a folder, unless they are excluded."""
        part = _Part(root, place, self._rules(root))
        for path in paths:
            if path not in self.files:
                part.add_file(path)
        self._take(part)

    def follow_links(self) -> None:
        """Add the links: kept if their targets are sent, otherwise followed where possible."""
        while self._links:
            links, self._links = sorted(self._links, key=lambda each: each[1]), []
            for path, place, rules in links:
                self._add_link(path, place, rules)

    def _add_link(self, path: str, place: str, rules: list[Rules]) -> None:
        target = os.path.realpath(path)
        part = _Part(path, place, rules)
        known = self._place_of(target)
        if known is not None:
            aim = posixpath.relpath(known, posixpath.dirname(place))
            part.files[path] = File(path, place, 0, 0, LINK, aim)
        elif not os.path.exists(target):
            part.leave_out(path, f"a link to {target}, which does not exist")
        elif not self._belongs(path, target):
            remedy = f"name {os.path.dirname(target)} in sources=[...], too"
            part.leave_out(path, f"a link to {target}, a place outside the project", remedy)
        elif why := self._why_skipped(target):
            part.leave_out(path, f"a link to {target}: {why}", PASS_IT)
        elif not part.is_excluded(target, is_folder=os.path.isdir(target), name=path):
            self._follow(part, target)
        self._take(part)

    def _why_skipped(self, target: str) -> str:
        """Return why a link's target would not be sent under its own path; empty if it would."""
        folders = [each for each in self._project() if is_below(target, each)]
        base = max(folders, key=len, default=os.path.dirname(target))
        for name in os.path.relpath(target, base).split(os.sep):
            why = why_skipped(name) or (PRIVATE if is_private(name) else "")
            if why and name != os.curdir:
                return why
        return ""

    def _follow(self, part: _Part, target: str) -> None:
        if not os.path.isdir(target):
            part.add_file(part.root)
            return
        self._walked[target] = part.place  # ends cycles: links into it are kept
        try:
            part.walk(None)
        except TooManyError:
            del self._walked[target]
            part.clear()
            limits = f"{MOST_FILES} files or {MOST_BYTES / 1e6:g} MB"
            remedy = f"name the folders that the jobs need in sources=[...], or {PASS_IT}"
            part.leave_out(part.root, f"a link to a folder of more than {limits}", remedy)

    def _place_of(self, target: str) -> str | None:
        """Return the place of a real path that is sent; None for others."""
        for real in sorted(self._walked, key=len, reverse=True):
            if is_below(target, real):
                place = f"{self._walked[real]}{target[len(real.rstrip(os.sep)) :]}"
                if place in self._folders or place in self._places:
                    return place
        return None

    def _belongs(self, path: str, target: str) -> bool:
        """Return whether a link's target belongs to the project, or a module was loaded by it."""
        return any(is_below(target, each) for each in self._project()) or any(
            is_below(each, path) for each in self._loaded()
        )

    def _take(self, part: _Part) -> None:
        self.files.update(part.files)
        self._places.update(each.place for each in part.files.values())
        self.left_out += part.left_out
        self._folders.update(dict.fromkeys(part.folders))
        self._links += [(path, part.place_of(path), part.rules) for path in part.links]
        if part.folders:
            self._walked.setdefault(os.path.realpath(part.root), part.place)

    def _rules(self, root: str) -> list[Rules]:
        rules = [ignored_by(root)]
        if self._exclude is not None:
            rules.append(Rules(self._exclude, root))
        return [each for each in rules if each is not None]


class _Part:
    """The contents of one folder, or one file."""

    def __init__(self, root: str, place: str, rules: list[Rules]) -> None:
        self.root = root
        self.place = place
        self.rules = rules
        self.left_out: list[LeftOut] = []
        self.clear()

    def clear(self) -> None:
        """Forget the contents."""
        self.files: dict[str, File] = {}
        self.folders: list[str] = []
        self.links: list[str] = []
        self._size = 0

    def place_of(self, path: str) -> str:
        """Return the path in the archive."""
        return f"{self.place}{path[len(self.root.rstrip(os.sep)) :]}"

    def leave_out(self, path: str, why: str, remedy: str = "", rule: str = "") -> None:
        """Record a path that is not sent."""
        self.left_out.append(LeftOut(path, why, remedy, rule))

    def is_excluded(self, path: str, *, is_folder: bool, name: str = "") -> bool:
        """Return whether rules exclude a path, and record it; under another name for a link."""
        for each in self.rules:
            rule = each.excluding(path, is_folder=is_folder)
            if rule is not None:
                remedy = rule.remedy(os.path.relpath(path, each.folder))
                self.leave_out(name or path, f"excluded by {rule}", remedy, rule.where)
                return True
        return False

    def _is_taken_back(self, path: str) -> bool:
        """Return whether rules include a path that is not sent otherwise."""
        names = ((each.ignore, os.path.relpath(path, each.folder)) for each in self.rules)
        return any(ignore.takes_back(name) for ignore, name in names)

    def walk(self, only: Sequence[str] | None) -> None:
        """Add the folder's contents.

        Raises:
            TooManyError: The folder exceeds the limits.
        """
        seen = 0
        folders = [self.root]
        while folders:
            folder = folders.pop()
            entries = self._entries(folder)
            if entries is None:
                continue
            seen += len(entries)
            if seen >= _MOST_SEEN:
                raise TooManyError
            self.folders.append(self.place_of(folder))
            for entry in entries:
                if folder == self.root and only is not None and entry.name not in only:
                    continue
                if self._is_folder_to_walk(entry):
                    folders.append(entry.path)
                if len(self.files) > MOST_FILES or self._size > MOST_BYTES:
                    raise TooManyError

    def _entries(self, folder: str) -> list[os.DirEntry[str]] | None:
        """Return the entries of a folder; None for a virtual environment."""
        try:
            with os.scandir(folder) as scanned:
                entries = list(itertools.islice(scanned, _MOST_SEEN))
        except OSError as error:
            self.leave_out(folder, str(error.strerror))
            return None
        return None if _ENVIRONMENT in [each.name for each in entries] else entries

    def _is_folder_to_walk(self, entry: os.DirEntry[str]) -> bool:
        """Add a file or link; return whether the entry is a folder that may be sent."""
        if why_skipped(entry.name):
            return False  # too common to report
        is_folder = entry.is_dir(follow_symlinks=False)
        if not entry.name.isprintable():
            self.leave_out(entry.path, "its name is not printable", "rename it")
        elif is_folder and entry.path in OWN:
            self.leave_out(entry.path, "farcall itself")
        elif is_private(entry.name) and not self._is_taken_back(entry.path):
            self.leave_out(entry.path, PRIVATE, way_to_send(entry.path, self.root))
        elif not self.rules or not self.is_excluded(entry.path, is_folder=is_folder):
            if is_folder:
                return True
            if entry.is_symlink():
                self.links.append(entry.path)
            else:
                self._add_stat(entry.path, entry.stat)
        return False

    def add_file(self, path: str) -> None:
        """Add a file, or the file that a link refers to, unless it is excluded."""
        if not self.is_excluded(path, is_folder=False):
            self._add_stat(path, lambda: os.stat(path), os.path.realpath(path))

    def _add_stat(self, path: str, read: Callable[[], os.stat_result], target: str = "") -> None:
        try:
            about = read()
        except OSError as error:
            self.leave_out(path, str(error.strerror))
            return
        size = about.st_size
        if not stat.S_ISREG(about.st_mode):
            self.leave_out(path, "not a regular file")
        elif size > LARGEST_DATA_BYTES and not path.endswith(CODE):
            remedy = f"{PASS_IT}, or put it into S3 or the image"
            self.leave_out(path, f"{size / 1e6:,.1f} MB; data files up to 1 MB are sent", remedy)
        else:
            kind = PROGRAM if about.st_mode & stat.S_IXUSR else FILE
            place = self.place_of(path)
            self.files[path] = File(path, place, size, about.st_mtime_ns, kind, target)
            self._size += size


def read(file: File) -> bytes:
    """Return the content of a file, or the target of a link that is kept.

    Raises:
        OSError: The file cannot be read, or is no regular file any more.
    """
    if file.kind == LINK:
        return os.fsencode(file.target)
    # A file may have become a pipe, which would block, or a link to a place outside the project.
    opened = os.open(file.target or file.path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
    with os.fdopen(opened, "rb") as content:
        if not stat.S_ISREG(os.fstat(opened).st_mode):
            raise OSError(0, "not a regular file any more")
        return content.read()
