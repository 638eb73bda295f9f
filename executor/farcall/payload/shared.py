"""Shared values: large parts of pickles, named by digest and stored once. No I/O.

Pieces of a pickle and of its buffers of at least `SHARED_LEAST_BYTES` are not part of the bundle.
The pickle refers to them by their SHA-256. Each is an object in the bucket, which all tasks of a
run share.
"""

from __future__ import annotations

import hashlib
import itertools
import mmap
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pickle import PickleBuffer
from typing import Any, TypeAlias

from farcall.payload.sources import Archive
from farcall_runtime import pickles
from farcall_runtime.contract import SHARED_LEAST_BYTES
from farcall_runtime.envelope import Buffer, Reference

_STEP_BYTES = 64 * 1024 * 1024  # hashed in one call; Ctrl-C waits for its end
_OURS = 3  # reference count of a remembered value without other owners
_MOST_VALUES = 256


@dataclass(frozen=True, slots=True)
class Piece:
    """A shared value.

    Attributes:
        sha256: Its digest.
        size: Its size in bytes.
        data: The bytes: a view of the user's own memory, which the user may change. None if they
            are in the bucket and retained there.
    """

    sha256: bytes
    size: int
    data: Buffer | None = field(compare=False)

    @property
    def hexdigest(self) -> str:
        """The digest as used in keys."""
        return self.sha256.hex()


Share: TypeAlias = "Callable[[Piece], Future[str]]"
"""Starts to store a value in the bucket; the result is its generation there.

It is called in a thread, and may block if too many uploads are in progress.
"""


def stay_here(_piece: Piece) -> Future[str]:
    """Return a placeholder generation, for callers that store nothing."""
    done: Future[str] = Future()
    done.set_result("0" * 32)
    return done


class Digests:
    """Cache of digests, so that an array in a thousand calls is hashed once.

    It assumes that values do not change meanwhile, so it serves one map, or the calls submitted
    together. It keeps weak references to values whose type supports them. It retains ``bytes``
    until they have no other owner and the next large value arrives.

    Args:
        most: Maximum number of shared values; further values are stored in the bundle. If each
            call has its own large value, separate objects gain nothing.
    """

    def __init__(self, most: int = _MOST_VALUES) -> None:
        self._most = most
        self._known: dict[tuple[int, int, int], tuple[Any, bytes]] = {}
        self._shared: set[bytes] = set()

    def admit(self, digest: bytes) -> bool:
        """Return whether a value should be shared."""
        if digest not in self._shared and len(self._shared) < self._most:
            self._shared.add(digest)
        return digest in self._shared

    def of(self, data: Buffer) -> bytes:
        """Return the SHA-256 of a contiguous buffer."""
        owner: Any = data.obj if isinstance(data, memoryview) else data
        if isinstance(owner, Archive):
            return owner.sha256
        place = _place_of(owner)
        if place is not None:
            while (base := getattr(owner, "base", None)) is not None:  # a view is created again
                owner = base
        elif not isinstance(owner, bytes | bytearray) or len(owner) != len(data):
            return sha256(data)  # a part of an unknown object
        key = id(owner), place or 0, len(data)
        known = self._known.get(key)
        if known is not None and _held(known[0]) is owner:
            return known[1]
        self.tidy()
        digest = sha256(data)
        self._known[key] = _holding(owner), digest
        return digest

    def tidy(self) -> None:
        """Release values that have no other owner."""
        for key in list(self._known):
            held = self._known[key][0]
            if _held(held) is None or (
                not isinstance(held, weakref.ref) and sys.getrefcount(held) <= _OURS
            ):
                del self._known[key]


def _place_of(owner: object) -> int | None:
    """Return the address of an array's first element; None for other objects."""
    described = getattr(owner, "__array_interface__", None)
    address = described.get("data") if isinstance(described, dict) else None
    return address[0] if isinstance(address, tuple) and isinstance(address[0], int) else None


def _holding(owner: Any) -> Any:
    try:
        return weakref.ref(owner)
    except TypeError:
        return owner


def _held(held: Any) -> Any:
    return held() if isinstance(held, weakref.ref) else held


def sha256(data: Buffer) -> bytes:
    """Return the SHA-256 of a large buffer without blocking other threads."""
    digest = hashlib.sha256()
    for start in range(0, len(data), _STEP_BYTES):
        digest.update(memoryview(data)[start : start + _STEP_BYTES])
    return digest.digest()


def take(
    parts: Iterable[pickles.Pieces], digests: Digests
) -> tuple[list[list[Buffer | Reference]], tuple[Piece, ...]]:
    """Replace the pieces to share with references.

    Args:
        parts: A pickle and its buffers, as returned by `pickles.dump`.
        digests: Cache of digests.

    Returns:
        The parts, for `envelope.pack`; and the distinct pieces that they refer to.
    """
    shared_pieces: dict[bytes, Piece] = {}
    taken: list[list[Buffer | Reference]] = []
    for number, pieces in enumerate(parts):
        left: list[Buffer | Reference] = []
        for piece in pieces:
            if len(piece) >= _least_bytes(piece) and not _is_spilled(piece, number):
                digest = digests.of(piece)
                if digest in shared_pieces or digests.admit(digest):
                    # Pieces that `put` has stored already take precedence over bytes in memory.
                    shared_pieces.setdefault(digest, Piece(digest, len(piece), piece))
                    left.append(Reference(digest, len(piece)))
                else:
                    left.append(piece)
            elif number and isinstance(piece, memoryview) and _is_elsewhere(piece):
                reference = piece.obj.reference  # type: ignore[attr-defined]
                shared_pieces[reference.sha256] = Piece(reference.sha256, reference.size, None)
                left.append(reference)
            else:
                left.append(piece)
        taken.append(left)
    return taken, tuple(shared_pieces.values())


def _least_bytes(piece: Buffer) -> int:
    owner = piece.obj if isinstance(piece, memoryview) else piece
    return Archive.LEAST_BYTES if isinstance(owner, Archive) else SHARED_LEAST_BYTES


def _is_spilled(piece: Buffer, number: int) -> bool:
    """Return whether a piece is an entire pickle in a file, which is never repeated."""
    return not number and isinstance(piece, memoryview) and isinstance(piece.obj, mmap.mmap)


def _is_elsewhere(piece: memoryview) -> bool:
    return isinstance(piece.obj, pickles.Elsewhere)


class Value:
    """A value that is stored separately, and appears in arguments as the value itself.

    In the bucket, its objects are the same as if the value were passed directly; its small parts
    are stored with the arguments.

    Attributes:
        pieces: The pieces that are stored, or must be.
    """

    def __init__(
        self, parts: Sequence[Sequence[Buffer | Reference]], pieces: Sequence[Piece]
    ) -> None:
        self.pieces = tuple(pieces)
        # Copies of the small parts, so that later changes of the value have no effect.
        self._parts = [
            [each if isinstance(each, Reference) else bytearray(each) for each in part]
            for part in parts
        ]

    @classmethod
    def of(cls, value: object, digests: Digests | None = None) -> Value:
        """Pickle a value.

        Raises:
            Exception: Raised by the value's own pickling code.
        """
        pickled, *buffers = pickles.dump(value, least_bytes=SHARED_LEAST_BYTES)
        # Join the pieces, because a value that is passed many times must take few bytes each time.
        parts = [list(_joined(pickled)), *buffers]
        return cls(*take(parts, digests or Digests()))

    @property
    def size(self) -> int:
        """Size of the pickle and its buffers in bytes."""
        return sum(_size(each) for part in self._parts for each in part)

    def forget(self) -> None:
        """Release the bytes, because they are in the bucket."""
        self.pieces = tuple(Piece(each.sha256, each.size, None) for each in self.pieces)

    def reduce(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """Return the ``__reduce_ex__`` result of an object that arrives as the value.

        It can be pickled only in arguments and functions of tasks.
        """
        pickled, *buffers = self._parts
        sizes = [_size(each) for each in (*pickled, *(part[0] for part in buffers))]
        standing = [[_standing(each) for each in part] for part in (pickled, *buffers)]
        return pickles.opened, (standing[0], [part[0] for part in standing[1:]], sizes)


def _joined(pieces: Iterable[Buffer]) -> Iterator[Buffer]:
    """Join adjacent small pieces; keep pieces that are large enough to be shared."""
    for is_large, some in itertools.groupby(pieces, lambda p: len(p) >= SHARED_LEAST_BYTES):
        if is_large:
            yield from some
        else:
            yield b"".join(some)


def _size(each: Buffer | Reference) -> int:
    return each.size if isinstance(each, Reference) else len(each)


def _standing(each: bytearray | Reference) -> object:
    return PickleBuffer(pickles.Elsewhere(each)) if isinstance(each, Reference) else each
