"""Contents of S3 objects: kept on disk, and received, joined and sent in pieces.

moto's S3 reads a whole object for each request, including ranges, receives bodies in one piece,
and joins the parts of an upload in memory. So this module keeps the contents, and moto keeps the
rest: names, metadata, versions and conditions. While a thread is `taking` received content, moto
stores that; while it is `sending`, moto gets a `Content` instead of bytes and cuts the requested
range from it.

A content does not change and is read without a lock. Its file is deleted with the last content in
it.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import itertools
import os
import tempfile
import threading
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from moto.s3 import models

from farcall import filesystem

#: Minimum size in bytes of contents on disk; smaller ones stay in memory.
MOST_IN_MEMORY = 4 * 2**20
#: Bytes that are read or written at once.
PIECE_BYTES = 2**20

#: Prefix of a process's folder name.
_FOLDER = "farcall-s3-"


class File:
    """File that is deleted when nothing refers to it any more.

    It is not kept open, because there may be more large objects than a process may have open
    files.
    """

    def __init__(self) -> None:
        self._path = ""  # until it is created
        descriptor, self._path = tempfile.mkstemp(dir=_folder.path())
        os.close(descriptor)

    def __del__(self) -> None:
        with contextlib.suppress(OSError):
            os.unlink(self._path)  # noqa: PTH108 - no more than the module `os` is left at the end

    def write(self, pieces: Iterable[bytes]) -> None:
        """Write all data from a source."""
        with open(self._path, "wb", buffering=0) as file:  # noqa: PTH123
            for piece in pieces:
                view = memoryview(piece)
                while view:
                    view = view[file.write(view) :]

    def read(self, start: int, size: int) -> bytes:
        """Read a range of the written data."""
        with open(self._path, "rb", buffering=0) as file:  # noqa: PTH123
            return os.pread(file.fileno(), size, start)


class _Folder:
    """Folder for files that only this user can read, for the lifetime of a server."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._made: tempfile.TemporaryDirectory[str] | None = None

    def path(self) -> str:
        """Return the path; the folder is created on demand."""
        with self._lock:
            if self._made is None:
                filesystem.remove_folders(_FOLDER)
                prefix = f"{_FOLDER}{filesystem.identity(os.getpid())}-"
                self._made = tempfile.TemporaryDirectory(prefix=prefix)
            return self._made.name

    def remove(self) -> None:
        """Remove the folder and its content."""
        with self._lock:
            if self._made is not None:
                self._made.cleanup()
                self._made = None


_folder = _Folder()


def forget() -> None:
    """Delete all files. Call it when no contents are requested any more."""
    _folder.remove()


class _Extent(NamedTuple):
    source: bytes | File
    start: int
    size: int


class Content:
    """Bytes of an object or of a range of it, as an iterable of pieces.

    Args:
        extents: The parts' locations, in order.
        md5: MD5 of all bytes in hexadecimal, if it is already known.
    """

    def __init__(self, extents: Iterable[_Extent], md5: str | None = None) -> None:
        self._extents = tuple(extents)
        self._size = sum(extent.size for extent in self._extents)
        self._md5 = md5

    @classmethod
    def of(cls, data: bytes) -> Content:
        """Return a content in memory."""
        return cls([_Extent(data, 0, len(data))])

    @classmethod
    def join(cls, contents: Iterable[Content]) -> Content:
        """Return the concatenation of several contents, without reading them."""
        return cls(extent for content in contents for extent in content._extents)

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, window: slice) -> Content:
        start, stop, _ = window.indices(self._size)
        extents, at = [], 0
        for source, first, size in self._extents:
            begin, end = max(start, at), min(stop, at + size)
            if begin < end:
                extents.append(_Extent(source, first + begin - at, end - begin))
            at += size
        return Content(extents)

    def __iter__(self) -> Iterator[bytes]:
        for source, start, size in self._extents:
            for at in range(start, start + size, PIECE_BYTES):
                length = min(PIECE_BYTES, start + size - at)
                yield (
                    source[at : at + length]
                    if isinstance(source, bytes)
                    else source.read(at, length)
                )

    def __bytes__(self) -> bytes:
        return b"".join(self)

    @functools.cached_property
    def md5(self) -> str:
        """MD5 of all bytes, in hexadecimal."""
        if self._md5 is not None:
            return self._md5
        digest = hashlib.md5(usedforsecurity=False)
        for piece in self:
            digest.update(piece)
        return digest.hexdigest()


def receive(pieces: Iterable[bytes]) -> Content:
    """Store the data from a source."""
    digest = hashlib.md5(usedforsecurity=False)
    first: list[bytes] = []
    size = 0

    def counted() -> Iterator[bytes]:
        nonlocal size
        for piece in pieces:
            digest.update(piece)
            size += len(piece)
            yield piece

    rest = counted()
    for piece in rest:
        first.append(piece)
        if size > MOST_IN_MEMORY:
            break
    else:
        return Content([_Extent(b"".join(first), 0, size)], digest.hexdigest())
    file = File()
    file.write(itertools.chain(first, rest))
    return Content([_Extent(file, 0, size)], digest.hexdigest())


# --- in moto ----------------------------------------------------------------------------------


class _Now(threading.local):
    """Current operation of a thread."""

    received: Content | None = None
    sends = False
    only_counts = False


_now = _Now()


@contextlib.contextmanager
def taking(content: Content) -> Iterator[None]:
    """Make moto store a content instead of the empty body that it gets."""
    _now.received = content
    try:
        yield
    finally:
        _now.received = None


@contextlib.contextmanager
def sending() -> Iterator[None]:
    """Make moto return contents instead of bytes."""
    _now.sends = True
    try:
        yield
    finally:
        _now.sends = False


def _value(key: Any) -> bytes | Content:
    if _now.only_counts:
        return b""
    content: Content = key.farcall_content
    return content if _now.sends else bytes(content)


def _set_value(key: Any, value: bytes | str | Content) -> None:
    if _now.received is not None and not value:
        content, _now.received = _now.received, None
    elif isinstance(value, Content):
        content = value
    else:
        content = Content.of(value.encode() if isinstance(value, str) else bytes(value))
    key.farcall_content = content
    key.contentsize = len(content)


def _etag(key: Any) -> str:
    if key._etag is None:
        key._etag = key.farcall_content.md5
    return f'"{key._etag}"'


def _dispose(key: Any, garbage: bool = False) -> None:
    key.farcall_content = Content(())
    key.disposed = True


_complete = models.FakeMultipart.complete


def _completed(multipart: Any, body: Iterable[tuple[int, str]]) -> tuple[Content, str, Any]:
    """Complete an upload: moto checks the parts, which are joined without a copy."""
    listed = list(body)
    _now.only_counts = True
    try:
        _, etag, _ = _complete(multipart, iter(listed))
    finally:
        _now.only_counts = False
    parts = [multipart.parts[number] for number, _ in listed]
    content = Content.join(part.farcall_content for part in parts)
    return content, etag, _checksum(multipart.metadata, parts)


def _checksum(metadata: Any, parts: list[Any]) -> Any:
    """Return moto's record of an upload's checksum, if one was requested."""
    algorithm = metadata.get("x-amz-checksum-algorithm")
    if algorithm is None:
        return None
    kind = metadata.get("x-amz-checksum-type")
    builder = models.MultipartChecksumBuilder(algorithm, kind)
    for part in parts:
        builder.addPart(bytes(part.farcall_content))
    return builder.build()


class _Untracked(list[Any]):
    """List replacement for instances that moto would keep forever."""

    def append(self, _: Any) -> None:
        """Keep nothing."""


_moto: Any = models
_moto.FakeKey.value = property(_value, _set_value)
_moto.FakeKey.etag = property(_etag)
_moto.FakeKey.dispose = _dispose
_moto.FakeKey.instances_tracked = _Untracked()
_moto.FakeMultipart.complete = _completed
_moto.FakeMultipart.instances_tracked = _Untracked()
