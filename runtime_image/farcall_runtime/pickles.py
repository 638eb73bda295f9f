"""Values to buffers and back, large ones without a copy (pickle protocol 5, out of band).

Pickles are written and read through Python-level files, 64 KiB at a time. So a thread that
pickles for seconds lets the interpreter's other threads run in between, and a large ``bytes``
object becomes a piece of its own instead of being copied.
"""

from __future__ import annotations

import functools
import io
import pickle
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from farcall_runtime.envelope import Buffer

Pieces: TypeAlias = "list[Buffer]"
"""One buffer, in pieces to be read one behind the other."""

_IN_BAND_BYTES = 1024  # smaller buffers are not worth a place of their own
_COPY_BYTES = 4 * 1024 * 1024
_COPIED_BYTES = 64 * 1024  # smaller pickles are copied whole, which takes less than reading them


def dump(value: object, new_sink: Callable[[], Sink] | None = None) -> list[Pieces]:
    """Pickle a value with cloudpickle.

    Args:
        value: The value.
        new_sink: Makes what the pickle is written to, where that is not to be memory.

    Returns:
        The pickle, then the buffers that it refers to: views of the value's own memory.

    Raises:
        Exception: Whatever the value's own pickling code raises.
    """
    new = pickler()
    buffers: list[Pieces] = []

    def keep_in(buffer: pickle.PickleBuffer) -> bool:
        raw = buffer.raw()
        if raw.nbytes < _IN_BAND_BYTES:
            return True
        buffers.append([raw])
        return False

    new_sink = new_sink or Sink
    sink = new_sink()
    try:
        new(sink, protocol=5, buffer_callback=keep_in).dump(value)
    except BufferError:  # a buffer with gaps has no raw form
        buffers.clear()
        sink = new_sink()
        new(sink, protocol=5).dump(value)
    return [sink.taken(), *buffers]


def dump_whole(value: object) -> bytes:
    """Pickle a value with cloudpickle into one string.

    Raises:
        Exception: Whatever the value's own pickling code raises.
    """
    sink = io.BytesIO()
    pickler()(sink, protocol=5).dump(value)
    return sink.getvalue()


def dump_to(value: object, file: Any) -> None:
    """Pickle a value with cloudpickle into a file, buffers and all.

    Args:
        value: The value.
        file: Anything with a ``write`` that may keep what it is given.

    Raises:
        Exception: Whatever the value's own pickling code raises.
    """
    pickler()(file, protocol=5).dump(value)


@functools.cache
def pickler() -> Any:
    """Return cloudpickle's pickler, made to tell a class's qualified name too.

    By its bare name a nested class, or one made in a function, would be taken for another.
    """
    import cloudpickle
    from cloudpickle import cloudpickle as internals

    class Pickler(cloudpickle.Pickler):  # type: ignore[misc]
        def reducer_override(self, value: Any) -> Any:
            recipe = super().reducer_override(value)
            if isinstance(recipe, tuple) and recipe[0] is internals._make_skeleton_class:
                recipe[1][3].setdefault("__qualname__", value.__qualname__)
            return recipe

    return Pickler


def load(parts: Sequence[Buffer], unpickler: type[pickle.Unpickler] = pickle.Unpickler) -> Any:
    """Unpickle what `dump` made. Arrays live on in the memory of the parts.

    Args:
        parts: The pickle and its buffers; their sender has been verified by the caller.
        unpickler: Reads the pickle.

    Raises:
        Exception: Whatever the unpickling code of the value raises.
    """
    data = parts[0]
    source = io.BytesIO(data) if len(data) <= _COPIED_BYTES else _Source(data)
    return unpickler(source, buffers=parts[1:]).load()


def itself(value: Any) -> Any:
    """Return the value: what a wrapper turns into where it is read may be named in a pickle."""
    return value


class Sink:
    """A file that keeps what is written without joining it."""

    def __init__(self) -> None:
        self._pieces: Pieces = []

    def write(self, data: Buffer) -> int:
        """Keep bytes, or an array of any shape and type; return the number of bytes."""
        self._pieces.append(data if isinstance(data, bytes) else pickle.PickleBuffer(data).raw())
        return len(self._pieces[-1])

    def taken(self) -> Pieces:
        """Return what was written."""
        return self._pieces


class _Source:
    """A file over a buffer that copies in steps, so that no single step takes long."""

    def __init__(self, data: Buffer) -> None:
        self._data = memoryview(data)
        self._at = 0

    def read(self, size: int = -1) -> bytes:
        end = len(self._data) if size < 0 else self._at + size
        data = bytes(self._data[self._at : end])
        self._at += len(data)
        return data

    def readinto(self, target: Any) -> int:
        size = min(len(target), len(self._data) - self._at)
        view = memoryview(target)
        for start in range(0, size, _COPY_BYTES):
            end = min(start + _COPY_BYTES, size)
            view[start:end] = self._data[self._at + start : self._at + end]
        self._at += size
        return size

    def readline(self) -> bytes:
        rest = self._data[self._at :]
        for length in range(1, len(rest) + 1):  # only tiny protocol-0 opcodes ask for lines
            if rest[length - 1] == ord("\n"):
                return self.read(length)
        return self.read()
