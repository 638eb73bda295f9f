"""Packing of electrons' functions, arguments and hooks for jobs."""

from __future__ import annotations

import base64
import inspect
import json
from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import Any

from farcall.config.files import SECTIONS
from farcall.config.settings import Settings
from farcall.covalent.assets import CODE
from farcall.engine.packer import rules_for
from farcall.model.errors import SettingsError
from farcall.model.names import BATCH
from farcall.packages import environment
from farcall.payload import pickling
from farcall_runtime import packed_function, pickles, sources
from farcall_runtime.packed_function import PackedFunction

NAME = SECTIONS[BATCH][1]
"""Covalent's name of the executor."""

_MOST_SHOWN = 100
"""Maximum number of a collection's items that Covalent's page shows."""


class Live(str):
    """Pickle of a function in base64, with the function itself in this process.

    Attributes:
        function: The function.
        error: Why Covalent cannot pickle a lattice's function; only the server needs the pickle.
    """

    __slots__ = ("error", "function")
    function: Callable[..., Any]
    error: Exception | None

    def __reduce__(self) -> tuple[Any, ...]:
        return str, (str(self),)

    def __deepcopy__(self, _memo: object) -> Live:
        return self


class Packer:
    """Pickling for the jobs of one executor."""

    def __init__(self, settings: Settings, projects: dict[str, bytes]) -> None:
        self._using, self._codes = rules_for(settings)
        self._facts: dict[str, Any] = pickling.HERE._asdict()
        if self._using.archive is not None:
            self._facts["project"] = self._using.archive.sha256.hex()
            projects[self._facts["project"]] = self._using.archive
        # Of a stored lattice, whose project this process does not have.
        self._stored: PackedFunction | None = None
        if environment.is_by_import(settings):
            self._facts["packages"] = environment.pins(settings)

    def pack(self, function: Callable[..., Any]) -> PackedFunction:
        """Return a function that jobs can call.

        Raises:
            TaskNotPicklableError: An object that the function refers to cannot be pickled.
        """
        if isinstance(function, PackedFunction):
            self._stored = function
            return function
        if self._stored is not None and is_covalents(function):
            entered = sources.Reference(packed_function.in_project_of, self._stored, function)
            return _packed(function, pickles.dump_whole(entered), self._stored.facts)
        pickled = pickling.dump_function(function, self._using)
        if self._codes is None:
            return _packed(function, pickled, self._facts)
        # Classes of values that come from other electrons are not known yet.
        code = self._codes.of_call(function, {}) + self._codes.of_project()
        return _packed(function, pickled, {**self._facts, CODE: code.hex()})

    def dump(self, what: str, value: Any) -> bytes:
        """Pickle an argument or a hook, which errors call ``what``.

        Raises:
            TaskNotPicklableError: It cannot be pickled.
        """
        value = value.value if isinstance(value, Whole) else value
        return pickling.dump_value(what, value, self._using)

    def with_hooks(self, metadata: Mapping[str, Any]) -> dict[str, Any]:
        """Return a node's metadata, with hooks that are pickled like the function."""
        made = deepcopy({**metadata})
        hooks = made.get("hooks") or {}
        for hook in (*(hooks.get("call_before") or ()), *(hooks.get("call_after") or ())):
            pickled = (hook or {}).get("attributes", {}).get("apply_fn") or {}
            live = pickled.get("attributes", {}).get("_object")
            if isinstance(live, Live):
                pickled["attributes"]["_object"] = encoded(self.dump("hook", live.function))
        return made


class Build:
    """A lattice's graph while Covalent's client builds it.

    Attributes:
        projects: Archives of the electrons' projects by digest.
    """

    def __init__(self) -> None:
        self.projects: dict[str, bytes] = {}
        self._packers: dict[str, Packer] = {}
        self._before: dict[int, tuple[Any, dict[str, Any]]] = {}

    def packer(self, data: Mapping[str, Any] | None) -> Packer:
        """Return the packer of an executor.

        Args:
            data: Covalent's JSON of the executor; empty for the one of the configuration.
        """
        key = json.dumps(data or {}, sort_keys=True, default=repr)
        if key not in self._packers:
            self._packers[key] = Packer(_settings(data), self.projects)
        return self._packers[key]

    @property
    def has_jobs(self) -> bool:
        """Whether electrons of the lattice or its sublattices are jobs."""
        return bool(self._packers)

    @property
    def any_packer(self) -> Packer:
        """The first packer, for values that only the client reads."""
        return next(iter(self._packers.values()))

    def borrow(self, electron: Any) -> None:
        """Note the state of an electron, which its calls change, for `give_back`."""
        if id(electron) not in self._before:
            self._before[id(electron)] = electron, {**electron.__dict__}
            electron.__dict__["metadata"] = deepcopy(electron.metadata)

    def give_back(self) -> None:
        """Restore the electrons, because other lattices may call them with other defaults."""
        for electron, state in self._before.values():
            electron.__dict__ = state


def _settings(data: Mapping[str, Any] | None) -> Settings:
    """Return the options of an executor; the defaults if this machine's are invalid.

    The server, whose configuration may differ, reports options that are invalid there.
    """
    from covalent.executor import _executor_manager  # a circular import

    try:
        executor = _executor_manager.get_executor(NAME)
        if data:
            executor.from_dict(dict(data))
        settings: Settings = executor.settings
    except SettingsError:
        return Settings.model_construct()
    return settings


def encoded(pickled: bytes) -> str:
    """Return a pickle as Covalent stores it."""
    return base64.b64encode(pickled).decode()


def _packed(
    function: Callable[..., Any], pickled: bytes, facts: Mapping[str, Any]
) -> PackedFunction:
    return PackedFunction(
        pickled,
        facts,
        getattr(function, "__name__", ""),
        getattr(function, "__doc__", None),
        str(function),
        _parameters(function),
    )


def _parameters(function: Callable[..., Any]) -> list[tuple[str, int]]:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # some built-in functions have none
        return [
            ("args", inspect.Parameter.VAR_POSITIONAL),
            ("kwargs", inspect.Parameter.VAR_KEYWORD),
        ]
    return [(each.name, int(each.kind)) for each in parameters]


class Whole:
    """Collection that is one argument; Covalent makes a node for each element of others."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __str__(self) -> str:
        if len(self.value) <= _MOST_SHOWN:
            return str(self.value)
        return f"{type(self.value).__name__} of {len(self.value)} items"


def executor_of(metadata: Mapping[str, Any], defaults: Mapping[str, Any]) -> tuple[str, Any]:
    """Return the name and JSON of an electron's executor."""
    chosen = metadata if metadata.get("executor") is not None else defaults
    return str(chosen.get("executor")), chosen.get("executor_data")


def is_covalents(function: Any) -> bool:
    """Return whether a function is part of Covalent."""
    return str(getattr(function, "__module__", "")).startswith("covalent.")
