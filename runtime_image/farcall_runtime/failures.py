"""Exceptions for the client: as objects if picklable, and always as text."""

from __future__ import annotations

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
"""Maximum characters of a message or traceback; the middle of a longer one is omitted."""

_LONGEST_CHAIN = 32
_LONGEST_PLACE = 200

_LIBRARY = os.__file__.removesuffix("os.py")
_INSTALLED = re.compile(r"[/\\](site|dist)-packages[/\\]")

CAUSE = "cause"
CONTEXT = "context"
BOTH = "cause, context"
"""Relation of ``raise ... from error`` in the block that handles the error."""


def capture(
    error: BaseException, stack: TracebackType | None
) -> tuple[dict[str, Any], list[pickles.Pieces]]:
    """Describe an exception and its chain.

    Args:
        error: The exception.
        stack: Beginning of its traceback, after farcall's own frames.

    Returns:
        A JSON record, and the pickle of each member of the chain that can be pickled. The record's
        ``chain`` assigns pickles to members.
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
    record = {"chain": chain, "traceback": with_traceback(error, stack), "place": _place(stack)}
    return record, parts


def _place(stack: TracebackType | None) -> str:
    """Return the innermost file and function of the user's code: ``fit.py:solve``."""
    place = ""
    own = False
    while stack is not None:
        code = stack.tb_frame.f_code
        file = code.co_filename
        is_users = not (file.startswith((_LIBRARY, "<frozen")) or _INSTALLED.search(file))
        if is_users or not own:
            place, own = f"{os.path.basename(file)}:{code.co_name}", own or is_users  # noqa: PTH119  # no path of this machine's
        stack = stack.tb_next
    return _plain(place[:_LONGEST_PLACE])


def type_name(error: BaseException) -> str:
    """Return the name of the exception's class, as in a traceback."""
    kind = type(error)
    if kind.__module__ in ("builtins", "__main__"):
        return _plain(kind.__qualname__)
    return _plain(f"{kind.__module__}.{kind.__qualname__}")


def message(error: BaseException) -> str:
    """Return an exception's message, or a note if its own code fails.

    The text can be encoded in UTF-8: lone surrogates are escaped. The middle of a very long
    message is left out.
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
    """Return Python's traceback of an exception, with the limits of `message`."""

    def in_short(_: BaseException) -> str:
        # The remote traceback is a note.
        own = object.__getattribute__(error, "__dict__").get("__notes__")
        notes = own if isinstance(own, list) else ()
        chain = [f"{type_name(member)}: {message(member)}" for member, _ in _walk(error)]
        lines = [*chain, *(note for note in notes if isinstance(note, str))]
        return _plain("".join(traceback.format_tb(stack)) + "\n".join(lines) + "\n")

    # This may fail because of a class's own `__notes__`.
    return _tried(
        lambda: _plain("".join(traceback.format_exception(type(error), error, stack))), in_short
    )


def rebuild(kind: type[BaseException], args: tuple[Any, ...], state: dict[str, Any]) -> Any:
    """Create an exception without its constructor, whose signature pickle cannot know."""
    try:
        error = kind.__new__(kind, *args)
    except Exception:  # the class's own constructor
        error = kind.__new__(kind)
    base = next(each for each in kind.__mro__ if each.__module__ == "builtins")
    with contextlib.suppress(Exception):
        base.__init__(error, *args)  # type: ignore[misc]  # gives an OSError its number
    BaseException.args.__set__(error, args)  # type: ignore[attr-defined]  # bypasses its __setattr__
    if isinstance(error, ImportError):  # its attributes are not in its __dict__
        error.name = state.pop("name", None)
    error.__dict__.update(state)
    return error


def rebuild_validation_error(title: str, lines: list[dict[str, Any]], hides_input: bool) -> Any:
    """Create a `pydantic.ValidationError`, which has no constructor.

    It cannot be pickled. See
    https://docs.pydantic.dev/latest/api/pydantic_core/#pydantic_core.ValidationError.

    Args:
        title: The error's title: the name of the model.
        lines: Result of its method ``errors``.
        hides_input: Whether its message leaves out the invalid values.
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
    error.args = ()  # as in pydantic's own errors
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


# The base class's own descriptors, because a class may override these attributes.
_cause_of: Any = BaseException.__dict__["__cause__"].__get__
_context_of: Any = BaseException.__dict__["__context__"].__get__
_args_of: Any = BaseException.__dict__["args"].__get__
_suppresses_context: Any = BaseException.__dict__["__suppress_context__"].__get__


def _pickle(error: Exception) -> bytes | None:
    """Pickle an exception in its own way, or else without its constructor."""
    names_project = _names_project(error) or any(map(_is_of_job, _args_of(error)))
    data = None if names_project else _pickle_as_it_is(error)
    return _tried(lambda: _pickle_recipe(error), _none) if data is None else data


def _names_project(error: Any) -> bool:
    """Return whether a built-in OSError names a file in the job's copy of the project."""
    return (
        isinstance(error, OSError)
        and type(error).__module__ == "builtins"
        and isinstance(error.filename, (str, os.PathLike))
        and sources.is_in_project(os.fspath(error.filename))
        and len(error.args) == 2  # number and text
    )


def _is_of_job(arg: object) -> TypeGuard[str]:
    """Return whether a text contains a path of the job's copy of the project."""
    return type(arg) is str and sources.hidden(arg) != arg


def _localizable(text: str) -> sources.Reference:
    """Return an object that is unpickled as the text with the caller's project paths."""
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
    return data if isinstance(error, BaseExceptionGroup) or copy.args == error.args else None


def _recipe(error: BaseException) -> _Rebuilt:
    if _names_project(error):
        name: Any = error
        file: Any = sources.Reference(*sources.reference_to(os.fspath(name.filename)))
        if not isinstance(name.filename, str):
            file = sources.Reference(type(name.filename), file)
        return _Rebuilt(type(error), *error.args, file)
    if hasattr(type(error), "from_exception_data"):  # pydantic's
        return _Rebuilt(rebuild_validation_error, *_validation_error(error))
    state = {name: value for name, value in vars(error).items() if _can_pickle(value)}
    if isinstance(error, ImportError):
        state["name"] = error.name
    args = tuple(_localizable(arg) if _is_of_job(arg) else _picklable(arg) for arg in error.args)
    if isinstance(error, BaseExceptionGroup):
        members = [m if _pickle_as_it_is(m) else _recipe(m) for m in error.exceptions]
        args = (error.message, members)
    return _Rebuilt(rebuild, type(error), args, state)


def _validation_error(error: Any) -> tuple[str, list[dict[str, Any]], bool]:
    """Return the arguments with which `rebuild_validation_error` creates a copy."""
    lines = error.errors(include_url=False)
    # The setting hide_input_in_errors keeps secrets out of messages, and has no attribute.
    hides_input = str(rebuild_validation_error(error.title, lines, False)) != str(error)
    for line in lines:
        line["input"] = _picklable(line["input"])
        if "ctx" in line:
            line["ctx"] = {name: _picklable(value) for name, value in line["ctx"].items()}
    return error.title, lines, hides_input


class _Rebuilt:
    """Stand-in for an exception in a pickle; unpickling it returns the exception."""

    def __init__(self, function: Callable[..., Any], *args: Any) -> None:
        self.recipe = function, args

    def __reduce__(self) -> tuple[Any, ...]:
        return self.recipe


def _picklable(value: object) -> object:
    return value if _can_pickle(value) else _shown(value)


def _can_pickle(value: object) -> bool:
    return _tried(lambda: bool(pickles.dump_whole(value)), lambda _: False)


def _tried(call: Callable[[], T], otherwise: Callable[[BaseException], T]) -> T:
    """Call a function that runs the user's code, which may raise any exception."""
    try:
        return call()
    except BaseException as broken:
        return otherwise(broken)


def _none(_: BaseException) -> None:
    return None


def _plain(text: str) -> str:
    """Return a plain str of limited length that can be encoded in UTF-8."""
    text = sources.hidden(str.__str__(text))
    if len(text) > _MOST_TEXT:
        half = _MOST_TEXT // 2
        left = len(text) - _MOST_TEXT
        text = f"{text[:half]}\n... {left} characters left out ...\n{text[-half:]}"
    return text.encode(errors="backslashreplace").decode()
