"""Launcher of a strict job: hides the caller's folders, then becomes the job's command.

It runs as a script with only the standard library, in the job's process: in a mount namespace of
its own, each hidden folder is covered with an empty file system, in which only the folders that
the job needs are mounted again.

Sources:
    https://man7.org/linux/man-pages/man7/user_namespaces.7.html
    https://man7.org/linux/man-pages/man2/mount.2.html
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from collections.abc import Iterable
from pathlib import Path

_NEW_MOUNTS, _NEW_USERS = 0x00020000, 0x10000000  # CLONE_NEWNS, CLONE_NEWUSER
_BIND, _RECURSIVE, _PRIVATE = 4096, 16384, 1 << 18  # MS_BIND, MS_REC, MS_PRIVATE
_NOT_FOUND = 127


def hide(folders: Iterable[str], kept: Iterable[str]) -> None:
    """Cover folders, except other folders in them, for this process and its child processes.

    Raises:
        OSError: The system does not permit it.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    _enter(libc)
    # A descriptor still leads to a folder when its path is covered.
    opened = {path: os.open(path, os.O_PATH) for path in _places(kept)}
    _call(libc.mount(b"none", b"/", None, _RECURSIVE | _PRIVATE, None))
    hidden = set(folders) - opened.keys()
    covered: list[str] = []
    for path in sorted({*hidden, *opened}, key=lambda each: each.count("/")):
        if path not in opened:
            if Path(path).is_dir():
                _call(libc.mount(b"tmpfs", os.fsencode(path), b"tmpfs", 0, None))
                covered.append(f"{path.rstrip('/')}/")
        elif path.startswith(tuple(covered)):
            Path(path).mkdir(parents=True, exist_ok=True)
            source = f"/proc/self/fd/{opened[path]}".encode()
            _call(libc.mount(source, os.fsencode(path), None, _BIND | _RECURSIVE, None))
    for descriptor in opened.values():
        os.close(descriptor)


def _places(folders: Iterable[str]) -> set[str]:
    """Return the existing folders without links in front of their names, and where they lead."""
    places = set()
    for folder in map(Path, folders):
        if folder.is_dir():
            places |= {str(folder.parent.resolve() / folder.name), str(folder.resolve())}
    return places


def _enter(libc: ctypes.CDLL) -> None:
    """Enter a mount namespace; a user who is not root needs a user namespace for it."""
    user, group = os.geteuid(), os.getegid()
    if user == 0:
        _call(libc.unshare(_NEW_MOUNTS))
        return
    _call(libc.unshare(_NEW_USERS | _NEW_MOUNTS))
    for name, text in (
        ("setgroups", "deny"),
        ("uid_map", f"{user} {user} 1"),
        ("gid_map", f"{group} {group} 1"),
    ):
        Path("/proc/self", name).write_text(text, encoding="ascii")


def _call(result: int) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def main() -> None:
    """Hide the folders that the first argument names, and run the others as a command."""
    order, command = json.loads(sys.argv[1]), sys.argv[2:]
    hide(order["hidden"], order["kept"])
    try:
        os.execvp(command[0], command)  # noqa: S606
    except OSError as error:
        sys.stderr.write(f"{command[0]}: {error.strerror}\n")
        sys.exit(_NOT_FOUND)


if __name__ == "__main__":
    main()
