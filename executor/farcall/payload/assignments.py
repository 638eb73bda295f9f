"""Assignments in the project's sources: which variables the program sets after the imports.

A job imports the project's modules itself. So a value that an import computes, such as a rank, a
host name or a secret, is the job's own, and only what the program sets afterwards must be set in
the job. A module may have been imported before farcall, so its sources decide:

* A variable that its module binds once, to a literal, was set if its value differs.
* So was a variable that its module does not bind.
* Others were set if a function, or the script itself, assigns to them or changes them.

Changes that only the imports make, such as the entries of a registry that decorators fill, are
repeated by the job's imports.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from farcall.payload.module_source import ANY, IMPORT, NO_LITERAL, PROGRAM, Places, Source
from farcall_runtime.sources import MAIN

_BY_CLASS_DEFINITION = (".__init_subclass__", ".__set_name__")
"""Methods that the definition of a class calls."""

_MOST_IMPORTS = 5
"""Maximum number of modules through which a name is imported."""


class Assignments:
    """Assignments in all of a project's sources.

    Args:
        sources: The modules' sources, with the script's as ``__main__``.
    """

    def __init__(self, sources: Iterable[Source]) -> None:
        self._sources: Mapping[str, Source] = {each.module: each for each in sources}
        self._has_program = MAIN in self._sources
        self._named: dict[str, set[tuple[str, str]]] = {}
        self._changes: dict[str, set[tuple[str, str]]] = {}
        self._attributes: Places = {}
        uses: Places = {}
        for source in self._sources.values():
            for name, names in source.uses.items():
                uses.setdefault(name, set()).update(names)
            for name, places in source.attributes.items():
                self._attributes.setdefault(name, set()).update(places)
            for path, places in source.changes.items():
                self._add(path, places, source.module)
        by_class = {each for each in uses if each.endswith(_BY_CLASS_DEFINITION)}
        self._early = _closure(by_class | uses.get(IMPORT, set()), uses)
        self._late = _closure(self._entries(uses), uses)

    def _add(self, path: str, places: Collection[str], module: str) -> None:
        """Add the changes of a variable, and of the objects that contain it."""
        name = self._canonical(path)
        changes = {(each, module) for each in places}
        self._named.setdefault(name, set()).update(changes)
        while name:
            self._changes.setdefault(name, set()).update(changes)
            name = name.rpartition(".")[0]

    def _entries(self, uses: Places) -> set[str]:
        """Return the functions that are called after the imports."""
        functions = uses.keys() - {IMPORT, PROGRAM}
        if not self._has_program:
            return functions - self._early
        used = self._early.union(*uses.values())
        callbacks = {each for source in self._sources.values() for each in source.callbacks}
        return uses.get(PROGRAM, set()) | (callbacks - used)

    def _canonical(self, path: str) -> str:
        """Return a variable's dotted name in the module that defines it."""
        for _ in range(_MOST_IMPORTS):
            module, name = self._split(path)
            first, _, rest = name.partition(".")
            source = self._sources.get(module)
            imported = source.imports.get(first) if source is not None else None
            if imported is None or imported == f"{module}.{first}":
                break
            path = f"{imported}.{rest}".rstrip(".")
        return path

    def _split(self, path: str) -> tuple[str, str]:
        """Return the module and the variable of a dotted name."""
        module = path
        while module and module not in self._sources:
            module = module.rpartition(".")[0]
        return module, path[len(module) :].lstrip(".")

    def literal(self, module: str, name: str) -> Any:
        """Return the value that a source binds to a variable, or `NO_LITERAL`."""
        source = self._sources.get(module)
        return NO_LITERAL if source is None else source.literals.get(name, NO_LITERAL)

    def is_set(self, module: str, name: str, value: Any) -> bool:
        """Return whether the program sets a variable after the imports.

        Args:
            module: The module's name.
            name: The variable, or ``Class.attribute``.
            value: Its value now.
        """
        return self._is_set(module, name, value, 0)

    def is_named(self, module: str, name: str) -> bool:
        """Return whether the program assigns to a variable by its module's or class's name."""
        return self._is_late(self._named.get(f"{module}.{name}", ()), module)

    def _is_set(self, module: str, name: str, value: Any, depth: int) -> bool:
        source = self._sources.get(module)
        if source is not None and _is_same(source.literals.get(name, NO_LITERAL), value):
            return False
        is_any = source is None or not source.is_of_machine(name)
        is_late, is_early = self._moments(module, name, is_any=is_any)
        if source is None:
            return is_late
        if name in source.literals:
            return is_late or not is_early
        if name not in source.bound and source.is_complete and "." not in name:
            return is_late or not is_early
        return is_late or self._has_set_origin(source, name, depth)

    def _moments(self, module: str, name: str, *, is_any: bool) -> tuple[bool, bool]:
        """Return whether a variable is changed after the imports, and by the imports.

        Args:
            module: The module's name.
            name: The variable.
            is_any: Whether changes count whose names are not in the sources.
        """
        owner, _, last = name.rpartition(".")
        changes = {
            *self._changes.get(f"{module}.{name}", ()),
            *((place, module) for place in self._attributes.get(last, ())),
        }
        if is_any:
            changes |= self._changes.get(".".join(filter(None, (module, owner, ANY))), set())
        is_early = any(place == IMPORT or place in self._early for place, _ in changes)
        return self._is_late(changes, module), is_early

    def _is_late(self, changes: Iterable[tuple[str, str]], module: str) -> bool:
        return any(
            place == PROGRAM
            or place in self._late
            # Without a script, a job imports only the modules that the function's module imports.
            or (place == IMPORT and origin != module and not self._has_program)
            for place, origin in changes
        )

    def _has_set_origin(self, source: Source, name: str, depth: int) -> bool:
        """Return whether the import computed a variable from one that had been set before."""
        if depth > _MOST_IMPORTS:
            return False
        for each in source.origins.get(name, ()):
            root, _, rest = each.partition(".")
            path = f"{source.imports.get(root, f'{source.module}.{root}')}.{rest}".rstrip(".")
            module, variable = self._split(self._canonical(path))
            loaded = sys.modules.get(module)
            if not variable or loaded is None or (module, variable) == (source.module, name):
                continue
            value = vars(loaded).get(variable, NO_LITERAL)
            if value is not NO_LITERAL and self._is_set(module, variable, value, depth + 1):
                return True
        return False


@functools.lru_cache(8)
def of(sources: tuple[Source, ...]) -> Assignments:
    """Return the assignments in sources, which are the same for most submissions."""
    return Assignments(sources)


def _is_same(literal: Any, value: Any) -> bool:
    """Return whether a value is still a source's literal."""
    try:
        return type(literal) is type(value) and bool(literal == value)
    except Exception:  # the value's own code
        return False


def _closure(names: Iterable[str], uses: Mapping[str, Iterable[str]]) -> set[str]:
    """Return the functions that others use, directly or through functions."""
    reached: set[str] = set()
    left = [*names]
    while left:
        name = left.pop()
        if name in uses and name not in reached:
            reached.add(name)
            left += uses[name]
    return reached
