"""Shared values: what is large in a pickle, named by its digest and stored once. No I/O.

Pieces of a pickle and of its buffers from `SHARED_LEAST_BYTES` on don't travel in the bundle. In
their place stands their SHA-256, and each is an object of its own, which all tasks and all runs
below one prefix share.
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

_STEP_BYTES = 64 * 1024 * 1024  # is hashed in one go; a Ctrl-C waits for it
_OURS = 3  # references to a value that is remembered and that nobody else holds
_MOST_VALUES = 256


@dataclass(frozen=True, slots=True)
class Piece:
    """A shared value.

    Attributes:
        sha256: Its digest.
        size: Its number of bytes.
        data: The bytes: a view of the user's own memory, which the user may change. None where
            they are in the bucket already, and are held there.
    """

    sha256: bytes
    size: int
    data: Buffer | None = field(compare=False)

    @property
    def hexdigest(self) -> str:
        """The digest as it stands in keys."""
        return self.sha256.hex()


Share: TypeAlias = "Callable[[Piece], Future[str]]"
"""Begins to see to it that a value is in the bucket; the result is its generation there. It is
called in a thread, and may wait there where too much is on its way."""


def stay_here(_piece: Piece) -> Future[str]:
    """Store nothing, and give the name that stands for any generation: for who sends nothing."""
    done: Future[str] = Future()
    done.set_result("0" * 32)
    return done


class Digests:
    """Remembers what was hashed, so that one array in a thousand calls is hashed once.

    It trusts that nobody changes a value meanwhile, so it serves for one map, or for what was
    submitted at one moment. Of a value it keeps a weak reference where there are any of its type;
    ``bytes`` it holds until nobody else does and the next large value comes.

    Args:
        most: So many values are shared at most; what comes after these travels in the bundle. A
            map over as many large values as calls gains nothing by an object for each.
    """

    def __init__(self, most: int = _MOST_VALUES) -> None:
        self._most = most
        self._known: dict[tuple[int, int, int], tuple[Any, bytes]] = {}
        self._shared: set[bytes] = set()

    def admit(self, digest: bytes) -> bool:
        """Return whether a value is shared."""
        if digest not in self._shared and len(self._shared) < self._most:
            self._shared.add(digest)
        return digest in self._shared

    def of(self, data: Buffer) -> bytes:
        """Return the SHA-256 of a buffer that lies in one piece."""
        owner: Any = data.obj if isinstance(data, memoryview) else data
        if isinstance(owner, Archive):
            return owner.sha256
        place = _place_of(owner)
        if place is not None:
            while (base := getattr(owner, "base", None)) is not None:  # a view is made again
                owner = base
        elif not isinstance(owner, bytes | bytearray) or len(owner) != len(data):
            return sha256(data)  # some part of something: nothing tells which
        key = id(owner), place or 0, len(data)
        known = self._known.get(key)
        if known is not None and _held(known[0]) is owner:
            return known[1]
        self.tidy()
        digest = sha256(data)
        self._known[key] = _holding(owner), digest
        return digest

    def tidy(self) -> None:
        """Hold no longer what nobody else holds."""
        for key in list(self._known):
            held = self._known[key][0]
            if _held(held) is None or (
                not isinstance(held, weakref.ref) and sys.getrefcount(held) <= _OURS
            ):
                del self._known[key]


def _place_of(owner: object) -> int | None:
    """Return the address of an array's first element; None of what is no array."""
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
    """Return the SHA-256 of a large buffer; other threads run meanwhile."""
    digest = hashlib.sha256()
    for start in range(0, len(data), _STEP_BYTES):
        digest.update(memoryview(data)[start : start + _STEP_BYTES])
    return digest.digest()


def take(
    parts: Iterable[pickles.Pieces], digests: Digests
) -> tuple[list[list[Buffer | Reference]], tuple[Piece, ...]]:
    """Put references instead of what is to be shared.

    Args:
        parts: A pickle and its buffers, as `pickles.dump` returns them.
        digests: Remembers what was hashed.

    Returns:
        The parts, for `envelope.pack_shared`; and what they refer to, each once.
    """
    found: dict[bytes, Piece] = {}
    taken: list[list[Buffer | Reference]] = []
    for number, pieces in enumerate(parts):
        left: list[Buffer | Reference] = []
        for piece in pieces:
            if len(piece) >= _least_bytes(piece) and not _is_spilled(piece, number):
                digest = digests.of(piece)
                if digest in found or digests.admit(digest):
                    # What `put` has stored already goes before what lies here.
                    found.setdefault(digest, Piece(digest, len(piece), piece))
                    left.append(Reference(digest, len(piece)))
                else:
                    left.append(piece)
            elif number and isinstance(piece, memoryview) and _is_elsewhere(piece):
                reference = piece.obj.reference  # type: ignore[attr-defined]
                found[reference.sha256] = Piece(reference.sha256, reference.size, None)
                left.append(reference)
            else:
                left.append(piece)
        taken.append(left)
    return taken, tuple(found.values())


def _least_bytes(piece: Buffer) -> int:
    owner = piece.obj if isinstance(piece, memoryview) else piece
    return Archive.LEAST_BYTES if isinstance(owner, Archive) else SHARED_LEAST_BYTES


def _is_spilled(piece: Buffer, number: int) -> bool:
    """Return whether a piece is a whole pickle in a file, which no other is equal to."""
    return not number and isinstance(piece, memoryview) and isinstance(piece.obj, mmap.mmap)


def _is_elsewhere(piece: memoryview) -> bool:
    return isinstance(piece.obj, pickles.Elsewhere)


class Value:
    """A value that is stored by itself, and stands in arguments as what it is there.

    In the bucket it is the same objects as the value that is passed as it is; what of it is small
    travels where it is passed.

    Attributes:
        pieces: What is to be stored, or is.
    """

    def __init__(
        self, parts: Sequence[Sequence[Buffer | Reference]], pieces: Sequence[Piece]
    ) -> None:
        self.pieces = tuple(pieces)
        # Copies of what is small: it is as it was, whatever becomes of the value.
        self._parts = [
            [each if isinstance(each, Reference) else bytearray(each) for each in part]
            for part in parts
        ]

    @classmethod
    def of(cls, value: object, digests: Digests | None = None) -> Value:
        """Pickle a value.

        Raises:
            Exception: Whatever the value's own pickling code raises.
        """
        pickled, *buffers = pickles.dump(value, least_bytes=SHARED_LEAST_BYTES)
        # However many its parts are: what is passed many times is to be few bytes.
        parts = [list(_joined(pickled)), *buffers]
        return cls(*take(parts, digests or Digests()))

    @property
    def size(self) -> int:
        """Number of bytes of the pickle and its buffers."""
        return sum(_size(each) for part in self._parts for each in part)

    def forget(self) -> None:
        """Hold the bytes no longer: they are in the bucket."""
        self.pieces = tuple(Piece(each.sha256, each.size, None) for each in self.pieces)

    def reduce(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """Return what ``__reduce_ex__`` of something returns that arrives as the value.

        It can be pickled in arguments and functions of tasks, and nowhere else.
        """
        pickled, *buffers = self._parts
        sizes = [_size(each) for each in (*pickled, *(part[0] for part in buffers))]
        standing = [[_standing(each) for each in part] for part in (pickled, *buffers)]
        return pickles.opened, (standing[0], [part[0] for part in standing[1:]], sizes)


def _joined(pieces: Iterable[Buffer]) -> Iterator[Buffer]:
    """Join what is small and lies side by side, in pieces that are large enough to be shared."""
    for is_large, some in itertools.groupby(pieces, lambda p: len(p) >= SHARED_LEAST_BYTES):
        if is_large:
            yield from some
        else:
            yield b"".join(some)


def _size(each: Buffer | Reference) -> int:
    return each.size if isinstance(each, Reference) else len(each)


def _standing(each: bytearray | Reference) -> object:
    return PickleBuffer(pickles.Elsewhere(each)) if isinstance(each, Reference) else each
