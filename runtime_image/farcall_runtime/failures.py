"""Exceptions on their way to the client: as objects where they can be pickled, always as text."""

from __future__ import annotations

import builtins
import contextlib
import pickle
import traceback
from collections.abc import Iterator
from types import TracebackType
from typing import Any

from farcall_runtime import pickles

_MOST_TEXT = 64 * 1024
"""Characters of a message or a traceback that travel; the middle of a longer one is left out."""

_LONGEST_CHAIN = 32

_GROUP: Any = getattr(builtins, "BaseExceptionGroup", ())  # from Python 3.11 on

CAUSE = "cause"
CONTEXT = "context"


def capture(
    error: BaseException, stack: TracebackType | None
) -> tuple[dict[str, Any], list[pickles.Pieces]]:
    """Describe an exception and the chain behind it.

    Args:
        error: The exception.
        stack: Where its traceback begins: behind the frames of farcall's own.

    Returns:
        A JSON record, and for each member of the chain that can be pickled its pickle. The
        record's ``chain`` says which pickle belongs to which member.
    """
    parts: list[pickles.Pieces] = []
    chain = []
    for member, relation in _walk(error):
        data = _pickle(member) if isinstance(member, Exception) else None
        chain.append(
            {
                "type": type_name(member),
                "message": message(member),
                "relation": relation,
                "part": len(parts) if data is not None else None,
            }
        )
        if data is not None:
            parts.append([data])
    lines = traceback.format_exception(type(error), error, stack)
    return {"chain": chain, "traceback": _shorten("".join(lines))}, parts


def type_name(error: BaseException) -> str:
    """Return the exception's class as a traceback names it."""
    kind = type(error)
    if kind.__module__ in ("builtins", "__main__"):
        return kind.__qualname__
    return f"{kind.__module__}.{kind.__qualname__}"


def rebuild(kind: type[BaseException], args: tuple[Any, ...], state: dict[str, Any]) -> Any:
    """Make an exception without its constructor, whose signature pickle cannot know."""
    try:
        error = kind.__new__(kind, *args)
    except Exception:  # the class's own constructor
        error = kind.__new__(kind)
    base = next(each for each in kind.__mro__ if each.__module__ == "builtins")
    with contextlib.suppress(Exception):
        base.__init__(error, *args)  # type: ignore[misc]  # gives an OSError its number
    BaseException.args.__set__(error, args)  # type: ignore[attr-defined]  # past its __setattr__
    error.__dict__.update(state)
    return error


def _walk(error: BaseException) -> Iterator[tuple[BaseException, str | None]]:
    seen: set[int] = set()
    member: BaseException | None = error
    relation = None
    while member is not None and id(member) not in seen and len(seen) < _LONGEST_CHAIN:
        seen.add(id(member))
        yield member, relation
        if member.__cause__ is not None:
            member, relation = member.__cause__, CAUSE
        elif member.__suppress_context__:
            return
        else:
            member, relation = member.__context__, CONTEXT


def _pickle(error: Exception) -> bytes | None:
    """Pickle an exception so that it can be read again, by its own way or without constructor."""
    data = _pickle_as_it_is(error)
    if data is not None:
        return data
    with contextlib.suppress(BaseException):
        data = pickles.dump_whole(_recipe(error))
        pickle.loads(data)  # noqa: S301  # our own bytes
        return data
    return None


def _pickle_as_it_is(error: BaseException) -> bytes | None:
    with contextlib.suppress(BaseException):
        data = pickles.dump_whole(error)
        copy = pickle.loads(data)  # noqa: S301  # our own bytes
        if type(copy) is not type(error):
            return None
        if isinstance(error, _GROUP):
            return data  # equal groups do not compare as equal
        if copy.args == error.args:
            return data
    return None


def _recipe(error: BaseException) -> _Rebuilt:
    state = {name: value for name, value in vars(error).items() if _can_pickle(value)}
    args = tuple(arg if _can_pickle(arg) else repr(arg) for arg in error.args)
    if isinstance(error, _GROUP):
        members = [m if _pickle_as_it_is(m) else _recipe(m) for m in error.exceptions]
        args = (error.message, members)
    return _Rebuilt(type(error), args, state)


class _Rebuilt:
    """Stands for an exception in a pickle; reading the pickle gives the exception."""

    def __init__(self, *recipe: Any) -> None:
        self.recipe = recipe

    def __reduce__(self) -> tuple[Any, ...]:
        return rebuild, self.recipe


def _can_pickle(value: object) -> bool:
    try:
        pickles.dump_whole(value)
    except BaseException:  # the value's own code may raise anything
        return False
    return True


def message(error: BaseException) -> str:
    """Return what an exception says, shortened where it is long; its class may fail at that."""
    try:
        return _shorten(str(error))
    except BaseException as broken:  # the user's own __str__
        return f"<no message: str() raised {type(broken).__name__}>"


def _shorten(text: str) -> str:
    if len(text) <= _MOST_TEXT:
        return text
    half = _MOST_TEXT // 2
    return f"{text[:half]}\n... {len(text) - _MOST_TEXT} characters left out ...\n{text[-half:]}"
