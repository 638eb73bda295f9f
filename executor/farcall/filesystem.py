"""Files that other processes see: atomic writes, and cleanup after killed processes."""

from __future__ import annotations

import contextlib
import functools
import os
import secrets
import shutil
import socket
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO


@contextlib.contextmanager
def replacing(path: Path, mode: int = 0o666) -> Iterator[BinaryIO]:
    """Open a file that atomically replaces a path when the block ends, synced to disk.

    Until then it is in the same folder. If the block raises, it is removed, and the path is
    unchanged. A symbolic link is kept, and its target is replaced.

    An existing special file, such as a terminal, a FIFO or ``/dev/null``, is written to directly.

    Args:
        path: The path; missing folders are created.
        mode: Permissions, less the process's umask.

    Yields:
        The file, for bytes.

    Raises:
        OSError: The file cannot be written.
    """
    if _is_special(path):
        with path.open("wb") as file:
            yield file
        return
    path = path.resolve()
    part = path.with_name(f"{path.name}.{secrets.token_hex(4)}.part")
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
        _sync(path.parent)
    except BaseException:
        with contextlib.suppress(OSError):
            part.unlink()
        raise


def _is_special(path: Path) -> bool:
    """Return whether the path exists and is not a regular file."""
    try:
        return not stat.S_ISREG(path.stat().st_mode)
    except FileNotFoundError:
        return False


def _sync(folder: Path) -> None:
    """Sync a folder's entries to disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def identity(pid: int) -> str:
    """Return an ID of a process that is unique in a shared container engine or folder.

    A process ID is not unique: containers with their own PID namespaces can share both, and IDs
    are reused.
    """
    namespace, began = 0, ""
    with contextlib.suppress(OSError):  # not Linux, or no such process
        namespace = Path("/proc/self/ns/pid").stat().st_ino
        began = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    return f"{socket.gethostname()}-{namespace}-{pid}-{began}"


def is_gone(owner: str) -> bool:
    """Return whether a process of this PID namespace has ended; False if unknown."""
    where, _, began = owner.rpartition("-")
    pid = where.rpartition("-")[2]
    if not pid.isdecimal() or not began:
        return False
    here = identity(int(pid))
    return here.rpartition("-")[0] == where and here != owner


def remove_folders(prefix: str, place: str = "") -> None:
    """Remove temporary folders whose process has ended.

    Args:
        prefix: Prefix of the names, which continue with the `identity`, a hyphen and a suffix.
        place: Folder that contains them; empty for the folder for temporary files.
    """
    for folder in Path(place or tempfile.gettempdir()).glob(f"{prefix}*"):
        if is_gone(folder.name.removeprefix(prefix).rpartition("-")[0]):
            shutil.rmtree(folder, ignore_errors=True)


def others_can_write(about: os.stat_result) -> bool:
    """Return whether a file or folder can be written by users other than its owner and root.

    A group counts, unless it is this user's own private group, which many Linux systems create
    for each user (https://wiki.debian.org/UserPrivateGroups).
    """
    if about.st_mode & stat.S_IWOTH:
        return True
    return bool(about.st_mode & stat.S_IWGRP) and not _is_private_group(about.st_gid)


@functools.lru_cache(64)
def _is_private_group(number: int) -> bool:
    try:
        import grp
        import pwd

        user, group = pwd.getpwuid(os.getuid()), grp.getgrgid(number)
    except (ImportError, KeyError):  # not POSIX, or an unknown user or group
        return number == os.getegid() == 0
    return (
        number == user.pw_gid
        and group.gr_name == user.pw_name
        and {*group.gr_mem} <= {user.pw_name}
    )
