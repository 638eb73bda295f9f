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
import logging
import marshal
import os
import posixpath
import re
import site
import struct
import sys
import sysconfig
import threading
import warnings
import zipfile
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from pathlib import Path
from types import ModuleType
from typing import Any

from farcall.model.errors import SettingsError
from farcall.payload import editable
from farcall.payload import walk as walks
from farcall.payload.folders import is_below, is_home, top_of, why_partial
from farcall.payload.private_files import PRIVATE, holds_private_key
from farcall.payload.walk import (
    CODE,
    MOST_BYTES,
    MOST_FILES,
    OWN,
    File,
    LeftOut,
    TooManyError,
    Walk,
)
from farcall_runtime import sources as runtime
from farcall_runtime.sources import MAIN, Entry

_log = logging.getLogger("farcall")

AUTO = "auto"
"""Value of the option ``sources`` that detects the project's folders."""

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
_NAMES = "names"
"""Place of links with the names of packages whose folders have other names."""

_OWN_NAMES = {"farcall", "farcall_runtime", "torchx_plugins"}


@dataclass(frozen=True, eq=False)
class Sources:
    """The project's files at one moment, and their layout in a job.

    Attributes:
        files: The files, sorted by place.
        left_out: Files and folders that are not sent.
        archive: The packed files; see `farcall_runtime.sources.pack`.
        path: Places of the folders on the import path, in its order.
        roots: The folders and their places.
        tops: The tops of the projects that contain them, and their places.
    """

    files: tuple[File, ...]
    left_out: tuple[LeftOut, ...]
    archive: Archive
    path: tuple[str, ...]
    roots: Mapping[str, str]
    tops: Mapping[str, str]
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
        place = self.places.get(path)
        return self._place_of(os.path.abspath(path)) if place is None else place

    def _place_of(self, path: str) -> str | None:
        for link, (start, target) in self._links.items():
            if path.startswith(f"{link}{os.sep}"):
                rest = path[len(link) :]
                return f"{start}{rest}" if f"{target}{rest}" in self._sent_places else None
        return self.places.get(path) or self._place_in_zip(path)

    def _place_in_zip(self, path: str) -> str | None:
        archive, name = os.path.split(path)
        while name and archive not in self.places:
            archive, name = os.path.split(archive)
        return f"{self.places[archive]}{path[len(archive) :]}" if name else None

    @functools.cached_property
    def _sent_places(self) -> frozenset[str]:
        return frozenset(self.places.values())

    @functools.cached_property
    def _links(self) -> dict[str, tuple[str, str]]:
        """Return the places of the links that are kept, and of their targets."""
        return {
            each.path: (
                each.place,
                posixpath.normpath(f"{posixpath.dirname(each.place)}/{each.target}"),
            )
            for each in self.files
            if each.kind == runtime.LINK
        }

    def folder_of(self, path: str) -> str | None:
        """Return a folder's path in the archive; None if it is outside the project."""
        path = os.path.abspath(path)
        for folder, place in self._folders:
            if is_below(path, folder):
                return f"{place}{path[len(folder.rstrip('/')) :]}"
        return None

    def local_path(self, place: str) -> str | None:
        """Return the local path for a path in the archive; None if it is outside."""
        for path, known in self.places.items():
            if place == known or place.startswith(f"{known}/"):  # a module in a zip archive
                return f"{path}{place[len(known) :]}"
        links = [(link, start) for link, (start, _) in self._links.items()]
        for folder, start in [*links, *self._folders]:
            if place == start or place.startswith(f"{start}/"):
                return f"{folder.rstrip(os.sep)}{place[len(start) :]}"
        return None

    @functools.cached_property
    def _folders(self) -> list[tuple[str, str]]:
        """Return the folders and their places, inner ones first."""
        return sorted({**self.tops, **self.roots}.items(), key=lambda each: -len(each[0]))


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
    return any(resolved == each or resolved.startswith(each + os.sep) for each in _INSTALLED + OWN)


_resolved = functools.lru_cache(1024)(os.path.realpath)
"""Cached `os.path.realpath` for folders.

It reads every folder above a path, and a program has hundreds of modules in few folders.
"""


def home_of(module: ModuleType) -> tuple[str, str]:
    """Return the folder from which a module is imported, or its file if unknown."""
    file = str(module.__file__)
    home, lone = _home_of(
        module.__name__, file if file.startswith(os.sep) else os.path.abspath(file)
    )
    folder = _renamed_folder(module) if lone else ""
    return (folder, "") if folder else (home, lone)


def _renamed_folder(module: ModuleType) -> str:
    """Return the folder of a module's top-level package if it has another name; else empty."""
    name, _, rest = module.__name__.partition(".")
    paths = [*getattr(sys.modules.get(name), "__path__", ())]
    if len(paths) != 1 or os.path.basename(paths[0]) == name:
        return ""
    stem = os.path.splitext(os.path.abspath(str(module.__file__)))[0]
    expected = os.path.join(paths[0], *rest.split(".")).rstrip(os.sep)
    return paths[0] if stem in (expected, os.path.join(expected, "__init__")) else ""


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
    return isinstance(file, str) and file.endswith(CODE)


def modules_in(sources: Sources) -> dict[str, str]:
    """Return the local files of the modules that a job can import from the project, by name."""
    modules: dict[str, str] = {}
    for folder in sources.path:
        for file in sources.files:
            name = file.place.removeprefix(f"{folder}/")
            if name != file.place and name.endswith(".py"):
                dotted = name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
                modules.setdefault(dotted, file.path)
    return modules


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
try:
    _START_FOLDER = os.getcwd()
except OSError:  # it was deleted
    _START_FOLDER = ""


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


def _found_roots() -> tuple[list[str], list[str], list[str], dict[str, str]]:
    """Return the folders on the import path, other homes of modules, and other files.

    The last one are the names of packages whose folders have other names, and these folders.
    """
    on_path: list[str] = []
    for entry in sys.path:
        path = os.path.abspath(entry or os.curdir)
        is_new = path not in on_path and os.path.isdir(path)
        if is_new and not _is_foreign(path) and not (entry and _is_by_chance(path)):
            on_path.append(path)
    homes: list[str] = []
    files: list[str] = []
    renamed: dict[str, str] = {}
    for module in project_modules():
        home, file = home_of(module)
        if file or os.path.isfile(home):
            files.append(file or home)
        elif home == _renamed_folder(module):
            renamed[module.__name__.partition(".")[0]] = home
        elif home not in on_path and home not in homes:
            homes.append(home)
    return on_path, homes, [*files, *_main_files(on_path)], renamed


def _main_files(on_path: Iterable[str]) -> list[str]:
    """Return the script's file, or its zip archive, if no folder on the path contains it."""
    main = main_file()
    if main and os.path.isfile(os.path.dirname(main)):
        return [os.path.dirname(main)]
    is_inside = any(main.startswith(f"{each.rstrip(os.sep)}{os.sep}") for each in on_path)
    return [main] if main and not is_inside else []


def _is_by_chance(path: str) -> bool:
    """Return whether a folder is on the path because ``PYTHONPATH`` has an empty entry."""
    entries = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    named = [os.path.abspath(each) for each in entries if each]
    is_empty = len(named) < len(entries) and bool(named)
    main = main_file()
    is_main = bool(main) and os.path.dirname(main) == path
    return is_empty and path == _START_FOLDER and path not in named and not is_main


@functools.cache
def _is_foreign(path: str) -> bool:
    """Return whether a folder contains installed packages, or farcall itself."""
    homes = {os.path.dirname(each) for each in OWN}
    return is_installed(path) or os.path.realpath(path) in homes


# --- which files --------------------------------------------------------------------------------

_too_large: set[str] = set()
"""Folders that exceed the limits; walking one again would take too long."""

_warned: set[str] = set()
"""Folders, files and reasons that a warning has named."""

_first_seen: dict[str, tuple[Any, int]] = {}


def _add_root(walk: Walk, root: str, place: str, *, is_whole: bool, is_named: bool) -> None:
    """Add the files of a folder; if they are too many, or not the project's, the loaded ones."""
    why = "" if is_named or not is_whole else why_partial(root)
    if is_whole and not why and (is_named or not is_home(root)) and root not in _too_large:
        with contextlib.suppress(TooManyError):
            walk.add_folder(root, place)
            return
        _too_large.add(root)
        why = f"holds more than {MOST_FILES} files or {MOST_BYTES / 1e6:g} MB"
    names = _loaded_in(root)
    try:
        walk.add_folder(root, place, names)
    except TooManyError:
        walk.add_files(root, place, _loaded_files(root))
    if why and root not in _warned:
        _warned.add(root)
        _log.warning(
            "%s %s, so jobs get only what is imported from it (%s). Name the folders that they "
            "need in sources=[...], or leave others out with exclude_sources",
            *(root, why, ", ".join(names[:9])),
        )


def _loaded_files(root: str) -> list[str]:
    start = f"{root.rstrip(os.sep)}{os.sep}"
    files = [os.path.abspath(str(each.__file__)) for each in project_modules()]
    return [each for each in [*files, main_file()] if each.startswith(start)]


def _loaded_files_of_project() -> list[str]:
    return [os.path.abspath(str(each.__file__)) for each in project_modules()]


def _project_folders(roots: Iterable[str]) -> list[str]:
    """Return the real paths of the folders whose contents belong to the project."""
    folders = [each for root in roots for each in (root, top_of(root)) if each]
    for module in project_modules():
        folder, name = os.path.split(str(module.__file__))
        folders.append(_home_of(module.__name__, os.path.join(_resolved(folder), name))[0])
    return [
        os.path.realpath(each) for each in dict.fromkeys(folders) if each and not is_home(each)
    ]


def _loaded_in(root: str) -> list[str]:
    """Return the entries of a folder from which modules are loaded."""
    entries = {os.path.relpath(each, root).split(os.sep)[0] for each in _loaded_files(root)}
    return sorted(entries)


# --- finding them -------------------------------------------------------------------------------

_lock = threading.RLock()
_packed: dict[str, tuple[tuple[Any, ...], Sources]] = {}
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
        wanted = [] if option == AUTO else [_folder(each) for each in option]
        on_path, homes, files, renamed = _chosen_roots(wanted, is_auto=option == AUTO)
        roots, tops = _layout([*on_path, *homes, *renamed.values()], _common(wanted))
        walk = Walk(exclude, _loaded_files_of_project, lambda: _project_folders(roots))
        whole = {*on_path, *renamed.values(), *wanted}
        _add_all(walk, roots, whole, files, renamed, wanted)
        sent = tuple(sorted(walk.files.values(), key=attrgetter("place")))
        zips = [walk.files[each].place for each in dict.fromkeys(files) if _is_zip(walk, each)]
        path = tuple(zips) + tuple(
            place
            for place in [*(roots[each] for each in [*on_path, *homes]), _NAMES, editable.PLACE]
            if any(file.place.startswith(f"{place}/") for file in sent)
        )
        key = repr((option, list(exclude)))
        _warn_of_changes(walk.files)
        _warn_of_exclusion(walk)
        folders = walk.empty_folders
        stamp = sent, folders, path, tuple(roots)
        before = _packed.get(key)
        if before is None or before[0] != stamp:
            made = _pack(walk, sent, folders, path, roots, tops)
            before = _packed[key] = stamp, made
        _warn_of_private([each for each in before[1].left_out if PRIVATE in each.why])
        _remember(before[1])
        return before[1]


def _chosen_roots(
    wanted: Sequence[str], *, is_auto: bool
) -> tuple[list[str], list[str], list[str], dict[str, str]]:
    """Return the result of `_found_roots` for the option."""
    on_path, homes, files, renamed = _found_roots()
    if is_auto:
        return on_path, homes, files, renamed
    on_path = [each for each in on_path if each in wanted]
    homes = [each for each in wanted if each not in on_path]
    return on_path, homes, [], {n: f for n, f in renamed.items() if _contain(wanted, f)}


def _add_all(
    walk: Walk,
    roots: Mapping[str, str],
    whole: Collection[str],
    files: Iterable[str],
    renamed: Mapping[str, str],
    wanted: Collection[str],
) -> None:
    """Add folders, single files, links with the names of packages, and metadata."""
    for root, place in sorted(roots.items(), key=lambda each: len(each[0])):
        if not any(_is_inside(root, each) for each in roots):
            is_named = any(is_below(each, root) for each in wanted)
            _add_root(walk, root, place, is_whole=root in whole, is_named=is_named)
    for number, file in enumerate(dict.fromkeys(files)):
        walk.add_files(os.path.dirname(file), f"f{number}", [file])
    walk.follow_links()
    for name, folder in renamed.items():
        link = os.path.join("..", roots[folder])
        walk.files[folder] = File(folder, f"{_NAMES}/{name}", 0, 0, runtime.LINK, link)
    for each in editable.metadata_of(walk.files):
        walk.files[each.path] = each


def _remember(sources: Sources) -> None:
    """Keep the files' places for errors of jobs; the newest ones are last."""
    known = _by_digest.pop(sources.digest, None)
    if known is None or known.places is not sources.places:
        known = replace(sources, archive=Archive())
    _by_digest[sources.digest] = known
    if len(_by_digest) > _MOST_KNOWN:
        del _by_digest[next(iter(_by_digest))]


def _is_zip(walk: Walk, file: str) -> bool:
    """Return whether a file that is sent is a zip archive of modules, such as a zipapp."""
    return file in walk.files and not file.endswith(CODE) and zipfile.is_zipfile(file)


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


def why_module_is_missing(name: str) -> str:
    """Return why the caller's module is not in jobs; empty if it is none of the project's."""
    sources = _newest()
    if sources is None:
        return ""
    entries = [os.path.abspath(each or os.curdir) for each in sys.path]
    for folder in [*sources.roots, *(each for each in entries if not _is_foreign(each))]:
        path = os.path.join(folder, *name.split("."))
        for each in (f"{path}.py", path):
            if os.path.exists(each) and (why := why_missing(each)):
                return why
    return ""


def why_missing(path: str) -> str:
    """Return why the caller's file is not in jobs; empty if it was sent."""
    named, path = path, os.path.abspath(path)
    sources = _newest()
    if not os.path.exists(path):
        is_relative = named != path
        return f"it does not exist here either, as {path}. Correct the path" if is_relative else ""
    if is_installed(path):
        return ""
    if sources is None:
        return f"no project files were sent. Set sources, or {walks.PASS_IT}"
    if sources.place_of(path) is not None:
        return ""
    return _why_left_out(path, sources)


def _why_left_out(path: str, sources: Sources) -> str:
    for each in sources.left_out:
        if is_below(path, each.path):
            remedy = f". {each.remedy[0].upper()}{each.remedy[1:]}" if each.remedy else ""
            return f"{each.path} was not sent: {each.why}{remedy}"
    folder = next((each for each in sources.roots if is_below(path, each)), None)
    if folder is None:
        folders = ", ".join(sources.roots) or "none"
        return (
            f"{path} is outside the folders that were sent ({folders}). Name its folder in "
            f"sources=[...], too, or {walks.PASS_IT}"
        )
    rules = map(walks.why_skipped, os.path.relpath(path, folder).split(os.sep))
    if rule := next(filter(None, rules), ""):
        return f"{path} was not sent: {rule}. Rename it, or {walks.PASS_IT}"
    if os.path.isdir(path) or folder not in _warned:
        return ""
    return (
        f"{path} was not sent: {folder} is too large, so only what is imported from it was sent. "
        "Name the folders that the jobs need in sources=[...]"
    )


def _newest() -> Sources | None:
    return next(reversed(_by_digest.values()), None)


def _warn_of_exclusion(walk: Walk) -> None:
    """Warn once if the rules leave out the script, or all code."""
    main = main_file()
    loaded = [*_loaded_files_of_project(), *([main] if main else [])]
    has_code = any(each.path.endswith(CODE) for each in walk.files.values())
    for each in walk.left_out:
        if not each.rule or each.why in _warned:
            continue
        is_of_main = bool(main) and is_below(main, each.path)
        is_code = each.path.endswith(CODE) or any(is_below(f, each.path) for f in loaded)
        if is_of_main or (is_code and not has_code):
            _warned.add(each.why)
            what = "the running script" if is_of_main else "all code of the project"
            _log.warning(
                "%s is not sent to jobs (%s is %s), so they get copies of its functions, and "
                "imports inside them fail: %s",
                *(what, each.path, each.why, each.remedy),
            )
            return


def _warn_of_private(left_out: Sequence[LeftOut]) -> None:
    """Warn once about files that look like keys or credentials."""
    new = [each for each in left_out if each.path not in _warned]
    if not new:
        return
    _warned.update(each.path for each in new)
    _log.warning(
        "%s looks like a key or credentials and is not sent to jobs%s. To send it, %s",
        new[0].path,
        f", and so do {len(new) - 1} other files" if len(new) > 1 else "",
        new[0].remedy,
    )


def _folder(named: str) -> str:
    path = os.path.abspath(os.path.expanduser(named))
    if not os.path.isdir(path):
        raise SettingsError(
            f"sources: {named!r} is not a folder. Name folders of your project, or set sources "
            'to "auto"',
            option="sources",
        )
    return path


def _layout(roots: Iterable[str], common: str) -> tuple[dict[str, str], dict[str, str]]:
    """Return the places of folders, and of the projects that contain them.

    The folders of one project keep their places to each other. A folder inside another is placed
    inside it.

    Args:
        roots: The folders.
        common: Folder that contains all folders of the option; empty for none.
    """
    tops = {root: _top_of(root, common) for root in roots}
    places: dict[str, str] = {}
    for top in sorted(dict.fromkeys(tops.values()), key=len):
        above = next((each for each in places if is_below(top, each)), None)
        if above is None or is_home(above):
            number = sum("/" not in place for place in places.values())
            places[top] = str(number)
        else:
            places[top] = f"{places[above]}/{os.path.relpath(top, above)}"
    return {root: _place_in(places, top, root) for root, top in tops.items()}, places


def _contain(folders: Iterable[str], path: str) -> bool:
    return any(is_below(path, each) for each in folders)


def _is_inside(root: str, other: str) -> bool:
    return root != other and is_below(root, other) and not is_home(other)


def _top_of(root: str, common: str) -> str:
    top = top_of(root)
    if common and (top is None or is_below(top, common)):
        return common
    return top or root


def _place_in(places: Mapping[str, str], top: str, root: str) -> str:
    return places[top] if root == top else f"{places[top]}/{os.path.relpath(root, top)}"


def _common(folders: Sequence[str]) -> str:
    """Return the folder that contains all folders; empty if it holds several projects."""
    if not folders:
        return ""
    folder = os.path.commonpath(folders)
    return "" if is_home(folder) else folder


def _pack(
    walk: Walk,
    files: Sequence[File],
    folders: Iterable[str],
    path: Sequence[str],
    roots: dict[str, str],
    tops: dict[str, str],
) -> Sources:
    entries = [Entry(each, kind=runtime.FOLDER) for each in folders]
    sent: list[File] = []
    left = list(walk.left_out)
    loaded = {*_loaded_files_of_project()}
    for each in files:
        try:
            data = walks.read(each)
        except OSError as error:
            left.append(LeftOut(each.path, str(error.strerror)))
            continue
        if holds_private_key(data) and not each.path.endswith(CODE):
            root = next((root for root in roots if is_below(each.path, root)), os.sep)
            if not walk.is_taken_back(each.path, root):
                left.append(LeftOut(each.path, PRIVATE, walks.way_to_send(each.path, root)))
                continue
        entries.append(Entry(each.place, data, each.kind))
        entries += _bytecode(each, data, is_loaded=each.path in loaded)
        sent.append(each)
    archive = Archive(runtime.pack(entries))
    places = {each.path: each.place for each in sent}
    return Sources(tuple(sent), tuple(left), archive, tuple(path), roots, tops, places)


_IN_JOB = re.compile(
    rf"{runtime.MARKER}(?P<digest>[0-9a-f]{{{runtime.DIGEST_LENGTH}}})/(?P<place>[^\"'\n:,)]*)"
)


def _bytecode(file: File, data: bytes, *, is_loaded: bool) -> list[Entry]:
    """Return a module's bytecode, because a job would compile the module each time.

    Its header is replaced by one that requires no comparison with the source
    (https://docs.python.org/3/reference/import.html#cached-bytecode-invalidation).
    """
    if not file.path.endswith(".py") or file.kind == runtime.LINK:
        return []
    try:
        name = os.path.basename(importlib.util.cache_from_source(file.path))
    except NotImplementedError:  # cache_tag is None: this Python neither reads nor writes bytecode
        return []
    code = _cached(file) or (_compiled(file, data) if is_loaded else b"")
    if not code:
        return []
    header = importlib.util.MAGIC_NUMBER + struct.pack("<I8s", 1, b"")
    return [Entry(f"{posixpath.dirname(file.place)}/__pycache__/{name}", header + code)]


def _cached(file: File) -> bytes:
    """Return a module's bytecode from its ``__pycache__``; empty if it is missing or outdated.

    The path in it is replaced by the place, which an import replaces with the job's path.
    """
    try:
        data = Path(importlib.util.cache_from_source(file.path)).read_bytes()
        magic, flags, changed, size = data[:4], *struct.unpack_from("<III", data, 4)
    except (OSError, struct.error):
        return b""  # there is none, or the file is truncated
    is_current = (flags, changed, size) == (0, file.changed // 10**9 & 0xFFFFFFFF, file.size)
    own = os.fsencode(file.path)  # found more than once if a string of the module contains it
    if magic != importlib.util.MAGIC_NUMBER or not is_current or data.count(own) != 1:
        return b""
    place = os.fsencode(file.place)[-len(own) :].rjust(len(own), b"/")
    return data[16:].replace(own, place)


@functools.lru_cache(4096)
def _compiled(file: File, data: bytes) -> bytes:
    """Compile a module; return nothing if that fails."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return marshal.dumps(compile(data, file.place, "exec", dont_inherit=True))
        except (SyntaxError, ValueError):
            return b""


def localized(said: Any) -> Any:
    """Replace the job's paths in parts of an outcome with local paths."""
    if isinstance(said, str):
        if runtime.MARKER not in said:
            return said
        return _IN_JOB.sub(lambda match: local_path(match["digest"], match["place"]), said)
    if isinstance(said, dict):
        return {name: localized(value) for name, value in said.items()}
    return [*map(localized, said)] if isinstance(said, list) else said


def local_path(digest: str, place: str) -> str:
    """Return the local path of a file in an archive; its place if unknown."""
    sources = _by_digest.get(digest)
    path = sources.local_path(place) if sources is not None else None
    return place.partition("/")[2] if path is None else path
