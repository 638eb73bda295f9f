"""Jobs as DescribeJobs and ListJobs show them.

Sources:
    https://docs.aws.amazon.com/batch/latest/APIReference/API_JobDetail.html
    https://docs.aws.amazon.com/batch/latest/APIReference/API_JobSummary.html
"""

from __future__ import annotations

from typing import Any

from farcall.local.batch.jobs import Attempt, Job, Status

#: Container members that are empty lists when not used.
_LISTS = ("volumes", "environment", "mountPoints", "ulimits", "secrets", "resourceRequirements")


def detail(job: Job) -> dict[str, Any]:
    """Return a JobDetail.

    Absent members are left out, as Batch does: `startedAt` before RUNNING, `exitCode` when the
    container never ran or its host was lost. `attempts` is empty while the first attempt runs.
    """
    submission = job.submission
    view = {
        "jobArn": job.arn,
        "jobName": submission.name,
        "jobId": job.id,
        "jobQueue": submission.queue.arn,
        "status": job.status.value,
        "statusReason": job.status_reason,
        "createdAt": submission.created_at,
        "startedAt": job.started_at,
        "stoppedAt": job.stopped_at,
        "attempts": [_attempt(attempt) for attempt in job.attempts],
        "retryStrategy": submission.retry.describe(),
        "dependsOn": submission.depends_on,
        "jobDefinition": submission.definition.arn,
        "parameters": submission.parameters,
        "container": _container(job),
        "tags": submission.tags,
        "platformCapabilities": submission.definition.platforms,
        "isCancelled": job.withdrawn == "isCancelled",
        "isTerminated": job.withdrawn == "isTerminated",
        **submission.extra,
    }
    if submission.timeout_s is not None:
        view["timeout"] = {"attemptDurationSeconds": int(submission.timeout_s)}
    array = _array(job)
    if array:
        view["arrayProperties"] = array
    return _present(view)


def summary(job: Job) -> dict[str, Any]:
    """Return a JobSummary; `isCancelled` and `isTerminated` are there only when true."""
    view = {
        "jobArn": job.arn,
        "jobId": job.id,
        "jobName": job.submission.name,
        "createdAt": job.submission.created_at,
        "startedAt": job.started_at,
        "stoppedAt": job.stopped_at,
        "status": job.status.value,
        "statusReason": job.status_reason,
        "jobDefinition": job.submission.definition.arn,
    }
    if job.current is not None:
        view["container"] = _present(
            {"exitCode": job.current.exit_code, "reason": job.current.reason}
        )
    if job.withdrawn:
        view[job.withdrawn] = True
    array = _array(job)
    if array:
        view["arrayProperties"] = array
    return _present(view)


def _container(job: Job) -> dict[str, Any]:
    view = {**{name: [] for name in _LISTS}, **job.submission.container, "networkInterfaces": []}
    attempt = job.current
    if attempt is None:
        return view
    return {**view, **_ended(attempt)}


def _attempt(attempt: Attempt) -> dict[str, Any]:
    return _present(
        {
            "container": {**_ended(attempt), "networkInterfaces": []},
            "startedAt": attempt.started_at,
            "stoppedAt": attempt.stopped_at,
            "statusReason": attempt.status_reason,
        }
    )


def _ended(attempt: Attempt) -> dict[str, Any]:
    return _present(
        {
            "taskArn": attempt.task_arn,
            "containerInstanceArn": attempt.instance_arn,
            "exitCode": attempt.exit_code,
            "reason": attempt.reason,
            "logStreamName": attempt.log_stream,
        }
    )


def _array(job: Job) -> dict[str, Any]:
    if job.parent is not None:
        return {"index": job.index}
    if not job.children:
        return {}
    summary = {status.value: job.counts[status] for status in Status}
    return {"size": len(job.children), "statusSummary": summary}


def _present(view: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in view.items() if value is not None}
