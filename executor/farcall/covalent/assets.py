"""Assets of a task group, as Covalent stores them, made ready to travel; read, never unpickled."""

from __future__ import annotations

import contextlib
import io
import json
import mmap
import pickle
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import cloudpickle
from packaging.requirements import InvalidRequirement, Requirement

from farcall.payload import pickling
from farcall.payload.pickling import Origin, Packed
from farcall_runtime import archive, electron
from farcall_runtime.archive import Archive
from farcall_runtime.electron import Code, Hook, Node
from farcall_runtime.envelope import Buffer, IntegrityError

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
        node: Its number, and those of the nodes whose values it takes.
        function: The function's archive.
        hooks: What Covalent stores of its dependencies.
    """

    node: Node
    function: Archive = field(repr=False)
    hooks: Mapping[str, Any] = field(repr=False)

    @property
    def is_collection(self) -> bool:
        """Whether Covalent added the node for a list or dict among an electron's arguments."""
        return (
            self.function.name in (_LIST, _DICT)
            and not self.hooks
            and _ELECTRON + self.function.name.encode() in archive.decode(self.function.data)
        )

    @property
    def is_for_server(self) -> bool:
        """Whether the node takes a lattice apart by a function of Covalent's own."""
        module = _SERVER_FUNCTIONS.get(self.function.name)
        return module is not None and module in archive.decode(self.function.data)


@dataclass(frozen=True)
class TaskGroup:
    """Nodes that run in one job.

    Attributes:
        electrons: The nodes, each behind those whose values it takes.
        inputs: For each node outside of the group whose value is taken, its archive.
    """

    electrons: Sequence[Electron]
    inputs: Mapping[int, Archive] = field(repr=False)

    @property
    def name(self) -> str:
        """The name of the last function, which is the one the user wrote."""
        return self.electrons[-1].function.name or "electron"

    @property
    def requirements(self) -> list[str]:
        """What its only electron has pip install before anything else; empty for all others.

        These are names and versions. What says where something lies, or how pip is to install it,
        is the container's business.

        Raises:
            IntegrityError: An asset is not what Covalent writes.
        """
        deps = self.electrons[0].hooks.get("deps") or {}
        if len(self.electrons) > 1 or set(deps) != {"pip"}:
            return []
        with _understood():
            lines = _read_pip(_encoded(deps["pip"]["attributes"]["apply_args"]))
        lines = [line for line in lines if line and not line.startswith("#")]
        return lines if all(map(_is_plain, lines)) else []

    def without_pip(self) -> TaskGroup:
        """Return the same without what `requirements` are."""
        (only,) = self.electrons
        deps = {kind: each for kind, each in only.hooks["deps"].items() if kind != "pip"}
        return replace(self, electrons=[replace(only, hooks={**only.hooks, "deps": deps})])

    def pack(self) -> tuple[Packed, Packed]:
        """Return what goes into a bundle: what may be shared between groups, and what may not.

        Raises:
            IntegrityError: An asset is not what Covalent writes.
        """
        first = self.electrons[0].function
        origin = Origin(first.python, first.cloudpickle)
        if not _VERSION.match(first.python):
            raise IntegrityError(
                f"the archive of {self.name} names no version of Python but {first.python!r}"
            )
        codes = [
            Code(
                each.function.name or "electron",
                _travelling(each.function),
                *_read_hooks(each.hooks),
            )
            for each in self.electrons
        ]
        inputs = {number: _travelling(value) for number, value in self.inputs.items()}
        call: pickling.Call = ([each.node for each in self.electrons], inputs), {}
        function = partial(electron.run_group, codes)
        return pickling.pack_plain(function, origin), pickling.pack_plain([call], origin)

    def collect(self) -> bytes:
        """Return the archive of the value of a group that is one collection.

        Its pickle calls ``pickle.loads`` for each of its elements where it is read.
        """
        (only,) = self.electrons
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
        nodes: The group's nodes, each behind those of the group whose values it takes.
        files: The files of these nodes' and their inputs' assets, by node and name of the asset.

    Raises:
        IntegrityError: A file is not what Covalent writes.
        OSError: A file cannot be read.
    """
    electrons = [
        Electron(
            node,
            archive.parse(_open(files[node.number, "function"])),
            _read_json(files[node.number, "hooks"]),
        )
        for node in nodes
    ]
    own = {node.number for node in nodes}
    needed = {n for node in nodes for n in (*node.args, *node.kwargs.values())} - own
    inputs = {number: archive.parse(_open(files[number, "output"])) for number in needed}
    return TaskGroup(electrons, inputs)


def group_of(
    node: Node, function: bytes, hooks: Mapping[str, Any], inputs: Mapping[int, bytes]
) -> TaskGroup:
    """Make a group of one node from archives in memory.

    Raises:
        IntegrityError: They are no archives.
    """
    only = Electron(node, archive.parse(function), hooks)
    return TaskGroup([only], {n: archive.parse(data) for n, data in inputs.items()})


def hooks_of(before: Sequence[Sequence[str]], after: Sequence[Sequence[str]]) -> dict[str, Any]:
    """Return hooks as Covalent stores them.

    Args:
        before: Of each hook before the function its own function, arguments and keyword arguments,
            base64 of pickles, and the keyword that its value becomes.
        after: The same of the hooks after the function.
    """
    found: dict[str, Any] = {}
    for name, calls in (("call_before", before), ("call_after", after)):
        for function, args, kwargs, keyword in calls:
            attributes = {
                "apply_fn": {"attributes": {"_object": function}},
                "apply_args": {"attributes": {"_object": args}},
                "apply_kwargs": {"attributes": {"_object": kwargs}},
                "retval_keyword": keyword,
            }
            kind = _installer(function)
            if kind:
                found.setdefault("deps", {})[kind] = {"attributes": attributes}
            else:
                found.setdefault(name, []).append({"attributes": attributes})
    return found


def _installer(function: str) -> str | None:
    """Return what kind of dependency a hook of Covalent's own is."""
    data = archive.decode(function.encode())
    return next((kind for kind, module in _INSTALLERS.items() if module in data), None)


class _Call:
    """Stands in a pickle for what a function returns where the pickle is read."""

    def __init__(self, function: Callable[..., Any], *args: Any) -> None:
        self._recipe = function, args

    def __reduce__(self) -> tuple[Any, ...]:
        return self._recipe


class _Pickled(_Call):
    """Stands in a pickle for the object of an archive."""

    def __init__(self, source: Archive) -> None:
        super().__init__(pickle.loads, archive.decode(source.data))


def _travelling(source: Archive) -> Any:
    """Return an archive's data so that pickling it makes no copy of it."""
    return pickle.PickleBuffer(source.data)


def _open(path: Path) -> Buffer:
    if path.stat().st_size < _MAPPED_BYTES:
        return path.read_bytes()
    with path.open("rb") as file:
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


def _read_json(path: Path) -> dict[str, Any]:
    """Return what a file holds; Covalent writes none where there is nothing to say."""
    try:
        return dict(json.loads(path.read_bytes() or b"{}") or {})
    except FileNotFoundError:
        return {}
    except (ValueError, TypeError, RecursionError) as error:
        raise IntegrityError(f"{path} is not what Covalent writes: {error}") from error


def _read_hooks(hooks: Mapping[str, Any]) -> tuple[list[Hook], list[Hook]]:
    """Return the hooks before and after the function in Covalent's order: bash, pip, calls."""
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
    """Have what is not as Covalent stores it say so."""
    try:
        yield
    except (KeyError, TypeError, AttributeError) as error:
        raise IntegrityError(
            f"the dependencies of an electron are not as Covalent 0.240 stores them ({error!r})"
        ) from error


class _Texts(pickle.Unpickler):
    """Reads lists and texts; nothing is imported or called, so nothing of anybody's runs."""

    def find_class(self, module: str, name: str) -> Any:
        """Refuse it."""
        raise pickle.UnpicklingError(f"{module}.{name} is no text")


def _read_pip(arguments: bytes) -> list[str]:
    """Return the lines that a ``ct.DepsPip`` has; one that is no requirement if it cannot be read.

    Covalent 0.240 stores a list of packages, and the content of a file, which comes before it.
    """
    try:
        match _Texts(io.BytesIO(archive.decode(arguments))).load():
            case [list(packages), str(content)] if all(isinstance(p, str) for p in packages):
                lines = content.splitlines() if content else packages
                return [line.partition(" #")[0].strip() for line in lines]
    except Exception:  # whatever a pickle that is none has in it
        return ["?"]
    return ["?"]


def _is_plain(text: str) -> bool:
    """Return whether a requirement is a name, with extras, versions and a marker at most."""
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
