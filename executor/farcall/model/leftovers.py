"""Whose the things are that outlive a process which was killed, and which of them may go."""

from __future__ import annotations

import contextlib
import shutil
import socket
import tempfile
from pathlib import Path


def identity(pid: int) -> str:
    """Return what tells a process from all others that share an engine or a folder, ever.

    A process ID alone does not: containers with processes of their own can share both, and IDs
    are used again.
    """
    namespace, began = 0, ""
    with contextlib.suppress(OSError):  # no Linux, or no such process
        namespace = Path("/proc/self/ns/pid").stat().st_ino
        began = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    return f"{socket.gethostname()}-{namespace}-{pid}-{began}"


def is_gone(owner: str) -> bool:
    """Return whether a process is no more that could be seen from here; not known but on Linux."""
    where, _, began = owner.rpartition("-")
    pid = where.rpartition("-")[2]
    if not pid.isdecimal() or not began:
        return False
    here = identity(int(pid))
    return here.rpartition("-")[0] == where and here != owner


def remove_folders(prefix: str) -> None:
    """Remove temporary folders whose process is gone.

    Args:
        prefix: What their names begin with; the `identity` follows, a hyphen and the rest.
    """
    for folder in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
        if is_gone(folder.name.removeprefix(prefix).rpartition("-")[0]):
            shutil.rmtree(folder, ignore_errors=True)
