"""Project pickling: by name if jobs have the definition, otherwise by value.

A job has the project's files (`farcall.payload.sources`) and runs the script, or its definitions
(`farcall.payload.script`). So a module in the job is the same module as here, and functions and
classes are pickled by name. Lambdas, local functions and local classes are pickled by value.
`farcall_runtime.sources` is the other side.
"""

from __future__ import annotations

import contextlib
import functools
import os
import pickle
import sys
from abc import ABCMeta
from collections.abc import Callable, Iterable, Iterator, Mapping
from opcode import opmap
from operator import is_
from pathlib import Path, PurePath
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any
from weakref import WeakKeyDictionary

from farcall.config.settings import Settings
from farcall.payload import script
from farcall.payload.script import Script
from farcall.payload.sources import Archive, Sources, find, home_of, main_file, project_modules
from farcall_runtime import packed_function, pickles
from farcall_runtime import sources as runtime
from farcall_runtime.sources import MAIN, Reference, Rules

LARGEST_PLAIN_BYTES = 64 * 1024
"""Maximum size in bytes of a variable's value that is set in the job."""

_PLAIN = frozenset({int, float, str, bool, type(None), complex, bytes})
_ANY_PLAIN = _PLAIN | {list, tuple, set, dict}
_MOST_ITEMS = 100


class Pickling:
    """Pickling rules for the project's functions, classes and modules at one moment.

    Args:
        sources: The project's files; None to pickle everything by value.
    """

    def __init__(self, sources: Sources | None) -> None:
        self._sources = sources
        modules = {each.__name__: each for each in project_modules()}
        self._sent = {
            name: each
            for name, each in modules.items()
            if sources is not None and sources.place_of(str(each.__file__)) is not None
        }
        self._script = None if sources is None else script.find(sources)
        self._rules = _CallerRules(
            sources, self._sent, modules.keys() - self._sent.keys(), self._script
        )

    @classmethod
    def of(cls, settings: Settings) -> Pickling:
        """Return the pickling rules for the options, as of now.

        Raises:
            SettingsError: A folder of the option ``sources`` does not exist.
        """
        return cls(find(settings.sources, settings.exclude_sources))

    @contextlib.contextmanager
    def in_force(self) -> Iterator[None]:
        """Pickle by these rules inside the block."""
        token = pickles.rules.set(self._rules)
        try:
            yield
        finally:
            pickles.rules.reset(token)

    @property
    def archive(self) -> Archive | None:
        """The project's packed files, if jobs need them."""
        sources = self._sources
        return sources.archive if sources is not None and (sources.files or self._script) else None

    def prepared(self, called: Callable[..., Any], *, is_apart: bool = False) -> Any:
        """Return the object to pickle for a function: it sets up the project, then calls.

        Args:
            called: The function.
            is_apart: Whether the archive is not part of the pickle, and the job's texts are read
                where the project is unknown.
        """
        archive = self.archive
        if archive is None:
            return called
        plain, others = {}, {}
        for name, each in self._sent.items():
            values, tasks = _variables_of(each)
            if values:
                plain[name] = values
            if tasks:
                others[name] = tasks
        script = None
        if self._script is not None:
            plain[MAIN], others[MAIN], read = self._variables(self._script, called)
            script = self._script.plan(read - others[MAIN].keys())
        plan = self._plan(script)
        if is_apart and self._sources is not None:
            plan["roots"] = {place: root for root, place in self._sources.roots.items()}
        if is_apart:
            entered = Reference(packed_function.enter_project, archive.sha256.hex(), plan)
        else:
            entered = Reference(runtime.enter, pickle.PickleBuffer(archive), plan)
        in_job = self._in_job(plain), self._in_job(others)
        return Reference(runtime.prepared, entered, *in_job, called)

    def _variables(
        self, script: Script, called: Any
    ) -> tuple[dict[str, Any], dict[str, Any], set[str]]:
        """Return the script's variables that are set in the job, plain ones and others.

        Returns:
            The two, and the names that the function reads.
        """
        main = sys.modules[MAIN]
        variables = vars(main)
        read = {name for name in _names_read(called, variables) if not _is_dunder(name)}
        found, tasks = _variables_of(main)
        plain = {n: v for n, v in found.items() if n in read and script.is_guarded}
        for name in read:
            value = variables[name]
            if type(value) in _CLASSES and _is_class_of(main, name, value):
                plain |= _class_attributes(main, value)
        others = {n: variables[n] for n in read - plain.keys() if not script.is_made(n)}
        return plain, others | tasks, read

    def remake(self, called: Callable[..., Any]) -> bool:
        """Make the job create unpicklable script variables that a function reads.

        Returns:
            Whether there is such a variable.
        """
        script = self._script
        if script is None or script.is_guarded:
            return False
        found = False
        with self.in_force():
            for name, value in self._variables(script, called)[1].items():
                try:
                    pickles.dump(value)
                except Exception:  # pickling runs the user's code
                    found = script.remake(name) or found
        return found

    def _plan(self, script: dict[str, Any] | None) -> dict[str, Any]:
        sources = self._sources
        assert sources is not None  # noqa: S101
        try:
            cwd = sources.folder_of(str(Path.cwd()))
        except OSError:
            cwd = None
        main = sys.modules.get(MAIN)
        # Under an installed program, such as pytest, the function's module imports everything.
        eager = bool(main_file()) or not getattr(main, "__file__", None)
        imports = []
        for name, module in self._sent.items():
            _, file = home_of(module)
            if file:
                imports.append([name, sources.place_of(file)])
            elif eager:
                imports.append([name, ""])
        return {
            "digest": sources.digest,
            "path": list(sources.path),
            "names": _names(sources),
            "cwd": cwd,
            "main": script,
            "imports": imports,
        }

    def _in_job(self, values: Any) -> Any:
        """Replace the project's paths in plain values with the job's paths."""
        sources = self._sources
        assert sources is not None  # noqa: S101
        roots = [(root, place) for root, place in sources.roots.items() if len(root) > 1]

        def walk(value: Any) -> Any:
            kind = type(value)
            if kind is str:
                for root, place in roots:
                    if value == root or value.startswith(root + os.sep):
                        return Reference(runtime.in_project, place, value[len(root) :])
                return value
            if isinstance(value, PurePath):
                text = walk(str(value))
                return Reference(kind, text) if isinstance(text, Reference) else value
            if kind is dict:
                return {walk(k): walk(v) for k, v in value.items()}
            return kind(map(walk, value)) if kind in (list, tuple, set) else value

        return {
            module: {
                name: walk(value) if _is_plain(value) else value for name, value in each.items()
            }
            for module, each in values.items()
        }


def _names(sources: Sources) -> list[str]:
    """Return the modules that a job must import from the project, despite equal names."""
    tops: dict[str, None] = {}
    for file in sources.files:
        for place in sources.path:
            if file.place.startswith(f"{place}/"):
                first, _, rest = file.place[len(place) + 1 :].partition("/")
                if rest or first.endswith(".py"):
                    tops[first.removesuffix(".py")] = None
    found = []
    for name in tops:
        module = sys.modules.get(name)
        file_here = getattr(module, "__file__", None) if module is not None else ""
        if module is None or (file_here and sources.place_of(file_here)):
            found.append(name)
    return [each for each in found if each.isidentifier()]


_known: WeakKeyDictionary[ModuleType, tuple[tuple[Any, ...], list[tuple[str, Any]]]]
_known = WeakKeyDictionary()
"""By module, the values of its variables, and the variables that may have to be set in a job.

A large project has thousands of variables, examined at each submission.
"""


def _variables_of(module: ModuleType) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the variables of a module that are set in a job.

    Returns:
        Plain values that are not too large and differ from the source; and tasks, which in a job
        are the functions that they were made of.
    """
    plain: dict[str, Any] = {}
    tasks: dict[str, Any] = {}
    variables = vars(module).copy()
    values = tuple(variables.values())
    before, changing = _known.get(module, (None, []))
    if before is None or not _are_same(before, values):
        changing = [(n, v) for n, v in variables.items() if _can_change(module, n, v)]
        _known[module] = values, changing
    for name, value in changing:
        kind = type(value)
        if kind in _CLASSES:
            plain.update(_class_attributes(module, value))
        elif kind not in _ANY_PLAIN:
            tasks[name] = value
        elif kind not in _PLAIN and not value and _is_literal(_literals(module), name, value):
            continue
        elif _size(value, LARGEST_PLAIN_BYTES) >= 0:
            plain[name] = value
    return plain, tasks


_CLASSES = frozenset({type, ABCMeta})
"""Metaclasses of classes with settable attributes; excludes Enum's, for example."""


def _are_same(some: tuple[Any, ...], others: tuple[Any, ...]) -> bool:
    return len(some) == len(others) and all(map(is_, some, others))


def _can_change(module: ModuleType, name: str, value: Any) -> bool:
    """Return whether a variable may have to be set in a job, now or later."""
    kind = type(value)
    if kind in _CLASSES:
        return _is_class_of(module, name, value)
    if kind in _PLAIN:
        return not _is_literal(_literals(module), name, value)
    is_task = kind.__module__ == "farcall.client.task"
    return is_task or (kind in _ANY_PLAIN and not _is_dunder(name))


def _is_class_of(module: ModuleType, name: str, value: Any) -> bool:
    """Return whether a variable is a class defined at the module's top level."""
    return bool(value.__module__ == module.__name__ and value.__qualname__ == name)


_settled: WeakKeyDictionary[type, tuple[tuple[Any, ...], list[Any]]] = WeakKeyDictionary()
"""Classes with no attributes that a job needs: all values, and the empty containers among them."""


def _class_attributes(module: ModuleType, kind: type) -> dict[str, Any]:
    """Return plain attributes that differ from the source, as ``Class.name``."""
    values = tuple(vars(kind).values())
    before, containers = _settled.get(kind, (None, []))
    if before is not None and _are_same(before, values) and not any(containers):
        return {}
    attributes = vars(kind).copy()
    literals = _literals(module, kind.__name__)
    found = {
        f"{kind.__name__}.{name}": value
        for name, value in attributes.items()
        if type(value) in _ANY_PLAIN
        and not _is_literal(literals, name, value)
        and _size(value, LARGEST_PLAIN_BYTES) >= 0
    }
    containers = [
        value
        for name, value in attributes.items()
        if type(value) in (list, dict, set) and not _is_dunder(name)
    ]
    if not found and not any(containers):
        _settled[kind] = values, containers
    return found


def _is_literal(literals: dict[str, Any], name: str, value: Any) -> bool:
    """Return whether a variable has its source's value, or is set by the import."""
    literal = literals.get(name, literals)
    return _is_dunder(name) or (type(literal) is type(value) and literal == value)


def _literals(module: ModuleType, kind: str = "") -> dict[str, Any]:
    """Return the constants that a module's source assigns, at its top or in a class."""
    return _literals_of(module.__name__, getattr(module.__spec__, "loader", None)).get(kind, {})


@functools.lru_cache(4096)
def _literals_of(name: str, loader: Any) -> dict[str, dict[str, Any]]:
    """Return a module's constants by class; those outside classes under ``""``."""
    try:
        code = loader.get_code(name)
    except Exception:  # a loader may raise anything
        code = None
    if not isinstance(code, CodeType):
        return {}
    inside = (each for each in code.co_consts if isinstance(each, CodeType))
    return {"": _constants_in(code), **{each.co_name: _constants_in(each) for each in inside}}


def _constants_in(code: CodeType) -> dict[str, Any]:
    """Return the constants that are assigned to names exactly once.

    An assignment of a constant compiles to these pairs of instructions in each version from 3.10
    on:
    https://docs.python.org/3/library/dis.html
    """
    found: dict[str, Any] = {}
    seen: set[int] = set()
    extended = 0
    value: list[Any] = []  # result of the previous instruction, if it is known
    for operation, low in zip(code.co_code[::2], code.co_code[1::2], strict=True):
        argument = extended << 8 | low
        extended = argument if operation == _EXTENDED else 0
        if operation == _STORE:
            name = code.co_names[argument]
            if value and argument not in seen:
                found[name] = value[0]
            else:
                found.pop(name, None)
            seen.add(argument)
        if operation == _LOAD:
            value = [code.co_consts[argument]]
        elif operation in _EMPTY and argument == 0:
            value = [_EMPTY[operation]]
        elif operation != _EXTENDED:
            value = []
    return found


_LOAD, _STORE, _EXTENDED = (opmap[name] for name in ("LOAD_CONST", "STORE_NAME", "EXTENDED_ARG"))
_EMPTY: dict[int, Any] = {opmap["BUILD_LIST"]: [], opmap["BUILD_MAP"]: {}}


def _is_plain(value: Any) -> bool:
    return isinstance(value, PurePath) or _size(value, LARGEST_PLAIN_BYTES) >= 0


def _is_dunder(name: str) -> bool:
    return name.startswith("__") and name.endswith("__")


def _size(value: Any, most: int, depth: int = 0) -> int:
    """Subtract a plain value's size from a budget in bytes; negative if exceeded."""
    kind = type(value)
    if kind in _PLAIN:
        return most - (len(value) if kind in (str, bytes) else 16)
    if kind not in (list, tuple, set, dict) or depth > 9:
        return -1
    most -= 16
    for each in (*value.keys(), *value.values()) if kind is dict else value:
        most = _size(each, most, depth + 1)
        if most < 0:
            break
    return most


def _names_read(called: Any, variables: dict[str, Any]) -> set[str]:
    """Return a module's variables that a function reads, directly or through calls."""
    read: set[str] = set()
    seen: set[int] = set()
    left = [called]
    while left:
        value = left.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        left += _inside(value)
        if not isinstance(value, FunctionType) or value.__globals__ is not variables:
            continue
        for name in _names_in(value.__code__):
            if name in variables and name not in read:
                read.add(name)
                left.append(variables[name])
    return read


def _inside(value: Any) -> list[Any]:
    """Return the objects that a value may call: wrapped, bound or contained ones."""
    if isinstance(value, FunctionType):
        return [*map(_contents, value.__closure__ or ()), getattr(value, "__wrapped__", None)]
    if isinstance(value, MethodType):
        return [value.__func__, type(value.__self__)]
    if isinstance(value, functools.partial):
        return [value.func, *value.args, *value.keywords.values()]
    if isinstance(value, property):
        return [value.fget, value.fset]
    if isinstance(value, list | tuple):
        return [*value] if len(value) < _MOST_ITEMS else []
    if isinstance(value, type):
        return [*vars(value).values(), *value.__bases__] if value.__module__ == MAIN else []
    try:
        wrapped = getattr(value, "__wrapped__", None)
    except Exception:  # the object's own code
        wrapped = None
    return [wrapped, type(value)]


def _contents(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # the cell is empty
        return None


def _names_in(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from _names_in(each)


@functools.lru_cache(256)
def _constants_of(file: str) -> frozenset[str]:
    return frozenset(runtime.constants_of(file))


class _CallerRules(Rules):
    """Caller's rules: jobs have the modules that are sent, and maybe the script."""

    def __init__(
        self,
        sources: Sources | None,
        sent: Mapping[str, ModuleType],
        by_value: Iterable[str],
        script: Script | None,
    ) -> None:
        self._sources = sources
        self._sent = sent
        self._by_value = frozenset(by_value)
        self._script = script
        self._sentinels: dict[int, tuple[str, str]] | None = None

    def is_by_name(self, module: str) -> bool:
        return module in self._sent or (module == MAIN and self._script is not None)

    def is_by_value(self, module: str) -> bool:
        return module in self._by_value

    def is_made(self, module: str, name: str) -> bool:
        if module == MAIN:
            return self._script is not None and self._script.is_made(name)
        return True

    def is_constant(self, module: str, name: str) -> bool:
        if module == MAIN:
            return self._script is not None and self._script.is_constant(name)
        found = self._sent.get(module)
        return found is not None and name in _constants_of(str(found.__file__))

    def sentinel(self, value: Any) -> tuple[str, str] | None:
        if self._sources is None or not self.is_known_by_identity(value):
            return None
        if self._sentinels is None:
            names = [*self._sent, *([MAIN] if self._script is not None else [])]
            self._sentinels = dict(runtime.sentinels(names, self))
        return self._sentinels.get(id(value))

    def file_of(self, path: str) -> Any:
        place = self._sources.place_of(path) if self._sources is not None else None
        return path if place is None else Reference(runtime.in_project, place)

    def named(self, module: str, name: str) -> Any:
        return NotImplemented

    def reduce(self, pickler: Any, value: Any) -> Any:
        recipe = super().reduce(pickler, value)
        if type(value) is FunctionType and recipe is not NotImplemented:
            electron = vars(value).get("electron_object")
            if electron is not None:  # in a job, it is the function that it was made of
                return pickles.itself, (electron.function,)
        return recipe

    def _by_name(self, module: ModuleType, value: Any) -> Any:
        name = getattr(value, "__name__", "")
        decorated = vars(module).get(name)
        electron = getattr(decorated, "__dict__", {}).get("electron_object")
        is_own = electron is not None and electron.function is value
        if is_own and self.is_made(module.__name__, name):
            return runtime.global_of, (module.__name__, name)
        return super()._by_name(module, value)
