"""Explanation of a job for whoever looks at it: how it ended, or what it waits for.

An outcome in the bucket is believed where the job's own key signed it, and only what it says of
itself is read: neither value nor exception is unpickled, and nothing is deleted. Without one there
are Batch's words.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timezone
from typing import Any

from farcall.engine import attempt_reporter
from farcall.engine.delivered import Usage
from farcall.engine.session import Session
from farcall.model import endings, errors, exit_codes
from farcall.model.endings import About, Verdict
from farcall.model.errors import FarcallError, JobCancelledError, OutcomeMissingError, ServiceError
from farcall.model.jobs import JobDetail, JobStatus
from farcall.model.names import counted
from farcall.model.output import last_state
from farcall.model.submission import Submission
from farcall.model.terminal import in_a_line
from farcall.payload import results
from farcall.storage import outcomes
from farcall.storage.store import Store
from farcall_runtime import envelope
from farcall_runtime.contract import CallStatus, OutcomeStatus
from farcall_runtime.envelope import Buffer

# --- Explanation values: why a job is as it is, and how that is said. No I/O --------------------


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
    """One of an array's children, or of a job's nodes, that failed.

    Attributes:
        job_id: Its ID.
        error: Class of the error.
        sentence: What happened.
    """

    job_id: str
    error: str
    sentence: str


@dataclass(frozen=True)
class Explanation:
    """Why a job is as it is.

    All texts may hold what a task has written, control characters among them.

    Attributes:
        kind: ``waiting``, ``running``, ``returned``, ``failed``, ``cancelled``, or ``unknown``
            for a job that farcall did not submit.
        sentence: What happened, or what the job waits for.
        remedy: What to do.
        error: Class of the error, the function's own or one of `farcall.model.errors`; empty where
            there is none.
        traceback: Where the function raised, as the container wrote it; else empty.
        usage: What the task used, where it has told.
        earlier: How each attempt before the last one ended; of a job that goes on, each.
        source: ``outcome``, or ``Batch`` where Batch's words are all there is.
        calls: Of a task of several calls, how many of them returned, raised and so on, in the
            words of `CallStatus`, and how many were not begun (``cut_off``).
        children: Of an array the first failed children; of a job on several nodes those that
            failed first, and not because the main node had ended.
        log: Of what failed and has no traceback, the last lines of its log, where it has told.
    """

    kind: str
    sentence: str
    remedy: str
    error: str = ""
    traceback: str = ""
    usage: Usage | None = None
    earlier: tuple[str, ...] = ()
    source: str = BATCH
    calls: Mapping[str, int] = field(default_factory=dict)
    children: tuple[FailedChild, ...] = ()
    log: tuple[str, ...] = ()


def record(explanation: Explanation) -> dict[str, Any]:
    """Return an explanation as JSON has words for it."""
    return asdict(explanation)


def of_verdict(why: Verdict) -> Explanation:
    """Explain a job that has ended, by what a backend makes of it."""
    kind = CANCELLED if why.kind is JobCancelledError else FAILED
    return Explanation(kind, why.sentence, why.remedy, why.kind.__name__)


def of_waiting(detail: JobDetail) -> Explanation:
    """Explain a job that has not ended."""
    kind = RUNNING if detail.status is JobStatus.RUNNING else WAITING
    return Explanation(kind, *detail.waiting())


# --- Explanation of what leaves no outcome: command jobs, and single nodes of any job -----------
#
# The backend's words, exit codes and the log are all there is.


_MAIN = 0
"""The node as which the job ends, of all jobs that farcall submits."""

"""Failed nodes that are explained."""

_LINES = 10
"""Of the log of what failed."""

_FROM_OUTSIDE = (errors.JobCancelledError, errors.JobTimeoutError, errors.JobStuckError)
"""Ends that all nodes met at the same time, so that none of them failed by itself."""

_LAST = datetime.max.replace(tzinfo=timezone.utc)


async def explain_without_outcome(
    session: Session, detail: JobDetail, nodes: Mapping[int, JobDetail] | None = None
) -> Explanation:
    """Say why a command job, or a node, is as it is.

    Args:
        session: The event loop's session.
        detail: The backend's description of it.
        nodes: Those of its nodes, where they were asked for already.

    Raises:
        ServiceError: The backend refused a call. What the log's service refuses is left out.
    """
    if nodes is None:
        nodes = await nodes_of(session, detail)
    if not detail.status.is_final:
        found = of_waiting(detail)
    elif detail.status is JobStatus.SUCCEEDED:
        found = _succeeded(detail)
    else:
        found = of_verdict(detail.verdict())
    if not detail.status.is_final or detail.verdict().kind not in _FROM_OUTSIDE:
        found = _with_failed(found, nodes)
    if found.kind == FAILED:
        found = replace(found, log=await _last_lines(session, nodes.get(_MAIN, detail), detail))
    return replace(found, earlier=_earlier_attempts(detail))


def _succeeded(detail: JobDetail) -> Explanation:
    what = "the command" if detail.is_command else "the node"
    remedy = f"`farcall logs {detail.job_id}` shows what it wrote"
    return Explanation(RETURNED, f"{what} ended with exit code 0", remedy)


def _with_failed(found: Explanation, nodes: Mapping[int, JobDetail]) -> Explanation:
    """Name the nodes that failed by themselves, the first one first."""
    main = nodes.get(_MAIN)
    end = main.stopped_at if main is not None and main.status.is_final else None
    failed = [
        node
        for index, node in nodes.items()
        if node.status is JobStatus.FAILED
        and (index == _MAIN or end is None or (node.stopped_at or _LAST) < end)
    ]
    if not failed:
        return found
    failed.sort(key=lambda node: node.stopped_at or _LAST)
    told = [(node.job_id, node.verdict()) for node in failed[:_FEW]]
    sentence = f"{found.sentence}; {len(failed)} of its {counted(len(nodes), 'node')} failed"
    children = tuple(FailedChild(job_id, why.kind.__name__, why.sentence) for job_id, why in told)
    return replace(found, sentence=sentence, children=children)


async def _last_lines(session: Session, main: JobDetail, detail: JobDetail) -> tuple[str, ...]:
    stream = main.log_stream or detail.log_stream
    try:
        lines = await session.backend.log(detail, stream).last(_LINES)
    except ServiceError:  # who may not read logs is told the rest
        return ()
    return tuple(last_state(line.text) for line in lines)


def _earlier_attempts(detail: JobDetail) -> tuple[str, ...]:
    """Say how each attempt before the last one ended; of a job that goes on, each."""
    tried = detail.tried[:-1] if detail.status.is_final else detail.tried
    return tuple(attempt_reporter.of_tried(detail.of_attempt(said)) for said in tried)


_BY_MAP = f"{endings.OWN_REASON}{endings.MAP_FAILED}"
_FEW = 3
_MOST_RECEIPTS = 4
"""Each client that takes values of an array has one."""

_LARGEST_RECEIPT_BYTES = 64 * 1024
"""Failed children of an array that are explained: two requests for all, and one for each."""


async def explain(
    session: Session, detail: JobDetail, nodes: Mapping[int, JobDetail] | None = None
) -> Explanation:
    """Say why a job is as it is; of one that has begun the bucket is asked, too.

    Args:
        session: The event loop's session.
        detail: Batch's description of a plain job, an array as a whole, a child, or a node.
        nodes: Batch's descriptions of its nodes, where they were asked for already.

    Raises:
        ServiceError: Batch refused a call. What S3 refuses is said in the explanation.
    """
    if detail.is_command:
        return await explain_without_outcome(session, detail, nodes)
    try:
        Submission.whole(detail)
    except FarcallError as error:
        return Explanation(UNKNOWN, str(error), "look at it in the AWS console")
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
        meta = await _outcome(session, submission, index) if begun else None
    except envelope.EnvelopeError as error:
        found = of_verdict(endings.unusable(error))
    except FarcallError as error:
        found = _unread(detail, error)
    else:
        if meta is not None and meta["status"] != OutcomeStatus.TERMINATED:
            found = _of_outcome(meta, detail)
        elif detail.status.is_final:
            meta = await _last_attempt(session, submission, index, detail)
            found = await _of_ended(session, submission, index, meta, detail)
        else:
            found = of_waiting(detail)
    return replace(found, earlier=await _earlier(session, submission, index, detail))


# --- with an outcome --------------------------------------------------------------------------


async def _read_meta(session: Session, submission: Submission, key: str) -> dict[str, Any] | None:
    """Return what an outcome says of itself, or that of an attempt; None if it is not there."""
    store = session.stores.of(submission.where.bucket)
    found = await outcomes.fetch(store, submission, key)
    return None if found is None else found.outcome.meta


async def _outcome(session: Session, submission: Submission, index: int) -> dict[str, Any] | None:
    return await _read_meta(session, submission, submission.where.outcome_key(index))


def _of_outcome(meta: dict[str, Any], detail: JobDetail) -> Explanation:
    found = _of_meta(meta, detail)
    return replace(found, source=OUTCOME, usage=Usage(**meta["usage"]), calls=_counts(meta))


def _of_meta(meta: dict[str, Any], detail: JobDetail) -> Explanation:
    if meta["status"] == OutcomeStatus.REFUSED:
        return of_verdict(
            exit_codes.refused(meta, About(detail.job_id, detail.name, platform=detail.platform))
        )
    if meta["status"] != OutcomeStatus.DONE:
        found = of_verdict(results.of_process(meta))
        return replace(found, traceback=_traceback(meta.get("peer", {})))
    records = meta["results"]
    bad = [each for each in records if each["status"] != CallStatus.RETURNED]
    if not bad:
        sentence = "the function returned"
        if detail.status is JobStatus.FAILED:  # its host was lost afterwards
            sentence += f", although {detail.platform} calls the job FAILED ({detail.reason})"
        remedy = f"`farcall result {detail.job_id}` shows its value"
        return Explanation(RETURNED, sentence, remedy)
    found = _of_call(bad[0], detail)
    if len(records) > 1:
        more = f"{found.sentence} ({len(bad)} of its {len(records)} calls failed)"
        found = replace(found, sentence=more)
    return found


def _traceback(meta: dict[str, Any]) -> str:
    """Return where the function raised on another node, as that one's outcome says."""
    tracebacks = (str(each.get("traceback", "")) for each in meta.get("results", ()))
    return next(filter(None, tracebacks), "")


def _of_call(call: dict[str, Any], detail: JobDetail) -> Explanation:
    """Explain the first call of a task that has no value."""
    if call.get("nodes"):
        return _of_electrons(call, detail)
    traceback = str(call.get("traceback", ""))
    if call["status"] != CallStatus.RAISED:
        return replace(of_verdict(results.verdict(call)), traceback=traceback)
    first = call["chain"][0]
    kind = str(first["type"])
    sentence = f"the function raised {endings.in_a_line(kind, str(first['message']))}"
    remedy = "correct what the traceback shows, and submit it again"
    return Explanation(FAILED, sentence, remedy, kind, traceback)


def _of_electrons(call: dict[str, Any], detail: JobDetail) -> Explanation:
    """Explain a task group of Covalent's by the node whose end is the group's."""
    nodes = call["nodes"]
    bad = [each for each in nodes if each["status"] != CallStatus.RETURNED]
    first = next(each for each in bad if each["chain"] == call["chain"])
    found = _of_call(first, detail)
    sentence = f"node {first['node']} failed: {found.sentence}"
    if len(nodes) > 1:
        sentence += f" ({len(bad)} of the {len(nodes)} nodes of its task group have no value)"
    return replace(found, sentence=sentence)


def _counts(meta: dict[str, Any]) -> dict[str, int]:
    records = meta.get("results", [])
    counts = Counter(str(each["status"]) for each in records)
    if meta["status"] != OutcomeStatus.DONE and meta.get("begun", 0) > len(records):
        counts["cut_off"] += 1
    return dict(counts) if counts.total() > 1 else {}


# --- without one ------------------------------------------------------------------------------


async def _of_ended(
    session: Session,
    submission: Submission,
    index: int,
    meta: dict[str, Any] | None,
    detail: JobDetail,
) -> Explanation:
    """Explain a job that has ended, by what its last attempt said of itself, if anything."""
    if meta is not None and attempt_reporter.is_the_end(meta, detail):
        return _of_outcome(meta, detail)
    usage = Usage(**meta["usage"]) if meta is not None else None
    found = detail.verdict()
    if found.kind is OutcomeMissingError and detail.status is JobStatus.SUCCEEDED:
        peaks = await _delivered(session, submission)
        if peaks is None or index in peaks:
            peak = (peaks or {}).get(index, 0)
            usage = usage or (Usage(peak_memory_bytes=peak) if peak else None)
            sentence = "the function returned, and its result was delivered"
            return Explanation(RETURNED, sentence, "", usage=usage)
    return replace(of_verdict(found), usage=usage)


async def _delivered(session: Session, submission: Submission) -> dict[int, int] | None:
    """Return the delivered tasks of a bundle with their peak memory in bytes, as receipts say.

    None: all of them are delivered, because the bundle is deleted.
    """
    store = session.stores.of(submission.where.bucket)
    try:
        if await store.stored(submission.where.bundle_key) is None:
            return None
        found: dict[int, int] = {}
        for data, key in await _receipts(store, submission):
            found |= dict.fromkeys(
                envelope.receipted(submission.key, key, data, submission.size), 0
            )
            found |= envelope.receipted_peaks(submission.key, key, data, submission.size)
    except (envelope.EnvelopeError, FarcallError):  # it is only a help
        return {}
    return found


async def _receipts(store: Store, submission: Submission) -> list[tuple[Buffer, str]]:
    """Return the receipts of a bundle that clients have left, each with its key; unverified."""
    found: list[tuple[Buffer, str]] = []
    for number in range(_MOST_RECEIPTS):
        key = submission.where.receipt_key(number)
        got = await store.get_dated(key, most=_LARGEST_RECEIPT_BYTES)
        if got is None:
            break
        found.append((got[0], key))
    return found


def _unread(detail: JobDetail, error: FarcallError) -> Explanation:
    """Say that S3 keeps from this user what came of a job."""
    if detail.status is JobStatus.RUNNING:
        return of_waiting(detail)
    kind = RETURNED if detail.status is JobStatus.SUCCEEDED else FAILED
    calls = f"{detail.platform} calls the job {detail.status}"
    sentence = f"{calls}; what came of it cannot be read ({error})"
    return Explanation(kind, sentence, "s3:GetObject on the job's bucket shows it")


async def _last_attempt(
    session: Session, submission: Submission, index: int, detail: JobDetail
) -> dict[str, Any] | None:
    """Return what the last attempt said of itself, where another one was to follow."""
    key = submission.attempt_key(index, max(1, detail.attempts))
    try:
        return await _read_meta(session, submission, key)
    except (envelope.EnvelopeError, FarcallError):  # it is but a help
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
    except FarcallError:  # S3 refused: Batch has words for each, too
        said = map(detail.of_attempt, detail.tried[: last - 1])
        return tuple(map(attempt_reporter.of_tried, said))


# --- nodes ------------------------------------------------------------------------------------


async def _of_node(
    session: Session, submission: Submission, index: int, detail: JobDetail
) -> Explanation:
    """Explain a node that is not the main one; the job's end is the main one's."""
    meta = await _last_attempt(session, submission, index, detail)
    if meta is not None and meta["status"] != OutcomeStatus.TERMINATED:
        found = _of_outcome(meta, detail)
        if found.kind == RETURNED:
            remedy = f"`farcall result {submission.job_id}` shows the values of all nodes"
            found = replace(found, remedy=remedy)
        return found
    return await explain_without_outcome(session, detail)


# --- arrays -----------------------------------------------------------------------------------


async def _of_array(session: Session, detail: JobDetail) -> Explanation:
    counts = {status: detail.status_summary.get(status.value, 0) for status in JobStatus}
    failed = counts[JobStatus.FAILED]
    children = await _failed_children(session, detail) if failed else ()
    if detail.status is JobStatus.SUCCEEDED:
        return await _of_succeeded_array(session, detail)
    if detail.status is JobStatus.FAILED:
        found = of_verdict(detail.verdict())
        told = f"{failed} of {detail.array_size} tasks failed"
        if found.kind == CANCELLED:
            told = f"{failed} of {detail.array_size} tasks were cancelled"
            found = replace(found, sentence=f"{found.sentence} ({told})")
        elif detail.map_failure:
            told = f"a call of its map raised: {detail.map_failure}"
            found = replace(found, sentence=in_a_line(told), remedy=_remedy(detail))
        elif failed:
            found = replace(found, sentence=told, remedy=_remedy(detail))
        return replace(found, children=children)
    running = counts[JobStatus.RUNNING] + counts[JobStatus.STARTING]
    if counts[JobStatus.RUNNABLE] and not running:
        stuck = await _blocked_child(session, detail)
        if stuck is not None:
            return replace(of_waiting(stuck), children=children)
    told = ", ".join(f"{count} {status}" for status, count in counts.items() if count)
    size = detail.array_size
    sentence = f"{told} of {size} tasks" if told else f"none of {size} tasks has started"
    job_id = detail.job_id
    remedy = f"`farcall list {job_id}` shows the tasks, `farcall cancel {job_id}` cancels them"
    kind = RUNNING if counts[JobStatus.RUNNING] else WAITING
    return Explanation(kind, sentence, remedy, children=children)


async def _of_succeeded_array(session: Session, detail: JobDetail) -> Explanation:
    sentence = f"all {detail.array_size} tasks succeeded"
    if await _delivered(session, Submission.whole(detail)) is None:
        return Explanation(RETURNED, f"{sentence}, and the results were delivered", "")
    remedy = f"`farcall result {detail.job_id}:0` shows a child's value"
    return Explanation(RETURNED, sentence, remedy)


def _remedy(detail: JobDetail) -> str:
    return f"`farcall list {detail.job_id} --state failed` shows them"


async def _failed_children(session: Session, detail: JobDetail) -> tuple[FailedChild, ...]:
    """Explain the first of an array's failed children, of those that Batch lists first."""
    page = await _first_page(session, detail, JobStatus.FAILED)
    # Those that were only ended because another call raised say nothing of why.
    page.sort(key=lambda child: (child.status_reason.startswith(_BY_MAP), child.index))
    ids = [child.job_id for child in page[:_FEW]]
    known = await session.backend.describe(ids)
    found = [known[job_id] for job_id in ids if job_id in known]
    why = await asyncio.gather(*(explain(session, child) for child in found))
    return tuple(
        FailedChild(child.job_id, each.error, each.sentence)
        for child, each in zip(found, why, strict=True)
    )


async def _blocked_child(session: Session, detail: JobDetail) -> JobDetail | None:
    """Return a child that cannot be placed: of the array Batch only says that it is pending."""
    page = await _first_page(session, detail, JobStatus.RUNNABLE)
    return next((child for child in page if child.is_blocked), None)


async def _first_page(session: Session, detail: JobDetail, status: JobStatus) -> list[JobDetail]:
    pages = session.backend.list_children(detail.job_id, status)
    return await anext((page async for page in pages if page), [])


# --- Nodes of a job on several, as the backend describes each -----------------------------------


async def nodes_of(session: Session, detail: JobDetail) -> dict[int, JobDetail]:
    """Return what is known of a job's nodes, by number: a request for a hundred.

    Nodes that were not started yet may be missing. Other jobs have none.

    Raises:
        ServiceError: The backend refused a call.
    """
    if not detail.groups:
        return {}
    ids = {detail.node_id(number): number for number in range(detail.nodes)}
    found = await session.backend.describe(ids)
    return {ids[job_id]: node for job_id, node in found.items()}


def unstarted(whole: JobDetail, number: int) -> JobDetail:
    """Describe a node of which the backend says nothing yet: it is as its job is."""
    # The main node runs, and the others are on their way.
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
