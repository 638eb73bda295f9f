"""Wire format of bundles, packed buffers, outcomes and output chunks. No I/O.

Every object begins with the same twelve bytes, in every protocol version::

    offset  bytes  field
    0       7      magic, b"FARCALL"
    7       1      kind: B bundle, O outcome, S chunk of a stream, R receipt, N note on a retry,
                   U resource usage of a running task, W inbox or state of a warm worker
    8       2      protocol version, big-endian like every number here
    10      2      major and minor version of the sender's Python

The root of a bundle's index, at the bundle's end, begins with the same bytes.

Digests and signatures are checked before the data that they cover is used. This module never
unpickles.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import struct
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

from farcall_runtime.contract import PACKAGES, PROTOCOL_VERSION, SHARED, is_digest

Buffer: TypeAlias = "bytes | bytearray | memoryview"

BUNDLE = b"B"
OUTCOME = b"O"
CHUNK = b"S"
RECEIPT = b"R"
NOTE = b"N"
WORKER = b"W"

_MAGIC = b"FARCALL"
_PREFIX = struct.Struct(">7scHBB")
# prefix, offset of the root, of the pages, bytes of meta, functions, entries
_ROOT_HEAD = struct.Struct(">12sQQIII")
_ROOT_SIZE = struct.Struct(">I")
_TEXTS = "texts"
_LARGEST_ROOT_BYTES = 16 * 1024 * 1024
_DIGEST_BYTES = hashlib.sha256().digest_size
_ROW = struct.Struct(">QQ32sI")  # offset, length, SHA-256, number of the entry's function
_OUTCOME_HEAD = struct.Struct(">12s32sI")  # prefix, signature, bytes of meta
_CHUNK_HEAD = struct.Struct(">12s32s")  # prefix, signature
CHUNK_HEAD_BYTES = _CHUNK_HEAD.size
_PACK_HEAD = struct.Struct(">I")
_PACK_LENGTH = struct.Struct(">Q")
_REFERS = 1 << 63  # in a length: the bytes are elsewhere, and their digest follows the table
_CONTINUES = 1 << 62  # in a length: the bytes continue the previous buffer
_LENGTH = _CONTINUES - 1
ALIGNMENT = 64
"""Alignment of buffers in bytes, so that arrays in them are aligned."""

PAGE_ROWS = 128
"""Number of rows in a page of a bundle's index."""


class EnvelopeError(ValueError):
    """An object cannot be used, for the reason of a subclass."""


class IntegrityError(EnvelopeError):
    """The bytes differ from the sender's: truncated, swapped, forged or foreign."""


class VersionMismatchError(EnvelopeError):
    """The sender uses another protocol version or another Python."""


# --- common prefix ----------------------------------------------------------------------------


def _prefix(kind: bytes, python: tuple[int, int] | None = None) -> bytes:
    return _PREFIX.pack(_MAGIC, kind, PROTOCOL_VERSION, *(python or sys.version_info[:2]))


def bundle_start(python: tuple[int, int] | None = None) -> bytes:
    """Return the first bytes of a bundle; its entries follow."""
    return _prefix(BUNDLE, python)


def _check_prefix(kind: bytes, data: Buffer) -> tuple[int, int]:
    """Return the sender's Python version; raise an error for an invalid prefix."""
    if len(data) < _PREFIX.size:
        raise IntegrityError(f"{len(data)} bytes are too few for a farcall object")
    magic, sent_kind, protocol, major, minor = _PREFIX.unpack_from(data)
    if magic != _MAGIC or sent_kind != kind:
        raise IntegrityError("the object was not written by farcall, or has another kind")
    if protocol != PROTOCOL_VERSION:
        raise VersionMismatchError(
            f"the object has protocol version {protocol}, this side uses {PROTOCOL_VERSION}; "
            "install the client's version of farcall in the image"
        )
    return major, minor


def _read_meta(data: Buffer, start: int, length: int) -> dict[str, Any]:
    try:
        meta = json.loads(bytes(data[start : start + length]))
    except (ValueError, RecursionError) as error:
        raise IntegrityError("the description inside the object is not JSON") from error
    if not isinstance(meta, dict):
        raise IntegrityError("the description inside the object is not a JSON object")
    return meta


# --- bundles ----------------------------------------------------------------------------------


class Part(NamedTuple):
    """Range of a bundle with the digest of its bytes.

    Attributes:
        offset: First byte, counted from the start of the bundle.
        length: Number of bytes.
        sha256: Digest of the bytes.
        function: For an entry, index of its function.
    """

    offset: int
    length: int
    sha256: bytes
    function: int = 0

    def check(self, data: Buffer) -> None:
        """Compare bytes with the index.

        Raises:
            IntegrityError: Their length or digest differs.
        """
        if len(data) != self.length or hashlib.sha256(data).digest() != self.sha256:
            raise IntegrityError("a part of the input data differs from its index")


class SealedIndex(NamedTuple):
    """Index of a bundle, which is stored after the entries.

    Attributes:
        pages: A row for each entry. The functions follow, and then the root.
        root: The end of the bundle; the SubmitJob request contains its digest.
    """

    pages: bytes
    root: bytes


def seal_index(
    meta: dict[str, Any],
    functions: Sequence[tuple[int, bytes]],
    entries: Sequence[tuple[int, int, bytes]],
    python: tuple[int, int] | None = None,
    texts: Buffer = b"",
) -> SealedIndex:
    """Build a bundle's index: `bundle_start`, entries, texts, pages, functions, root.

    The index comes last, so that a bundle can be uploaded while its entries are still being
    pickled and hashed. The root contains the digest of each page, and a page contains the digest
    of each of its entries, so a container of a large array reads only one page.

    Args:
        meta: Facts for every container of the bundle, JSON.
        functions: Length and SHA-256 of each pickled function.
        entries: For each array task, the index of its function, and length and SHA-256 of its
            arguments.
        python: Major and minor version of the Python that pickled the functions; by default this
            one's.
        texts: Texts that clients display and containers do not read.
    """
    if texts:
        located = {"size": len(texts), "sha256": hashlib.sha256(texts).hexdigest()}
        meta = {**meta, _TEXTS: located}
    rows = []
    at = _PREFIX.size
    for function, length, digest in entries:
        rows.append(_ROW.pack(at, length, digest, function))
        at += length
    page_rows = [rows[first : first + PAGE_ROWS] for first in range(0, len(rows), PAGE_ROWS)]
    pages = [b"".join(group) for group in page_rows]
    at += len(texts)
    pages_at = at
    at += _ROW.size * len(rows)
    table = [hashlib.sha256(page).digest() for page in pages]
    for length, digest in functions:
        table.append(_ROW.pack(at, length, digest, 0))
        at += length
    text = json.dumps(meta).encode()
    head = _ROOT_HEAD.pack(
        _prefix(BUNDLE, python), at, pages_at, len(text), len(functions), len(entries)
    )
    root = b"".join((head, text, *table))
    return SealedIndex(b"".join(pages), root + _ROOT_SIZE.pack(len(root) + _ROOT_SIZE.size))


def root_size(tail: Buffer) -> int:
    """Return the size of a bundle's root in bytes, from the last bytes of the bundle.

    Raises:
        IntegrityError: These are not the last bytes of a bundle.
    """
    if len(tail) < _ROOT_SIZE.size:
        raise IntegrityError(f"{len(tail)} bytes are too few for input data")
    (size,) = _ROOT_SIZE.unpack_from(tail, len(tail) - _ROOT_SIZE.size)
    if not _ROOT_HEAD.size < size <= _LARGEST_ROOT_BYTES:
        raise IntegrityError("the input data does not end with the size of its index")
    return int(size)


class Index:
    """Verified root of a bundle's index; rows are decoded on demand.

    Args:
        root: Exactly the last `root_size` bytes of the bundle.
        digest: Expected SHA-256, hexadecimal, from the SubmitJob request.

    Attributes:
        python: Major and minor version of the Python that pickled the functions.
        meta: Facts for every container of the bundle.
        functions: Number of functions.
        entries: Number of entries.
        end: Size of the bundle in bytes.

    Raises:
        IntegrityError: The bytes do not match the digest.
        VersionMismatchError: The bundle has another protocol version.
    """

    def __init__(self, root: bytes, digest: str) -> None:
        self.python = _check_prefix(BUNDLE, root)
        if hashlib.sha256(root).hexdigest() != digest.lower():
            raise IntegrityError("the index of the input data differs from the digest in the job")
        if len(root) < _ROOT_HEAD.size:
            raise IntegrityError("the index of the input data ends within its header")
        _, at, self._pages_at, meta, self.functions, self.entries = _ROOT_HEAD.unpack_from(root)
        self._root = root
        self._page_digests = _ROOT_HEAD.size + meta
        self._rows = self._page_digests + _DIGEST_BYTES * -(-self.entries // PAGE_ROWS)
        if self._rows + _ROW.size * self.functions + _ROOT_SIZE.size != len(root):
            raise IntegrityError("the index of the input data has the wrong size")
        self.meta = _read_meta(root, _ROOT_HEAD.size, meta)
        self.end = at + len(root)

    def shared(self, reference: Reference) -> str:
        """Return the generation of a shared value with which the bundle was submitted.

        Args:
            reference: The reference to the value in a frame of the bundle.

        Raises:
            IntegrityError: The index does not name the value, or names another size.
        """
        named = self.meta.get(SHARED)
        match named.get(reference.sha256.hex()) if isinstance(named, dict) else None:
            case [str(generation), reference.size]:
                return generation
        raise IntegrityError("the index does not name a shared value that a part refers to")

    def packages(self) -> Reference | None:
        """Return the manifest of the packages that the bundle's tasks import, or None.

        Raises:
            IntegrityError: The bundle's entry for it is malformed.
        """
        match self.meta.get(PACKAGES):
            case None:
                return None
            case [str(sha256), int(size)] if is_digest(sha256) and size > 0:
                return Reference(bytes.fromhex(sha256), size)
        raise IntegrityError("the packages that the input data needs are not readable")

    def page(self, number: int) -> Part:
        """Return the range of the page that has the row of an array task.

        Raises:
            IntegrityError: The bundle has fewer entries.
        """
        if not 0 <= number < self.entries:
            raise IntegrityError(f"the input data has {self.entries} tasks, no number {number}")
        page = number // PAGE_ROWS
        first = PAGE_ROWS * page
        at = self._page_digests + _DIGEST_BYTES * page
        return Part(
            self._pages_at + _ROW.size * first,
            _ROW.size * min(PAGE_ROWS, self.entries - first),
            self._root[at : at + _DIGEST_BYTES],
        )

    def entry(self, number: int, page: Buffer) -> Part:
        """Return the range of an array task's arguments.

        Args:
            number: Index of the array task.
            page: Bytes of its page.

        Raises:
            IntegrityError: The page differs from the index, or the bundle has fewer entries.
        """
        self.page(number).check(page)
        return Part(*_ROW.unpack_from(page, _ROW.size * (number % PAGE_ROWS)))

    def texts(self) -> Part | None:
        """Return the range of the texts for display, or None if there are none.

        Raises:
            IntegrityError: The index's entry for them is malformed.
        """
        located = self.meta.get(_TEXTS)
        if located is None:
            return None
        try:
            size, digest = int(located["size"]), bytes.fromhex(located["sha256"])
        except (KeyError, TypeError, ValueError) as error:
            raise IntegrityError("the index does not locate the call descriptions") from error
        if not 0 < size <= self._pages_at:
            raise IntegrityError("the call descriptions have the wrong size")
        return Part(self._pages_at - size, size, digest)

    def function(self, number: int) -> Part:
        """Return the range of a pickled function.

        Raises:
            IntegrityError: The bundle has fewer functions.
        """
        if not 0 <= number < self.functions:
            raise IntegrityError(
                f"the input data has {self.functions} functions, no number {number}"
            )
        return Part(*_ROW.unpack_from(self._root, self._rows + _ROW.size * number))


# --- packed buffers ---------------------------------------------------------------------------


def pack_head(lengths: Sequence[int]) -> bytes:
    """Return the head of a frame of aligned buffers with these lengths."""
    return _PACK_HEAD.pack(len(lengths)) + b"".join(map(_PACK_LENGTH.pack, lengths))


class Reference(NamedTuple):
    """Placeholder in a frame for bytes of another object: a shared value.

    Attributes:
        sha256: Digest of the bytes.
        size: Number of bytes.
    """

    sha256: bytes
    size: int


def pack(parts: Sequence[Sequence[Buffer | Reference]]) -> list[Buffer]:
    """Frame several buffers as one, each aligned, without copying.

    Args:
        parts: The buffers, each in one or more pieces, some of which may be references.

    Returns:
        Pieces whose concatenation `unpack_shared` reads, or without references `unpack`.
    """
    lengths: list[int] = []
    digests: list[bytes] = []
    inline: list[list[Buffer]] = []
    for part in parts:
        continues = 0
        fresh = True
        for piece in part:
            if isinstance(piece, Reference):
                lengths.append(piece.size | _REFERS | continues)
                digests.append(piece.sha256)
                inline.append([])
                fresh = True
            else:
                if fresh:
                    lengths.append(continues)
                    inline.append([])
                    fresh = False
                lengths[-1] += len(piece)
                inline[-1].append(piece)
            continues = _CONTINUES
        if not part:
            lengths.append(0)
            inline.append([])
    head = pack_head(lengths) + b"".join(digests)
    pieces: list[Buffer] = [head]
    at = len(head)
    for row, length in zip(inline, lengths, strict=True):
        if length & _REFERS:
            continue
        pieces.append(bytes(-at % ALIGNMENT))
        pieces.extend(row)
        at = length & _LENGTH
    return [piece for piece in pieces if len(piece)]


def places_of(references: Iterable[Reference], at: int) -> dict[Reference, int]:
    """Return the offsets of shared values in the payload, each once and aligned."""
    places: dict[Reference, int] = {}
    for each in references:
        if each not in places:
            places[each] = at
            at += each.size + -each.size % ALIGNMENT
    return places


def references(data: Buffer) -> list[Reference]:
    """Return the references of a frame in order.

    Args:
        data: The frame, or its beginning, including the complete table.

    Raises:
        IntegrityError: The table is longer than the data.
    """
    _, listed, _ = _table(memoryview(data))
    return listed


def table_size(start: Buffer) -> int:
    """Return the maximum size of a frame's table in bytes, from its first four bytes.

    Raises:
        IntegrityError: There are fewer than four bytes.
    """
    if len(start) < _PACK_HEAD.size:
        raise IntegrityError("packed buffers end within their table")
    (count,) = _PACK_HEAD.unpack_from(start)
    return int(_PACK_HEAD.size + (_PACK_LENGTH.size + _DIGEST_BYTES) * count)


def _table(view: memoryview) -> tuple[list[int], list[Reference], int]:
    """Return a frame's lengths with flags, its references, and its table's end."""
    try:
        (count,) = _PACK_HEAD.unpack_from(view)
        at = _PACK_HEAD.size + _PACK_LENGTH.size * count
        if at > len(view):
            raise IntegrityError("packed buffers end within their table")
        lengths = list(struct.unpack_from(f">{count}Q", view, _PACK_HEAD.size))
    except struct.error as error:
        raise IntegrityError("packed buffers end within their table") from error
    listed = []
    for length in lengths:
        if length & _REFERS:
            digest = bytes(view[at : at + _DIGEST_BYTES])
            at += _DIGEST_BYTES
            if len(digest) < _DIGEST_BYTES:
                raise IntegrityError("packed buffers end within their table")
            listed.append(Reference(digest, length & _LENGTH))
    return lengths, listed, at


def unpack(data: Buffer) -> list[memoryview]:
    """Return views of the buffers that `pack` framed without references.

    Raises:
        IntegrityError: The lengths do not fit the data, or a buffer is elsewhere.
    """

    def refuse(_: Reference) -> Buffer:
        raise IntegrityError("packed buffers refer to a shared value")

    parts = unpack_shared(data, refuse)
    if any(len(pieces) > 1 for pieces in parts):
        raise IntegrityError("a packed buffer is in several pieces")
    return [memoryview(piece) for (piece,) in parts]


def unpack_shared(data: Buffer, find: Callable[[Reference], Buffer]) -> list[list[Buffer]]:
    """Return the buffers that `pack` framed, each in pieces, without copying.

    Args:
        data: The frame.
        find: Returns a reference's bytes, possibly different memory for equal references.

    Raises:
        IntegrityError: The lengths do not fit the data, or the bytes found have another size.
        Exception: Any exception of ``find``.
    """
    view = memoryview(data)
    lengths, listed, at = _table(view)
    referred = iter(listed)
    parts: list[list[Buffer]] = []
    for length in lengths:
        piece: Buffer
        if length & _REFERS:
            wanted = next(referred)
            piece = find(wanted)
            if len(piece) != wanted.size:
                raise IntegrityError("a shared value does not have the size that a frame gives")
        else:
            at += -at % ALIGNMENT
            many = length & _LENGTH
            if many > len(view) - at:
                raise IntegrityError("packed buffers end before their last byte")
            piece = view[at : at + many]
            at += many
        if not length & _CONTINUES:
            parts.append([piece])
        elif parts:
            parts[-1].append(piece)
        else:
            raise IntegrityError("packed buffers begin with more of another one")
    if at != len(view):
        raise IntegrityError("packed buffers are followed by other bytes")
    return parts


def size(pieces: Iterable[Buffer]) -> int:
    """Return the number of bytes of all pieces."""
    return sum(map(len, pieces))


def portions(pieces: Iterable[Buffer], most: int) -> Iterator[list[Buffer]]:
    """Yield the bytes in portions of ``most`` bytes; the last one may be smaller."""
    portion: list[Buffer] = []
    room = most
    for piece in pieces:
        view = memoryview(piece)
        while view:
            part, view = view[:room], view[room:]
            portion.append(part)
            room -= len(part)
            if room == 0:
                yield portion
                portion, room = [], most
    if portion:
        yield portion


# --- outcomes, chunks and receipts -------------------------------------------------------------


def _sign(key: bytes, context: str, pieces: Iterable[Buffer]) -> bytes:
    """Sign pieces together with their place, so that they are only valid there."""
    name = context.encode()
    mac = hmac.new(key, struct.pack(">H", len(name)) + name, hashlib.sha256)
    for piece in pieces:
        mac.update(piece)
    return mac.digest()


class Outcome(NamedTuple):
    """Verified outcome.

    Attributes:
        python: Major and minor version of the container's Python.
        meta: Description of the attempt by `farcall_runtime.runner`.
        stdout: Output on stdout since the last stored chunk.
        stderr: Output on stderr since the last stored chunk.
        value: Packed pickles of the results; empty if they are a separate object.
    """

    python: tuple[int, int]
    meta: dict[str, Any]
    stdout: memoryview
    stderr: memoryview
    value: memoryview


def seal_outcome(
    key: bytes,
    context: str,
    meta: dict[str, Any],
    stdout: Buffer,
    stderr: Buffer,
    value: Sequence[Buffer],
) -> list[Buffer]:
    """Frame and sign an outcome.

    Returns:
        Pieces whose concatenation is the object.
    """
    text = json.dumps(meta).encode()
    # Trailing spaces in JSON are ignored, and align the body after it.
    text += b" " * (-(_OUTCOME_HEAD.size + len(text)) % ALIGNMENT)
    prefix, length = _prefix(OUTCOME), _PACK_HEAD.pack(len(text))
    body = pack([[stdout], [stderr], value])
    signature = _sign(key, context, [prefix, length, text, *body])
    return [prefix, signature, length, text, *body]


def open_outcome(key: bytes, context: str, data: Buffer) -> Outcome:
    """Verify and parse an outcome without copying it.

    Raises:
        IntegrityError: It was not written by the container that has the key, or is for another
            place, or was changed.
        VersionMismatchError: It has another protocol version.
    """
    python = _check_prefix(OUTCOME, data)
    if len(data) < _OUTCOME_HEAD.size:
        raise IntegrityError("the stored result ends within its header")
    prefix, signature, length = _OUTCOME_HEAD.unpack_from(data)
    view = memoryview(data)
    signed = [prefix, _PACK_HEAD.pack(length), view[_OUTCOME_HEAD.size :]]
    if not hmac.compare_digest(signature, _sign(key, context, signed)):
        raise IntegrityError("the result's signature does not match its content and place")
    start = _OUTCOME_HEAD.size
    if length > len(view) - start:
        raise IntegrityError("the stored result ends within its description")
    meta = _read_meta(view, start, length)
    parts = unpack(view[start + length :])
    if len(parts) != len(("stdout", "stderr", "value")):
        raise IntegrityError(f"a stored result must have three parts, but has {len(parts)}")
    return Outcome(python, meta, *parts)


def seal_chunk(key: bytes, context: str, data: Buffer) -> list[Buffer]:
    """Frame and sign a chunk of output; ``context`` is its key in the bucket."""
    return _seal_plain(CHUNK, key, context, data)


def open_chunk(key: bytes, context: str, data: Buffer) -> memoryview:
    """Verify a chunk of output.

    Raises:
        IntegrityError: Its writer did not have the key, or it is for another place.
        VersionMismatchError: It has another protocol version.
    """
    return _open_plain(CHUNK, key, context, data)


def seal_receipt(key: bytes, context: str, delivered: Buffer) -> list[Buffer]:
    """Frame and sign a receipt.

    Args:
        key: The bundle's outcome key.
        context: The receipt's key in the bucket.
        delivered: A bit for each task of the bundle, lowest bit of the first byte first; missing
            bits are 0. A bit is set if the client has the task's result.
    """
    return _seal_plain(RECEIPT, key, context, delivered)


def receipted(key: bytes, context: str, data: Buffer, tasks: int) -> set[int]:
    """Verify a receipt; return the indexes of the tasks whose results the client has.

    Raises:
        IntegrityError: Its writer did not have the key, or it is for another place.
        VersionMismatchError: It has another protocol version.
    """
    delivered = _open_plain(RECEIPT, key, context, data)
    count = min(tasks, 8 * len(delivered))
    return {n for n in range(count) if delivered[n >> 3] >> (n & 7) & 1}


def seal_note(key: bytes, context: str, content: dict[str, Any]) -> list[Buffer]:
    """Frame and sign a note on a retry.

    Args:
        key: The outcome key of the bundle whose tasks run again.
        context: The note's key in the bucket.
        content: Content of the note, JSON.
    """
    return _seal_plain(NOTE, key, context, json.dumps(content).encode())


def open_note(key: bytes, context: str, data: Buffer) -> dict[str, Any]:
    """Verify a note on a retry, and return its content.

    Raises:
        IntegrityError: Its writer did not have the key, or it is for another place.
        VersionMismatchError: It has another protocol version.
    """
    content = _open_plain(NOTE, key, context, data)
    return _read_meta(content, 0, len(content))


def encrypted(key: bytes, bundle: str, outcome_key: str) -> str:
    """Encrypt the outcome key of a bundle for an inbox, or decrypt it.

    A one-time pad from the pool's key is enough: an outcome key is random, and no two bundles have
    the same URL.

    Args:
        key: The pool's key.
        bundle: URL of the bundle.
        outcome_key: The key, or the encrypted key, hexadecimal.
    """
    pad = hmac.digest(key, b"outcome key " + bundle.encode(), hashlib.sha256)
    number = int.from_bytes(pad, "big") ^ int(outcome_key, 16)
    return number.to_bytes(len(pad), "big").hex()


def seal_worker(key: bytes, context: str, content: dict[str, Any]) -> list[Buffer]:
    """Frame and sign a warm worker's inbox or state; ``context`` is its key in the bucket."""
    return _seal_plain(WORKER, key, context, json.dumps(content).encode())


def open_worker(key: bytes, context: str, data: Buffer) -> dict[str, Any]:
    """Verify a warm worker's inbox or state, and return its content.

    Raises:
        IntegrityError: Its writer did not have the key, or it is for another place.
        VersionMismatchError: It has another protocol version.
    """
    content = _open_plain(WORKER, key, context, data)
    return _read_meta(content, 0, len(content))


def _seal_plain(kind: bytes, key: bytes, context: str, data: Buffer) -> list[Buffer]:
    prefix = _prefix(kind)
    return [_CHUNK_HEAD.pack(prefix, _sign(key, context, [prefix, data])), data]


def _open_plain(kind: bytes, key: bytes, context: str, data: Buffer) -> memoryview:
    _check_prefix(kind, data)
    if len(data) < _CHUNK_HEAD.size:
        raise IntegrityError("the object ends within its header")
    prefix, signature = _CHUNK_HEAD.unpack_from(data)
    rest = memoryview(data)[_CHUNK_HEAD.size :]
    if not hmac.compare_digest(signature, _sign(key, context, [prefix, rest])):
        raise IntegrityError("the object's signature does not match its content and place")
    return rest
