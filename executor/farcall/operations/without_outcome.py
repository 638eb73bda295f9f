"""Explanation of what leaves no outcome: command jobs, and single nodes of any job.

The backend's words, exit codes and the log are all there is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timezone

from farcall.engine import attempt_reporter
from farcall.engine.session import Session
from farcall.model import errors
from farcall.model.errors import ServiceError
from farcall.model.jobs import JobDetail, JobStatus
from farcall.model.output import last_state
from farcall.model.wording import counted
from farcall.operations import nodes as all_nodes
from farcall.operations.explanation import (
    FAILED,
    RETURNED,
    Explanation,
    FailedChild,
    of_verdict,
    of_waiting,
)

_MAIN = 0
"""The node as which the job ends, of all jobs that farcall submits."""

_FEW = 3
"""Failed nodes that are explained."""

_LINES = 10
"""Of the log of what failed."""

_FROM_OUTSIDE = (errors.JobCancelledError, errors.JobTimeoutError, errors.JobStuckError)
"""Ends that all nodes met at the same time, so that none of them failed by itself."""

_LAST = datetime.max.replace(tzinfo=timezone.utc)


async def explain(
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
        nodes = await all_nodes.of(session, detail)
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
    return replace(found, earlier=_earlier(detail))


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


def _earlier(detail: JobDetail) -> tuple[str, ...]:
    """Say how each attempt before the last one ended; of a job that goes on, each."""
    tried = detail.tried[:-1] if detail.status.is_final else detail.tried
    return tuple(attempt_reporter.of_tried(detail.of_attempt(said)) for said in tried)
