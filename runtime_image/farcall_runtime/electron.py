"""Covalent's electrons in a container without Covalent.

The nodes of a task group run in sequence. This module does the work of Covalent's ``wrapper_fn``
(covalent/executor/utils/wrappers.py, 0.240): it runs hooks in order, injects their values as
keyword arguments, and returns the value as an archive, which the server stores without unpickling
it.
"""

from __future__ import annotations

import io
import sys
import time
from collections.abc import Mapping, Sequence
from types import CoroutineType
from typing import Any, NamedTuple, TypeAlias

from farcall_runtime import archive, failures, packed_function, task
from farcall_runtime.contract import TERMINATED_TYPE, CallStatus
from farcall_runtime.envelope import Buffer, IntegrityError
from farcall_runtime.pickles import Pieces, dump_to

Hook: TypeAlias = "tuple[str, Any]"
"""``("bash", arguments)``, ``("pip", arguments)`` or
``("call", (function, args, kwargs, keyword))``; all but the keyword is base64 of a pickle."""

_FILES = "files"
"""Keyword whose values Covalent always injects as a list (RESERVED_RETVAL_KEY__FILES)."""


_PACKED = packed_function.__name__.encode()
_MOST_HEAD = 256
"""Bytes at the beginning of a `PackedFunction`'s pickle, which contain its module's name."""


class Code(NamedTuple):
    """Function and hooks of a node, which nodes may share.

    Attributes:
        name: Name of the function.
        function: Base64 of the function's pickle.
        before: Hooks that run before the function.
        after: Hooks that run after the function.
    """

    name: str
    function: Buffer
    before: Sequence[Hook]
    after: Sequence[Hook]


class Node(NamedTuple):
    """Node of a task group.

    Attributes:
        number: Covalent's number of the node.
        args: Numbers of the nodes whose values are its positional arguments.
        kwargs: Numbers of the nodes whose values are its keyword arguments, by keyword.
    """

    number: int
    args: Sequence[int]
    kwargs: Mapping[str, int]


class NotRunError(RuntimeError):
    """A node was not run, because a node that provides an argument failed."""


class CovalentMissingError(ImportError):
    """The electron needs Covalent in the image."""


class _UnreadableError(Exception):
    """A part of the electron cannot be unpickled; the cause has the reason."""


class _UnpicklableError(Exception):
    """The electron's value cannot be pickled; the cause has the reason."""

    def __init__(self, value_type: str) -> None:
        super().__init__()
        self.value_type = value_type


def reconstruct(retval: Any, **_outputs: Any) -> Any:
    """Return a lattice's result, which Covalent's server passes on without calling this."""
    return retval


def run_group(
    codes: Sequence[Code],
    nodes: Sequence[Node],
    inputs: Mapping[int, Buffer],
    projects: Mapping[str, Buffer] | None = None,
) -> task.Encoded:
    """Run the nodes of a task group in sequence.

    Args:
        codes: Function and hooks of each node.
        nodes: The nodes, each after the group's nodes that provide its arguments.
        inputs: Base64 of the pickled values of other nodes that provide arguments, by number.
        projects: Packed projects of the functions, by digest.

    Returns:
        A record of each node, and the archives of the values.
    """
    packed_function.projects.update(projects or {})
    values = dict(inputs)
    records: list[dict[str, Any]] = []
    parts: list[Pieces] = []
    for code, node in zip(codes, nodes, strict=True):
        began = task.streams_so_far() if records else [0, 0]
        clock = time.perf_counter()
        try:
            made = _run_node(code, node, values)
            if node is not nodes[-1]:
                values[node.number] = archive.parse(b"".join(made)).data
            record: dict[str, Any] = {"status": CallStatus.RETURNED}
            parts.append(made)  # last: a failure becomes a record without a part
        except BaseException as error:  # sys.exit and Ctrl-C are the function's failures too
            record = _describe(error)
        wall_s = time.perf_counter() - clock
        records.append({**record, "node": node.number, "wall_s": wall_s, "began": began})
    return task.Encoded(*_sum_up(records), parts)


def _sum_up(records: list[dict[str, Any]]) -> tuple[CallStatus, dict[str, Any]]:
    """Return the status of the group, and the details to store."""
    for record in records:
        if any(link["type"] == TERMINATED_TYPE for link in record.get("chain", ())):
            return record["status"], {"nodes": records, "chain": record["chain"]}
    # First, because a missing package fails every attempt, which the exit code must report.
    for status in (CallStatus.UNREADABLE, CallStatus.RAISED, CallStatus.UNPICKLABLE):
        for record in records:
            if record["status"] == status:
                return status, {"nodes": records, "chain": record["chain"]}
    return CallStatus.RETURNED, {"nodes": records}


def _run_node(code: Code, node: Node, values: Mapping[int, Buffer]) -> Pieces:
    if task.is_stopping():  # the previous function may have caught the interruption
        stopping = task.TaskTerminated("the job is being stopped")
        raise NotRunError(f"{code.name} was not run: the job was being stopped") from stopping
    for number in (*node.args, *node.kwargs.values()):
        if number not in values:
            raise NotRunError(
                f"{code.name} was not run: node {number}, whose result it uses, failed"
            )
    installers = [hook for hook in code.before if hook[0] != "call"]
    _run_hooks(installers)
    # The hooks may use the project; other functions may use what the hooks provide.
    function = _load_packed(code.function)
    injected = _run_hooks(code.before[len(installers) :])
    if function is None:
        function = _load(code.function)
    args = [_load(values[number]) for number in node.args]
    kwargs = {name: _load(values[number]) for name, number in node.kwargs.items()}
    value = _call(function, args, {**kwargs, **injected})
    _run_hooks(code.after)
    return _encode(value)


def _call(function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    try:
        value = function(*args, **kwargs)
        if isinstance(value, CoroutineType):
            value = task.run_coroutine(value)
    except BaseException as error:
        task.end_copy(error)
        raise
    task.end_copy(None)
    return value


def _run_hooks(hooks: Sequence[Hook]) -> dict[str, Any]:
    """Run hooks in order; return their values as keyword arguments."""
    keywords: dict[str, list[Any]] = {}
    for kind, details in hooks:
        if kind == "bash":
            (commands,) = _load(details)
            for command in commands:
                _run_command(command)
        elif kind == "pip":
            from farcall_runtime import packages  # its imports would cost every task about 30 ms

            packages.install(*_load(details))
        else:
            function, args, kwargs, keyword = details
            value = _call(_load(function), _load(args), _load(kwargs))
            if keyword:
                keywords.setdefault(keyword, []).append(value)
    return {
        name: values if len(values) > 1 or name == _FILES else values[0]
        for name, values in keywords.items()
    }


def _run_command(command: str) -> None:
    """Run a shell command with its output on stderr, because stdout is the function's.

    Raises:
        subprocess.CalledProcessError: The command failed.
    """
    import subprocess

    sys.stderr.flush()
    subprocess.run(command, shell=True, stdin=subprocess.DEVNULL, stdout=2, check=True)  # noqa: S602  # the user's own


def _load(data: Buffer) -> Any:
    try:
        return packed_function.Unpickler(io.BytesIO(archive.decode(data))).load()
    except Exception as error:
        raise _UnreadableError from error


def _load_packed(data: Buffer) -> Any:
    """Enter the project of a `PackedFunction`, and return the function; None for others."""
    try:
        if _PACKED not in archive.decode(data)[:_MOST_HEAD]:
            return None
    except IntegrityError as error:
        raise _UnreadableError from error
    packed = _load(data)
    try:
        return packed.load()
    except Exception as error:
        raise _UnreadableError from error


def _encode(value: object) -> Pieces:
    import cloudpickle

    encoder = archive.Encoder()
    try:
        dump_to(value, encoder)
    except Exception as error:  # pickling runs the user's code
        raise _UnpicklableError(type(value).__name__) from error
    return [archive.head(value, cloudpickle.__version__), *encoder.close()]


def _describe(error: BaseException) -> dict[str, Any]:
    """Return the record of a failed node."""
    status = CallStatus.RAISED
    more = {}
    if isinstance(error, _UnreadableError):
        status = CallStatus.UNREADABLE
    elif isinstance(error, _UnpicklableError):
        status = CallStatus.UNPICKLABLE
        more["value_type"] = error.value_type
    if status != CallStatus.RAISED and error.__cause__ is not None:
        error = error.__cause__
    if isinstance(error, ModuleNotFoundError) and str(error.name).partition(".")[0] == "covalent":
        missing = CovalentMissingError(
            "this electron uses Covalent inside the job, but the image lacks it; build the image "
            'with --build-arg PIP_PACKAGES="covalent==<the server\'s version>"'
        )
        missing.__cause__, error = error.with_traceback(_user_frames(error)), missing
    record, _ = failures.capture(error, _user_frames(error))
    return {"status": status, **more, **record}


def _user_frames(error: BaseException) -> Any:
    """Return the traceback without farcall's own frames at its beginning."""
    stack = error.__traceback__
    while stack is not None and stack.tb_frame.f_globals.get("__name__") == __name__:
        stack = stack.tb_next
    return stack or error.__traceback__
