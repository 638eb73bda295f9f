"""Requests that options do not write: of an existing job, and edited ones. No I/O.

Sources:
    https://docs.aws.amazon.com/batch/latest/APIReference/API_JobDetail.html
    https://docs.aws.amazon.com/batch/latest/APIReference/API_RegisterJobDefinition.html
    https://docs.aws.amazon.com/batch/latest/APIReference/API_SubmitJob.html
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Mapping
from typing import Any

from farcall.config.option_values import check_variable
from farcall.model.commands import ENV_RUN
from farcall.model.jobs import JobDetail

_OF_RUN = (
    "containerInstanceArn",
    "exitCode",
    "logStreamName",
    "networkInterfaces",
    "reason",
    "taskArn",
)
"""Fields of a container's description that are not part of the request."""

_OF_DEFINITION = (
    "nodeProperties",
    "ecsProperties",
    "eksProperties",
    "parameters",
    "platformCapabilities",
    "retryStrategy",
    "timeout",
)
_OF_JOB = ("jobName", "jobQueue", "shareIdentifier", "dependsOn", "propagateTags", "tags")


def requests_of(job: Mapping[str, Any]) -> dict[str, Any]:
    """Return the requests for a copy of a job, from its DescribeJobs document.

    The definition includes the job's overrides. Empty fields are omitted.
    """
    definition = {name: copy.deepcopy(job[name]) for name in _OF_DEFINITION if job.get(name)}
    definition["type"] = "multinode" if "nodeProperties" in definition else "container"
    for each in definition.get("nodeProperties", {}).get("nodeRangeProperties", ()):
        each["container"] = _as_requested(each.get("container", {}))
    if job.get("container") and "ecsProperties" not in definition:
        definition["containerProperties"] = _as_requested(job["container"])
    submission = {name: copy.deepcopy(job[name]) for name in _OF_JOB if job.get(name)}
    if job.get("schedulingPriority"):
        submission["schedulingPriorityOverride"] = job["schedulingPriority"]
    return {"RegisterJobDefinition": definition, "SubmitJob": submission}


def options_of(detail: JobDetail, requests: Mapping[str, Any]) -> dict[str, Any]:
    """Return the Batch-specific options with which a job was submitted.

    Args:
        detail: The job.
        requests: The requests for a copy of it, from `requests_of`.
    """
    submitted, definition = requests["SubmitJob"], requests["RegisterJobDefinition"]
    groups = definition.get("nodeProperties", {}).get("nodeRangeProperties") or [{}]
    container = definition.get("containerProperties") or groups[0].get("container", {})
    platforms = definition.get("platformCapabilities")
    options: dict[str, Any] = {
        "queue": detail.queue,
        "priority": submitted.get("schedulingPriorityOverride"),
        "share_identifier": submitted.get("shareIdentifier", ""),
        "job_definition_extra": {"platformCapabilities": platforms} if platforms else {},
        "environment": _variables(detail),
        "secrets": {},  # of the definition
        **image_of(detail),
    }
    if container:
        options["batch_job_role_name"] = container.get("jobRoleArn", "")
        options["batch_execution_role_name"] = container.get("executionRoleArn", "")
    return options


def _variables(detail: JobDetail) -> dict[str, str]:
    """Return a job's variables without those of farcall and Batch."""
    variables = {}
    for name, value in detail.environment.items():
        with contextlib.suppress(ValueError):
            check_variable(name)
            variables[name] = value
    return variables


def image_of(detail: JobDetail) -> dict[str, str]:
    """Return the options that select a job's image."""
    if not detail.runtime:
        return {"image": detail.image}
    return {
        "image": "",
        "batch_job_definition_name": "",
        "stock_image_uri": detail.image,
    }


def _as_requested(container: Mapping[str, Any]) -> dict[str, Any]:
    kept = {
        name: copy.deepcopy(value)
        for name, value in container.items()
        if name not in _OF_RUN and value not in ([], {}, None)
    }
    variables = kept.pop("environment", [])
    own = [each for each in variables if each["name"] != ENV_RUN]
    return {**kept, "environment": own} if own else kept
