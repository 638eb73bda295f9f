"""Assets of a Covalent task group, packed for the job without unpickling."""

from __future__ import annotations

import base64
import contextlib
import functools
import hashlib
import io
import json
import mmap
import pickle
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import cloudpickle
from packaging.requirements import InvalidRequirement, Requirement

from farcall.payload import pickling, sources
from farcall.payload.pickling import Origin, Packed
from farcall_runtime import archive, electron
from farcall_runtime.archive import HEADER, Archive
from farcall_runtime.electron import Code, Hook, Node
from farcall_runtime.envelope import Buffer, IntegrityError
from farcall_runtime.packed_function import PROJECTS

CODE = "code"
"""Among a function's facts, the digest of its code, with the option ``cache``."""

_VERSION = re.compile(r"\d+\.\d+\.")
_MAPPED_BYTES = 64 * 1024  # smaller files are read
_ELECTRON = b"Electron.connect_node_with_others.<locals>."
_LIST, _DICT = "_auto_list_node", "_auto_dict_node"
_SERVER_FUNCTIONS = {
    "_build_sublattice_graph": b"covalent._workflow.electron",
    "_postprocess": b"covalent._workflow.postprocessing",
    "_postprocess_recursively": b"covalent._workflow.postprocessing",
}
_INSTALLERS = {"bash": b"covalent._workflow.depsbash", "pip": b"covalent._workflow.depspip"}


@dataclass(frozen=True)
class Electron:
    """One node: its function and hooks.

    Attributes:
        node: The node's number and the numbers of its input nodes.
        function: The function's archive.
        before: Hooks before the function in Covalent's order.
        after: Hooks after the function.
    """

    node: Node
    function: Archive = field(repr=False)
    before: Sequence[Hook] = field(default=(), repr=False)
    after: Sequence[Hook] = field(default=(), repr=False)

    @property
    def is_collection(self) -> bool:
        """Whether Covalent added the node for a list or dict in an electron's arguments."""
        return (
            self.function.name in (_LIST, _DICT)
            and not self.before
            and not self.after
            and _ELECTRON + self.function.name.encode() in archive.decode(self.function.data)
        )

    @property
    def is_result(self) -> bool:
        """Whether the node's value is the lattice's result, its argument ``retval``."""
        return self.function.name == electron.reconstruct.__name__ and (
            electron.__name__.encode() in archive.decode(self.function.data)
        )

    @property
    def facts(self) -> Mapping[str, Any]:
        """What Covalent's client noted about a function that it packed; empty for others."""
        facts = self.function.header.get(HEADER)
        return facts if isinstance(facts, dict) else {}

    @property
    def is_for_server(self) -> bool:
        """Whether the node unpacks a lattice with one of Covalent's own functions."""
        module = _SERVER_FUNCTIONS.get(self.function.name)
        return module is not None and module in archive.decode(self.function.data)


@dataclass(frozen=True)
class TaskGroup:
    """Nodes that run in one job.

    Attributes:
        electrons: The nodes, each after its input nodes.
        inputs: Archive of each input node outside the group.
        projects: Packed projects of the functions, by digest.
    """

    electrons: Sequence[Electron]
    inputs: Mapping[int, Archive] = field(repr=False)
    projects: Mapping[str, Buffer] = field(default_factory=dict, repr=False)

    @property
    def name(self) -> str:
        """Name of the last function, which the user wrote."""
        return self.electrons[-1].function.name or "electron"

    @property
    def needed_projects(self) -> set[str]:
        """Digests of the projects that the functions need."""
        return {str(each.facts["project"]) for each in self.electrons if "project" in each.facts}

    @property
    def pins(self) -> list[str] | None:
        """Distributions that the functions import; None if a function was not packed."""
        facts = [each.facts for each in self.electrons]
        if any("packages" not in each for each in facts):
            return None
        return sorted({str(text) for each in facts for text in each["packages"]})

    @property
    def requirements(self) -> list[str]:
        """Packages that the only electron installs with pip; empty for larger groups.

        These are names and versions. The container handles paths, URLs and pip options.
        """
        installers = [hook for hook in self.electrons[0].before if hook[0] != "call"]
        match installers:
            case [("pip", bytes(arguments))] if len(self.electrons) == 1:
                lines = [line for line in _read_pip(arguments) if line and line[0] != "#"]
                return lines if all(map(_is_plain, lines)) else []
        return []

    def without_pip(self) -> TaskGroup:
        """Return a copy of the group without its `requirements`."""
        (only,) = self.electrons
        before = [hook for hook in only.before if hook[0] != "pip"]
        return replace(self, electrons=[replace(only, before=before)])

    def pack(self) -> tuple[Packed, Packed]:
        """Return the bundle's contents: data that groups may share, and private data.

        Raises:
            IntegrityError: The archive of the function does not name a Python version.
        """
        first = self.electrons[0]
        origin = Origin(
            str(first.facts.get("python", first.function.python)),
            str(first.facts.get("cloudpickle", first.function.cloudpickle)),
        )
        if not _VERSION.match(origin.python):
            raise IntegrityError(
                f"the archive of {self.name} does not name a Python version, but {origin.python!r}"
            )
        codes = [
            Code(
                each.function.name or "electron",
                _travelling(each.function.data),
                [*each.before],
                [*each.after],
            )
            for each in self.electrons
        ]
        inputs = {number: _travelling(value.data) for number, value in self.inputs.items()}
        call: pickling.Call = ([each.node for each in self.electrons], inputs), {}
        projects = {digest: _travelling(self.projects[digest]) for digest in self.needed_projects}
        function = functools.partial(electron.run_group, codes)
        if projects:
            function = functools.partial(function, projects=projects)
        packed = pickling.pack_plain(function, origin)
        arguments = pickling.pack_plain([call], origin)
        return replace(packed, code=self._code), replace(arguments, identity=self._identity)

    @property
    def _code(self) -> bytes:
        """Digest of the functions' code; empty if Covalent's client did not note it."""
        if not all(CODE in each.facts for each in self.electrons):
            return b""
        parts = [(each.facts[CODE], each.before, each.after) for each in self.electrons]
        return hashlib.sha256(repr(parts).encode()).digest()

    @property
    def _identity(self) -> bytes:
        """Digest of the arguments, in which the nodes' numbers do not count."""
        places = {each.node.number: str(place) for place, each in enumerate(self.electrons)}
        for number, value in self.inputs.items():
            places[number] = hashlib.sha256(value.data).hexdigest()
        named = []
        for each in self.electrons:
            args = [places[number] for number in each.node.args]
            kwargs = {name: places[number] for name, number in each.node.kwargs.items()}
            named.append([args, kwargs])
        return hashlib.sha256(json.dumps(named, sort_keys=True).encode()).digest()

    @property
    def is_collected(self) -> bool:
        """Whether `collect` returns the value of the only node, without a job."""
        only = self.electrons[0]
        return len(self.electrons) == 1 and (only.is_collection or only.is_result)

    def collect(self) -> bytes:
        """Return the archive of the value of a collection, or of a lattice's result.

        When unpickled, a collection calls ``pickle.loads`` for each element.
        """
        (only,) = self.electrons
        if only.is_result:
            number = only.node.args[0] if only.node.args else only.node.kwargs["retval"]
            return archive.joined(self.inputs[number])
        named = [only.node.kwargs[name] for name in ("keys", "values") if name in only.node.kwargs]
        inputs = [self.inputs[number] for number in (*only.node.args, *named)]
        value: Any
        if only.function.name == _LIST:
            value = [_Pickled(each) for each in inputs]
            text = f"[{', '.join(each.text for each in inputs)}]"
            kind: type = list
        else:
            value = _Call(dict, _Call(zip, *(_Pickled(each) for each in inputs)))
            text = f"dict(zip({', '.join(each.text for each in inputs)}))"
            kind = dict
        encoder = archive.Encoder()
        pickle.Pickler(encoder, protocol=5).dump(value)
        names = {"doc": kind.__doc__ or "", "name": ""}
        head = archive.head_of(names, text, cloudpickle.__version__)
        return b"".join([head, *encoder.close()])


def read_group(nodes: Sequence[Node], files: Mapping[tuple[int, str], Path]) -> TaskGroup:
    """Read a group from Covalent's files.

    Args:
        nodes: The group's nodes, each after its input nodes in the group.
        files: The asset files of these nodes and their inputs, by node and asset name.

    Raises:
        IntegrityError: A file is not in Covalent's format.
        OSError: A file cannot be read.
    """
    electrons = [
        Electron(
            node,
            archive.parse(_open(files[node.number, "function"])),
            *read_hooks(_read_json(files[node.number, "hooks"])),
        )
        for node in nodes
    ]
    own = {node.number for node in nodes}
    needed = {n for node in nodes for n in (*node.args, *node.kwargs.values())} - own
    inputs = {number: archive.parse(_open(files[number, "output"])) for number in needed}
    return TaskGroup(electrons, inputs)


def read_projects(file: Path) -> dict[str, sources.Archive]:
    """Return the packed projects in the file of a lattice's function, by digest.

    Raises:
        IntegrityError: The file is not in Covalent's format.
        OSError: The file cannot be read.
    """
    stat = file.stat()
    return _read_projects(file, stat.st_mtime_ns, stat.st_size)


@functools.lru_cache(8)
def _read_projects(file: Path, _changed: int, _size: int) -> dict[str, sources.Archive]:
    facts = archive.parse(file.read_bytes()).header.get(HEADER)
    with _understood():
        packed: dict[str, str] = facts[PROJECTS] if facts else {}
        return {name: sources.Archive(base64.b64decode(text)) for name, text in packed.items()}


def hook_of(function: str, args: str, kwargs: str, keyword: str) -> Hook:
    """Return a hook.

    Args:
        function: Its function as base64 of a pickle.
        args: Its arguments.
        kwargs: Its keyword arguments.
        keyword: The keyword that receives its result.
    """
    kind = _installer(function)
    if kind:
        return kind, args.encode()
    return "call", (function.encode(), args.encode(), kwargs.encode(), keyword)


def _installer(function: str) -> str | None:
    """Return the dependency type of one of Covalent's own hooks."""
    data = archive.decode(function.encode())
    return next((kind for kind, module in _INSTALLERS.items() if module in data), None)


class _Call:
    """Pickle placeholder that is replaced with a function's result when unpickled."""

    def __init__(self, function: Callable[..., Any], *args: Any) -> None:
        self._recipe = function, args

    def __reduce__(self) -> tuple[Any, ...]:
        return self._recipe


class _Pickled(_Call):
    """Pickle placeholder that is replaced with an archive's object when unpickled."""

    def __init__(self, source: Archive) -> None:
        super().__init__(pickle.loads, archive.decode(source.data))


def _travelling(data: Buffer) -> Any:
    """Wrap bytes, so that pickling does not copy them."""
    return pickle.PickleBuffer(data)


def _open(path: Path) -> Buffer:
    if path.stat().st_size < _MAPPED_BYTES:
        return path.read_bytes()
    with path.open("rb") as file:
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


def _read_json(path: Path) -> dict[str, Any]:
    """Parse a JSON file; Covalent writes no file for an empty value."""
    try:
        return dict(json.loads(path.read_bytes() or b"{}") or {})
    except FileNotFoundError:
        return {}
    except (ValueError, TypeError, RecursionError) as error:
        raise IntegrityError(f"{path} was not written by Covalent: {error}") from error


def read_hooks(hooks: Mapping[str, Any]) -> tuple[list[Hook], list[Hook]]:
    """Parse a node's dependencies: hooks before and after the function in Covalent's order.

    Raises:
        IntegrityError: The dependencies are not in Covalent's format.
    """
    with _understood():
        deps = hooks.get("deps") or {}
        before: list[Hook] = [
            (kind, _encoded(deps[kind]["attributes"]["apply_args"]))
            for kind in ("bash", "pip")
            if kind in deps
        ]
        before += [_read_call(each) for each in hooks.get("call_before") or ()]
        return before, [_read_call(each) for each in hooks.get("call_after") or ()]


@contextlib.contextmanager
def _understood() -> Iterator[None]:
    """Raise IntegrityError if an asset is not in Covalent's format."""
    try:
        yield
    except (KeyError, TypeError, AttributeError) as error:
        raise IntegrityError(
            f"the dependencies of an electron do not have the format of Covalent 0.240 ({error!r})"
        ) from error


class _Texts(pickle.Unpickler):
    """Unpickler for lists and strings that imports nothing, so no foreign code runs."""

    def find_class(self, module: str, name: str) -> Any:
        """Reject every class."""
        raise pickle.UnpicklingError(f"{module}.{name} is not text")


def _read_pip(arguments: bytes) -> list[str]:
    """Return a ``ct.DepsPip``'s requirements; an invalid one if it is unreadable.

    Covalent 0.240 stores a list of packages and the content of a file. The file's lines come
    first.
    """
    try:
        match _Texts(io.BytesIO(archive.decode(arguments))).load():
            case [list(packages), str(content)] if all(isinstance(p, str) for p in packages):
                lines = content.splitlines() if content else packages
                return [line.partition(" #")[0].strip() for line in lines]
    except Exception:  # an invalid pickle can raise any exception
        return ["?"]
    return ["?"]


def _is_plain(text: str) -> bool:
    """Return whether a requirement has only a name, extras, versions and a marker."""
    try:
        return Requirement(text).url is None
    except InvalidRequirement:
        return False


def _read_call(hook: Mapping[str, Any]) -> Hook:
    attributes = hook["attributes"]
    parts = (_encoded(attributes[f"apply_{name}"]) for name in ("fn", "args", "kwargs"))
    return "call", (*parts, str(attributes.get("retval_keyword") or ""))


def _encoded(transportable: Mapping[str, Any]) -> bytes:
    return str(transportable["attributes"]["_object"]).encode()
