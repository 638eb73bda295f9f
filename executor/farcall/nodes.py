"""What came of the nodes of a Covalent task group. Nothing here unpickles. No I/O."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from farcall import results
from farcall.endings import About
from farcall.errors import FarcallError, JobCancelledError
from farcall.results import Result
from farcall.tracebacks import with_source
from farcall_runtime import envelope
from farcall_runtime.contract import CallStatus
from farcall_runtime.envelope import Buffer


@dataclass(frozen=True)
class NodeEnd:
    """How one node ended.

    Attributes:
        node: Covalent's number of it.
        cancelled: Whether its job was terminated.
        value: The value's archive; None where there is an error.
        error: What went wrong, with the remote traceback; empty where nothing did.
        stdout: What the node wrote.
        stderr: The same of the other stream.
    """

    node: int
    cancelled: bool = False
    value: Buffer | None = field(default=None, repr=False)
    error: str = ""
    stdout: bytes = field(default=b"", repr=False)
    stderr: bytes = field(default=b"", repr=False)


@dataclass(frozen=True)
class _Read:
    """One node in a verified outcome; ``began`` are the streams' sizes when its turn came."""

    node: int
    value: Buffer | None = field(repr=False)
    error: str
    began: tuple[int, int]


def read(meta: dict[str, Any], value: Buffer, job: About) -> list[Result]:
    """Turn a verified outcome into one result, for `ends`; see `farcall.results.read`."""
    records = meta.get("results") or [{}]
    if "nodes" not in records[0]:
        return results.read(meta, value, job)
    archives = iter(envelope.unpack(value))
    found = []
    for record in records[0]["nodes"]:
        succeeded = record["status"] == CallStatus.RETURNED
        archive = next(archives) if succeeded else None
        error = "" if succeeded else _tell(record, job)
        found.append(_Read(record["node"], archive, error, tuple(record["began"])))
    return [Result(found)]


def ends(result: Result, nodes: Sequence[int], stdout: bytes, stderr: bytes) -> list[NodeEnd]:
    """Say how each node ended.

    Args:
        result: What `read` made of the outcome, or the error of a job that has none.
        nodes: Numbers of the group's nodes.
        stdout: What the job wrote.
        stderr: The same of the other stream.
    """
    if result.error is not None:
        error = result.error
        cancelled = isinstance(error, JobCancelledError)
        return [NodeEnd(node, cancelled, None, describe(error), stdout, stderr) for node in nodes]
    found: list[_Read] = result.value
    last = _Read(-1, None, "", (len(stdout), len(stderr)))
    return [
        NodeEnd(
            each.node,
            False,
            each.value,
            each.error,
            stdout[each.began[0] : after.began[0]],
            stderr[each.began[1] : after.began[1]],
        )
        for each, after in zip(found, [*found[1:], last], strict=True)
    ]


def describe(error: BaseException) -> str:
    """Return an error as a traceback's last line shows it."""
    name = type(error).__name__
    return f"{name}: {error}" if isinstance(error, FarcallError) else repr(error)


def _tell(record: dict[str, Any], job: About) -> str:
    """Return the text of a node that failed."""
    if record["status"] != CallStatus.RAISED:
        return describe(results.explain(record, job))
    first = record["chain"][0]
    if first["type"].endswith("electron.NotRunError"):
        return str(first["message"])
    text = (
        f"{with_source(record['traceback'])}\n\n"
        f"Raised in AWS Batch job {job.job_id} ({job.name}), attempt {job.attempts}."
    )
    text = "\n".join([text, *job.earlier_lines()])
    return f"{text}\nIts log: {job.log_url}" if job.log_url else text
