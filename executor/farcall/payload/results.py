"""Result reader: turns outcomes into results and errors. No I/O."""

from __future__ import annotations

import contextlib
import itertools
from asyncio import CancelledError
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, NamedTuple, TypeVar

from farcall.model import errors, exit_codes, failure_reasons, output, terminal
from farcall.model.failure_reasons import About, FailureReason
from farcall.model.output import Bytes
from farcall.payload import unpickling
from farcall.payload.error_texts import Reason
from farcall.payload.hints import hint
from farcall.payload.tracebacks import with_source
from farcall_runtime import envelope, failures
from farcall_runtime.contract import (
    STREAMS,
    TERMINATED_TYPE,
    CallStatus,
    ExitCode,
    OutcomeStatus,
)
from farcall_runtime.envelope import Buffer

R = TypeVar("R")

_ENDS = (SystemExit, KeyboardInterrupt, GeneratorExit, CancelledError)
"""Exceptions that end a process or cancel a task; not re-raised for the caller."""

_IMPORT_ERRORS = ("ImportError", "ModuleNotFoundError", "AttributeError", "MissingError")


class Result(NamedTuple):
    """Result of one call.

    Attributes:
        value: The function's return value; None if there is an error.
        error: The exception to raise; None if the function returned.
        stdout: Output while it ran. A task's first call also has the output before it, and the
            last call the output after it.
        stderr: The same for the other stream.
        wall_s: Its duration in seconds; None if it was cut off.
        cpu_s: CPU seconds of its process; None if it was cut off.
        reason: Why there is an error, if the outcome contains a reason.
        has_begun: Whether the job could read the function and its arguments.
    """

    value: Any = None
    error: BaseException | None = None
    stdout: Bytes = b""
    stderr: Bytes = b""
    wall_s: float | None = None
    cpu_s: float | None = None
    reason: Reason | None = None
    has_begun: bool = True

    def why(self) -> Reason | None:
        """Return the reason of the error in one line; None if there is no error."""
        if self.error is None or self.reason is not None:
            return self.reason
        return Reason.of_error(self.error)

    def unwrap(self) -> Any:
        """Return the value, or raise the error."""
        __tracebackhide__ = True  # the error was raised in the job
        if self.error is not None:
            raise BaseException.with_traceback(self.error, None)
        return self.value

    def with_place(self, index: int, job_id: str) -> CallResult[Any]:
        """Return the result as the public `CallResult`.

        Args:
            index: Index of the call.
            job_id: ID of the job that contained the call.
        """
        return CallResult(
            index,
            self.value,
            self.error,
            self.stdout.decode(errors="replace"),
            self.stderr.decode(errors="replace"),
            self.wall_s,
            self.cpu_s,
            job_id,
        )


@dataclass(frozen=True)
class CallResult(Generic[R]):
    """Result of one call of a `Task.map`, or of a `Job`.

    Attributes:
        index: Index of the call, from 0; for a `Job`, its index in the task.
        value: The function's return value; None if there is an error.
        error: The exception that awaiting the map would have raised; None if the function
            returned.
        stdout: Output to stdout while the call ran, as UTF-8; other bytes appear as U+FFFD. Output
            that its threads and processes write after its end belongs to the next call of the same
            task.
        stderr: The same for stderr.
        wall_s: Duration of the call in seconds; None if it was cut off.
        cpu_s: CPU seconds of its process, without child processes; None if it was cut off.
        job_id: ID of the job that contained the call.
    """

    index: int
    value: R | None
    error: BaseException | None
    stdout: str = field(repr=False)
    stderr: str = field(repr=False)
    wall_s: float | None
    cpu_s: float | None
    job_id: str


def is_success(meta: dict[str, Any]) -> bool:
    """Return whether an outcome contains a value for each call."""
    return meta["status"] == OutcomeStatus.DONE and all(
        record["status"] == CallStatus.RETURNED for record in meta["results"]
    )


def read(
    meta: dict[str, Any], value: Buffer, job: About, why: FailureReason | None = None
) -> list[Result]:
    """Turn a verified outcome into results. Call it in a separate thread.

    A value's own code may raise any exception while it is unpickled; that exception becomes the
    error of its call only. Outside the main thread, no `KeyboardInterrupt` is a real Ctrl-C.

    Args:
        meta: The outcome's description.
        value: The packed pickles.
        job: The errors' facts about the job.
        why: How the job ended, if this attempt was stopped before its end.

    Returns:
        One result for each call that ended, in their order, and one for the call that was cut off.
        If no call could run, there is one result.
    """
    status = meta["status"]
    if status == OutcomeStatus.REFUSED:
        return [_cut_off(exit_codes.refused(meta, job), job)._replace(has_begun=False)]
    if why is None and status != OutcomeStatus.DONE:
        why = of_process(meta)
    records = meta["results"]
    parts = envelope.unpack(value) if records else []
    shares = _shares(meta, job)
    results = []
    for record in records:
        own = next(shares)
        if why is not None and was_stopped(record):
            results.append(_cut_off(why, own))
        else:
            first, count = record["first"], record["count"]
            results.append(_read_one(record, parts[first : first + count], own))
    if why is not None and meta["begun"] > len(records):
        results.append(_cut_off(why, next(shares)))
    return results


def complete(
    begun: list[Result],
    meta: dict[str, Any],
    job: About,
    calls: int,
    why: FailureReason | None = None,
) -> list[Result]:
    """Add a result for each call that did not begin to the results of `read`."""
    if len(begun) >= calls:
        return begun
    if meta["status"] in (OutcomeStatus.DONE, OutcomeStatus.REFUSED):  # none could run
        return begun * calls
    why = why or of_process(meta)
    records = meta["results"]
    was_cut_off = meta["begun"] > len(records) or (records and was_stopped(records[-1]))
    where = f" in call {len(begun)}" if was_cut_off else ""
    job, reason = job.of(b"", b""), Reason.of_failure_reason(why)
    left = []
    for number in range(len(begun) + 1, calls + 1):
        sentence = f"call {number} of {calls} in the task did not start: {why.sentence}{where}"
        left.append(Result(error=replace(why, sentence=sentence).error(job), reason=reason))
    return begun + left


def shared(results: list[Result], meta: dict[str, Any], job: About) -> list[Result]:
    """Return the same results, each with its part of the job's output."""
    if meta["status"] == OutcomeStatus.REFUSED:
        return [each._replace(stdout=job.stdout, stderr=job.stderr) for each in results]
    begun = zip(results, _shares(meta, job), strict=False)
    told = [each._replace(stdout=own.stdout, stderr=own.stderr) for each, own in begun]
    return told + results[len(told) :]


def _shares(meta: dict[str, Any], job: About) -> Iterator[About]:
    """Yield the errors' facts for each begun call, with its part of the output."""
    begin = [0, 0]
    if not (job.stdout or job.stderr or any(job.left_out)):  # a shortcut for most jobs
        yield from itertools.repeat(job)
    for record in meta["results"]:
        if "ended" not in record:  # no other call followed
            yield job.part(begin)
            continue
        end = [
            output.place(written, meta[stream].get("gaps", ()))
            for stream, written in zip(STREAMS, record["ended"], strict=True)
        ]
        yield job.part(begin, end)
        begin = end
    yield job.part(begin)


def was_stopped(record: dict[str, Any]) -> bool:
    """Return whether a call or a node failed because the job was ending."""
    return any(link["type"] == TERMINATED_TYPE for link in record.get("chain", ()))


def of_process(meta: dict[str, Any]) -> FailureReason:
    """Return why a task did not finish, from its outcome."""
    status = meta["status"]
    if status == OutcomeStatus.PEER_FAILED:
        return of_node(meta["peer"])
    if status == OutcomeStatus.TERMINATED:
        return exit_codes.EXITS[ExitCode.TERMINATED]
    return failure_reasons.of_process(meta)


def of_node(meta: dict[str, Any]) -> FailureReason:
    """Return how a node failed, from its outcome, without unpickling."""
    status = meta["status"]
    if status == OutcomeStatus.REFUSED:
        failure = exit_codes.refused(meta, About("", ""))
    elif status == OutcomeStatus.DONE:
        failure = _of_bad_call(meta)
    else:
        failure = of_process(meta)
    return replace(failure, sentence=f"node {meta['node']} failed: {failure.sentence}")


def reason(meta: dict[str, Any]) -> Reason | None:
    """Return why a task failed in one line, from its outcome; None if it succeeded."""
    if meta["status"] == OutcomeStatus.REFUSED:
        return Reason.of_failure_reason(exit_codes.refused(meta, About("", "")))
    if meta["status"] != OutcomeStatus.DONE:
        return Reason.of_failure_reason(of_process(meta))
    bad = (each for each in meta["results"] if each["status"] != CallStatus.RETURNED)
    record = next(bad, None)
    return None if record is None else _reason_of(record)


def _reason_of(record: dict[str, Any]) -> Reason:
    """Return in one line why a call, or a task group's first failed node, failed."""
    nodes = record.get("nodes", ())
    record = next((node for node in nodes if node["status"] == record["status"]), record)
    if record["status"] == CallStatus.RAISED:
        return Reason.of_record(record)
    return Reason.of_failure_reason(failure_reason(record))


def _of_bad_call(meta: dict[str, Any]) -> FailureReason:
    bad = (each for each in meta["results"] if each["status"] != CallStatus.RETURNED)
    record = next(bad, None)
    if record is not None and record["status"] != CallStatus.RAISED:
        return failure_reason(record)
    first = {"type": "?", "message": ""} if record is None else record["chain"][0]
    line = failure_reasons.in_a_line(str(first["type"]), str(first["message"]))
    return FailureReason(errors.TaskError, f"the function raised {line}", "see its traceback")


def _cut_off(why: FailureReason, job: About) -> Result:
    reason = Reason.of_failure_reason(why)
    return Result(error=why.error(job), stdout=job.stdout, stderr=job.stderr, reason=reason)


def _read_one(record: dict[str, Any], parts: Sequence[Buffer], job: About) -> Result:
    value: Any = None
    error: BaseException | None = None
    reason: Reason | None = None
    if record["status"] == CallStatus.RETURNED:
        try:
            value = unpickling.load(parts)
        except BaseException as trouble:  # the value's own code
            why = FailureReason(
                errors.ResultNotPicklableError,
                f"the function's result cannot be unpickled here ({failures.in_words(trouble)})",
                "install here the packages that the result's class needs",
            )
            error, reason = why.error(job), Reason.of_failure_reason(why)
            error.__cause__ = trouble
    else:
        is_raised = record["status"] == CallStatus.RAISED
        error = _raised(record, parts, job) if is_raised else explain(record, job)
        reason = _reason_of(record)
    times = record.get("wall_s"), record.get("cpu_s")
    has_begun = record["status"] != CallStatus.UNREADABLE
    return Result(value, error, job.stdout, job.stderr, *times, reason, has_begun)


def explain(record: dict[str, Any], job: About) -> errors.FarcallError:
    """Return the error of a call that failed although the function did not raise."""
    why = failure_reason(record)
    if why.kind is not errors.TaskError:
        return why.error(job)
    text = job.message(why.sentence, why.remedy) + f"\n{record['traceback']}"
    return errors.TaskError(text, **job.fields())


def failure_reason(record: dict[str, Any]) -> FailureReason:
    """Return why a call failed although the function did not raise; unpickle nothing."""
    first = record["chain"][0]
    why = f"{first['type']}: {first['message']}"
    if record["status"] == CallStatus.UNPICKLABLE:
        return FailureReason(
            errors.ResultNotPicklableError,
            f"the function returned a {record['value_type']}, which cannot be pickled ({why})",
            "return plain data; for a generator or an iterator, a list of its items",
        )
    if first["type"].endswith("envelope.VersionMismatchError"):
        remedy = "build the image with the same versions as here"
        return FailureReason(errors.VersionMismatchError, first["message"], remedy)
    if first["type"] == "farcall_runtime.sources.NoRoomError":
        remedy = (
            "leave files out with exclude_sources, or give the job more disk; if its temporary "
            "folder is in memory, more memory"
        )
        sentence = f"the job did not run: its disk is full: {first['message']}"
        return FailureReason(errors.DiskFullError, sentence, remedy)
    remedy = (
        'set packages to "auto", which sends what your code imports, or build an image that '
        "has it (`farcall image build --packages NAME`)"
    )
    if not first["type"].endswith(_IMPORT_ERRORS):
        remedy = "see the traceback: their own code fails while they are read"
    sentence = f"the image cannot read the function or its arguments ({why})"
    return FailureReason(errors.TaskError, sentence, remedy)


# --- exceptions ------------------------------------------------------------------------------

_CAUSE: Any = BaseException.__cause__
_CONTEXT: Any = BaseException.__context__
"""The base class's descriptors, because a subclass may override these attributes."""


_LONG = {"Batch": "AWS Batch"}
"""Long names of platforms, for readers who may not know the short ones."""


def _raised(record: dict[str, Any], parts: Sequence[Buffer], job: About) -> BaseException:
    """Rebuild the function's exception, with its chain and its remote traceback."""
    chain = record["chain"]
    members = [_member(link, parts) for link in chain]
    for link, behind, member in zip(chain[1:], members, members[1:], strict=False):
        if link["relation"] != failures.CONTEXT:
            _CAUSE.__set__(behind, member)
        if link["relation"] != failures.CAUSE:
            _CONTEXT.__set__(behind, member)
    where = f"{_LONG.get(job.platform, job.platform)} job {job.job_id} ({job.name})"
    lines = [
        f"Raised in {where}, attempt {job.attempts}:",
        with_source(record["traceback"]),
        *job.earlier_lines(),
    ]
    told = hint(chain[0]["type"], chain[0]["message"])
    lines += [told] if told else []
    note = "\n".join(lines)
    first = members[0]
    if type(first) is not _Unknown:
        add_note(first, note)
        return first
    text = f"the function raised {chain[0]['type']}: {chain[0]['message']}\n{terminal.shown(note)}"
    known = errors.TaskError(text, **job.fields())
    known.__cause__, known.__context__ = _CAUSE.__get__(first), _CONTEXT.__get__(first)
    return known


class _Unknown(errors.TaskError):
    """Placeholder for an exception of the chain that cannot be rebuilt here."""


def _member(link: dict[str, Any], parts: Sequence[Buffer]) -> BaseException:
    if link["part"] is not None:
        try:
            error = unpickling.load([parts[link["part"]]])
        except BaseException:  # a class this process lacks, or whose own code fails here
            error = None
        kind = type(error)
        if issubclass(kind, Exception) and not issubclass(kind, _ENDS):
            return error  # type: ignore[no-any-return]
    return _Unknown(f"{link['type']}: {link['message']}")


def add_note(error: BaseException, text: str) -> None:
    """Add a note to an exception, without the exception class's own code."""
    own = object.__getattribute__(error, "__dict__")
    notes = own.get("__notes__", ())
    own["__notes__"] = [*(notes if isinstance(notes, list) else ()), terminal.shown(text)]


# --- Several nodes -------------------------------------------------------------------------------


_MOST_NOTES = 20
_STOPPED = (OutcomeStatus.TERMINATED, OutcomeStatus.PEER_FAILED)


class NodeEnd(NamedTuple):
    """End of a task on one node.

    Attributes:
        node: The node's index.
        results: One result for each call.
        meta: The outcome's description; None if there is no usable outcome.
    """

    node: int
    results: Sequence[Result]
    meta: dict[str, Any] | None = None

    @property
    def was_stopped(self) -> bool:
        """Whether it was stopped because another node or the job ended."""
        return self.meta is not None and self.meta["status"] in _STOPPED

    @property
    def ended_at(self) -> float:
        """Time of its end, by the node's clock; 0 if the outcome is unreadable."""
        return 0.0 if self.meta is None else float(self.meta["ended_at"])

    def line(self, error: BaseException) -> str:
        """Describe its failure in one line."""
        if self.meta is not None:
            return of_node(self.meta).sentence
        message = str(error) if isinstance(error, errors.FarcallError) else ""
        return (
            f"node {self.node} failed: {failure_reasons.in_a_line(type(error).__name__, message)}"
        )


def join_nodes(
    main: NodeEnd,
    others: Sequence[NodeEnd],
    nodes: int,
    incomplete: BaseException | None,
    *,
    main_decides: bool,
) -> list[Result]:
    """Combine the results of a task's calls on all nodes.

    A call's result is the list of the nodes' results, in the order of the nodes. If nodes failed,
    the error of the first failure is raised, and its notes describe the other failures. Output and
    times are the main node's.

    Args:
        main: The main node.
        others: The other nodes; without those that left no outcome if the main node failed.
        nodes: Number of nodes.
        incomplete: The error of a call that has neither ended on all nodes nor failed on one.
        main_decides: Whether the main node's errors take precedence over those of other nodes.
    """
    joined = []
    for number, own in enumerate(main.results):
        each = [end.results[number] for end in (main, *others)]
        failed = _failed(number, main, others)
        if failed and not (main_decides and own.error is not None):
            decides = failed[0][0].node
            error: BaseException | None = failed[0][1]
        else:
            decides, error = main.node, own.error
        if error is None and (len(each) < nodes or any(one.error is not None for one in each)):
            error = incomplete
        if error is None:
            joined.append(own._replace(value=[one.value for one in each]))
            continue
        _note(error, [(end, other) for end, other in failed if end.node != decides])
        joined.append(own._replace(value=None, error=error))
    return joined


def _failed(
    number: int, main: NodeEnd, others: Sequence[NodeEnd]
) -> list[tuple[NodeEnd, BaseException]]:
    """Return the nodes on which a call failed by itself, in the order of their ends."""
    failed_ends = []
    for end in sorted((main, *others), key=lambda end: end.ended_at):
        error = end.results[number].error
        if error is not None and not end.was_stopped:
            failed_ends.append((end, error))
    return failed_ends


def _note(error: BaseException, rest: Sequence[tuple[NodeEnd, BaseException]]) -> None:
    lines = [end.line(other) for end, other in rest[:_MOST_NOTES]]
    if len(rest) > _MOST_NOTES:
        lines.append(f"{len(rest) - _MOST_NOTES} more nodes failed")
    for line in lines:
        with contextlib.suppress(BaseException):  # the error class's own code
            add_note(error, line)
