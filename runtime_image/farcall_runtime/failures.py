"""Exceptions on their way to the client: as objects where they can be pickled, always as text."""

from __future__ import annotations

import builtins
import contextlib
import importlib
import os
import pickle
import re
import traceback
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, TypeGuard, TypeVar

from farcall_runtime import pickles, sources

T = TypeVar("T")

_MOST_TEXT = 64 * 1024
"""Characters of a message or a traceback that travel; the middle of a longer one is left out."""

_LONGEST_CHAIN = 32
_LONGEST_PLACE = 200

_LIBRARY = os.__file__.removesuffix("os.py")
_INSTALLED = re.compile(r"[/\\](site|dist)-packages[/\\]")

_GROUP: Any = getattr(builtins, "BaseExceptionGroup", ())  # from Python 3.11 on

CAUSE = "cause"
CONTEXT = "context"
BOTH = "cause, context"
"""Of ``raise ... from error`` in the block that handles the error."""


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
    told = {"chain": chain, "traceback": with_traceback(error, stack), "place": _place(stack)}
    return told, parts


def _place(stack: TracebackType | None) -> str:
    """Return the innermost file and function of the user's own: ``fit.py:solve``."""
    found = ""
    own = False
    while stack is not None:
        code = stack.tb_frame.f_code
        file = code.co_filename
        is_users = not (file.startswith((_LIBRARY, "<frozen")) or _INSTALLED.search(file))
        if is_users or not own:
            found, own = f"{os.path.basename(file)}:{code.co_name}", own or is_users  # noqa: PTH119  # no path of this machine's
        stack = stack.tb_next
    return _plain(found[:_LONGEST_PLACE])


def type_name(error: BaseException) -> str:
    """Return the exception's class as a traceback names it."""
    kind = type(error)
    if kind.__module__ in ("builtins", "__main__"):
        return _plain(kind.__qualname__)
    return _plain(f"{kind.__module__}.{kind.__qualname__}")


def message(error: BaseException) -> str:
    """Return what an exception says of itself; where its own code fails, that it does.

    UTF-8 has bytes for the text: what it has none for, a lone surrogate, stands as its escape. The
    middle of a very long one is left out.
    """
    return _tried(
        lambda: _plain(str(error)),
        lambda broken: f"<no message: str() raised {type(broken).__name__}>",
    )


def _shown(value: object) -> str:
    return _tried(lambda: _plain(repr(value)), lambda _: object.__repr__(value))


def in_words(error: BaseException) -> str:
    """Return an exception's class, and its message if it has one."""
    text = message(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def with_traceback(error: BaseException, stack: TracebackType | None) -> str:
    """Return what Python prints of an exception, as text like a `message`."""

    def in_short(_: BaseException) -> str:
        # The remote traceback is a note, on Python 3.10 a cause.
        own = object.__getattribute__(error, "__dict__").get("__notes__")
        notes = own if isinstance(own, list) else ()
        chain = [f"{type_name(member)}: {message(member)}" for member, _ in _walk(error)]
        lines = [*chain, *(note for note in notes if isinstance(note, str))]
        return _plain("".join(traceback.format_tb(stack)) + "\n".join(lines) + "\n")

    # Which may fail by a class's own `__notes__`, or on Python 3.10 by a very long chain.
    return _tried(
        lambda: _plain("".join(traceback.format_exception(type(error), error, stack))), in_short
    )


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
    if isinstance(error, ImportError):  # its attributes are not in its __dict__
        error.name = state.pop("name", None)
    error.__dict__.update(state)
    return error


def rebuild_validation_error(title: str, lines: list[dict[str, Any]], hides_input: bool) -> Any:
    """Make a `pydantic.ValidationError`, which has no constructor and cannot be pickled.

    See https://docs.pydantic.dev/latest/api/pydantic_core/#pydantic_core.ValidationError.

    Args:
        title: The error's title: the name of the model.
        lines: What its method ``errors`` returned.
        hides_input: Whether its message leaves out the values that are wrong.
    """
    core = importlib.import_module("pydantic_core")
    details = []
    for line in lines:
        kind, context = line["type"], line.get("ctx")
        try:
            is_known = core.PydanticKnownError(kind, context).message() == line["msg"]
        except (KeyError, TypeError, ValueError):
            is_known = False
        if not is_known:
            kind = core.PydanticCustomError(kind, line["msg"], context)
        details.append({**line, "type": kind})
    error = core.ValidationError.from_exception_data(title, details, hide_input=hides_input)
    error.args = ()  # as those have that pydantic raises
    return error


def _walk(error: BaseException) -> Iterator[tuple[BaseException, str | None]]:
    seen: set[int] = set()
    member: BaseException | None = error
    relation = None
    while member is not None and id(member) not in seen and len(seen) < _LONGEST_CHAIN:
        seen.add(id(member))
        yield member, relation
        if _cause_of(member) is not None:
            is_both = _context_of(member) is _cause_of(member)
            member, relation = _cause_of(member), BOTH if is_both else CAUSE
        elif _suppresses_context(member):
            return
        else:
            member, relation = _context_of(member), CONTEXT


# By the base class's own attributes: a class may have others under these names.
_cause_of: Any = BaseException.__dict__["__cause__"].__get__
_context_of: Any = BaseException.__dict__["__context__"].__get__
_args_of: Any = BaseException.__dict__["args"].__get__
_suppresses_context: Any = BaseException.__dict__["__suppress_context__"].__get__


def _pickle(error: Exception) -> bytes | None:
    """Pickle an exception so that it can be read again, by its own way or without constructor."""
    names_project = _names_project(error) or any(map(_is_of_job, _args_of(error)))
    data = None if names_project else _pickle_as_it_is(error)
    return _tried(lambda: _pickle_recipe(error), _none) if data is None else data


def _names_project(error: Any) -> bool:
    """Return whether a built-in OSError names a file in the job's copy of the project."""
    return (
        isinstance(error, OSError)
        and type(error).__module__ == "builtins"
        and isinstance(error.filename, str)
        and sources.is_in_project(error.filename)
        and len(error.args) == 2  # number and text
    )


def _is_of_job(arg: object) -> TypeGuard[str]:
    """Return whether a text has a path of the job's copy of the project."""
    return type(arg) is str and sources.hidden(arg) != arg


def _localizable(text: str) -> sources.Reference:
    """Return what is read as the text with the caller's paths of the project."""
    return sources.Reference(sources.text_here, sources.hidden(text))


def _pickle_recipe(error: Exception) -> bytes:
    data = pickles.dump_whole(_recipe(error))
    pickle.loads(data)  # noqa: S301  # our own bytes
    return data


def _pickle_as_it_is(error: BaseException) -> bytes | None:
    return _tried(lambda: _pickle_and_compare(error), _none)


def _pickle_and_compare(error: BaseException) -> bytes | None:
    data = pickles.dump_whole(error)
    copy = pickle.loads(data)  # noqa: S301  # our own bytes
    if type(copy) is not type(error):
        return None
    # Equal groups do not compare as equal.
    return data if isinstance(error, _GROUP) or copy.args == error.args else None


def _recipe(error: BaseException) -> _Rebuilt:
    if _names_project(error):
        name: Any = error
        file = sources.Reference(*sources.reference_to(name.filename))
        return _Rebuilt(type(error), *error.args, file)
    if hasattr(type(error), "from_exception_data"):  # pydantic's
        return _Rebuilt(rebuild_validation_error, *_validation_error(error))
    state = {name: value for name, value in vars(error).items() if _can_pickle(value)}
    if isinstance(error, ImportError):
        state["name"] = error.name
    args = tuple(_localizable(arg) if _is_of_job(arg) else _picklable(arg) for arg in error.args)
    if isinstance(error, _GROUP):
        members = [m if _pickle_as_it_is(m) else _recipe(m) for m in error.exceptions]
        args = (error.message, members)
    return _Rebuilt(rebuild, type(error), args, state)


def _validation_error(error: Any) -> tuple[str, list[dict[str, Any]], bool]:
    """Return the arguments with which `rebuild_validation_error` makes a copy."""
    lines = error.errors(include_url=False)
    # The setting hide_input_in_errors keeps secrets out of messages, and has no attribute.
    hides_input = str(rebuild_validation_error(error.title, lines, False)) != str(error)
    for line in lines:
        line["input"] = _picklable(line["input"])
        if "ctx" in line:
            line["ctx"] = {name: _picklable(value) for name, value in line["ctx"].items()}
    return error.title, lines, hides_input


class _Rebuilt:
    """Stands for an exception in a pickle; reading the pickle gives the exception."""

    def __init__(self, function: Callable[..., Any], *args: Any) -> None:
        self.recipe = function, args

    def __reduce__(self) -> tuple[Any, ...]:
        return self.recipe


def _picklable(value: object) -> object:
    return value if _can_pickle(value) else _shown(value)


def _can_pickle(value: object) -> bool:
    return _tried(lambda: bool(pickles.dump_whole(value)), lambda _: False)


def _tried(ask: Callable[[], T], otherwise: Callable[[BaseException], T]) -> T:
    """Call what calls the user's own code, which may raise anything."""
    try:
        return ask()
    except BaseException as broken:
        return otherwise(broken)


def _none(_: BaseException) -> None:
    return None


def _plain(text: str) -> str:
    """Return a text, of a subclass or not, as one that is not too long and that UTF-8 has."""
    text = sources.hidden(str.__str__(text))
    if len(text) > _MOST_TEXT:
        half = _MOST_TEXT // 2
        left = len(text) - _MOST_TEXT
        text = f"{text[:half]}\n... {left} characters left out ...\n{text[-half:]}"
    return text.encode(errors="backslashreplace").decode()
