"""Arguments of a call, bound to the function's signature with clear errors."""

from __future__ import annotations

import difflib
import inspect
import reprlib
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NoReturn

from farcall.config.settings import Settings
from farcall.model.errors import SettingsError

_LONGEST = 200


def bind(
    name: str,
    signature: inspect.Signature,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    own: Collection[str] = (),
) -> None:
    """Bind arguments, so that a wrong call fails here and not later in a queue.

    Args:
        name: Name of the function.
        signature: Signature of the function.
        args: Positional arguments.
        kwargs: Keyword arguments.
        own: Names of the arguments that farcall itself takes, for the calls of a map.

    Raises:
        TypeError: The arguments do not fit; the text names function, signature and closest name.
    """
    __tracebackhide__ = True
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        problem = str(error)
    else:
        return
    unknown = [key for key in kwargs if key not in signature.parameters]
    if unknown and "unexpected keyword" in problem:
        problem = _unknown(unknown[0], [*signature.parameters, *own])
    if own and problem.startswith("missing"):
        problem += " (map passes one item of each iterable, starmap the elements of one item)"
    whole = f"{name}{signature.replace(return_annotation=signature.empty)}"
    if len(whole) > _LONGEST:
        whole = f"{whole[:_LONGEST]}..."
    raise TypeError(f"{name}: {problem}; the function is {whole}")


def refuse_none(name: str) -> NoReturn:
    """Reject a map without iterables.

    Raises:
        TypeError: Always; it explains how to map a function.
    """
    __tracebackhide__ = True
    raise TypeError(
        f"map of {name} needs at least one iterable of arguments, such as {name}.map(range(10))"
    )


def check_iterables(iterables: Sequence[Any], methods: Collection[str] = ("iter",)) -> None:
    """Reject a map of an object that is not iterable, before any submission.

    Args:
        iterables: The arguments of the map.
        methods: Special methods, without underscores; each iterable needs one of them.

    Raises:
        TypeError: An object is not iterable; the text suggests the likely intention.
    """
    __tracebackhide__ = True
    for given in iterables:
        if any(hasattr(type(given), f"__{name}__") for name in (*methods, "getitem")):
            continue
        shown = reprlib.repr(given)
        kind = type(given).__name__
        article = "an" if kind[0] in "aeiou" else "a"
        meant = f"range({shown}), or " if type(given) is int else ""
        raise TypeError(
            f"map got {shown}, {article} {kind}, which is not iterable. Pass {meant}"
            "itertools.repeat(...) for an argument that is the same in all calls"
        )


def check_chunksize(chunksize: object) -> None:
    """Reject a ``chunksize`` that is not a positive number.

    Raises:
        SettingsError: It is not.
    """
    __tracebackhide__ = True
    if isinstance(chunksize, bool) or not isinstance(chunksize, int) or chunksize < 1:
        raise SettingsError(
            f"chunksize is {chunksize!r}; use a whole number of at least 1", option="chunksize"
        )


def _unknown(key: str, known: Sequence[str]) -> str:
    problem = f"it does not accept the argument {key!r}"
    close = difflib.get_close_matches(key, known, 1)
    if close:
        return f"{problem} (did you mean {close[0]!r}?)"
    if key in Settings.model_fields:
        return f"{problem} (set an option of the job using with_options({key}=...))"
    return problem
