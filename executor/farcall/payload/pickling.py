"""Pickling: functions and arguments to buffers.

`farcall.payload.sources` decides which parts of the user's project are pickled by name or by
value.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import inspect
import io
import itertools
import platform
import queue
import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import CoroutineType, GeneratorType
from typing import Any, NamedTuple, TypeVar

import cloudpickle

from farcall.model.errors import FarcallError, TaskNotPicklableError
from farcall.model.interrupts import is_ctrl_c
from farcall.payload.code_digests import CodeDigests
from farcall.payload.project import Pickling
from farcall.payload.shared import Digests, Piece, Value, take
from farcall.payload.spill import NoRoomError, Spill
from farcall_runtime import envelope, failures, pickles
from farcall_runtime.contract import SHARED_LEAST_BYTES
from farcall_runtime.envelope import Buffer

T = TypeVar("T")

# --- Explanation: which part of the arguments cannot be pickled, and what to pass instead


_DEEPEST = 6
_WIDEST = 1000

_CONNECT = "connect inside the function, and pass what it connects to, such as a URL"
_MAKE_THERE = "create it inside the function, which shares no memory with this process"

_BY_TYPE: tuple[tuple[type | tuple[type, ...], str], ...] = (
    (io.IOBase, "pass its content, such as file.read(); to write a file, return its content"),
    (socket.socket, _CONNECT),
    (GeneratorType, "pass a list of its items"),
    (CoroutineType, "await it, and pass the result"),
    ((threading.Thread, threading.Event, threading.Condition, threading.local), _MAKE_THERE),
    ((queue.Queue, queue.SimpleQueue), _MAKE_THERE),
)
_BY_MODULE = {
    "_thread": _MAKE_THERE,
    "multiprocessing": _MAKE_THERE,
    "asyncio": _MAKE_THERE,
    "boto3": "create the client inside the function, where it has the job role",
    "botocore": "create the client inside the function, where it has the job role",
    "sqlite3": "pass its rows: the function cannot read this machine's files",
    **dict.fromkeys(
        ("psycopg", "psycopg2", "pymysql", "pymongo", "redis", "sqlalchemy"), _CONNECT
    ),
}
_OTHERWISE = "pass the data that it is created from, and create it inside the function"


def explain(calls: Sequence[tuple[tuple[Any, ...], dict[str, Any]]]) -> str:
    """Explain which part of which argument cannot be pickled, why, and what to pass.

    Args:
        calls: Arguments of calls, some of which cannot be pickled.

    Returns:
        The explanation; empty if each argument can be pickled separately.
    """
    for args, kwargs in calls:
        named = [(f"argument {n}", arg) for n, arg in enumerate(args, start=1)]
        named += [(f"argument {name}", value) for name, value in kwargs.items()]
        for name, value in named:
            trouble = _trouble(value)
            if trouble is not None:
                return _explain(*_innermost(name, value, trouble))
    return ""


def _explain(name: str, value: Any, trouble: BaseException) -> str:
    why = failures.in_words(trouble)
    if isinstance(trouble, FarcallError):
        return f"{name}: {trouble}"  # farcall's own error contains a remedy
    return f"{name} ({type(value).__name__}) cannot be pickled ({why}): {_advice(value)}"


def _advice(value: Any) -> str:
    for kind, advice in _BY_TYPE:
        if isinstance(value, kind):
            return advice
    for kind in type(value).__mro__:
        top = str(kind.__module__).partition(".")[0]
        if top in _BY_MODULE:
            return _BY_MODULE[top]
    return _OTHERWISE


def _innermost(name: str, value: Any, trouble: BaseException) -> tuple[str, Any, BaseException]:
    """Return the smallest part of a container or object that cannot be pickled."""
    for _ in range(_DEEPEST):
        if _advice(value) != _OTHERWISE or _is_own(value):
            break
        for suffix, part in itertools.islice(_parts(value), _WIDEST):
            part_trouble = _trouble(part)
            if part_trouble is not None:
                name, value, trouble = name + suffix, part, part_trouble
                break
        else:
            break
    return name, value, trouble


def _is_own(value: Any) -> bool:
    return type(value).__module__.partition(".")[0] == "farcall"


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        yield from ((f"[{_shown(key)}]", part) for key, part in value.items())
    elif isinstance(value, list | tuple):
        yield from ((f"[{number}]", part) for number, part in enumerate(value))
    elif not callable(value):
        attributes = getattr(value, "__dict__", None)
        if isinstance(attributes, dict):
            yield from ((f".{attribute}", part) for attribute, part in attributes.items())


def _shown(key: object) -> str:
    return repr(key) if isinstance(key, str | int) else type(key).__name__


def _trouble(value: Any, dump: Callable[[Any], object] = pickles.dump) -> BaseException | None:
    try:
        dump(value)
    except BaseException as error:  # the value's own code
        if is_ctrl_c(error):
            raise
        return error
    return None


Call = tuple[tuple[Any, ...], dict[str, Any]]
"""Positional and keyword arguments of one call."""

ToText = Callable[[Sequence[Call]], str]
"""Summarizes a task's calls; see `farcall.payload.call_texts`."""


_TOGETHER = 64
_TOGETHER_BYTES = 1024 * 1024


class Origin(NamedTuple):
    """The interpreter that pickled a function; the container's must match.

    Attributes:
        python: Python version, such as ``"3.11.7"``.
        cloudpickle: cloudpickle version.
    """

    python: str
    cloudpickle: str

    @property
    def minor(self) -> tuple[int, int]:
        """Major and minor version of Python."""
        major, minor, *_ = self.python.split(".")
        return int(major), int(minor)


HERE = Origin(platform.python_version(), cloudpickle.__version__)


@dataclass(frozen=True)
class Packed:
    """A pickled function, or the pickled arguments of one task.

    Attributes:
        pieces: The bytes, in pieces.
        size: Number of bytes.
        origin: The interpreter that pickled the functions in it.
        text: Summary of the arguments for lists; may be empty.
        shared: The distinct large values that it refers to.
        code: With the option ``cache``, the digest of the code that it uses.
        identity: For it, the digest of the content, if not of the bytes.
    """

    pieces: Iterable[Buffer]
    size: int
    origin: Origin = HERE
    text: str = ""
    shared: tuple[Piece, ...] = ()
    code: bytes = b""
    identity: bytes = b""

    @functools.cached_property
    def sha256(self) -> bytes:
        """Digest of the bytes."""
        digest = hashlib.sha256()
        for piece in self.pieces:
            digest.update(piece)
        return digest.digest()


def check_callable(function: object) -> None:
    """Reject objects that cannot be tasks.

    Raises:
        TaskNotPicklableError: The object is not callable, or is a generator function.
    """
    name = getattr(function, "__qualname__", repr(function))
    if not callable(function):
        raise TaskNotPicklableError(
            f"{name} is of type {type(function).__name__}, not a function. Pass the function and "
            "its arguments separately: f, 3 instead of f(3)"
        )
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise TaskNotPicklableError(
            f"{name} is a generator function: its items cannot be returned one by one. Return a "
            "list of them"
        )


def pack_function(
    function: Callable[..., Any],
    fixed: Mapping[str, Any] | None = None,
    digests: Digests | None = None,
    *,
    using: Pickling | None = None,
    codes: CodeDigests | None = None,
) -> Packed:
    """Pickle a function with the objects that it refers to.

    Args:
        function: The function.
        fixed: Keyword arguments that all calls share; they are pickled with the function.
        digests: Cache of the digests of large values.
        using: How the project is pickled; None for all of it by value.
        codes: Digests of code, for the option ``cache``.

    Raises:
        TaskNotPicklableError: A keyword argument, or an object that the function refers to, cannot
            be pickled.
    """
    called = functools.partial(function, **fixed) if fixed else function
    using = using or Pickling(None)
    with _explaining(function, fixed or {}, using):
        parts = _dump(called, using, lambda: pickles.dump(using.prepared(called)))
    packed = _share(_frame(parts), parts, digests or Digests())
    return packed if codes is None else replace(packed, code=codes.of_call(function, fixed or {}))


def dump_function(function: Callable[..., Any], using: Pickling) -> bytes:
    """Pickle a function for a job that gets the project's files in another way.

    Raises:
        TaskNotPicklableError: An object that the function refers to cannot be pickled.
    """
    with _explaining(function, {}, using):
        return _dump(
            function, using, lambda: pickles.dump_whole(using.prepared(function, is_apart=True))
        )


def dump_value(what: str, value: Any, using: Pickling) -> bytes:
    """Pickle a value for a job that gets the project's files in another way.

    Args:
        what: What the value is, for errors.
        value: The value.
        using: The pickling rules.

    Raises:
        TaskNotPicklableError: The value cannot be pickled.
    """
    with using.in_force():
        try:
            return pickles.dump_whole(value)
        except Exception as error:  # pickling runs the user's code
            raise TaskNotPicklableError(_explain(*_innermost(what, value, error))) from error


@contextlib.contextmanager
def _explaining(function: Any, fixed: Mapping[str, Any], using: Pickling) -> Iterator[None]:
    try:
        yield
    except BaseException as error:  # pickling runs the user's code
        if is_ctrl_c(error):
            raise
        with using.in_force():
            why = explain([((), dict(fixed))])
        if why:
            raise TaskNotPicklableError(why) from error
        name = getattr(function, "__qualname__", repr(function))
        raise TaskNotPicklableError(
            f"function {name} cannot be pickled ({failures.in_words(error)}): the objects that "
            "it uses (globals, closures, self) are pickled with it. Create unpicklable objects "
            "inside the function"
        ) from error


def _dump(called: Callable[..., Any], using: Pickling, dump: Callable[[], T]) -> T:
    try:
        with using.in_force():
            return dump()
    except Exception:
        if not using.adapt(called):
            raise
    with using.in_force():
        return dump()


def pack_calls(
    groups: Iterable[Sequence[Call]],
    cache_dir: str | None = None,
    to_text: ToText | None = None,
    digests: Digests | None = None,
    *,
    using: Pickling | None = None,
    codes: CodeDigests | None = None,
) -> Iterator[Packed]:
    """Pickle the arguments of tasks: one call each, or several for chunks.

    A few tasks are pickled at a time, on demand: the pickles of a large sweep are never in memory
    together, and other threads do not wait for all of them to be pickled and hashed.

    Args:
        groups: The calls of each task.
        cache_dir: Folder for pickles that do not fit into memory; None for none.
        to_text: Summarizes the calls; None for no summaries.
        digests: Cache of the digests of large values.
        using: How the project is pickled; None for all of it by value.
        codes: Digests of code, for the option ``cache``.

    Raises:
        NoRoomError: The folder has no space.
        TaskNotPicklableError: An argument cannot be pickled; the message names it.
    """
    groups = iter(groups)
    digests = digests or Digests()
    using = using or Pickling(None)
    while some := _pack_some(groups, cache_dir, to_text, using, codes):
        packed, large = some
        if not large:
            yield from packed
            continue
        packed.reverse()
        for number in range(len(packed)):  # yielded items are released
            if number in large:
                yield _share(packed.pop(), large.pop(number), digests)
            else:
                yield packed.pop()
        digests.tidy()


def _pack_some(
    groups: Iterator[Sequence[Call]],
    cache_dir: str | None,
    to_text: ToText | None,
    using: Pickling,
    codes: CodeDigests | None,
) -> tuple[list[Packed], dict[int, list[pickles.Pieces]]] | None:
    """Pickle a few tasks; return them, and the pickles that contain large values."""
    packed: list[Packed] = []
    large: dict[int, list[pickles.Pieces]] = {}
    size = 0
    while len(packed) < _TOGETHER and size < _TOGETHER_BYTES:
        calls = next(groups, None)
        if calls is None:
            break
        with using.recording() if codes is not None else contextlib.nullcontext() as definitions:
            parts = _pickle_call(calls, cache_dir, using)
        each = _frame(parts, to_text(calls) if to_text is not None else "")
        if codes is not None:
            each = replace(each, code=codes.of_each(definitions or ()))
        if each.size >= SHARED_LEAST_BYTES or len(parts) > 1:
            large[len(packed)] = parts
        packed.append(each)
        size += each.size
    return (packed, large) if packed else None


def _pickle_call(
    calls: Sequence[Call], cache_dir: str | None, using: Pickling
) -> list[pickles.Pieces]:
    new_sink = functools.partial(Spill, cache_dir) if cache_dir else None
    try:
        with using.in_force():
            return pickles.dump(list(calls), new_sink)
    except BaseException as error:  # pickling runs the user's code
        if isinstance(error, NoRoomError) or is_ctrl_c(error):
            raise
        with using.in_force():
            why = explain(calls)
        why = why or f"the arguments cannot be pickled together ({failures.in_words(error)})"
        raise TaskNotPicklableError(why) from error


def pack_value(value: object, using: Pickling | None = None) -> Value:
    """Pickle a value that is stored separately.

    Args:
        value: The value.
        using: How the project is pickled; None for all of it by value.

    Raises:
        TaskNotPicklableError: The value cannot be pickled; the message contains the reason.
    """
    try:
        with (using or Pickling(None)).in_force():
            return Value.of(value)
    except BaseException as error:  # pickling runs the user's code
        if is_ctrl_c(error):
            raise
        raise TaskNotPicklableError(
            f"a {type(value).__name__} cannot be pickled ({failures.in_words(error)}). Put the "
            "data that it is created from, and create it inside the function"
        ) from error


def pack_plain(value: object, origin: Origin = HERE) -> Packed:
    """Pack farcall's own plain data, which may contain other pickles as bytes."""
    parts = pickles.dump(value)
    return _share(_frame(parts, origin=origin), parts, Digests())


def _frame(parts: list[pickles.Pieces], text: str = "", origin: Origin = HERE) -> Packed:
    pieces = envelope.pack(parts)
    return Packed(pieces, envelope.size(pieces), origin, text)


def _share(packed: Packed, parts: list[pickles.Pieces], digests: Digests) -> Packed:
    """Hash the large parts of a pickle and its buffers; replace them with references."""
    if packed.size < SHARED_LEAST_BYTES and len(parts) == 1:
        return packed
    left, shared = take(parts, digests)
    if not shared:
        return packed
    pieces = envelope.pack(left)
    return replace(packed, pieces=pieces, size=envelope.size(pieces), shared=shared)
