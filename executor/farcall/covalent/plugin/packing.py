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
import copyreg
import functools
import inspect
import io
import json
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from copy import deepcopy
from types import FunctionType
from typing import Any, NoReturn

from covalent._shared_files.context_managers import active_lattice_manager
from covalent._workflow.electron import Electron
from covalent._workflow.lattice import Lattice
from covalent._workflow.postprocessing import Postprocessor
from covalent._workflow.transport import _TransportGraph, pickle_modules_by_value
from covalent._workflow.transportable_object import TransportableObject

from farcall.config.settings import Settings
from farcall.covalent.plugin.restart import is_server
from farcall.model.errors import FarcallError, SettingsError
from farcall.packages import environment
from farcall.payload import pickling, unpickling
from farcall.payload.project import Pickling
from farcall_runtime import electron as runtime
from farcall_runtime import packed_function, pickles, sources
from farcall_runtime.archive import HEADER
from farcall_runtime.failures import in_words
from farcall_runtime.packed_function import PROJECTS, PackedFunction

NAME = "awsbatch"
"""Covalent's name of the executor."""

_MOST_SHOWN = 100
"""Maximum number of a collection's items that Covalent's page shows."""

_NEVER_JOBS = ("_auto_list_node", "_auto_dict_node", "_build_sublattice_graph", "_postprocess")
"""Covalent's functions that its server runs, or whose values it collects."""

_dump: ContextVar[Callable[[Any], bytes] | None] = ContextVar("dump", default=None)
"""Pickles objects for the node that is being added; None for Covalent's own pickles."""

_build: ContextVar[_Build | None] = ContextVar("build", default=None)
"""The graph that this context builds; None outside of the client."""

_is_lattice: ContextVar[bool] = ContextVar("is_lattice", default=False)
"""Whether a lattice is being made."""

_lock = threading.RLock()


class _Live(str):
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

    def __deepcopy__(self, _memo: object) -> _Live:
        return self


class _Packer:
    """Pickling for the jobs of one executor."""

    def __init__(self, settings: Settings, projects: dict[str, bytes]) -> None:
        self._using = Pickling.of(settings)
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
        pickled, facts = None, self._facts  # type: tuple[bytes | None, Mapping[str, Any]]
        if self._stored is not None and _is_covalents(function):
            entered = sources.Reference(packed_function.in_project_of, self._stored, function)
            pickled, facts = pickles.dump_whole(entered), self._stored.facts
        return PackedFunction(
            pickled or pickling.dump_function(function, self._using),
            facts,
            getattr(function, "__name__", ""),
            getattr(function, "__doc__", None),
            str(function),
            _parameters(function),
        )

    def dump(self, value: Any) -> bytes:
        """Pickle an argument."""
        with self._using.in_force():
            return pickles.dump_whole(value.value if isinstance(value, _Whole) else value)

    def with_hooks(self, metadata: Mapping[str, Any]) -> dict[str, Any]:
        """Return a node's metadata, with hooks that are pickled like the function."""
        made = deepcopy({**metadata})
        hooks = made.get("hooks") or {}
        for hook in (*(hooks.get("call_before") or ()), *(hooks.get("call_after") or ())):
            pickled = (hook or {}).get("attributes", {}).get("apply_fn") or {}
            live = pickled.get("attributes", {}).get("_object")
            if isinstance(live, _Live):
                pickled["attributes"]["_object"] = _encoded(self.dump(live.function))
        return made


class _Build:
    """A lattice's graph while Covalent's client builds it.

    Attributes:
        projects: Archives of the electrons' projects by digest.
    """

    def __init__(self) -> None:
        self.projects: dict[str, bytes] = {}
        self._packers: dict[str, _Packer] = {}
        self._before: dict[int, tuple[Any, dict[str, Any]]] = {}

    def packer(self, data: Mapping[str, Any] | None) -> _Packer:
        """Return the packer of an executor.

        Args:
            data: Covalent's JSON of the executor; empty for the one of the configuration.
        """
        key = json.dumps(data or {}, sort_keys=True, default=repr)
        if key not in self._packers:
            self._packers[key] = _Packer(_settings(data), self.projects)
        return self._packers[key]

    @property
    def has_jobs(self) -> bool:
        """Whether electrons of the lattice or its sublattices are jobs."""
        return bool(self._packers)

    @property
    def any_packer(self) -> _Packer:
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


def _settings(data: Mapping[str, Any] | None) -> Settings:
    """Return the options of an executor; the defaults if this machine's are invalid."""
    from covalent.executor import _executor_manager  # a circular import

    try:
        executor = _executor_manager.get_executor(NAME)
        if data:
            executor.from_dict(dict(data))
        settings: Settings = executor.settings
    except SettingsError:
        return Settings()
    return settings


# --- pickles -------------------------------------------------------------------------------------


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
        live = _Live(this._object)
        live.function, live.error = obj, error
        this._object = live
    elif dump is None:
        original(this, obj)
    else:
        original(this, None)
        this._object = _encoded(dump(obj))
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
    if build is not None and isinstance(pickled, _Live):
        return pickled.function
    if facts is None or not _is_client():
        return original(this)
    if build is not None:
        projects = facts.get(PROJECTS, {})
        build.projects |= {digest: base64.b64decode(text) for digest, text in projects.items()}
    return unpickling.load([base64.b64decode(pickled)])


def _encoded(pickled: bytes) -> str:
    return base64.b64encode(pickled).decode()


def _parameters(function: Callable[..., Any]) -> list[tuple[str, int]]:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # some built-in functions have none
        return [
            ("args", inspect.Parameter.VAR_POSITIONAL),
            ("kwargs", inspect.Parameter.VAR_KEYWORD),
        ]
    return [(each.name, int(each.kind)) for each in parameters]


# --- graphs --------------------------------------------------------------------------------------


def _build_graph(original: Callable[..., None], lattice: Any, *args: Any, **kwargs: Any) -> None:
    if not _is_client():
        original(lattice, *args, **kwargs)
        return
    with _lock:
        build = _Build()
        token = _build.set(build)
        try:
            original(lattice, *args, **kwargs)
            if build.has_jobs:
                lattice.workflow_function = _with_projects(lattice, build)
            elif error := getattr(lattice.workflow_function._object, "error", None):
                raise error
        finally:
            _build.reset(token)
            build.give_back()


def _has_jobs(lattice: Any) -> bool:
    nodes = lattice.transport_graph._graph.nodes.values()
    return any(node["metadata"].get("executor") == NAME for node in nodes)


def _call(original: Callable[..., Any], electron: Any, *args: Any, **kwargs: Any) -> Any:
    lattice = active_lattice_manager.get_active_lattice()
    if lattice is None or lattice.post_processing:
        return original(electron, *args, **kwargs)
    build = _build.get()
    has_jobs = _has_jobs(lattice) if build is None else build.has_jobs
    if has_jobs and _is_reconstruction(electron):
        electron = Electron(
            runtime.reconstruct,
            metadata={**electron.metadata, "executor": NAME, "executor_data": {}, "hooks": {}},
        )
    if build is None:
        return original(electron, *args, **kwargs)
    if isinstance(_dump.get(), _ServerDump):  # a node that Covalent adds for a sublattice
        return original(electron, *args, **kwargs)
    build.borrow(electron)
    if isinstance(electron.function, Lattice):
        with _dumping(_ServerDump(build, lattice.metadata)):
            return original(electron, *args, **kwargs)
    name, data = _executor(electron.metadata, lattice.metadata)
    if name != NAME:
        with _dumping(None):
            return original(electron, *args, **kwargs)
    packer = build.any_packer if electron.function is runtime.reconstruct else build.packer(data)
    with _dumping(packer.dump):
        named = {key: _whole(value) for key, value in kwargs.items()}
        return original(electron, *map(_whole, args), **named)


class _Whole:
    """Collection that is one argument; Covalent makes a node for each element of others."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __str__(self) -> str:
        if len(self.value) <= _MOST_SHOWN:
            return str(self.value)
        return f"{type(self.value).__name__} of {len(self.value)} items"


def _whole(value: Any) -> Any:
    """Wrap a collection whose elements are known, so that it arrives with its own type."""
    is_collection = isinstance(value, list | tuple | set | dict)
    return _Whole(value) if is_collection and not _has_electron(value) else value


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


def _executor(metadata: Mapping[str, Any], defaults: Mapping[str, Any]) -> tuple[str, Any]:
    """Return the name and JSON of an electron's executor."""
    chosen = metadata if metadata.get("executor") is not None else defaults
    return str(chosen.get("executor")), chosen.get("executor_data")


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
    if build is not None:  # Covalent later adds module hooks to a dict that sublattices share
        metadata = deepcopy(metadata)
    is_packed = (
        build is not None
        and function is not None
        and metadata.get("executor") == NAME
        and function is not runtime.reconstruct
        and not (_is_covalents(function) and function.__name__ in _NEVER_JOBS)
    )
    if is_packed and build is not None:
        packer = build.packer(metadata.get("executor_data"))
        with pickle_modules_by_value(metadata):
            function = packer.pack(function)
        metadata = packer.with_hooks(metadata)
    return original(graph, name, function, metadata, *args, **attributes)


def _is_covalents(function: Any) -> bool:
    return str(getattr(function, "__module__", "")).startswith("covalent.")


# --- lattices for the server ---------------------------------------------------------------------

_defaults: ContextVar[Mapping[str, Any]] = ContextVar("defaults")
"""Metadata of the lattice whose electrons are being pickled."""


def _with_projects(lattice: Any, build: _Build) -> Any:
    """Return a lattice's function with packed electrons, and with the projects' files."""
    made = _portable_function(lattice.workflow_function, build, lattice.metadata)
    projects = {digest: _encoded(archive) for digest, archive in build.projects.items()}
    made._header = {**made._header, HEADER: {PROJECTS: projects}}
    return made


def _portable_function(pickled: Any, build: _Build, defaults: Mapping[str, Any]) -> Any:
    """Return the archive of a lattice's function for a process without its project."""
    live = pickled._object
    made = TransportableObject.__new__(TransportableObject)
    made.__dict__ = {**pickled.__dict__}
    if isinstance(live, _Live):
        try:
            made._object = _encoded(_ServerDump(build, defaults)(live.function))
        except Exception as error:  # pickling runs the user's code
            text = f"lattice {live.function.__name__} cannot be pickled ({in_words(error)})"
            refusal = functools.partial(_refuse, f"{text}. Dispatch it from its own script")
            made._object = _encoded(pickles.dump_whole(refusal))
    return made


def _refuse(text: str, *_args: Any, **_kwargs: Any) -> NoReturn:
    raise FarcallError(text)


class _ServerDump:
    """Pickles a lattice or its arguments by value, and its electrons' functions packed."""

    def __init__(self, build: _Build, defaults: Mapping[str, Any]) -> None:
        self._build = build
        self._defaults = defaults

    def __call__(self, value: Any) -> bytes:
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

    def __init__(self, build: _Build, sink: io.BytesIO) -> None:
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
        name, data = _executor(lattice.metadata, _defaults.get())
        defaults = {"executor": name, "executor_data": data}
        function = _portable_function(lattice.workflow_function, self._build, defaults)
        return {**lattice.__dict__, "workflow_function": function, "_bound_electrons": {}}

    def _electron(self, electron: Any) -> dict[str, Any]:
        name, data = _executor(electron.metadata, _defaults.get())
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
