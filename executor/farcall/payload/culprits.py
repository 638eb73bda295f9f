"""Culprit: the part of some arguments that cannot be pickled, and what to pass in its place."""

from __future__ import annotations

import io
import itertools
import queue
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from types import CoroutineType, GeneratorType
from typing import Any

from farcall.model.errors import FarcallError
from farcall.model.interrupts import is_ctrl_c
from farcall_runtime import failures, pickles

_DEEPEST = 6
_WIDEST = 1000

_CONNECT = "connect inside the function, and pass what it connects to, such as a URL"
_MAKE_THERE = "make it inside the function: what runs there shares no memory with what runs here"

_BY_TYPE: tuple[tuple[type | tuple[type, ...], str], ...] = (
    (io.IOBase, "pass what it holds, such as file.read(); to write, return what is to be written"),
    (socket.socket, _CONNECT),
    (GeneratorType, "pass a list of what it gives"),
    (CoroutineType, "await it, and pass what that gives"),
    ((threading.Thread, threading.Event, threading.Condition, threading.local), _MAKE_THERE),
    ((queue.Queue, queue.SimpleQueue), _MAKE_THERE),
)
_BY_MODULE = {
    "_thread": _MAKE_THERE,
    "multiprocessing": _MAKE_THERE,
    "asyncio": _MAKE_THERE,
    "boto3": "make the client inside the function: it has the job role there",
    "botocore": "make the client inside the function: it has the job role there",
    "sqlite3": "pass rows of it: the function does not find this machine's files",
    **dict.fromkeys(
        ("psycopg", "psycopg2", "pymysql", "pymongo", "redis", "sqlalchemy"), _CONNECT
    ),
}
_OTHERWISE = "pass what it is made from, and make it inside the function"


def explain(calls: Sequence[tuple[tuple[Any, ...], dict[str, Any]]]) -> str:
    """Say which part of which argument cannot be pickled, why, and what to pass.

    Args:
        calls: Arguments of calls, some of which cannot be pickled.

    Returns:
        Text; empty where each can be pickled alone.
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
        return f"{name}: {trouble}"  # it is farcall's own, which says what to do
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
    """Return the smallest part that cannot be pickled: of a container's, or of an object's."""
    for _ in range(_DEEPEST):
        if _advice(value) != _OTHERWISE or _is_own(value):
            break
        for suffix, part in itertools.islice(_parts(value), _WIDEST):
            found = _trouble(part)
            if found is not None:
                name, value, trouble = name + suffix, part, found
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
