"""Files that other processes see: atomic writes, and cleanup after killed processes."""

from __future__ import annotations

import contextlib
import grp
import os
import pwd
import secrets
import shutil
import socket
import stat
import sys
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


def is_own(path: Path) -> bool:
    """Return whether this user or root owns a file or folder, and no other user can write it.

    The same holds for symbolic links that the path is, because their owner chooses the target. A
    file in a folder of other users counts only for itself: a file that replaces it is theirs.

    A group counts as other users unless it is the user's private group.

    Args:
        path: The file or folder. If it does not exist, it is not the user's own.
    """
    try:
        for _ in range(_MOST_LINKS):
            status = path.lstat()
            if status.st_uid not in (os.geteuid(), 0):
                return False
            if not stat.S_ISLNK(status.st_mode):
                return not others_can_write(path, status)
            path = path.parent / path.readlink()
    except OSError:
        pass
    return False


NOT_OWN = (
    "another user owns it, or other users of this machine can write to it. Change that (chown, "
    "chmod go-w)"
)
"""Why a file is not used, and the remedy, for errors."""

_MOST_LINKS = 40


def others_can_write(path: Path, status: os.stat_result) -> bool:
    """Return whether users other than its owner and root can write a file or folder.

    Raises:
        OSError: The file's access control list cannot be read.
    """
    if not status.st_mode & stat.S_IWGRP:
        return bool(status.st_mode & stat.S_IWOTH)
    # An access control list may permit more users than the group.
    has_list = sys.platform == "linux" and _ACL in os.listxattr(path)
    is_private = not has_list and _is_private_group(status.st_gid)
    return bool(status.st_mode & stat.S_IWOTH) or not is_private


_ACL = "system.posix_acl_access"


def _is_private_group(gid: int) -> bool:
    """Return whether this user's name is the group's name, and it has no other member."""
    try:
        name, group = pwd.getpwuid(os.geteuid()).pw_name, grp.getgrgid(gid)
    except KeyError:  # a user or group without a name, as in some containers
        return False
    return group.gr_name == name and not {*group.gr_mem} - {name}


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
