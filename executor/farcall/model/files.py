"""Atomic writes: a file is replaced as a whole, or not at all."""

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
    """Open a file that takes a path's place once the block ends, and is on the disk by then.

    It lies beside it until then. Where the block raises, it is removed, and the path is as before.
    A symbolic link stays, and what it leads to is replaced.

    What is there and is no regular file, such as a terminal, a FIFO or ``/dev/null``, is written
    to as it is.

    Args:
        path: Of the file; folders that lack are made.
        mode: Permissions, less the process's umask.

    Yields:
        The file, for bytes.

    Raises:
        OSError: It cannot be written.
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
    """Return whether there is something that is no regular file."""
    try:
        return not stat.S_ISREG(path.stat().st_mode)
    except FileNotFoundError:
        return False


def _sync(folder: Path) -> None:
    """Have a folder's entries on the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
