"""Variables of the project's modules and attributes of its classes that are set in a job.

`farcall.payload.assignments` decides which ones the program has set.
"""

from __future__ import annotations

from abc import ABCMeta
from collections.abc import Iterator
from operator import is_
from types import ModuleType
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from farcall.payload.assignments import Assignments
from farcall.payload.module_source import NO_LITERAL

_CLASSES = frozenset({type, ABCMeta})
"""Metaclasses of classes with settable attributes; excludes Enum's, for example."""


class _Candidate(NamedTuple):
    """A variable that may have to be set in a job.

    Attributes:
        name: The variable, or ``Class.attribute``.
        value: Its value.
        is_checked: Whether each submission compares the value, a container, with the source.
        is_class: Whether it is a class of the module, whose attributes may have to be set.
    """

    name: str
    value: Any
    is_checked: bool = False
    is_class: bool = False


_Known = WeakKeyDictionary[Any, "tuple[tuple[Any, ...], Assignments, list[_Candidate]]"]
_known: _Known = WeakKeyDictionary()
"""By module or class, the values of its variables, and the candidates among them.

A large project has thousands of variables, examined at each submission.
"""


def variables_of(module: ModuleType, assignments: Assignments) -> dict[str, Any]:
    """Return the variables of a module, and attributes of its classes, that are set in a job."""
    return dict(_values_of(module, module.__name__, "", assignments))


def attributes_of(kind: type, assignments: Assignments) -> dict[str, Any]:
    """Return the attributes of a class that are set in a job, as ``Class.attribute``."""
    return dict(_values_of(kind, kind.__module__, f"{kind.__name__}.", assignments))


def is_class_of(module: ModuleType, name: str, value: Any) -> bool:
    """Return whether a variable is a class defined at the module's top level."""
    return (
        type(value) in _CLASSES
        and value.__module__ == module.__name__
        and value.__qualname__ == name
    )


def is_task(value: Any) -> bool:
    """Return whether a value is a decorated function, which in a job is the function itself."""
    return type(value).__module__ == "farcall.client.task"


def _values_of(
    owner: Any, module: str, prefix: str, assignments: Assignments
) -> Iterator[tuple[str, Any]]:
    variables = vars(owner).copy()
    values = tuple(variables.values())
    before, used, candidates = _known.get(owner, (None, None, []))
    if before is None or used is not assignments or not _are_same(before, values):
        candidates = list(_candidates(owner, module, prefix, assignments))
        _known[owner] = values, assignments, candidates
    for name, value, is_checked, is_class in candidates:
        if is_class:
            yield from _values_of(value, module, f"{name}.", assignments)
        elif not is_checked or assignments.is_set(module, name, value):
            yield name, value


def _are_same(some: tuple[Any, ...], others: tuple[Any, ...]) -> bool:
    return len(some) == len(others) and all(map(is_, some, others))


def _candidates(
    owner: Any, module: str, prefix: str, assignments: Assignments
) -> Iterator[_Candidate]:
    for name, value in vars(owner).copy().items():
        full = f"{prefix}{name}"
        if is_dunder(name) or type(value) is ModuleType:
            continue
        if isinstance(owner, ModuleType) and is_class_of(owner, name, value):
            yield _Candidate(full, value, is_class=True)
        elif is_task(value):
            yield _Candidate(full, value)
        elif _is_definition(value):
            if assignments.is_named(module, full) and not _is_own(module, full, value):
                yield _Candidate(full, value)
        elif _is_container(assignments.literal(module, full)) or assignments.is_set(
            module, full, value
        ):
            is_checked = _is_container(value)
            yield _Candidate(full, value, is_checked)


def is_dunder(name: str) -> bool:
    """Return whether a name is reserved for Python."""
    return name.startswith("__") and name.endswith("__")


def _is_container(value: Any) -> bool:
    return value is not NO_LITERAL and type(value) in (list, dict, set)


def _is_definition(value: Any) -> bool:
    """Return whether a value is a function, class or descriptor, which an import creates again."""
    return isinstance(value, type) or hasattr(type(value), "__get__")


def _is_own(module: str, name: str, value: Any) -> bool:
    """Return whether a definition is the one that a module contains under a name."""
    home = getattr(value, "__module__", None)
    return bool(home == module and getattr(value, "__qualname__", None) == name)
