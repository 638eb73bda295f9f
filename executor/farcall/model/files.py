"""Atomic writes: a file is replaced as a whole, or not at all."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO


@contextlib.contextmanager
def replacing(path: Path, mode: int = 0o666) -> Iterator[BinaryIO]:
    """Open a file that takes a path's place once the block ends, and is on the disk by then.

    It lies beside it until then. Where the block raises, it is removed, and the path is as before.

    Args:
        path: Of the file; folders that lack are made. Of a link, its own.
        mode: Permissions, less the process's umask.

    Yields:
        The file, for bytes.

    Raises:
        OSError: It cannot be written.
    """
    part = path.with_name(f"{path.name}.{secrets.token_hex(4)}.part")
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            part.unlink()
        raise
