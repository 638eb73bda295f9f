"""Explanation of a job's state: why it finished, or what it waits for.

An outcome in the bucket is trusted if the job's own key signed it. Only its description is read:
neither result nor exception is unpickled, and nothing is deleted. Without an outcome, the
explanation uses Batch's reasons.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from farcall.engine import attempt_reporter
from farcall.engine.delivered import Usage
from farcall.engine.failed_tasks import delivered
from farcall.engine.session import Session
from farcall.model import errors, exit_codes, failure_reasons
from farcall.model.errors import FarcallError, JobCancelledError, OutcomeMissingError, ServiceError
from farcall.model.failure_reasons import About, FailureReason
from farcall.model.jobs import JobDetail, JobStatus
from farcall.model.names import counted
from farcall.model.output import last_state
from farcall.model.submission import Submission
from farcall.model.terminal import in_a_line
from farcall.payload import results
from farcall.storage import outcomes
from farcall_runtime import envelope
from farcall_runtime.contract import CallStatus, OutcomeStatus

# --- Explanation values: reasons for a job's state, and their texts. No I/O ---------------------


WAITING = "waiting"
RUNNING = "running"
RETURNED = "returned"
FAILED = "failed"
CANCELLED = "cancelled"
UNKNOWN = "unknown"

OUTCOME = "outcome"
BATCH = "Batch"


@dataclass(frozen=True)
class FailedChild:
    """Failed array task, or failed node of a multi-node job.

    Attributes:
        job_id: The task's or node's ID.
        error: Class of the error.
        message: Failure as a sentence.
    """

    job_id: str
    error: str
    message: str


@dataclass(frozen=True)
class Explanation:
    """Reason for a job's state.

    All texts may contain a task's output, including control characters.

    Attributes:
        kind: ``waiting``, ``running``, ``returned``, ``failed``, ``cancelled``, or ``unknown`` for
            a job that farcall did not submit.
        message: Result of the job, or what the job waits for.
        remedy: Suggested action.
        error: Class of the error, the function's own or one of `farcall.model.errors`; empty if
            there is none.
        traceback: The function's traceback, as the container wrote it; otherwise empty.
        usage: Resources that the task used, if it reported them.
        previous_attempts: Result of each attempt before the last one; for an unfinished job, of
            each attempt.
        source: ``outcome``, or ``Batch`` if only Batch's reasons are available.
        calls: For a task of several calls, the number of calls by result, in the words of
            `CallStatus`, and of calls that had not begun (``cut_off``).
        children: The first failed tasks of an array; for a multi-node job, the nodes that failed
            first, except nodes that stopped because the main node had finished.
        log: The last lines of the log of a failed job without a traceback, if available.
    """

    kind: str
    message: str
    remedy: str
    error: str = ""
    traceback: str = ""
    usage: Usage | None = None
    previous_attempts: tuple[str, ...] = ()
    source: str = BATCH
    calls: Mapping[str, int] = field(default_factory=dict)
    children: tuple[FailedChild, ...] = ()
    log: tuple[str, ...] = ()


def of_failure_reason(why: FailureReason) -> Explanation:
    """Explain a finished job by a backend's failure reason."""
    kind = CANCELLED if why.kind is JobCancelledError else FAILED
    return Explanation(kind, why.sentence, why.remedy, why.kind.__name__)


def of_waiting(detail: JobDetail) -> Explanation:
    """Explain an unfinished job."""
    kind = RUNNING if detail.status is JobStatus.RUNNING else WAITING
    return Explanation(kind, *detail.waiting())


# --- Explanation of jobs without an outcome: command jobs, and single nodes of any job ----------
#
# Only the backend's reasons, exit codes and the log are available.


_MAIN = 0
"""Main node, whose end is the job's end, in all jobs that farcall submits."""

_PARALLEL = 32
_USAGE_LINES = 100
"""Maximum number of log lines that are searched for a task's usage.

It is written last, but a container engine reads stdout and stderr separately.
"""

_LINES = 10
"""Maximum number of log lines of a failed job."""

_FROM_OUTSIDE = (errors.JobCancelledError, errors.JobTimeoutError, errors.JobStuckError)
"""Failures that affect all nodes at the same time, so that no node failed by itself."""

_LAST = datetime.max.replace(tzinfo=UTC)


async def explain_without_outcome(
    session: Session, detail: JobDetail, nodes: Mapping[int, JobDetail] | None = None
) -> Explanation:
    """Explain the state of a command job or of a node.

    Args:
        session: The event loop's session.
        detail: The backend's description of the job or node.
        nodes: The backend's descriptions of the job's nodes, if already requested.

    Raises:
        ServiceError: The backend refused a call. Errors of the log's service only omit the log.
    """
    if nodes is None:
        nodes = await nodes_of(session, detail)
    if not detail.status.is_final:
        explanation = of_waiting(detail)
    elif detail.status is JobStatus.SUCCEEDED:
        explanation = _succeeded(detail)
    else:
        explanation = of_failure_reason(detail.failure_reason())
    if not detail.status.is_final or detail.failure_reason().kind not in _FROM_OUTSIDE:
        explanation = _with_failed(explanation, nodes)
    if explanation.kind == FAILED:
        explanation = replace(
            explanation, log=await _last_lines(session, nodes.get(_MAIN, detail), detail)
        )
    return replace(explanation, previous_attempts=_earlier_attempts(detail))


def _succeeded(detail: JobDetail) -> Explanation:
    what = "the command" if detail.is_command else "the node"
    remedy = f"run `farcall logs {detail.job_id}` to see its output"
    return Explanation(RETURNED, f"{what} exited with exit code 0", remedy)


def _with_failed(explanation: Explanation, nodes: Mapping[int, JobDetail]) -> Explanation:
    """Add the nodes that failed by themselves, in the order of their failures."""
    main = nodes.get(_MAIN)
    end = main.stopped_at if main is not None and main.status.is_final else None
    failed = [
        node
        for index, node in nodes.items()
        if node.status is JobStatus.FAILED
        and (index == _MAIN or end is None or (node.stopped_at or _LAST) < end)
    ]
    if not failed:
        return explanation
    failed.sort(key=lambda node: node.stopped_at or _LAST)
    reasons = [(node.job_id, node.failure_reason()) for node in failed[:_FEW]]
    sentence = f"{explanation.message}; {len(failed)} of its {counted(len(nodes), 'node')} failed"
    children = tuple(
        FailedChild(job_id, why.kind.__name__, why.sentence) for job_id, why in reasons
    )
    return replace(explanation, message=sentence, children=children)


async def logged_usages(session: Session, details: Sequence[JobDetail]) -> dict[str, Usage]:
    """Return the resources that finished tasks used, from their logs, by job ID.

    It takes one request per task, and one per 100 tasks. Jobs without such a line in their log,
    such as arrays and command jobs, are missing.

    Raises:
        ServiceError: The backend refused to describe the jobs.
    """
    places = asyncio.Semaphore(_PARALLEL)
    tasks = (each for each in details if not (each.array_size or each.is_command))
    described = await session.backend.describe(
        each.job_id for each in tasks if each.status.is_final
    )

    async def read(detail: JobDetail) -> Usage | None:
        async with places:
            return await _logged_usage(session, detail)

    usages = await asyncio.gather(*map(read, described.values()))
    return {job_id: usage for job_id, usage in zip(described, usages, strict=True) if usage}


async def _logged_usage(session: Session, detail: JobDetail) -> Usage | None:
    return Usage.logged(await _last_lines(session, detail, detail, _USAGE_LINES))


async def _last_lines(
    session: Session, main: JobDetail, detail: JobDetail, number: int = _LINES
) -> tuple[str, ...]:
    stream = main.log_stream or detail.log_stream
    try:
        lines = await session.backend.log(detail.log_group, stream).last(number)
    except ServiceError:  # without access to logs, the rest is still useful
        return ()
    return tuple(last_state(line.text) for line in lines)


def _earlier_attempts(detail: JobDetail) -> tuple[str, ...]:
    """Return the results of earlier attempts; for an unfinished job, of all."""
    tried = detail.tried[:-1] if detail.status.is_final else detail.tried
    return tuple(attempt_reporter.of_tried(detail.of_attempt(record)) for record in tried)


_BY_MAP = f"{failure_reasons.OWN_REASON}{failure_reasons.MAP_FAILED}"
_FEW = 3
"""Maximum number of explained failed tasks of an array, with one request for each."""


async def explain(
    session: Session, detail: JobDetail, nodes: Mapping[int, JobDetail] | None = None
) -> Explanation:
    """Explain a job's state; for a job that has begun, also from the bucket.

    Args:
        session: The event loop's session.
        detail: Batch's description of a single job, array job, array task or node.
        nodes: Batch's descriptions of the job's nodes, if already requested.

    Raises:
        ServiceError: Batch refused a call. S3 errors become part of the explanation.
    """
    if detail.is_command:
        return await explain_without_outcome(session, detail, nodes)
    try:
        Submission.whole(detail)
    except FarcallError as error:
        return Explanation(UNKNOWN, str(error), "check the job in the AWS console")
    if detail.array_size:
        return await _of_array(session, detail)
    submission, index = Submission.of(detail)
    if submission.is_other_node(index):
        return await _of_node(session, submission, index, detail)
    return await _of_task(session, submission, index, detail)


async def _of_task(
    session: Session, submission: Submission, index: int, detail: JobDetail
) -> Explanation:
    begun = detail.status.is_final or detail.status is JobStatus.RUNNING
    try:
        key = submission.where.outcome_key(index)
        meta = await _read_meta(session, submission, key) if begun else None
    except envelope.EnvelopeError as error:
        explanation = of_failure_reason(failure_reasons.unusable(error))
    except FarcallError as error:
        explanation = _unread(detail, error)
    else:
        if meta is not None and meta["status"] != OutcomeStatus.TERMINATED:
            explanation = _of_outcome(meta, detail)
        elif detail.status.is_final:
            meta = await _last_attempt(session, submission, index, detail)
            explanation = await _of_ended(session, submission, index, meta, detail)
        else:
            explanation = of_waiting(detail)
    return replace(
        explanation, previous_attempts=await _earlier(session, submission, index, detail)
    )


# --- jobs with an outcome ---------------------------------------------------------------------


async def _read_meta(session: Session, submission: Submission, key: str) -> dict[str, Any] | None:
    """Return an outcome's description, or an attempt's; None if it is missing."""
    store = session.stores.of(submission.where.bucket)
    stored = await outcomes.fetch(store, submission, key)
    return None if stored is None else stored.outcome.meta


def _of_outcome(meta: dict[str, Any], detail: JobDetail) -> Explanation:
    explanation = _of_meta(meta, detail)
    return replace(explanation, source=OUTCOME, usage=Usage(**meta["usage"]), calls=_counts(meta))


def _of_meta(meta: dict[str, Any], detail: JobDetail) -> Explanation:
    if meta["status"] == OutcomeStatus.REFUSED:
        return of_failure_reason(
            exit_codes.refused(meta, About(detail.job_id, detail.name, platform=detail.platform))
        )
    if meta["status"] != OutcomeStatus.DONE:
        explanation = of_failure_reason(results.of_process(meta))
        return replace(explanation, traceback=_traceback(meta.get("peer", {})))
    records = meta["results"]
    bad = [each for each in records if each["status"] != CallStatus.RETURNED]
    if not bad:
        sentence = "the function returned"
        if detail.status is JobStatus.FAILED:  # its host was lost afterwards
            sentence += f", although {detail.platform} reports the job as FAILED ({detail.reason})"
        remedy = f"run `farcall result {detail.job_id}` to get its result"
        return Explanation(RETURNED, sentence, remedy)
    explanation = _of_call(bad[0], detail)
    if len(records) > 1:
        more = f"{explanation.message} ({len(bad)} of its {len(records)} calls failed)"
        explanation = replace(explanation, message=more)
    return explanation


def _traceback(meta: dict[str, Any]) -> str:
    """Return the traceback in another node's outcome."""
    tracebacks = (str(each.get("traceback", "")) for each in meta.get("results", ()))
    return next(filter(None, tracebacks), "")


def _of_call(call: dict[str, Any], detail: JobDetail) -> Explanation:
    """Explain a task's first call without a result."""
    if call.get("nodes"):
        return _of_electrons(call, detail)
    traceback = str(call.get("traceback", ""))
    if call["status"] != CallStatus.RAISED:
        return replace(of_failure_reason(results.failure_reason(call)), traceback=traceback)
    first = call["chain"][0]
    kind = str(first["type"])
    sentence = f"the function raised {failure_reasons.in_a_line(kind, str(first['message']))}"
    remedy = "fix the error that the traceback shows, and submit it again"
    return Explanation(FAILED, sentence, remedy, kind, traceback)


def _of_electrons(call: dict[str, Any], detail: JobDetail) -> Explanation:
    """Explain a Covalent task group by the node that determines the group's result."""
    nodes = call["nodes"]
    bad = [each for each in nodes if each["status"] != CallStatus.RETURNED]
    first = next(each for each in bad if each["chain"] == call["chain"])
    explanation = _of_call(first, detail)
    sentence = f"node {first['node']} failed: {explanation.message}"
    if len(nodes) > 1:
        sentence += f" ({len(bad)} of the {len(nodes)} nodes of its task group have no result)"
    return replace(explanation, message=sentence)


def _counts(meta: dict[str, Any]) -> dict[str, int]:
    records = meta.get("results", [])
    counts = Counter(str(each["status"]) for each in records)
    if meta["status"] != OutcomeStatus.DONE and meta.get("begun", 0) > len(records):
        counts["cut_off"] += 1
    return dict(counts) if counts.total() > 1 else {}


# --- jobs without an outcome ------------------------------------------------------------------


async def _of_ended(
    session: Session,
    submission: Submission,
    index: int,
    meta: dict[str, Any] | None,
    detail: JobDetail,
) -> Explanation:
    """Explain a finished job by its last attempt's description, if there is one."""
    if meta is not None and attempt_reporter.is_the_end(meta, detail):
        return _of_outcome(meta, detail)
    usage = Usage(**meta["usage"]) if meta is not None else None
    reason = detail.failure_reason()
    is_missing = reason.kind is OutcomeMissingError and detail.status is JobStatus.SUCCEEDED
    if is_missing and await _is_delivered(session, submission, index):
        sentence = "the function returned, and its result was delivered"
        usage = await _logged_usage(session, detail)
        return Explanation(RETURNED, sentence, "", usage=usage)
    return replace(of_failure_reason(reason), usage=usage)


async def _is_delivered(session: Session, submission: Submission, index: int | None) -> bool:
    """Return whether a client has received a task's result; False if S3 denies access.

    Args:
        session: The event loop's session.
        submission: The job.
        index: Index of the task; None for all tasks of the job.
    """
    store = session.stores.of(submission.where.bucket)
    try:
        if await store.head(submission.where.bundle_key) is None:
            return True  # the bundle is deleted with the last result
        return index is not None and index in await delivered(session, submission)
    except FarcallError:
        return False


def _unread(detail: JobDetail, error: FarcallError) -> Explanation:
    """Explain that S3 denies this user access to the job's outcome."""
    if detail.status is JobStatus.RUNNING:
        return of_waiting(detail)
    kind = RETURNED if detail.status is JobStatus.SUCCEEDED else FAILED
    calls = f"{detail.platform} reports the job as {detail.status}"
    sentence = f"{calls}; its stored result cannot be read ({error})"
    return Explanation(kind, sentence, "allow s3:GetObject on the job's bucket to see it")


async def _last_attempt(
    session: Session, submission: Submission, index: int, detail: JobDetail
) -> dict[str, Any] | None:
    """Return the last attempt's description, if another attempt was to follow."""
    key = submission.attempt_key(index, max(1, detail.attempts))
    try:
        return await _read_meta(session, submission, key)
    except (envelope.EnvelopeError, FarcallError):  # optional information
        return None


async def _earlier(
    session: Session, submission: Submission, index: int, detail: JobDetail
) -> tuple[str, ...]:
    last = detail.attempts if detail.status.is_final else detail.attempts + 1
    numbers = list(range(1, last))
    if not numbers:
        return ()
    store = session.stores.of(submission.where.bucket)
    try:
        return tuple(await attempt_reporter.explain(store, submission, index, detail, numbers))
    except FarcallError:  # S3 refused the call; Batch's reasons are used instead
        records = map(detail.of_attempt, detail.tried[: last - 1])
        return tuple(map(attempt_reporter.of_tried, records))


# --- nodes ------------------------------------------------------------------------------------


async def _of_node(
    session: Session, submission: Submission, index: int, detail: JobDetail
) -> Explanation:
    """Explain a node other than the main node, which determines the job's result."""
    meta = await _last_attempt(session, submission, index, detail)
    if meta is not None and meta["status"] != OutcomeStatus.TERMINATED:
        explanation = _of_outcome(meta, detail)
        if explanation.kind == RETURNED:
            remedy = f"run `farcall result {submission.job_id}` to get the results of all nodes"
            explanation = replace(explanation, remedy=remedy)
        return explanation
    return await explain_without_outcome(session, detail)


# --- arrays -----------------------------------------------------------------------------------


async def _of_array(session: Session, detail: JobDetail) -> Explanation:
    counts = {status: detail.status_summary.get(status.value, 0) for status in JobStatus}
    failed = counts[JobStatus.FAILED]
    children = await _failed_children(session, detail) if failed else ()
    if detail.status is JobStatus.SUCCEEDED:
        return await _of_succeeded_array(session, detail)
    if detail.status is JobStatus.FAILED:
        explanation = of_failure_reason(detail.failure_reason())
        words = f"{failed} of {detail.array_size} tasks failed"
        remedy = f"run `farcall list {detail.job_id} --state failed` to list them"
        if explanation.kind == CANCELLED:
            words = f"{failed} of {detail.array_size} tasks were cancelled"
            explanation = replace(explanation, message=f"{explanation.message} ({words})")
        elif detail.map_failure:
            words = f"a call of its map raised an exception: {detail.map_failure}"
            explanation = replace(explanation, message=in_a_line(words), remedy=remedy)
        elif failed:
            explanation = replace(explanation, message=words, remedy=remedy)
        return replace(explanation, children=children)
    return replace(await _of_unfinished_array(session, detail, counts), children=children)


async def _of_unfinished_array(
    session: Session, detail: JobDetail, counts: Mapping[JobStatus, int]
) -> Explanation:
    running = counts[JobStatus.RUNNING] + counts[JobStatus.STARTING]
    if counts[JobStatus.RUNNABLE] and not running:
        stuck = await _blocked_child(session, detail)
        if stuck is not None:
            return of_waiting(stuck)
    words = ", ".join(f"{count} {status}" for status, count in counts.items() if count)
    size = detail.array_size
    sentence = f"{words} of {size} tasks" if words else f"none of {size} tasks has started"
    job_id = detail.job_id
    remedy = (
        f"run `farcall list {job_id}` to list the tasks, or `farcall cancel {job_id}` to "
        "cancel them"
    )
    kind = RUNNING if counts[JobStatus.RUNNING] else WAITING
    if detail.status_reason:  # the platform has a reason for the wait of its tasks
        why, remedy = detail.waiting()
        sentence = f"{sentence}: {why}"
    return Explanation(kind, sentence, remedy)


async def _of_succeeded_array(session: Session, detail: JobDetail) -> Explanation:
    sentence = f"all {detail.array_size} tasks succeeded"
    if await _is_delivered(session, Submission.whole(detail), None):
        return Explanation(RETURNED, f"{sentence}, and the results were delivered", "")
    remedy = f"run `farcall result {detail.job_id}:0` to get an array task's result"
    return Explanation(RETURNED, sentence, remedy)


async def _failed_children(session: Session, detail: JobDetail) -> tuple[FailedChild, ...]:
    """Explain an array's first failed tasks, in Batch's order."""
    page = await _first_page(session, detail, JobStatus.FAILED)
    # Tasks that were terminated because another call raised do not explain the failure.
    page.sort(key=lambda child: (child.status_reason.startswith(_BY_MAP), child.index))
    ids = [child.job_id for child in page[:_FEW]]
    known = await session.backend.describe(ids)
    failed = [known[job_id] for job_id in ids if job_id in known]
    why = await asyncio.gather(*(explain(session, child) for child in failed))
    return tuple(
        FailedChild(child.job_id, each.error, each.message)
        for child, each in zip(failed, why, strict=True)
    )


async def _blocked_child(session: Session, detail: JobDetail) -> JobDetail | None:
    """Return an array task that cannot be placed; Batch has no reasons for arrays."""
    page = await _first_page(session, detail, JobStatus.RUNNABLE)
    return next((child for child in page if child.is_blocked), None)


async def _first_page(session: Session, detail: JobDetail, status: JobStatus) -> list[JobDetail]:
    pages = session.backend.list_children(detail.job_id, status)
    return await anext((page async for page in pages if page), [])


# --- Nodes of a multi-node job, from the backend's descriptions ---------------------------------


async def nodes_of(session: Session, detail: JobDetail) -> dict[int, JobDetail]:
    """Return descriptions of a job's nodes by index: one request per 100 nodes.

    Nodes that have not started may be missing. Other jobs have none.

    Raises:
        ServiceError: The backend refused a call.
    """
    if not detail.groups:
        return {}
    ids = {detail.node_id(number): number for number in range(detail.nodes)}
    details = await session.backend.describe(ids)
    return {ids[job_id]: node for job_id, node in details.items()}


def unstarted(whole: JobDetail, number: int) -> JobDetail:
    """Describe a node that the backend does not know yet: it has its job's state."""
    # The main node runs, and the others are starting.
    runs = whole.status is JobStatus.RUNNING
    return replace(
        whole,
        job_id=whole.node_id(number),
        status=JobStatus.STARTING if runs else whole.status,
        exit_code=None,
        container_reason="",
        tried=(),
        started_at=None,
        stopped_at=None,
        log_stream="",
        groups=(),
    )
