"""Packing of electrons' functions in Covalent's client, which has the caller's project.

Covalent's client pickles an electron's function by reference to modules that neither the server
nor a job has. For electrons of farcall's executor, this module replaces the function with a
`PackedFunction`, pickles the arguments by the same rules, and adds the project's files to the
lattice's own function, once per dispatch. Electrons of other executors stay as they are.

It extends methods of Covalent 0.240; see `install`.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import os
import threading
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from copy import deepcopy
from types import FunctionType
from typing import Any

from covalent._shared_files.context_managers import active_lattice_manager
from covalent._workflow.electron import Electron
from covalent._workflow.lattice import Lattice
from covalent._workflow.postprocessing import Postprocessor
from covalent._workflow.transport import _TransportGraph, pickle_modules_by_value
from covalent._workflow.transportable_object import TransportableObject

from farcall.covalent.plugin.packer import (
    NAME,
    Build,
    Live,
    Whole,
    encoded,
    executor_of,
    is_covalents,
)
from farcall.covalent.plugin.portable import ServerDump, with_projects
from farcall.covalent.plugin.restart import is_server
from farcall.payload import unpickling
from farcall_runtime import electron as runtime
from farcall_runtime.archive import HEADER
from farcall_runtime.packed_function import PROJECTS, PackedFunction

_NEVER_JOBS = ("_auto_list_node", "_auto_dict_node", "_build_sublattice_graph", "_postprocess")
"""Covalent's functions that its server runs, or whose values it collects."""

_dump: ContextVar[Callable[[Any], bytes] | None] = ContextVar("dump", default=None)
"""Pickles objects for the node that is being added; None for Covalent's own pickles."""

_build: ContextVar[Build | None] = ContextVar("build", default=None)
"""The graph that this context builds; None outside of the client."""

_is_lattice: ContextVar[bool] = ContextVar("is_lattice", default=False)
"""Whether a lattice is being made."""

_lock = threading.RLock()


def install() -> None:
    """Extend Covalent in this process; further calls do nothing."""
    if getattr(Electron.__call__, "__module__", "") == __name__:
        return
    _extend(TransportableObject, "__init__", _init)
    _extend(Lattice, "__init__", _init_lattice)
    _extend(TransportableObject, "get_deserialized", _get_deserialized)
    _extend(Lattice, "build_graph", _build_graph)
    _extend(Electron, "__call__", _call)
    _extend(_TransportGraph, "add_node", _add_node)


def _extend(owner: type, name: str, extension: Callable[..., Any]) -> None:
    original = getattr(owner, name)

    @functools.wraps(original)
    def extended(*args: Any, **kwargs: Any) -> Any:
        return extension(original, *args, **kwargs)

    extended.__module__ = __name__
    setattr(owner, name, extended)


def _is_client() -> bool:
    """Return whether this process has the caller's project."""
    return "COVALENT_DISPATCH_ID" not in os.environ and not is_server()


def _init(original: Callable[..., None], this: Any, obj: Any) -> None:
    dump = _dump.get()
    if dump is None and type(obj) is FunctionType and _is_client():
        error = None
        try:
            original(this, obj)
        except Exception as raised:  # pickling runs the user's code
            if not _is_lattice.get():
                raise
            original(this, None)
            error = raised
        live = Live(this._object)
        live.function, live.error = obj, error
        this._object = live
    elif dump is None:
        original(this, obj)
    else:
        original(this, None)
        this._object = encoded(dump(obj))
        this._object_string = str(obj)
        names = {"doc": getattr(obj, "__doc__", ""), "name": getattr(obj, "__name__", "")}
        this._header["attrs"] = names
    if isinstance(obj, PackedFunction):
        this._header[HEADER] = obj.facts


def _init_lattice(original: Callable[..., None], *args: Any, **kwargs: Any) -> None:
    token = _is_lattice.set(True)
    try:
        original(*args, **kwargs)
    finally:
        _is_lattice.reset(token)


def _get_deserialized(original: Callable[..., Any], this: Any) -> Any:
    pickled, build = this._object, _build.get()
    facts = this._header.get(HEADER)
    if build is not None and isinstance(pickled, Live):
        return pickled.function
    if facts is None or not _is_client():
        return original(this)
    if build is not None:
        projects = facts.get(PROJECTS, {})
        build.projects |= {digest: base64.b64decode(text) for digest, text in projects.items()}
    return unpickling.load([base64.b64decode(pickled)])


def _build_graph(original: Callable[..., None], lattice: Any, *args: Any, **kwargs: Any) -> None:
    if not _is_client():
        original(lattice, *args, **kwargs)
        return
    with _lock:
        build = Build()
        token = _build.set(build)
        try:
            original(lattice, *args, **kwargs)
            if build.has_jobs:
                lattice.workflow_function = with_projects(lattice, build)
            elif error := getattr(lattice.workflow_function._object, "error", None):
                raise error
        finally:
            _build.reset(token)
            build.give_back()


def _has_jobs(lattice: Any, build: Build | None) -> bool:
    if build is not None:
        return build.has_jobs
    nodes = lattice.transport_graph._graph.nodes.values()
    return any(node["metadata"].get("executor") == NAME for node in nodes)


def _call(original: Callable[..., Any], electron: Any, *args: Any, **kwargs: Any) -> Any:
    lattice = active_lattice_manager.get_active_lattice()
    if lattice is None or lattice.post_processing:
        return original(electron, *args, **kwargs)
    build = _build.get()
    if _is_reconstruction(electron) and _has_jobs(lattice, build):
        electron = Electron(
            runtime.reconstruct,
            metadata={**electron.metadata, "executor": NAME, "executor_data": {}, "hooks": {}},
        )
    if build is None:
        return original(electron, *args, **kwargs)
    if isinstance(_dump.get(), ServerDump):  # a node that Covalent adds for a sublattice
        return original(electron, *args, **kwargs)
    build.borrow(electron)
    if isinstance(electron.function, Lattice):
        with _dumping(ServerDump(build, lattice.metadata)):
            return original(electron, *args, **kwargs)
    name, data = executor_of(electron.metadata, lattice.metadata)
    if name != NAME:
        with _dumping(None):
            return original(electron, *args, **kwargs)
    packer = build.any_packer if electron.function is runtime.reconstruct else build.packer(data)
    what = f"argument of the electron {electron.function.__name__}"
    with _dumping(functools.partial(packer.dump, what)):
        named = {key: _whole(value) for key, value in kwargs.items()}
        return original(electron, *map(_whole, args), **named)


def _whole(value: Any) -> Any:
    """Wrap a collection whose elements are known, so that it arrives with its own type."""
    is_collection = isinstance(value, list | tuple | set | dict)
    return Whole(value) if is_collection and not _has_electron(value) else value


def _has_electron(value: Any) -> bool:
    if isinstance(value, dict):
        return _has_electron([*value.keys(), *value.values()])
    if isinstance(value, list | tuple | set):
        return any(map(_has_electron, value))
    return isinstance(value, Electron)


def _is_reconstruction(electron: Any) -> bool:
    """Return whether an electron puts the values of others into the lattice's result."""
    function = getattr(electron.function, "__func__", None)
    hooks = electron.metadata.get("hooks") or {}
    calls = [*(hooks.get("call_before") or ()), *(hooks.get("call_after") or ())]
    has_own = any(each["short_name"] != "depsmodule" for each in calls)
    return function is Postprocessor._postprocess_recursively and not has_own


@contextlib.contextmanager
def _dumping(dump: Callable[[Any], bytes] | None) -> Iterator[None]:
    token = _dump.set(dump)
    try:
        yield
    finally:
        _dump.reset(token)


def _add_node(
    original: Callable[..., int],
    graph: Any,
    name: str,
    function: Any,
    metadata: dict[str, Any],
    *args: Any,
    **attributes: Any,
) -> int:
    build = _build.get()
    if build is None:
        return original(graph, name, function, metadata, *args, **attributes)
    if function is not None and metadata.get("executor") == NAME and _is_job(function):
        packer = build.packer(metadata.get("executor_data"))
        with pickle_modules_by_value(metadata):
            function = packer.pack(function)
        metadata = packer.with_hooks(metadata)
    else:
        metadata = deepcopy(metadata)  # Covalent later adds to hooks, which sublattices share
    return original(graph, name, function, metadata, *args, **attributes)


def _is_job(function: Any) -> bool:
    is_servers = is_covalents(function) and function.__name__ in _NEVER_JOBS
    return function is not runtime.reconstruct and not is_servers
