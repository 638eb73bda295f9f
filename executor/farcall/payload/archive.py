"""Reproducible archives: folders as one gzipped tar file.

Names are sorted, and times and owners are not stored, so the same files, modes and links result in
the same bytes and the same hash. (Another zlib may compress differently, which costs one more
upload.) Permission bits and links are stored; links are never followed. A folder's owner can
always read and write it, so that its contents can be unpacked.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import logging
import os
import posixpath
import stat
import tarfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from farcall.model.errors import SettingsError
from farcall.payload.ignore import NAME, Ignore, read_lines
from farcall.payload.private_files import is_private
from farcall.payload.spill import NoRoomError, open_file

_log = logging.getLogger("farcall")

LARGEST_BYTES = 5 * 1000**3
"""Maximum size of a workspace: 5 GB. Larger data belongs in the image or a bucket."""

LARGE_BYTES = 100 * 1000**2
"""Size from which a warning is logged: 100 MB.

Most such folders contain files that no job needs.
"""

_STEP_BYTES = 1024 * 1024
_LEVEL = 6
_MOMENT = 946684800
"""Modification time of all files: 1 January 2000.

zip supports none before 1980, and GNU tar warns about 1970.
"""

_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW
_MODE = 0o777
_FOLDER_MODE = 0o700
_REMEDY = f"list files that the job does not need in {NAME}"


@dataclass(frozen=True)
class Source:
    """A local folder or file, and its place in the archive.

    Attributes:
        path: The folder, whose contents are packed; or the file. ``~`` is a home folder.
        target: Relative folder in the archive; empty for its top. For a file, its path there;
            empty for its name.
    """

    path: Path
    target: str = ""


class Archive:
    """An archive in an unnamed file, which `close` deletes.

    Attributes:
        sha256: Digest of the archive, hexadecimal.
        size: Size of the archive in bytes.
        files: Number of files in it.
        unpacked_bytes: Total size of these files in bytes.
    """

    def __init__(
        self, file: BinaryIO, sha256: str, size: int, files: int, unpacked_bytes: int
    ) -> None:
        self.sha256 = sha256
        self.size = size
        self.files = files
        self.unpacked_bytes = unpacked_bytes
        self._file = file

    def pieces(self) -> Iterator[bytes]:
        """Yield the archive's bytes from the beginning."""
        at = 0
        while piece := os.pread(self._file.fileno(), _STEP_BYTES, at):
            yield piece
            at += len(piece)

    def close(self) -> None:
        """Close the file."""
        self._file.close()


@dataclass(frozen=True)
class _Entry:
    """A file, folder or link at a path of the archive."""

    path: Path
    status: os.stat_result

    @property
    def is_folder(self) -> bool:
        return stat.S_ISDIR(self.status.st_mode)


def pack(sources: Iterable[Source], cache_dir: str) -> Archive:
    """Create an archive of folders and files; later sources replace earlier ones.

    Args:
        sources: The sources. A folder's ``.dockerignore`` is applied.
        cache_dir: Folder for the file; see `farcall.payload.spill.open_file`.

    Raises:
        SettingsError: A source does not exist, cannot be read, or is too large.
        NoRoomError: The folder has no space.
    """
    entries: dict[str, _Entry] = {}
    for source in sources:
        entries.update(_entries(source))
    _check_parents(entries)
    unpacked = _check_size(entries)
    try:
        file = open_file(cache_dir)
    except OSError as error:
        raise NoRoomError.of(cache_dir, "the workspace's archive", error) from error
    try:
        digest, size = _write(file, entries, cache_dir)
    except BaseException:
        with contextlib.suppress(OSError):  # unwritten data may not fit on the disk
            file.close()
        raise
    files = sum(stat.S_ISREG(entry.status.st_mode) for entry in entries.values())
    return Archive(file, digest, size, files, unpacked)


# --- content ------------------------------------------------------------------------------------


def _entries(source: Source) -> Iterator[tuple[str, _Entry]]:
    """Yield the entries of a source, by name in the archive."""
    target = _target(source)
    try:
        root = source.path.expanduser().resolve(strict=True)
        status = root.stat()
    except (OSError, RuntimeError) as error:  # RuntimeError: circular links, no home
        raise SettingsError(
            f"workspace {str(source.path)!r} cannot be read ({_why(error)}). Name an existing "
            "folder, or omit the option",
            option="workspace",
        ) from error
    if stat.S_ISREG(status.st_mode):
        yield target or source.path.name, _Entry(root, status)
        return
    if not stat.S_ISDIR(status.st_mode):
        raise SettingsError(
            f"workspace {str(source.path)!r} is neither a folder nor a file",
            option="workspace",
        )
    for name, entry in _walk(root):
        yield posixpath.join(target, name), entry


def _target(source: Source) -> str:
    target = source.target
    plain = posixpath.normpath(target) if target else ""
    if plain.startswith(("/", "../")) or plain == "..":
        raise SettingsError(
            f"workspace maps {str(source.path)!r} to {target!r}. Use a relative path below "
            "the folder in which it is unpacked",
            option="workspace",
        )
    return "" if plain == "." else plain


def _walk(root: Path) -> Iterator[tuple[str, _Entry]]:
    """Yield a folder's entries except ignored ones, each folder before its contents."""
    ignore = _ignore(root)
    special: list[str] = []
    private: list[str] = []
    folders = [""]
    while folders:
        folder = folders.pop()
        with _reading(root / folder):
            paths = list((root / folder).iterdir())
        for path in paths:
            name = posixpath.join(folder, path.name)
            with _reading(path):
                entry = _Entry(path, path.lstat())
            if is_private(path.name) and not ignore.takes_back(name):
                private.append(name)
                continue
            is_out = ignore.leaves_out(name)
            if entry.is_folder and not (is_out and ignore.leaves_out_all_of(name)):
                folders.append(name)
            if is_out:
                continue
            if _is_kept(entry):
                yield name, entry
            else:
                special.append(name)
    _report(root, special, private)


def _report(root: Path, special: list[str], private: list[str]) -> None:
    """Warn about entries that are not sent."""
    if private:
        _log.warning(
            "%d entries of workspace %s look like keys or credentials and are not sent: %s. To "
            'send one, add the line "!%s" to its %s',
            *(len(private), root, ", ".join(sorted(private)[:3]), min(private), NAME),
        )
    if special:
        _log.warning(
            "%d entries of workspace %s are not sent, because they are not files, folders or "
            "links: %r ...",
            *(len(special), root, special[0]),
        )


def _ignore(root: Path) -> Ignore:
    path = root / NAME
    with _reading(path):
        return Ignore(read_lines(str(root)) or (), str(path))


def _is_kept(entry: _Entry) -> bool:
    return stat.S_IFMT(entry.status.st_mode) in (stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK)


def _check_parents(entries: dict[str, _Entry]) -> None:
    """Check that no entry is below a non-folder, which would write through a link."""
    for name, entry in entries.items():
        parent = posixpath.dirname(name)
        while parent:
            above = entries.get(parent)
            if above is not None and not above.is_folder:
                raise SettingsError(
                    f"{entry.path} in the workspace cannot be placed in {parent!r}, which is "
                    f"{above.path}, not a folder. Map them to different places",
                    option="workspace",
                )
            parent = posixpath.dirname(parent)


def _check_size(entries: dict[str, _Entry]) -> int:
    sizes = {
        name: entry.status.st_size
        for name, entry in entries.items()
        if stat.S_ISREG(entry.status.st_mode)
    }
    total = sum(sizes.values())
    if total < LARGE_BYTES:
        return total
    largest = max(sizes, key=sizes.__getitem__)
    message = (
        f"the workspace has {total / 1e6:,.0f} MB in {len(sizes):,} files, the largest one "
        f"{largest!r} with {sizes[largest] / 1e6:,.0f} MB"
    )
    if total > LARGEST_BYTES:
        raise SettingsError(
            f"{message}; the limit is {LARGEST_BYTES / 1e9:g} GB: {_REMEDY}", option="workspace"
        )
    _log.warning("%s; %s", message, _REMEDY)
    return total


def _link(path: Path) -> str:
    with _reading(path):
        return os.readlink(path)  # noqa: PTH115  # a Path would normalize it


# --- writing ------------------------------------------------------------------------------------


class _Hashed:
    """A file that is hashed and counted while it is written."""

    def __init__(self, file: BinaryIO, cache_dir: str) -> None:
        self.digest = hashlib.sha256()
        self.size = 0
        self._file = file
        self._cache_dir = cache_dir

    def write(self, data: bytes) -> int:
        self.digest.update(data)
        self.size += len(data)
        with self._storing():
            self._file.write(data)
        return len(data)

    def flush(self) -> None:
        with self._storing():
            self._file.flush()

    @contextlib.contextmanager
    def _storing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise NoRoomError.of(self._cache_dir, "the workspace's archive", error) from error


def _write(file: BinaryIO, entries: dict[str, _Entry], cache_dir: str) -> tuple[str, int]:
    """Write the archive; return its hash and its size."""
    hashed = _Hashed(file, cache_dir)
    zipped = gzip.GzipFile(filename="", mode="wb", compresslevel=_LEVEL, fileobj=hashed, mtime=0)
    # busybox's tar supports GNU's long names, but not pax's.
    with (
        zipped,
        tarfile.open(
            fileobj=zipped,
            mode="w",
            format=tarfile.GNU_FORMAT,
            encoding="utf-8",
            errors="surrogateescape",
        ) as tar,
    ):
        for name in sorted(entries, key=lambda name: name.split("/")):
            _add(tar, name, entries[name])
    hashed.flush()
    return hashed.digest.hexdigest(), hashed.size


def _add(tar: tarfile.TarFile, name: str, entry: _Entry) -> None:
    info = tarfile.TarInfo(name)
    info.mtime = _MOMENT
    info.mode = entry.status.st_mode & _MODE
    if entry.is_folder:
        info.type = tarfile.DIRTYPE
        info.mode |= _FOLDER_MODE
        tar.addfile(info)
    elif stat.S_ISLNK(entry.status.st_mode):
        info.type = tarfile.SYMTYPE
        info.mode = _MODE  # some systems store modes of links
        info.linkname = _link(entry.path)
        tar.addfile(info)
    else:
        info.size = entry.status.st_size
        _add_file(tar, info, entry.path)


def _add_file(tar: tarfile.TarFile, info: tarfile.TarInfo, path: Path) -> None:
    # Nonblocking, because the file may have become a pipe meanwhile.
    with _reading(path), os.fdopen(os.open(path, _READ), "rb") as file:
        tar.addfile(info, file)


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Report an error of the system as an error of the workspace."""
    try:
        yield
    except OSError as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: Exception) -> SettingsError:
    return SettingsError(
        f"{path} in the workspace cannot be read ({_why(error)}). Make it readable, or list it "
        f"in {NAME}",
        option="workspace",
    )


def _why(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)
