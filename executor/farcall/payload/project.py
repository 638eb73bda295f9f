"""Project pickling: by name if jobs have the definition, otherwise by value.

A job has the project's files (`farcall.payload.sources`) and runs the script, or its definitions
(`farcall.payload.script`). So a module in the job is the same module as here, and functions and
classes are pickled by name. Lambdas, local functions and local classes are pickled by value.
`farcall_runtime.sources` is the other side.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import pickle
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path, PurePath
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from farcall.config.settings import Settings
from farcall.payload import assignments, module_source, script
from farcall.payload.assignments import Assignments
from farcall.payload.script import Script
from farcall.payload.sources import (
    Archive,
    Sources,
    find,
    home_of,
    main_file,
    modules_in,
    project_modules,
)
from farcall.payload.variables import attributes_of, is_class_of, is_dunder, is_task, variables_of
from farcall_runtime import failures, packed_function, pickles
from farcall_runtime import sources as runtime
from farcall_runtime.sources import MAIN, Reference, Rules

_log = logging.getLogger("farcall")

_LARGEST_PLAIN_BYTES = 64 * 1024
"""Maximum size in bytes of a value whose paths are replaced with the job's."""

_PLAIN = frozenset({int, float, str, bool, type(None), complex, bytes})
_MOST_ITEMS = 100


class Pickling:
    """Pickling rules for the project's functions, classes and modules at one moment.

    Args:
        sources: The project's files; None to pickle everything by value.

    Attributes:
        loaded: The project's loaded modules by name, without the script.
    """

    def __init__(self, sources: Sources | None) -> None:
        self._sources = sources
        self._left_out: set[tuple[str, str]] = set()
        self.loaded = {each.__name__: each for each in project_modules()}
        self._sent = {
            name: each
            for name, each in self.loaded.items()
            if sources is not None and sources.place_of(str(each.__file__)) is not None
        }
        self._script = None if sources is None else script.find(sources)
        self._rules = _CallerRules(
            sources, self._sent, self.loaded.keys() - self._sent.keys(), self._script
        )

    @classmethod
    def of(cls, settings: Settings) -> Pickling:
        """Return the pickling rules for the options, as of now.

        Raises:
            SettingsError: A folder of the option ``sources`` does not exist.
        """
        sources = find(settings.sources, settings.exclude_sources)
        if sources is not None:
            _log_env_files(sources)
        return cls(sources)

    @contextlib.contextmanager
    def in_force(self) -> Iterator[None]:
        """Pickle by these rules inside the block."""
        token = pickles.rules.set(self._rules)
        try:
            yield
        finally:
            pickles.rules.reset(token)

    @contextlib.contextmanager
    def recording(self) -> Iterator[list[Any]]:
        """Pickle by these rules inside the block; record the project's definitions in pickles."""
        before, self._rules.recorded = self._rules.recorded, []
        try:
            with self.in_force():
                yield self._rules.recorded
        finally:
            self._rules.recorded = before

    @functools.cached_property
    def module_files(self) -> Mapping[str, str]:
        """Local files of the modules that jobs import, loaded or not, by dotted names."""
        if self._sources is None:
            return {}
        sent = {name: str(each.__file__) for name, each in self._sent.items()}
        return {**modules_in(self._sources), **sent}

    def is_by_value(self, module: str) -> bool:
        """Return whether functions of a module are pickled with the variables that they read."""
        return module == MAIN or self._rules.is_by_value(module)

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
        values = {name: self.set_in(each) for name, each in self._sent.items()}
        script = None
        if self._script is not None:
            values[MAIN], read = self._variables(self._script, called)
            script = self._script.plan(read - values[MAIN].keys())
        plan = self._plan(script)
        if is_apart and self._sources is not None:
            plan["roots"] = {place: root for root, place in self._sources.roots.items()}
        if is_apart:
            entered = Reference(packed_function.enter_project, archive.sha256.hex(), plan)
        else:
            entered = Reference(runtime.enter, pickle.PickleBuffer(archive), plan)
        in_job = self._in_job({name: each for name, each in values.items() if each})
        return Reference(runtime.prepared, entered, in_job, called)

    @functools.cached_property
    def _assignments(self) -> Assignments:
        """Assignments in the modules that are sent, and in the script."""
        modules = [module_source.read(each) for each in self._sent.values()]
        if self._script is not None:
            package = str(getattr(sys.modules[MAIN], "__package__", None) or "")
            statements = tuple(self._script.statements)
            is_program = not self._script.is_guarded
            modules.append(module_source.read_statements(MAIN, package, statements, is_program))
        return assignments.of(tuple(each for each in modules if each is not None))

    def set_in(self, module: ModuleType) -> dict[str, Any]:
        """Return the variables of a module that are set in the job."""
        return self._kept(module.__name__, variables_of(module, self._assignments))

    def _kept(self, module: str, values: dict[str, Any]) -> dict[str, Any]:
        """Return the values except those that cannot be pickled."""
        return {n: v for n, v in values.items() if (module, n) not in self._left_out}

    def _variables(self, script: Script, called: Any) -> tuple[dict[str, Any], set[str]]:
        """Return the script's variables that are set in the job, and the names read there."""
        main = sys.modules[MAIN]
        variables = vars(main)
        read = {name for name in _names_read(called, variables) if not is_dunder(name)}
        values = {
            name: value
            for name, value in self.set_in(main).items()
            if is_task(value) or (script.is_guarded and name.partition(".")[0] in read)
        }
        for name in read:
            if is_class_of(main, name, variables[name]):
                values |= self._kept(MAIN, attributes_of(variables[name], self._assignments))
            if name not in values and not script.is_made(name):
                values[name] = variables[name]
        return values, read

    def adapt(self, called: Callable[..., Any]) -> bool:
        """Change what is sent after pickling failed because of variables.

        The job creates a variable of the script itself if it can. A variable of a module keeps the
        value of the job's import.

        Returns:
            Whether anything changed.
        """
        before = len(self._left_out)
        changed = False
        with self.in_force():
            for module, each in self._sent.items():
                for name, error in _unpicklable(self.set_in(each)):
                    self._leave_out(module, name, error)
            script = self._script
            values = {} if script is None else self._variables(script, called)[0]
            for name, error in _unpicklable(values):
                if "." in name:
                    self._leave_out(MAIN, name, error)
                elif script is not None and not script.is_guarded:
                    changed = script.remake(name) or changed
        return changed or len(self._left_out) > before

    def _leave_out(self, module: str, name: str, error: Exception) -> None:
        """Leave out a variable, and warn once."""
        self._left_out.add((module, name))
        if f"{module}.{name}" not in _warned:
            _warned.add(f"{module}.{name}")
            _log.warning(
                "%s.%s cannot be pickled (%s): jobs have the value of their own import. Set it "
                "inside the function",
                *(module, name, failures.in_words(error)),
            )

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
    names = []
    for name in tops:
        module = sys.modules.get(name)
        file_here = getattr(module, "__file__", None) if module is not None else ""
        if module is None or (file_here and sources.place_of(file_here)):
            names.append(name)
    return [each for each in names if each.isidentifier()]


_seen: set[str] = set()
"""Folders that were searched for an ``.env`` file."""


def _log_env_files(sources: Sources) -> None:
    """Log once that a project's ``.env`` file is not sent."""
    for root in sources.roots.keys() - _seen:
        _seen.add(root)
        file = Path(root, ".env")
        if file.is_file():
            _log.info(
                "%s is not sent to jobs, because it may contain secrets. Set the option "
                'environment = {NAME = "value"} for what the jobs need',
                file,
            )


def _unpicklable(values: Mapping[str, Any]) -> Iterator[tuple[str, Exception]]:
    """Yield the names of values that cannot be pickled, and why."""
    for name, value in values.items():
        try:
            pickles.dump(value)
        except Exception as error:  # pickling runs the user's code
            yield name, error


_warned: set[str] = set()


def _is_plain(value: Any) -> bool:
    return isinstance(value, PurePath) or _size(value, _LARGEST_PLAIN_BYTES) >= 0


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
    """Caller's rules: jobs have the modules that are sent, and maybe the script.

    Attributes:
        recorded: The project's functions, classes and modules in pickles, while they are recorded.
    """

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
        self.recorded: list[Any] | None = None

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
        loaded = self._sent.get(module)
        return loaded is not None and name in _constants_of(str(loaded.__file__))

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
        if self.recorded is not None:  # the class, because some instances are pickled by name
            self.recorded += filter(self._is_of_project, (value, type(value)))
        recipe = super().reduce(pickler, value)
        if type(value) is FunctionType and recipe is not NotImplemented:
            electron = vars(value).get("electron_object")
            if electron is not None:  # in a job, it is the function that it was made of
                return pickles.itself, (electron.function,)
        return recipe

    def _is_of_project(self, value: Any) -> bool:
        """Return whether a value is a function, class or module of the project or the script."""
        if isinstance(value, ModuleType):
            return value.__name__ in self._sent
        if not isinstance(value, FunctionType | type):
            return False
        home = value.__module__
        return home == MAIN or home in self._sent or home in self._by_value

    def _by_name(self, module: ModuleType, value: Any) -> Any:
        name = getattr(value, "__name__", "")
        decorated = vars(module).get(name)
        electron = getattr(decorated, "__dict__", {}).get("electron_object")
        is_own = electron is not None and electron.function is value
        if is_own and self.is_made(module.__name__, name):
            return runtime.global_of, (module.__name__, name)
        return super()._by_name(module, value)
