"""Atomic writes: a file is replaced completely, or not at all."""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
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
