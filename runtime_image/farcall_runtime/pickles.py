"""Pickling of values to buffers, without copying large ones (protocol 5).

Pickles are written and read through Python-level files, 64 KiB at a time. So a thread that
pickles for seconds lets the interpreter's other threads run in between, and a large ``bytes``
object becomes a separate piece instead of being copied.
"""

from __future__ import annotations

import contextlib
import functools
import io
import pickle
from collections import ChainMap
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from types import CodeType
from typing import Any, ClassVar, TypeAlias

from farcall_runtime.envelope import Buffer, Reference

Pieces: TypeAlias = "list[Buffer]"
"""A buffer in pieces, which are read in sequence."""

IN_BAND_BYTES = 1024
"""Minimum size of a separate buffer in bytes; smaller ones are part of the pickle."""

# Position of the file name among the arguments of types.CodeType, in Python 3.8 and newer:
# https://github.com/python/cpython/blob/3.13/Objects/codeobject.c (code_new_impl)
_FILENAME_ARGUMENT = 10

_COPY_BYTES = 4 * 1024 * 1024
_NOT_HERE = (
    "only farcall can pickle a value that was stored separately, in a task's arguments or in "
    "objects that its function refers to; pass the value itself elsewhere"
)
_COPIED_BYTES = 64 * 1024  # smaller pickles are copied whole, which takes less than reading them


rules: ContextVar[Any] = ContextVar("rules", default=None)
"""The `farcall_runtime.sources.Rules` for pickling in a context."""

job_rules: Any = None
"""The rules in a job, in all of its threads."""


def rules_here() -> Any:
    """Return the rules in effect here; None to pickle as cloudpickle does."""
    here = rules.get()
    return job_rules if here is None else here or None


@contextlib.contextmanager
def without_rules() -> Iterator[None]:
    """Pickle as cloudpickle does during a block."""
    token = rules.set(False)
    try:
        yield
    finally:
        rules.reset(token)


def dump(
    value: object, new_sink: Callable[[], Sink] | None = None, least_bytes: int = IN_BAND_BYTES
) -> list[Pieces]:
    """Pickle a value with cloudpickle.

    Args:
        value: The value.
        new_sink: Creates the file for the pickle; by default it is in memory.
        least_bytes: Minimum size of a separate buffer; smaller ones are copied into the pickle.

    Returns:
        The pickle, then the buffers that it refers to: views of the value's own memory. A buffer
        smaller than ``least_bytes`` is a view of an `Elsewhere`.

    Raises:
        Exception: Any exception of the value's own pickling code.
    """
    new = pickler()
    buffers: list[Pieces] = []

    def keep_in(buffer: pickle.PickleBuffer) -> bool:
        raw = buffer.raw()
        if raw.nbytes < least_bytes and not isinstance(raw.obj, Elsewhere):
            return True
        buffers.append([raw])
        return False

    def keep_all_but_elsewhere(buffer: pickle.PickleBuffer) -> bool:
        with memoryview(buffer) as view:
            return not isinstance(view.obj, Elsewhere) or keep_in(buffer)

    new_sink = new_sink or Sink
    sink = new_sink()
    try:
        new(sink, protocol=5, buffer_callback=keep_in).dump(value)
    except BufferError:  # a buffer with gaps has no raw form
        buffers.clear()
        sink = new_sink()
        new(sink, protocol=5, buffer_callback=keep_all_but_elsewhere).dump(value)
    return [sink.taken(), *buffers]


def dump_whole(value: object) -> bytes:
    """Pickle a value with cloudpickle into one string.

    Raises:
        Exception: Any exception of the value's own pickling code.
    """
    sink = io.BytesIO()
    pickler()(sink, protocol=5).dump(value)
    return sink.getvalue()


def dump_to(value: object, file: Any) -> None:
    """Pickle a value with cloudpickle into a file, including its buffers.

    Args:
        value: The value.
        file: An object with a ``write`` method, which may retain the data.

    Raises:
        Exception: Any exception of the value's own pickling code.
    """
    pickler()(file, protocol=5).dump(value)


@functools.cache
def pickler() -> Any:
    """Return cloudpickle's pickler, extended to keep file names and qualified names.

    It keeps the file name of code that is pickled by value, which cloudpickle 3.1.3 and newer
    replace with ``<dynamic-code>`` (https://github.com/cloudpipe/cloudpickle/pull/560), so that
    tracebacks name the user's file and show its lines. It keeps the qualified name of a class,
    because two nested classes may share their bare name.
    """
    import cloudpickle
    from cloudpickle import cloudpickle as internals

    def reduce_code(code: CodeType) -> tuple[Any, ...]:
        make, arguments = internals._code_reduce(code)
        before, after = arguments[:_FILENAME_ARGUMENT], arguments[_FILENAME_ARGUMENT + 1 :]
        here = rules_here()
        file = code.co_filename if here is None else here.file_of(code.co_filename)
        return make, (*before, file, *after)

    class Pickler(cloudpickle.Pickler):  # type: ignore[misc]
        dispatch_table: ClassVar[ChainMap[Any, Any]] = ChainMap(
            {CodeType: reduce_code}, cloudpickle.Pickler.dispatch_table
        )

        def reducer_override(self, value: Any) -> Any:
            here = rules_here()
            recipe = here.reduce(self, value) if here is not None else None
            if recipe is None:
                recipe = super().reducer_override(value)
            if isinstance(recipe, tuple) and recipe[0] is internals._make_skeleton_class:
                recipe[1][3].setdefault("__qualname__", value.__qualname__)
            return recipe

    return Pickler


def load(parts: Sequence[Buffer], unpickler: type[pickle.Unpickler] = pickle.Unpickler) -> Any:
    """Unpickle the result of `dump`. Arrays use the memory of the parts.

    Args:
        parts: The pickle and its buffers; the caller has verified their sender.
        unpickler: Reads the pickle.

    Raises:
        Exception: Any exception of the value's own unpickling code.
    """
    return load_pieces([[part] for part in parts], unpickler)


def load_pieces(
    parts: Sequence[Sequence[Buffer]], unpickler: type[pickle.Unpickler] = pickle.Unpickler
) -> Any:
    """Unpickle the result of `dump`, each part in one or more pieces; see `load`."""
    pickled, *others = parts
    small = len(pickled) == 1 and len(pickled[0]) <= _COPIED_BYTES
    source = io.BytesIO(pickled[0]) if small else _Source(pickled)
    buffers = [part[0] if len(part) == 1 else bytearray().join(part) for part in others]
    return unpickler(source, buffers=buffers).load()


class Elsewhere(bytearray):
    """Empty buffer that represents the bytes of a shared value in a pickle."""

    __slots__ = ("reference",)

    def __init__(self, reference: Reference) -> None:
        super().__init__()
        self.reference = reference


def opened(pickled: Sequence[Buffer], buffers: Sequence[Buffer], sizes: Sequence[int]) -> Any:
    """Return a separately stored value; pickles contain a call of this function.

    Args:
        pickled: The value's pickle, in pieces.
        buffers: The buffers that the pickle refers to.
        sizes: Size of each piece and then of each buffer in bytes.

    Raises:
        pickle.UnpicklingError: The bytes are missing.
        Exception: Any exception of the value's own unpickling code.
    """
    if [len(each) for each in (*pickled, *buffers)] != list(sizes):
        raise pickle.UnpicklingError(_NOT_HERE)
    return load_pieces([pickled, *([each] for each in buffers)])


def itself(value: Any) -> Any:
    """Return the value; wrappers pickle as a call of this function."""
    return value


class Sink:
    """File that keeps written buffers without joining them."""

    def __init__(self) -> None:
        self._pieces: Pieces = []

    def write(self, data: Buffer) -> int:
        """Keep bytes, or an array of any shape and type; return the number of bytes."""
        self._pieces.append(data if isinstance(data, bytes) else pickle.PickleBuffer(data).raw())
        return len(self._pieces[-1])

    def taken(self) -> Pieces:
        """Return the written buffers."""
        return self._pieces


class _Source:
    """File over a buffer's pieces that copies in steps, so that no step takes long."""

    def __init__(self, pieces: Sequence[Buffer]) -> None:
        self._pieces = [memoryview(piece) for piece in pieces]
        self._pieces.reverse()  # the next one is the last

    def read(self, size: int = -1) -> bytes:
        if size < 0:
            size = sum(map(len, self._pieces))
        if self._pieces and size < len(self._pieces[-1]):  # mostly
            return bytes(self._next(size))
        data = bytearray(min(size, sum(map(len, self._pieces))))
        self.readinto(data)
        return bytes(data)

    def readinto(self, target: Any) -> int:
        view = memoryview(target)
        at = 0
        while at < len(view) and self._pieces:
            piece = self._next(min(len(view) - at, _COPY_BYTES))
            view[at : at + len(piece)] = piece
            at += len(piece)
        return at

    def readline(self) -> bytes:
        line = bytearray()
        while not line.endswith(b"\n") and (byte := self.read(1)):
            line += byte  # only tiny protocol-0 opcodes ask for lines
        return bytes(line)

    def _next(self, most: int) -> memoryview:
        """Return and remove bytes of the next piece."""
        piece = self._pieces.pop()
        if most < len(piece):
            self._pieces.append(piece[most:])
        return piece[:most]
