"""Results of a Covalent task group's nodes, without unpickling or I/O."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from farcall.model import failure_reasons, output, terminal
from farcall.model.errors import FarcallError, JobCancelledError
from farcall.model.failure_reasons import About, FailureReason
from farcall.model.output import Bytes
from farcall.payload import results
from farcall.payload.results import Result
from farcall.payload.tracebacks import with_source
from farcall_runtime import envelope, failures
from farcall_runtime.contract import STREAMS, CallStatus, OutcomeStatus
from farcall_runtime.envelope import Buffer


@dataclass(frozen=True)
class NodeEnd:
    """Result of one node.

    Attributes:
        node: Covalent's number of the node.
        cancelled: Whether the node's job was terminated.
        value: The result's archive; None if the node failed.
        error: The error with its remote traceback; empty if the node succeeded.
        stdout: The node's standard output.
        stderr: The node's standard error.
    """

    node: int
    cancelled: bool = False
    value: Buffer | None = field(default=None, repr=False)
    error: str = ""
    stdout: Bytes = field(default=b"", repr=False)
    stderr: Bytes = field(default=b"", repr=False)


def read(meta: dict[str, Any], value: Buffer, job: About) -> list[Result]:
    """Convert a verified outcome into one result for `ends`.

    The group is one call. Its result is a list with one `NodeEnd` for each node. See
    `farcall.payload.results.read`.
    """
    records = meta.get("results") or [{}]
    if "nodes" not in records[0]:
        return results.read(meta, value, job)
    why = None if meta["status"] == OutcomeStatus.DONE else failure_reasons.of_process(meta)
    archives = iter(envelope.unpack(value))
    node_ends: list[NodeEnd] = []
    shares = _shares(meta, job)
    for record, own in zip(records[0]["nodes"], shares, strict=True):
        succeeded = record["status"] == CallStatus.RETURNED
        archive = next(archives) if succeeded else None
        error = "" if succeeded else _message(record, own, why)
        node_ends.append(NodeEnd(record["node"], False, archive, error, own.stdout, own.stderr))
    return [Result(node_ends)]


def _shares(meta: dict[str, Any], job: About) -> list[About]:
    """Return each node's own part of the output, for error messages."""
    begins = [
        [
            output.place(written, meta[stream].get("gaps", ()))
            for stream, written in zip(STREAMS, record["began"], strict=True)
        ]
        for record in meta["results"][0]["nodes"]
    ]
    ends: list[Sequence[int | None]] = [*begins[1:], (None, None)]
    return [job.part(begin, end) for begin, end in zip(begins, ends, strict=True)]


def ends(result: Result, nodes: Sequence[int], stdout: Bytes, stderr: Bytes) -> list[NodeEnd]:
    """Return the result of each node.

    Args:
        result: The return value of `read`, or the error of a job without an outcome.
        nodes: Numbers of the group's nodes.
        stdout: The job's standard output.
        stderr: The job's standard error.
    """
    error = result.error
    if error is None:
        node_ends: list[NodeEnd] = result.value
        return node_ends
    cancelled = isinstance(error, JobCancelledError)
    text = failures.in_words(error)
    return [NodeEnd(node, cancelled, None, text, stdout, stderr) for node in nodes]


@contextlib.contextmanager
def telling(*passing: type[Exception]) -> Iterator[None]:
    """Add an exception's type to its text, because Covalent keeps only the text.

    Raises:
        FarcallError: Replaces any other exception.
    """
    try:
        yield
    except passing:
        raise
    except Exception as error:
        raise FarcallError(failures.in_words(error)) from error


def as_utf8(text: str) -> bytes:
    """Return valid UTF-8 for a text, because a task may write any characters."""
    return terminal.shown(text).encode()


def _message(record: dict[str, Any], job: About, why: FailureReason | None) -> str:
    """Return the error text of a failed node.

    Args:
        record: The container's record of the node.
        job: Description of the job for error messages.
        why: Reason the job was stopped early, if it was.
    """
    if why is not None and results.was_stopped(record):
        if _was_not_run(record):
            why = replace(why, sentence=f"{record['chain'][0]['message']} ({why.sentence})")
        return failures.in_words(why.error(job))
    if record["status"] != CallStatus.RAISED:
        return failures.in_words(results.explain(record, job))
    if _was_not_run(record):
        return terminal.shown(str(record["chain"][0]["message"]))
    text = (
        f"{with_source(record['traceback'])}\n\n"
        f"Raised in AWS Batch job {job.job_id} ({job.name}), attempt {job.attempts}."
    )
    text = terminal.shown("\n".join([text, *job.earlier_lines()]))
    return f"{text}\nIts log: {job.log_url}" if job.log_url else text


def _was_not_run(record: dict[str, Any]) -> bool:
    return bool(record["chain"][0]["type"].endswith("electron.NotRunError"))
