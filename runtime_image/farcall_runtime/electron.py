"""Covalent's electrons in a container that has no Covalent.

A task group is run node after node. What Covalent's own ``wrapper_fn`` does
(covalent/executor/utils/wrappers.py, 0.240) is done here: hooks in their order, values of hooks
injected as keyword arguments, and the value returned as an archive, which the server stores
without unpickling it.
"""

from __future__ import annotations

import pickle
import sys
import time
from collections.abc import Mapping, Sequence
from types import CoroutineType
from typing import Any, NamedTuple, TypeAlias

from farcall_runtime import archive, failures, task
from farcall_runtime.contract import TERMINATED_TYPE, CallStatus
from farcall_runtime.envelope import Buffer
from farcall_runtime.pickles import Pieces, dump_to

Hook: TypeAlias = "tuple[str, Any]"
"""``("bash", arguments)``, ``("pip", arguments)`` or
``("call", (function, args, kwargs, keyword))``; all but the keyword is base64 of a pickle."""

_FILES = "files"
"""The keyword whose values Covalent always injects as a list (RESERVED_RETVAL_KEY__FILES)."""


class Code(NamedTuple):
    """What a node runs, which nodes may share.

    Attributes:
        name: The function's name.
        function: Base64 of its pickle.
        before: Hooks to be run before it.
        after: Hooks to be run after it.
    """

    name: str
    function: Buffer
    before: Sequence[Hook]
    after: Sequence[Hook]


class Node(NamedTuple):
    """A node of a task group.

    Attributes:
        number: Covalent's number of it.
        args: Numbers of the nodes whose values are its positional arguments.
        kwargs: The same for keyword arguments.
    """

    number: int
    args: Sequence[int]
    kwargs: Mapping[str, int]


class NotRunError(RuntimeError):
    """A node was not run, because one whose value it takes failed."""


class CovalentMissingError(ImportError):
    """The electron needs Covalent itself inside the image."""


class _UnreadableError(Exception):
    """Something that came with the electron cannot be unpickled; the cause says why."""


class _UnpicklableError(Exception):
    """The electron's value cannot be pickled; the cause says why."""

    def __init__(self, value_type: str) -> None:
        super().__init__()
        self.value_type = value_type


def run_group(
    codes: Sequence[Code], nodes: Sequence[Node], inputs: Mapping[int, Buffer]
) -> task.Encoded:
    """Run the nodes of a task group one after the other.

    Args:
        codes: What each node runs.
        nodes: The nodes, each behind those of the group whose values it takes.
        inputs: For each node outside of the group whose value is taken, base64 of its pickle.

    Returns:
        A record of each node, and the archives of the values.
    """
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
            parts.append(made)  # last: what fails here is a record without a part
        except BaseException as error:  # sys.exit and Ctrl-C are the function's too
            record = _describe(error)
        wall_s = time.perf_counter() - clock
        records.append({**record, "node": node.number, "wall_s": wall_s, "began": began})
    return task.Encoded(*_sum_up(records), parts)


def _sum_up(records: list[dict[str, Any]]) -> tuple[CallStatus, dict[str, Any]]:
    """Return how the group as a whole ended, and what is kept of it."""
    for record in records:
        if any(link["type"] == TERMINATED_TYPE for link in record.get("chain", ())):
            return record["status"], {"nodes": records, "chain": record["chain"]}
    # A package that is missing is missing at the next attempt too; the exit code is to say so.
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
    injected = _run_hooks(code.before)
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
    """Run hooks in their order; return the keyword arguments that their values become."""
    found: dict[str, list[Any]] = {}
    for kind, details in hooks:
        if kind == "bash":
            (commands,) = _load(details)
            for command in commands:
                _run_command(command)
        elif kind == "pip":
            from farcall_runtime import packages  # its imports would cost every task some 30 ms

            packages.install(*_load(details))
        else:
            function, args, kwargs, keyword = details
            value = _call(_load(function), _load(args), _load(kwargs))
            if keyword:
                found.setdefault(keyword, []).append(value)
    return {
        name: values if len(values) > 1 or name == _FILES else values[0]
        for name, values in found.items()
    }


def _run_command(command: str) -> None:
    """Run a shell command; what it writes goes to the task's stderr, stdout being the function's.

    Raises:
        subprocess.CalledProcessError: It failed.
    """
    import subprocess

    sys.stderr.flush()
    subprocess.run(command, shell=True, stdin=subprocess.DEVNULL, stdout=2, check=True)  # noqa: S602  # the user's own


def _load(data: Buffer) -> Any:
    try:
        return pickle.loads(archive.decode(data))  # noqa: S301  # the bundle was verified
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
    """Return the record of a node that failed."""
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
    """Return the traceback from the user's first frame on; the frames before it are farcall's."""
    stack = error.__traceback__
    while stack is not None and stack.tb_frame.f_globals.get("__name__") == __name__:
        stack = stack.tb_next
    return stack or error.__traceback__
