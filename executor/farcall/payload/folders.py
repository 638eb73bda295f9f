"""Folders of a project, and folders that hold more than one project."""

from __future__ import annotations

import functools
import os
import tempfile
from pathlib import Path

from farcall import filesystem

_TOPS = (".git", "pyproject.toml")
"""Names that mark the top of a project."""


def _own_home() -> str:
    return os.path.expanduser("~")  # noqa: PTH111  # Path's method fails if it is unknown


def is_home(path: str) -> bool:
    """Return whether a folder typically contains several projects."""
    others = (os.sep, _own_home(), tempfile.gettempdir())
    return os.path.realpath(path) in {os.path.realpath(each) for each in others}


def why_partial(folder: str) -> str:
    """Return why only a folder's loaded modules are its project; empty if all of it is."""
    real = os.path.realpath(folder)
    if real in _SYSTEM or any(is_below(real, each) for each in _SYSTEM_TREES):
        return "is a system folder"
    if real in _homes_of_users():
        return "is a user's home folder"
    if _is_hidden(real) and top_of(folder) is None:
        return "is a hidden folder"
    try:
        is_open = filesystem.others_can_write(Path(folder), Path(folder).stat())
    except OSError:
        return ""
    return "can be written by other users" if is_open else ""


_SYSTEM = frozenset({"/dev", "/home", "/mnt", "/media", "/opt", "/srv", "/usr", "/var"})
_SYSTEM_TREES = (
    *("/bin", "/boot", "/etc", "/lib", "/lib32", "/lib64", "/proc", "/sbin", "/sys"),
    *("/usr/bin", "/usr/lib", "/usr/sbin", "/usr/share"),
)


@functools.cache
def _homes_of_users() -> frozenset[str]:
    try:
        import pwd
    except ImportError:  # not POSIX
        return frozenset()
    own = os.path.realpath(_own_home())
    return frozenset(os.path.realpath(each.pw_dir) for each in pwd.getpwall()) - {own}


def _is_hidden(folder: str) -> bool:
    home = os.path.realpath(_own_home())
    inner = os.path.relpath(folder, home) if is_below(folder, home) else Path(folder).name
    return inner != os.curdir and inner.startswith(".")


def is_below(path: str, folder: str) -> bool:
    """Return whether a path is a folder, or below it."""
    return path == folder or path.startswith(f"{folder.rstrip(os.sep)}{os.sep}")


def top_of(folder: str) -> str | None:
    """Return the top of the project that a folder belongs to; None if it has no marker."""
    while not is_home(folder):
        if any(Path(folder, each).exists() for each in _TOPS):
            return folder
        folder = str(Path(folder).parent)
    return None
