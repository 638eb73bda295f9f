"""Lattices for Covalent's server, which does not have their project.

The server unpickles the function of a sublattice, or of a lattice that is dispatched again. It is
pickled by value, with the functions of its electrons packed.
"""

from __future__ import annotations

import copyreg
import functools
import io
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from types import FunctionType
from typing import Any, NoReturn

from covalent._workflow.electron import Electron
from covalent._workflow.lattice import Lattice
from covalent._workflow.transportable_object import TransportableObject

from farcall.covalent.plugin.packer import NAME, Build, Live, encoded, executor_of
from farcall.model.errors import FarcallError
from farcall.payload.project import Pickling
from farcall_runtime import pickles
from farcall_runtime.archive import HEADER
from farcall_runtime.failures import in_words
from farcall_runtime.packed_function import PROJECTS

_defaults: ContextVar[Mapping[str, Any]] = ContextVar("defaults")
"""Metadata of the lattice whose electrons are being pickled."""


def with_projects(lattice: Any, build: Build) -> Any:
    """Return a lattice's function with packed electrons, and with the projects' files."""
    made = _portable_function(lattice.workflow_function, build, lattice.metadata)
    projects = {digest: encoded(archive) for digest, archive in build.projects.items()}
    made._header = {**made._header, HEADER: {PROJECTS: projects}}
    return made


def _portable_function(pickled: Any, build: Build, defaults: Mapping[str, Any]) -> Any:
    """Return the archive of a lattice's function for a process without its project."""
    live = pickled._object
    made = TransportableObject.__new__(TransportableObject)
    made.__dict__ = {**pickled.__dict__}
    if isinstance(live, Live):
        try:
            made._object = encoded(ServerDump(build, defaults)(live.function))
        except Exception as error:  # pickling runs the user's code
            text = f"lattice {live.function.__name__} cannot be pickled ({in_words(error)})"
            refusal = functools.partial(_refuse, f"{text}. Dispatch it from its own script")
            made._object = encoded(pickles.dump_whole(refusal))
    return made


def _refuse(text: str, *_args: Any, **_kwargs: Any) -> NoReturn:
    raise FarcallError(text)


class ServerDump:
    """Pickles a lattice or its arguments by value, and its electrons' functions packed."""

    def __init__(self, build: Build, defaults: Mapping[str, Any]) -> None:
        self._build = build
        self._defaults = defaults

    def __call__(self, value: Any) -> bytes:
        """Return the pickle of a value."""
        sink = io.BytesIO()
        token = _defaults.set(self._defaults)
        try:
            with Pickling(None).in_force():
                _ServerPickler(self._build, sink).dump(value)
        finally:
            _defaults.reset(token)
        return sink.getvalue()


class _ServerPickler(pickles.pickler()):  # type: ignore[misc]
    """Pickler of lattices for Covalent's server."""

    def __init__(self, build: Build, sink: io.BytesIO) -> None:
        super().__init__(sink, protocol=5)
        self._build = build

    def reducer_override(self, value: Any) -> Any:
        """Return the recipe for a value."""
        kind = type(value)
        if kind is Lattice or kind is Electron:
            state = self._lattice(value) if kind is Lattice else self._electron(value)
            return copyreg.__newobj__, (kind,), state  # type: ignore[attr-defined]
        if kind is FunctionType and "electron_object" in vars(value):
            return wrapper_of, (value.electron_object,)
        return super().reducer_override(value)

    def _lattice(self, lattice: Any) -> dict[str, Any]:
        name, data = executor_of(lattice.metadata, _defaults.get())
        defaults = {"executor": name, "executor_data": data}
        function = _portable_function(lattice.workflow_function, self._build, defaults)
        return {**lattice.__dict__, "workflow_function": function, "_bound_electrons": {}}

    def _electron(self, electron: Any) -> dict[str, Any]:
        name, data = executor_of(electron.metadata, _defaults.get())
        state = {**electron.__dict__}
        if name == NAME and not isinstance(electron.function, Lattice):
            packer = self._build.packer(data)
            state["function"] = packer.pack(electron.function)
            state["metadata"] = packer.with_hooks(electron.metadata)
        return state


def wrapper_of(electron: Any) -> Callable[..., Any]:
    """Return a function that adds an electron to a lattice, as Covalent's decorator does."""

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return electron(*args, **kwargs)

    wrapper.__dict__["electron_object"] = electron
    wrapper.__name__ = electron.function.__name__
    return wrapper
