"""Call texts: one-line summaries of the arguments of calls, for lists. No I/O.

A summary depends on the types of the arguments and not on their ``repr``, which may take long,
have side effects, or reveal a secret. Numbers, strings, dates and short containers are shown as
they are, arrays and frames by their shape, and everything else by its class name. So a summary
takes microseconds, however large the arguments are, and runs none of the user's code.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import enum
import functools
import inspect
import json
import pathlib
import re
import types
import uuid
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from farcall.model import terminal
from farcall.payload.pickling import Call
from farcall_runtime import envelope
from farcall_runtime.envelope import Buffer

LONGEST = 200
"""Maximum characters of a summary."""

_MOST_OF_TASK = 1000
"""Characters of a task's texts after which further calls are only counted."""

_LONGEST_NAME = 60
_LONGEST_STRING = 48
_MOST_BITS = 200  # of an int: 60 digits
_MOST_ITEMS = 6
_DEEPEST = 2
_MOST_DIMENSIONS = 8
_MOST_BYTES = 16 * 1024 * 1024
"""Maximum size of the unpacked summaries; the largest array job's take less."""

_HIDDEN = "***"
_MORE = "..."
_OTHERS = re.compile(r"\.\.\. (\d{1,9}) more")

_SECRETS = re.compile("pass(word|wd|phrase|code)|pwd|secret|token|credential|api_?key", re.I)
_SECRET_WORDS = frozenset(("key", "keys", "auth", "pass"))
_WORDS = re.compile("[A-Z]?[a-z]+|[A-Z]+")
_USERS = re.compile(r"(?<=://)[^/@\s]+@")
_USERS_WITHIN = 1000
"""Characters of a string that are searched for a user name and password in a URL."""

_ARRAYS = ("cupy", "jax", "jaxlib", "numpy", "pandas", "polars", "pyarrow", "scipy", "torch")
"""Packages whose objects know their shape without computing it."""

_module_of: Callable[[type], Any] = type.__dict__["__module__"].__get__
_name_of: Callable[[type], Any] = type.__dict__["__qualname__"].__get__
"""Read a class's module and name without calling the user's metaclass."""


class CallTexts:
    """Summarizer of one function's calls.

    Args:
        function: The function.
        fixed: Keyword arguments that all calls share.
    """

    def __init__(
        self, function: Callable[..., Any], fixed: Mapping[str, Any] | None = None
    ) -> None:
        name = getattr(function, "__name__", None)
        self._name = _cut(_shown(name) if isinstance(name, str) else "task", _LONGEST_NAME)
        self._fixed = fixed or {}
        self._names: list[str] | None = None
        self._function = function

    def of(self, calls: Sequence[Call]) -> str:
        """Return the texts of a task's calls, one per line; see `summary` and `of_call`.

        A line has up to `LONGEST` characters, without control characters. If the calls have many
        characters, the last line has the number of other calls. It never raises.
        """
        lines: list[str] = []
        length = 0
        for args, kwargs in calls:
            if length >= _MOST_OF_TASK:
                lines.append(f"{_MORE} {len(calls) - len(lines)} more")
                break
            lines.append(self._of_call(args, kwargs))
            length += len(lines[-1])
        return "\n".join(lines)

    def _of_call(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
        try:
            if self._names is None:
                self._names = _parameters(self._function)
            inside = self._arguments(args, kwargs, LONGEST - len(self._name) - 2)
        except Exception:  # for example, another thread changes an argument meanwhile
            inside = _MORE
        return f"{self._name}({inside})"

    def _arguments(self, args: Sequence[Any], kwargs: Mapping[str, Any], room: int) -> str:
        names = self._names or ()
        joined = ""
        for name, value in _named(names, args, {**self._fixed, **kwargs}):
            text = f"{name}=" if name else ""
            text += _HIDDEN if is_secret(name) else _text(value, room)
            joined = f"{joined}, {text}" if joined else text
            if len(joined) > room:
                return _cut(joined, room)
        return joined


def summary(text: str) -> str:
    """Return a task's first call, and the number of others, in up to `LONGEST` characters."""
    first, *others = text.split("\n")
    count = len(others)
    if others and (left := _OTHERS.fullmatch(others[-1])):
        count += int(left[1]) - 1
    more = f" and {count} more" if count else ""
    return f"{_cut(first, LONGEST - len(more))}{more}"


def of_call(text: str, position: int) -> str:
    """Return the text of one of a task's calls."""
    lines = text.split("\n")
    if position < len(lines) and not _OTHERS.fullmatch(lines[position]):
        return lines[position]
    return f"call {position + 1} of the task {summary(text)}"


def seal(texts: Sequence[str]) -> bytes:
    """Serialize a bundle's summaries; return b"" if all are empty."""
    return zlib.compress(json.dumps(texts).encode(), 1) if any(texts) else b""


def read(data: Buffer, entries: int) -> list[str]:
    """Read the output of `seal`, after its digest was verified.

    Args:
        data: The bytes.
        entries: Number of the bundle's tasks.

    Returns:
        The texts of each task's calls. Because their author is not trusted, they are cut, and
        control characters are escaped.

    Raises:
        IntegrityError: The data cannot be read, or does not match the tasks.
    """
    try:
        texts = json.loads(zlib.decompressobj().decompress(data, _MOST_BYTES))
    except (zlib.error, ValueError, RecursionError) as error:
        raise envelope.IntegrityError("the call descriptions cannot be read") from error
    if not isinstance(texts, list) or len(texts) != entries:
        raise envelope.IntegrityError("the call descriptions do not match the tasks")
    return [_checked(str(text)) for text in texts]


def _checked(text: str) -> str:
    lines = text[: _MOST_OF_TASK + 2 * LONGEST].split("\n")
    return "\n".join(_cut(_shown(line[:LONGEST]), LONGEST) for line in lines)


def _shown(text: str) -> str:
    return text if text.isprintable() else terminal.in_a_line(text)


def _named(
    names: Sequence[str], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Iterator[tuple[str, Any]]:
    """Yield each argument with its name; a positional one with its parameter's name."""
    for number, value in enumerate(args):
        yield (names[number] if number < len(names) else ""), value
    for name, value in kwargs.items():
        yield (name if name.isidentifier() else repr(name[:_LONGEST_NAME])), value


def _parameters(function: Callable[..., Any]) -> list[str]:
    """Return the names of the parameters that take positional arguments."""
    if type(function) is types.FunctionType and not hasattr(function, "__wrapped__"):
        code = function.__code__
        return list(code.co_varnames[: code.co_argcount])
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    with contextlib.suppress(TypeError, ValueError):  # a built-in without a signature
        parameters = inspect.signature(function).parameters.values()
        return [each.name for each in parameters if each.kind in positional]
    return []


@functools.lru_cache(1024)
def is_secret(name: str) -> bool:
    """Return whether a parameter name suggests a secret."""
    if _SECRETS.search(name):
        return True
    lowered = name.lower()
    if not any(word in lowered for word in _SECRET_WORDS):
        return False
    return any(word.lower() in _SECRET_WORDS for word in _WORDS.findall(name))


def _cut(text: str, room: int) -> str:
    return text if len(text) <= room else f"{text[: max(0, room - len(_MORE))]}{_MORE}"


# --- values by their types --------------------------------------------------------------------


def _text(value: Any, room: int, depth: int = 0) -> str:
    kind = type(value)
    make = _PLAIN.get(kind)
    if make is not None:
        return make(value)
    if kind in _BRACKETS:
        return _container(value, room, depth)
    return _other(value, kind, room, depth)


def _container(value: Any, room: int, depth: int) -> str:
    kind = type(value)
    left, right = _BRACKETS[kind]
    if not value:
        return f"{kind.__name__}()" if kind in (set, frozenset) else left + right
    if depth == _DEEPEST:
        return f"{left}{_MORE}{right}"
    joined = left
    items: Iterable[Any] = value.items() if kind is dict else value
    for number, item in enumerate(islice(items, _MOST_ITEMS)):
        joined += ", " if number else ""
        joined += _item(item, room, depth + 1) if kind is dict else _text(item, room, depth + 1)
        if len(joined) > room:
            return _cut(joined, room)
    more = len(value) - _MOST_ITEMS
    if more > 0:
        joined += f", {_MORE} {more} more"
    elif kind is tuple and len(value) == 1:
        joined += ","
    return joined + right


def _item(item: tuple[Any, Any], room: int, depth: int) -> str:
    key, value = item
    is_hidden = type(key) is str and is_secret(key[:LONGEST])
    return f"{_text(key, room, depth)}: {_HIDDEN if is_hidden else _text(value, room, depth)}"


def _other(value: Any, kind: type, room: int, depth: int) -> str:
    """Return the text of a value that is not of a plain built-in type."""
    if issubclass(kind, enum.Enum):
        return f"{_name_of(kind)}.{object.__getattribute__(value, '_name_')}"
    if issubclass(kind, types.FunctionType | types.BuiltinFunctionType):
        return str(value.__name__)
    if issubclass(kind, type):
        return _class_name(value)
    module = str(_module_of(kind))
    top = module.partition(".")[0]
    if top == "pathlib" and issubclass(kind, pathlib.PurePath):
        return _string(str(value))
    if top in _ARRAYS:
        return _array(value, kind, room, depth)
    return _class_name(kind)


def _class_name(kind: type) -> str:
    module, name = _module_of(kind), _name_of(kind)
    plain = module in ("builtins", "__main__") or not isinstance(module, str)
    return _cut(str(name) if plain else f"{module}.{name}", _LONGEST_NAME)


def _array(value: Any, kind: type, room: int, depth: int) -> str:
    """Return the text of an array, a frame, or a scalar from these packages."""
    name = kind.__name__
    shape = value.shape if hasattr(kind, "shape") else None
    if shape == () and hasattr(kind, "item") and str(_module_of(kind)).startswith("numpy"):
        plain = value.item()
        return name if type(plain) is kind else _text(plain, room, depth)
    joined = name
    if isinstance(shape, tuple) and all(type(size) is int for size in shape):
        sizes = ", ".join(map(str, shape[:_MOST_DIMENSIONS]))
        joined += f"({sizes})"
    dtype = value.dtype if hasattr(kind, "dtype") else None
    named = getattr(dtype, "name", None)
    named = named if isinstance(named, str) else str(dtype) if dtype is not None else ""
    return _cut(f"{joined} {named}".rstrip(), _LONGEST_NAME)


def _int(value: int) -> str:
    bits = value.bit_length()
    return repr(value) if bits <= _MOST_BITS else f"int of {bits} bits"


def _string(value: str) -> str:
    if "://" in value[:_LONGEST_STRING]:
        value = _USERS.sub(f"{_HIDDEN}@", value[:_USERS_WITHIN])
    if len(value) <= _LONGEST_STRING:
        return repr(value)
    return f"{value[:_LONGEST_STRING]!r}{_MORE}"


def _bytes(value: bytes) -> str:
    size = len(value)
    return repr(value) if size <= _LONGEST_STRING // 2 else f"bytes({size})"


_PLAIN: dict[type, Callable[[Any], str]] = {
    type(None): repr,
    bool: repr,
    int: _int,
    float: repr,
    str: _string,
    bytes: _bytes,
    dt.date: str,
    dt.time: lambda value: value.replace(tzinfo=None).isoformat(),
    dt.datetime: lambda value: value.replace(tzinfo=None).isoformat(" "),
    dt.timedelta: str,
    uuid.UUID: str,
}

_BRACKETS: dict[type, Collection[str]] = {
    list: "[]",
    tuple: "()",
    dict: "{}",
    set: "{}",
    frozenset: "{}",
}
