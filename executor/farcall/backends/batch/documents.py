"""Request documents: job definition and SubmitJob request for settings. No I/O.

The definition contains everything that SubmitJob cannot override, and its name is a hash of its
content: equal settings share one definition forever, and no task creates one. Everything that
SubmitJob can override is overridden.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from farcall.backends import bootstrap, groups
from farcall.backends.base import STOCK_ENVIRONMENT, STOCK_USER, JobSpec, Runtime
from farcall.backends.batch import fargate, nodes
from farcall.backends.merging import merge
from farcall.config.settings import Settings
from farcall.model.errors import SettingsError, TaskTooLargeError
from farcall_runtime.contract import (
    FINAL_EXIT_CODES,
    RETRY_ON_FAILURE,
)

LARGEST_ARRAY = 10_000
"""Maximum tasks of an array job.

https://docs.aws.amazon.com/batch/latest/userguide/array_jobs.html
"""

OVERRIDE_CHARACTERS = 8192
"""Maximum characters of the overrides as JSON; ECS refuses more at job start.

https://docs.aws.amazon.com/AmazonECS/latest/APIReference/API_RunTask.html
"""

REQUEST_BYTES = 30 * 1024
"""Maximum size of a SubmitJob request.

https://docs.aws.amazon.com/batch/latest/userguide/service_limits.html
"""

DEFINITION_BYTES = 24 * 1024
"""Maximum size of a definition.

https://docs.aws.amazon.com/batch/latest/userguide/service_limits.html
"""

OWN_PREFIX = "farcall-command-"
"""Prefix of definitions that contain a command, which hardly any other job shares."""


_LABELS = ("name", "type", "containerPath")
"""Fields that identify members of lists in a definition."""

OWN_REMEDY = "shorten commands and env: move long texts to the image or to S3"
_REMEDY = "shorten prefix, tags and the names in job_definition_extra"

_LOST_HOST_RULES = [
    {"onStatusReason": "Host EC2*", "action": "RETRY"},
    {"onStatusReason": "Your Spot Task was interrupted*", "action": "RETRY"},
]

_INFRASTRUCTURE_RULES = [
    *_LOST_HOST_RULES,
    {"onReason": "CannotPull*", "action": "RETRY"},
    {"onReason": "DockerTimeoutError*", "action": "RETRY"},
    # Batch retries if no rule matches, so the list ends with a rule that always matches.
    {"onReason": "*", "action": "EXIT"},
]

_MEMORY_RULES = [
    # A container on a lost host is killed, too, so these rules come first.
    *_LOST_HOST_RULES,
    # docker may report it for a container whose main process still runs, and may then exit with
    # any code; 137 is SIGKILL, usually from the kernel.
    {"onReason": "OutOfMemoryError*", "action": "EXIT"},
    {"onExitCode": "137", "action": "EXIT"},
]


@dataclass(frozen=True)
class Definition:
    """A job definition.

    Attributes:
        name: ``farcall-`` and a hash of the document; ``farcall-command-`` and a hash if it
            contains commands and environment, so that few jobs share it.
        document: The RegisterJobDefinition request without the name.
    """

    name: str
    document: dict[str, Any]


def definition(
    job: JobSpec, *, image: str, region: str, job_role: str, execution_role: str
) -> Definition:
    """Return the definition of a job.

    Args:
        job: The job.
        image: URI of the task runner's image; ignored if the job has groups with their own.
        region: Region of the log group.
        job_role: ARN of the job role; empty for none.
        execution_role: ARN of the execution role; empty for none.

    Raises:
        SettingsError: The options do not result in a valid job.
        TaskTooLargeError: Commands and environment exceed a limit of Batch.
    """
    nodes.check(job)
    fargate.check(job)
    common: dict[str, Any] = {
        # Placeholders that are valid on EC2 and on Fargate, because every submission overrides
        # them.
        "resourceRequirements": [
            {"type": "VCPU", "value": "1"},
            {"type": "MEMORY", "value": "2048"},
        ],
    }
    if job_role:
        common["jobRoleArn"] = job_role
    if execution_role:
        common["executionRoleArn"] = execution_role
    if job.settings.batch_job_log_group_name:
        common["logConfiguration"] = {
            "logDriver": "awslogs",
            "options": {
                "awslogs-group": job.settings.batch_job_log_group_name,
                "awslogs-region": region,
            },
        }
    if job.settings.secrets:
        common["secrets"] = nodes.secrets(job.settings.secrets)
    is_own = _is_own(job)
    started = _bootstrapped(job.runtime) if job.runtime else {}
    containers = [{"image": image, **common, **started}]
    if job.groups:
        containers = [
            {
                **nodes.container(group),
                **common,
                **(_container(group.command, group.env) if is_own else {}),
            }
            for group in job.groups
        ]
    return named(_document(job, containers), is_own=is_own)


def _bootstrapped(runtime: Runtime) -> dict[str, Any]:
    return {
        **_container(bootstrap.command(runtime), STOCK_ENVIRONMENT),
        "user": STOCK_USER,
    }


def named(document: dict[str, Any], *, is_own: bool) -> Definition:
    """Name a definition by its content.

    Raises:
        TaskTooLargeError: It exceeds a limit of Batch.
    """
    if is_own:
        check_size("the job definition", document, DEFINITION_BYTES, OWN_REMEDY)
    text = json.dumps(document, sort_keys=True, separators=(",", ":"))
    prefix = OWN_PREFIX if is_own else "farcall-"
    return Definition(f"{prefix}{hashlib.sha256(text.encode()).hexdigest()[:32]}", document)


def _document(job: JobSpec, containers: Sequence[dict[str, Any]]) -> dict[str, Any]:
    extra = job.settings.job_definition_extra
    base: dict[str, Any] = {"type": "container", "platformCapabilities": ["EC2"]}
    if not job.is_multi_node:
        return _merged(base | {"containerProperties": containers[0]}, extra)
    # The option's container fields apply to each node's container.
    each = extra.get("containerProperties", {})
    base |= {
        "type": "multinode",
        "nodeProperties": nodes.properties(job, [_merged(c, each) for c in containers]),
    }
    return _merged(base, {key: extra[key] for key in extra if key != "containerProperties"})


def _merged(base: dict[str, Any], extra: Mapping[str, Any]) -> dict[str, Any]:
    merged: dict[str, Any] = merge(base, extra, _LABELS)
    return merged


def job_request(job: JobSpec, definition_arn: str) -> dict[str, Any]:
    """Return a SubmitJob request.

    Raises:
        SettingsError: vCPU, memory or GPUs are invalid on the platform.
        TaskTooLargeError: The request exceeds a limit of Batch or ECS.
    """
    settings = job.settings
    overrides = _overrides(job, is_own=_is_own(job))
    request: dict[str, Any] = {
        "jobName": job.name,
        "jobQueue": settings.queue,
        "jobDefinition": definition_arn,
        "timeout": {"attemptDurationSeconds": settings.time_limit},
        "retryStrategy": retry_strategy(settings, is_command=bool(job.groups)),
    }
    if job.is_multi_node:
        request["nodeOverrides"] = nodes.overrides(job, overrides)
    else:
        request["containerOverrides"] = overrides[0]
    if job.size > 1:
        request["arrayProperties"] = {"size": job.size}
    if settings.tags:
        request["tags"] = settings.tags
        request["propagateTags"] = True
    if settings.share_identifier:
        request["shareIdentifier"] = settings.share_identifier
    if settings.priority is not None:
        request["schedulingPriorityOverride"] = settings.priority
    remedy = OWN_REMEDY if job.groups else _REMEDY
    _check_environment(job, overrides)
    for each in overrides:
        check_size("the container overrides", each, OVERRIDE_CHARACTERS, remedy)
    check_size("the SubmitJob request", request, REQUEST_BYTES, remedy)
    return request


def _check_environment(job: JobSpec, overrides: Sequence[Mapping[str, Any]]) -> None:
    variables = job.settings.variables
    if not variables:
        return
    size = len(json.dumps(_container((), variables)["environment"]))
    room = OVERRIDE_CHARACTERS - max(len(json.dumps(each)) for each in overrides) + size
    if size > room:
        raise SettingsError(
            f"environment has {size} characters as JSON, but a job's overrides have room for "
            f"{max(0, room)} on AWS Batch. Pass long values as arguments, or through S3.",
            option="environment",
        )


def _is_own(job: JobSpec) -> bool:
    """Return whether a group's command and variables are too large for the overrides."""
    if not job.groups:
        return False
    overrides = _overrides(job, is_own=False)
    return any(len(json.dumps(each)) > OVERRIDE_CHARACTERS for each in overrides)


def _overrides(job: JobSpec, *, is_own: bool) -> list[dict[str, Any]]:
    """Return the container overrides of each group of nodes."""
    own = job.environment
    if not job.groups:
        return [
            {
                **_container((), {**job.settings.variables, **own}),
                "resourceRequirements": resource_requirements(job.settings),
            }
        ]
    overrides = []
    for place, group in enumerate(job.groups):
        parts = _container((), own) if is_own else _container(group.command, {**group.env, **own})
        with groups.naming(job, place):
            needs = resource_requirements(groups.resources(job.settings, group))
        overrides.append({**parts, "resourceRequirements": needs})
    return overrides


def _container(command: Sequence[str], environment: Mapping[str, str]) -> dict[str, Any]:
    """Return a container's variables, and its command if it has one."""
    variables = [{"name": key, "value": environment[key]} for key in sorted(environment)]
    return {"environment": variables, **({"command": list(command)} if command else {})}


def resource_requirements(settings: Settings) -> list[dict[str, str]]:
    """Return a task's resources; on Fargate, memory is rounded up to a valid value.

    Raises:
        SettingsError: vCPU, memory or GPUs are invalid on the platform.
    """
    mib = math.ceil(settings.memory * 1024)
    if fargate.is_requested(settings):
        mib = fargate.memory_mib(settings, mib)
    elif settings.vcpu != int(settings.vcpu):
        raise SettingsError(
            f"vcpu={settings.vcpu:g} is not supported on EC2; use a whole number (at least 1), "
            "or run on Fargate (platformCapabilities in job_definition_extra)",
            option="vcpu",
        )
    requirements = [
        {"type": "VCPU", "value": f"{settings.vcpu:g}"},
        {"type": "MEMORY", "value": str(mib)},
    ]
    if settings.num_gpus:
        requirements.append({"type": "GPU", "value": str(settings.num_gpus)})
    return requirements


def retry_strategy(settings: Settings, *, is_command: bool = False) -> dict[str, Any]:
    """Return a job's number of attempts, and the failures that are not retried.

    Args:
        settings: The options.
        is_command: Whether exit codes are a command's own; the task runner's are more specific.

    Source:
        https://docs.aws.amazon.com/batch/latest/userguide/job_retries.html
    """
    strategy: dict[str, Any] = {"attempts": settings.retry_attempts}
    if settings.retry_attempts > 1:
        if settings.retry_on != RETRY_ON_FAILURE:
            strategy["evaluateOnExit"] = _INFRASTRUCTURE_RULES
        else:
            own = [] if is_command else [{"onExitCode": FINAL_EXIT_CODES, "action": "EXIT"}]
            strategy["evaluateOnExit"] = [*_MEMORY_RULES, *own]
    return strategy


def check_size(what: str, document: object, limit: int, remedy: str) -> None:
    """Reject a document that is too long.

    Raises:
        TaskTooLargeError: The document is too long.
    """
    size = len(json.dumps(document))
    if size > limit:
        raise TaskTooLargeError(
            f"{what} would have {size} characters, but Batch accepts at most {limit}; {remedy}"
        )
