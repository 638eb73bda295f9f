"""JSON view of jobs: the plain values for ``--json`` and the web UI."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

from farcall.model.errors import JobCancelledError
from farcall.model.jobs import Attempt, JobDetail, JobStatus, NodeGroup

if TYPE_CHECKING:
    from farcall.operations.catalog import Entry

CANCELLED = "CANCELLED"
"""State of a cancelled job. Batch calls it FAILED."""

FUNCTION, COMMAND = "function", "command"
"""Kinds of jobs."""

STATES = (*(status.value for status in JobStatus), CANCELLED)

_WAITING = {"SUBMITTED", "PENDING", "RUNNABLE"}
WORDS = {each: "Waiting" if each in _WAITING else each.capitalize() for each in STATES}
"""Display names of states; Batch's names have three states for waiting jobs."""


def state(detail: JobDetail) -> str:
    """Return a job's or an array's most advanced task's status, or `CANCELLED`."""
    if detail.status is JobStatus.FAILED and detail.failure_reason().kind is JobCancelledError:
        return CANCELLED
    return detail.furthest.value


def word(detail: JobDetail) -> str:
    """Return a job's state for the middle of a sentence."""
    return WORDS[state(detail)].lower()


def counts(detail: JobDetail) -> dict[str, int]:
    """Return an array's task counts by state. Batch counts cancelled tasks as failed."""
    task_counts = {name: count for name, count in detail.status_summary.items() if count}
    failed = task_counts.pop(JobStatus.FAILED.value, 0)
    is_cancelled = state(detail) == CANCELLED
    cancelled = failed if is_cancelled else min(failed, detail.cancelled_with_map or 0)
    bad = {JobStatus.FAILED.value: failed - cancelled, CANCELLED: cancelled}
    return task_counts | {name: count for name, count in bad.items() if count}


def detail_of(job: JobDetail) -> str:
    """Return the number of failed calls of a failed array; empty for other jobs."""
    if job.map_failure or not job.array_size or state(job) != JobStatus.FAILED.value:
        return job.map_failure
    failed = job.status_summary.get(JobStatus.FAILED.value, 0)
    return f"{failed:,} of {job.array_size:,} failed" if failed else ""


def job(entry: Entry) -> dict[str, Any]:
    """Return the known data of a job, an array task, or a node of a multi-node job.

    Times are ISO 8601 in UTC; unknown values are None or empty.
    """
    detail, rungs = entry.detail, entry.rungs
    parent, _, index = detail.job_id.partition(":")
    if detail.node_index is not None:
        parent, _, index = detail.job_id.partition("#")
    return {
        "id": detail.job_id,
        "platform": detail.platform,
        "kind": COMMAND if entry.is_command else FUNCTION,
        "name": detail.name,
        "function": entry.function,
        "workflow": entry.workflow.name,
        "dispatch": entry.workflow.dispatch,
        "run": entry.run,
        "retry_of": entry.retry_of,
        "client": entry.client,
        "user": entry.user,
        "queue": detail.queue,
        "queue_rung": list(rungs["queue"]) if "queue" in rungs else None,
        "state": state(detail),
        "detail": detail_of(detail),
        "cancelled_with_map": detail.cancelled_with_map,
        "call": entry.why.call,
        "error": entry.why.error,
        "errors": list(entry.why.errors),
        "warning": entry.why.trouble,
        "reason": detail.reason,
        "remedy": detail.remedy,
        "exit_code": detail.exit_code,
        "created_at": moment(detail.created_at),
        "started_at": moment(detail.started_at),
        "stopped_at": moment(detail.stopped_at),
        "attempts": detail.attempts,
        "previous_attempts_s": _previous_attempts_s(detail),
        "attempts_allowed": detail.attempts_allowed,
        "vcpu": detail.vcpu,
        "memory_mib": detail.memory_mib,
        "memory_rung": list(rungs["memory"]) if "memory" in rungs else None,
        "gpus": detail.gpus,
        "time_limit_s": detail.time_limit_s,
        "image": detail.image,
        "command": list(detail.command),
        "definition": detail.definition,
        "instance_type": detail.instance_type,
        "node_count": detail.nodes,
        "groups": list(map(_group, detail.groups)),
        "array_size": detail.array_size,
        "counts": counts(detail),
        "parent": parent if index else "",
        "index": int(index) if index else None,
        "tags": dict(detail.tags),
    }


def _previous_attempts_s(detail: JobDetail) -> float:
    """Return the total duration in seconds of the attempts before the latest one."""
    spans = (
        (tried.stopped_at - tried.started_at).total_seconds()
        for tried in detail.tried
        if tried.started_at and tried.stopped_at and tried.started_at != detail.started_at
    )
    return round(sum(spans), 3)


def _group(nodes: NodeGroup) -> dict[str, Any]:
    """Return a node group's command without its variables, which may contain secrets."""
    return {
        "first": nodes.first,
        "last": nodes.last,
        "image": nodes.image,
        "command": list(nodes.command),
        "vcpu": nodes.vcpu,
        "memory_mib": nodes.memory_mib,
        "gpus": nodes.gpus,
    }


def attempt(number: int, record: Attempt) -> dict[str, Any]:
    """Return Batch's description of a finished attempt.

    Args:
        number: The attempt's number, from 1.
        record: Batch's description.
    """
    return {
        "attempt": number,
        "started_at": moment(record.started_at),
        "stopped_at": moment(record.stopped_at),
        "exit_code": record.exit_code,
        "reason": "; ".join(
            text for text in (record.status_reason, record.container_reason) if text
        ),
        "log_stream": record.log_stream,
    }


def node(record: JobDetail) -> dict[str, Any]:
    """Return the known data of a node of a multi-node job."""
    return {
        "id": record.job_id,
        "index": record.node_index,
        "state": state(record),
        "reason": record.reason,
        "exit_code": record.exit_code,
        "created_at": moment(record.created_at),
        "started_at": moment(record.started_at),
        "stopped_at": moment(record.stopped_at),
        "attempts": record.attempts,
        "log_stream": record.log_stream,
    }


def moment(at: datetime | None) -> str | None:
    """Return a time as ISO 8601, with milliseconds."""
    return None if at is None else at.isoformat(timespec="milliseconds")
