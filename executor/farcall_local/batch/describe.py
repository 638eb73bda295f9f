"""Job descriptions in the formats of DescribeJobs and ListJobs.

Sources:
    https://docs.aws.amazon.com/batch/latest/APIReference/API_JobDetail.html
    https://docs.aws.amazon.com/batch/latest/APIReference/API_JobSummary.html
    https://github.com/aws/aws-parallelcluster/tree/ff0a1710/awsbatch-cli/tests/awsbatch/data
        Recorded responses for multi-node parallel jobs.
"""

from __future__ import annotations

from typing import Any

from farcall.model.jobs import JobStatus
from farcall_local import names
from farcall_local.batch.jobs import Attempt, Job, Node, Submission

#: Container members that are empty lists when not used.
_LISTS = ("volumes", "environment", "mountPoints", "ulimits", "secrets", "resourceRequirements")


def detail(job: Job) -> dict[str, Any]:
    """Return a JobDetail.

    Absent members are left out, as Batch does: `startedAt` before RUNNING, `exitCode` when the
    container never ran or its host was lost. `attempts` is empty while the first attempt runs.
    A multi-node parallel job has no container; its attempts are its main node's.
    """
    submission = job.submission
    view = {
        "jobArn": job.arn,
        "jobName": submission.name,
        "jobId": job.id,
        "jobQueue": submission.queue.arn,
        "status": job.status.value,
        "statusReason": job.status_reason,
        "createdAt": job.created_at,
        "startedAt": job.started_at,
        "stoppedAt": job.stopped_at,
        "attempts": [_attempt(job, attempt) for attempt in job.attempts],
        "jobDefinition": submission.definition.arn,
        "parameters": submission.parameters,
        "tags": submission.tags,
        "platformCapabilities": submission.definition.platforms,
        "dependsOn": [],
        "isCancelled": False,
        "isTerminated": job.termination_reason is not None,
        **submission.extra,
    }
    if isinstance(job, Node):
        view["nodeDetails"] = {"nodeIndex": job.index, "isMainNode": job.is_main}
    else:
        view["retryStrategy"] = submission.retry.describe()
    if job.timeout_s is not None:
        view["timeout"] = {"attemptDurationSeconds": int(job.timeout_s)}
    if job.is_multi_node:
        view["nodeProperties"] = _node_properties(submission)
    else:
        view["container"] = _container(job)
    array = _array(job)
    if array:
        view["arrayProperties"] = array
    return _present(view)


def summary(job: Job) -> dict[str, Any]:
    """Return a JobSummary; `isTerminated` is present only if it is true."""
    view = {
        "jobArn": job.arn,
        "jobId": job.id,
        "jobName": job.submission.name,
        "createdAt": job.created_at,
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
    if job.termination_reason is not None:
        view["isTerminated"] = True
    if isinstance(job, Node):
        view["nodeProperties"] = {"nodeIndex": job.index, "isMainNode": job.is_main}
    elif job.is_multi_node:
        view["nodeProperties"] = {"numNodes": len(job.submission.containers)}
    array = _array(job)
    if array:
        view["arrayProperties"] = array
    return _present(view)


def _node_properties(submission: Submission) -> dict[str, Any]:
    properties = dict(submission.node_properties or {})
    properties["nodeRangeProperties"] = [
        {**group, "container": _shown(group["container"])}
        for group in properties["nodeRangeProperties"]
    ]
    return properties


def _shown(properties: dict[str, Any]) -> dict[str, Any]:
    return {**{name: [] for name in _LISTS}, **properties}


def _container(job: Job) -> dict[str, Any]:
    view = _shown(job.container.properties)
    if job.current is None:
        return {**view, "networkInterfaces": []}
    return {**view, **_ended(job, job.current)}


def _attempt(job: Job, attempt: Attempt) -> dict[str, Any]:
    return _present(
        {
            "container": _ended(job, attempt),
            "startedAt": attempt.started_at,
            "stoppedAt": attempt.stopped_at,
            "statusReason": attempt.status_reason,
        }
    )


def _ended(job: Job, attempt: Attempt) -> dict[str, Any]:
    view: dict[str, Any] = {
        "exitCode": attempt.exit_code,
        "reason": attempt.reason,
        "logStreamName": attempt.log_stream,
        "networkInterfaces": [],
    }
    if not job.is_multi_node:
        view["taskArn"] = attempt.task_arn
        view["containerInstanceArn"] = attempt.instance_arn
    if isinstance(job, Node) and attempt.started_at is not None:
        view["networkInterfaces"] = [{"privateIpv4Address": names.NODE_ADDRESS}]
    return _present(view)


def _array(job: Job) -> dict[str, Any]:
    if job.parent is not None:
        return {"index": job.index}
    if not job.children:
        return {}
    summary = {status.value: job.counts[status] for status in JobStatus}
    return {"size": len(job.children), "statusSummary": summary}


def _present(view: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in view.items() if value is not None}
