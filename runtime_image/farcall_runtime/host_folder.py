"""Cache of packages' archives on the host: what one container has fetched, the next one copies.

It is a folder of the instance that the job's definition mounts, and other jobs mount it, too,
most often with the same user's number: farcall's image and the stock image have one. So nothing
there is believed. An archive is compared with its digest while it is copied to the container's own
disk, each time, and what is unpacked is unpacked from that copy. Unpacked files are not shared:
whoever has the same user's number could change one after it was verified, and while it is used.

Layout::

    <mounted>/<user's number>/<sha256>          an archive; its time is that of its last use
    <mounted>/<user's number>/<sha256>.part     one that is being fetched, locked for so long

The lock ends with its process, however that ends. Each user's number has a folder of its own
(0700), so that no job meets files that it may not read.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import time
from collections.abc import Collection, Iterator

from farcall_runtime.contract import is_digest
from farcall_runtime.envelope import Buffer

SHARE = 4
"""The cache takes up to a quarter of its file system ..."""

FREE_SHARE, FREE_BYTES = 10, 5_000_000_000
"""... and leaves a tenth of it free, or 5 GB where that is less."""

UNUSED_S = 7 * 24 * 3600.0
"""After so long without use an archive is deleted, in seconds (7 days)."""

_PART = ".part"
_PART_S = 3600.0  # what nobody has written to for so long was left by a killed container
_STEP_BYTES = 1024 * 1024
_FLAGS = (
    os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
)  # no link, and no pipe that waits for a writer


class UnusableError(Exception):
    """The folder cannot be used."""


class HostFolder:
    """The cache, for jobs of this process's user.

    Args:
        mounted: Path of the folder that the host's is mounted at.

    Raises:
        UnusableError: It is not there, or this user may not write to it.
    """

    def __init__(self, mounted: str) -> None:
        path = f"{mounted}/{os.geteuid()}"
        try:
            with contextlib.suppress(FileExistsError):
                os.mkdir(path, 0o700)  # noqa: PTH102
            # From here on all is done by this descriptor: whoever else may write to the mounted
            # folder could put a link in the place of the path.
            self._folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | _FLAGS)
        except OSError as error:
            raise UnusableError(f"{path}: {os.strerror(error.errno or 0)}") from error
        found = os.fstat(self._folder)
        if os.fstatvfs(self._folder).f_flag & os.ST_RDONLY:
            os.close(self._folder)
            raise UnusableError(f"{path} is mounted read-only")
        if found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & 0o022:
            os.close(self._folder)
            raise UnusableError(f"{path} is another user's, or others may write to it")

    def close(self) -> None:
        """Let go of the folder."""
        os.close(self._folder)

    def pieces(self, sha256: str, size: int) -> Iterator[bytes]:
        """Yield what lies there under an archive's digest, which may be anything.

        Args:
            sha256: The digest.
            size: Bytes of the archive. What has another size is not read.
        """
        try:
            descriptor = os.open(sha256, os.O_RDONLY | _FLAGS, dir_fd=self._folder)
        except OSError:
            return
        with contextlib.suppress(OSError), os.fdopen(descriptor, "rb", buffering=0) as file:
            if not _is_whole(os.fstat(descriptor), size):
                return
            with contextlib.suppress(OSError):
                os.utime(descriptor)
            while size > 0 and (piece := file.read(min(size, _STEP_BYTES))):
                size -= len(piece)
                yield piece

    def has(self, sha256: str, size: int) -> bool:
        """Tell whether there is a file of this size under an archive's digest."""
        try:
            return _is_whole(os.stat(sha256, dir_fd=self._folder, follow_symlinks=False), size)
        except OSError:
            return False

    def discard(self, name: str) -> None:
        """Take away what is not what its name says, or is not used any more."""
        with contextlib.suppress(OSError):
            os.unlink(name, dir_fd=self._folder)

    def claim(
        self, sha256: str, size: int, wanted: Collection[str] = (), others: int = 0
    ) -> Claim | None:
        """Be the one who fetches an archive; None where another container does, or just has.

        Args:
            sha256: Its digest.
            size: Its bytes.
            wanted: As `make_room` has it.
            others: Likewise.

        Raises:
            UnusableError: There is no room for it, or no file can be made there.
        """
        if not self.make_room(size, wanted, others):
            raise UnusableError("the disk is too full")
        name = sha256 + _PART
        descriptor = self._open_part(name)
        if descriptor is None:
            return None
        with contextlib.suppress(OSError):  # it is locked, or gone: kept by then, or given up
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            opened = os.fstat(descriptor)
            there = os.stat(name, dir_fd=self._folder, follow_symlinks=False)
            if os.path.samestat(opened, there):
                is_file = stat.S_ISREG(opened.st_mode) and opened.st_nlink == 1
                if is_file and not self.has(sha256, size):
                    os.ftruncate(descriptor, 0)
                    return Claim(self, self._folder, descriptor, sha256)
                self.discard(name)
        os.close(descriptor)
        return None

    def _open_part(self, name: str) -> int | None:
        flags = os.O_RDWR | os.O_CREAT | _FLAGS
        try:
            return os.open(name, flags, 0o600, dir_fd=self._folder)
        except OSError as error:
            if error.errno not in (errno.ELOOP, errno.EISDIR, errno.ENXIO):
                raise UnusableError(os.strerror(error.errno or 0)) from error
            self.discard(name)  # a link, a folder, a pipe
            return None

    def make_room(self, size: int, wanted: Collection[str], others: int = 0) -> bool:
        """Delete what was not used for long, and for want of room what was used least lately.

        Args:
            size: Bytes that are to be stored.
            wanted: Digests that are needed now, and stay.
            others: Bytes that this container needs of the same file system besides.

        Returns:
            Whether there is room.
        """
        system = os.fstatvfs(self._folder)
        total = system.f_frsize * system.f_blocks
        free = system.f_frsize * system.f_bavail
        lacking = size + others + min(total // FREE_SHARE, FREE_BYTES) - free
        found = self._found()
        over = size + sum(length for _, length, _ in found) - total // SHARE
        now = time.time()
        for at, length, name in found:
            is_part = name.endswith(_PART)
            is_old = now - at > (_PART_S if is_part else UNUSED_S)
            is_needed = name in wanted or (is_part and not is_old)
            if is_old or (max(lacking, over) > 0 and not is_needed):
                self.discard(name)
                lacking, over = lacking - length, over - length
        return max(lacking, over) <= 0

    def _found(self) -> list[tuple[float, int, str]]:
        """Return time of last use, bytes and name of what is there, the oldest first."""
        found = []
        with contextlib.suppress(OSError), os.scandir(self._folder) as entries:
            for entry in entries:
                if is_digest(entry.name.removesuffix(_PART)):
                    with contextlib.suppress(OSError):
                        status = entry.stat(follow_symlinks=False)
                        found.append((status.st_mtime, status.st_size, entry.name))
        return sorted(found)


class Claim:
    """The lock of an archive that this process fetches, and the file that it goes to.

    A file that cannot be written is given up: the container has the archive all the same.
    """

    def __init__(self, host: HostFolder, folder: int, descriptor: int, sha256: str) -> None:
        self._host = host
        self._folder = folder
        self._sha256 = sha256
        self._file = os.fdopen(descriptor, "wb", buffering=0)
        self._is_whole = True

    def write(self, piece: Buffer) -> None:
        """Add a piece."""
        rest = memoryview(piece)
        try:
            while self._is_whole and rest:
                rest = rest[self._file.write(rest) :]
        except OSError:
            self.give_up()

    def keep(self) -> None:
        """Have it found by others: it has come, and is what its digest says."""
        name = self._sha256 + _PART
        if self._is_whole:
            with contextlib.suppress(OSError):
                os.rename(name, self._sha256, src_dir_fd=self._folder, dst_dir_fd=self._folder)
            self._file.close()

    def give_up(self) -> None:
        """Take away what has come of it; nothing once it was kept."""
        if not self._file.closed:
            self._is_whole = False
            self._host.discard(self._sha256 + _PART)
            self._file.close()


def _is_whole(found: os.stat_result, size: int) -> bool:
    return stat.S_ISREG(found.st_mode) and found.st_size == size
