"""Spill files in ``cache_dir``, for data that does not fit into memory."""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import tempfile
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, TypeAlias

from farcall.config.settings import DEFAULT_CACHE_DIR
from farcall.model.errors import FarcallError
from farcall_runtime import memory, pickles
from farcall_runtime.envelope import Buffer

_STEP_BYTES = 64 * 1024 * 1024
_SHARE = 0.5
_MEMINFO = Path("/proc/meminfo")


class NoRoomError(FarcallError):
    """``cache_dir`` has no space for a large file."""

    @classmethod
    def of(cls, folder: str, what: str, error: OSError) -> NoRoomError:
        """Return the error, with the data that did not fit and a remedy."""
        if folder == DEFAULT_CACHE_DIR:
            folder = tempfile.gettempdir()
        return cls(
            f"cannot store {what} in cache_dir {folder!r}: {error}. Free space there, or set "
            "cache_dir to a folder with enough space"
        )


def open_file(folder: str) -> BinaryIO:
    """Open a file without a name.

    Args:
        folder: Folder of the file; created with access only for this user if it is missing. For
            the default of ``cache_dir``, which would belong to the machine's first user, the
            system's folder for temporary files is used, to which all users have access.

    Raises:
        OSError: The folder cannot be created or written to, or another user's link leads there.
    """
    if folder == DEFAULT_CACHE_DIR:
        return tempfile.TemporaryFile()
    path = Path(folder)
    _refuse_strangers_links(path.absolute())
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    return tempfile.TemporaryFile(dir=path)


def _refuse_strangers_links(path: Path) -> None:
    """Reject a path that another user of this machine could redirect at any time."""
    for part in (*reversed(path.parents), path):
        if part.is_symlink() and part.lstat().st_uid not in (0, os.geteuid()):
            raise PermissionError(errno.EPERM, "is a symbolic link of another user", str(part))


def is_needed(size: int) -> bool:
    """Return whether a value takes more than half of the available memory.

    Args:
        size: Its size in bytes.
    """
    left = [limit for limit in (_available(), memory.limit_bytes()) if limit is not None]
    return bool(left) and size > _SHARE * min(left)


def _available() -> int | None:
    """Return the kernel's estimate of available memory in bytes; None if unknown."""
    try:
        lines = _MEMINFO.read_text(encoding="ascii").splitlines()
    except OSError:  # not Linux
        return None
    sizes = [line.split()[1] for line in lines if line.startswith("MemAvailable:")]
    return int(sizes[0]) * 1024 if sizes else None


FolderFor: TypeAlias = Callable[[int], "str | None"]
"""Returns the folder for data of a given size; None for memory."""


def in_memory(_size: int) -> None:
    """Return None for each size: everything stays in memory."""


def where_needed(folder: str) -> FolderFor:
    """Return a `FolderFor` that names the folder for data too large for memory."""
    return lambda size: folder if is_needed(size) else None


class Spill(pickles.Sink):
    """Sink that keeps a pickle in memory, and moves it to a file if memory runs short."""

    def __init__(self, folder: str) -> None:
        super().__init__()
        self._folder = folder
        self._file: BinaryIO | None = None
        self._size = 0
        self._check_at = _STEP_BYTES

    def write(self, data: Buffer) -> int:
        """Append bytes, or an array of any shape and type; return the number of bytes.

        Raises:
            NoRoomError: The folder has no space, or cannot be written to.
        """
        size = super().write(data)
        self._size += size
        if self._size >= self._check_at:
            self._check_at = self._size + _STEP_BYTES
            if self._file is not None or is_needed(self._size):
                self._empty()
        return size

    def taken(self) -> pickles.Pieces:
        """Return the written data; a view of the file if there is one.

        Raises:
            NoRoomError: The folder has no space.
        """
        if self._file is None:
            return super().taken()
        self._empty()
        return [memoryview(mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ))]

    def _empty(self) -> None:
        try:
            if self._file is None:
                self._file = open_file(self._folder)
                weakref.finalize(self, _close, self._file)
            self._file.writelines(self._pieces)
            self._file.flush()
        except OSError as error:
            raise NoRoomError.of(
                self._folder, "arguments too large for the memory", error
            ) from error
        self._pieces.clear()


def _close(file: BinaryIO) -> None:
    with contextlib.suppress(OSError):  # unwritten data that did not fit
        file.close()
