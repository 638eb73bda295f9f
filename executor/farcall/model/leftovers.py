"""Cleanup after killed processes: owners of containers and temporary folders."""

from __future__ import annotations

import contextlib
import shutil
import socket
import tempfile
from pathlib import Path


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


def remove_folders(prefix: str) -> None:
    """Remove temporary folders whose process has ended.

    Args:
        prefix: Prefix of the names, which continue with the `identity`, a hyphen and a suffix.
    """
    for folder in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
        if is_gone(folder.name.removeprefix(prefix).rpartition("-")[0]):
            shutil.rmtree(folder, ignore_errors=True)
