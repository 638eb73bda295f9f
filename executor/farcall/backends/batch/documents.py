"""Request documents: the job definition and the SubmitJob request that settings make. No I/O.

Everything that SubmitJob cannot override is in the definition, and the definition's name is a
hash of its content: equal settings share one definition for ever, and none is made per task.
Everything that SubmitJob can override is overridden.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from farcall.model.errors import SettingsError, TaskTooLargeError
from farcall.model.settings import Settings
from farcall_runtime.contract import FINAL_EXIT_CODES, RETRY_ON_FAILURE

LARGEST_ARRAY = 10_000
"""Children of one array job, https://docs.aws.amazon.com/batch/latest/userguide/array_jobs.html"""

OVERRIDE_CHARACTERS = 8192
"""Of the container overrides with their JSON; ECS refuses more when the job starts.

https://docs.aws.amazon.com/AmazonECS/latest/APIReference/API_RunTask.html
"""

REQUEST_BYTES = 30 * 1024
"""Of a SubmitJob request, https://docs.aws.amazon.com/batch/latest/userguide/service_limits.html"""

# What a task may have on Fargate: MiB of memory by vCPU.
# https://docs.aws.amazon.com/batch/latest/APIReference/API_ResourceRequirement.html
_FARGATE: dict[float, Sequence[int]] = {
    0.25: (512, 1024, 2048),
    0.5: range(1024, 4096 + 1, 1024),
    1: range(2048, 8192 + 1, 1024),
    2: range(4096, 16384 + 1, 1024),
    4: range(8192, 30720 + 1, 1024),
    8: range(16384, 61440 + 1, 4096),
    16: range(32768, 122880 + 1, 8192),
    32: (61440, 122880, 249856),
}

_INFRASTRUCTURE_RULES = [
    {"onStatusReason": "Host EC2*", "action": "RETRY"},
    {"onStatusReason": "Your Spot Task was interrupted*", "action": "RETRY"},
    {"onReason": "CannotPull*", "action": "RETRY"},
    {"onReason": "DockerTimeoutError*", "action": "RETRY"},
    # Where no rule matches Batch retries, so the list ends with one that always does.
    {"onReason": "*", "action": "EXIT"},
]


@dataclass(frozen=True)
class Definition:
    """A job definition.

    Attributes:
        name: ``farcall-`` and a hash of the document.
        document: The RegisterJobDefinition request without the name.
    """

    name: str
    document: dict[str, Any]


def definition(
    settings: Settings, *, image: str, region: str, job_role: str, execution_role: str
) -> Definition:
    """Write the job definition for some settings.

    Args:
        settings: The options.
        image: The image's URI.
        region: Region of the log group.
        job_role: ARN of the job role; empty for none.
        execution_role: ARN of the execution role; empty for none.
    """
    container: dict[str, Any] = {
        "image": image,
        # Placeholders, valid on EC2 and on Fargate: every submission overrides them.
        "resourceRequirements": [
            {"type": "VCPU", "value": "1"},
            {"type": "MEMORY", "value": "2048"},
        ],
    }
    if job_role:
        container["jobRoleArn"] = job_role
    if execution_role:
        container["executionRoleArn"] = execution_role
    if settings.batch_job_log_group_name:
        container["logConfiguration"] = {
            "logDriver": "awslogs",
            "options": {
                "awslogs-group": settings.batch_job_log_group_name,
                "awslogs-region": region,
            },
        }
    document = merge(
        {
            "type": "container",
            "platformCapabilities": ["EC2"],
            "containerProperties": container,
        },
        settings.job_definition_extra,
    )
    text = json.dumps(document, sort_keys=True, separators=(",", ":"))
    return Definition(f"farcall-{hashlib.sha256(text.encode()).hexdigest()[:32]}", document)


def job_request(
    settings: Settings,
    *,
    name: str,
    definition_arn: str,
    environment: Mapping[str, str],
    size: int,
) -> dict[str, Any]:
    """Write a SubmitJob request.

    Args:
        settings: The options.
        name: The job's name, up to 128 letters, digits, hyphens and underscores.
        definition_arn: ARN of the definition with its revision.
        environment: The job's own variables.
        size: Number of tasks: 1 gives a plain job, up to 10,000 an array job.

    Raises:
        SettingsError: vCPU, memory or GPUs are not what the platform allows.
        TaskTooLargeError: The request exceeds a limit of Batch or ECS.
    """
    overrides = {
        "environment": [{"name": key, "value": environment[key]} for key in sorted(environment)],
        "resourceRequirements": resource_requirements(settings),
    }
    request: dict[str, Any] = {
        "jobName": name,
        "jobQueue": settings.batch_queue,
        "jobDefinition": definition_arn,
        "containerOverrides": overrides,
        "timeout": {"attemptDurationSeconds": settings.time_limit},
        "retryStrategy": retry_strategy(settings),
    }
    if size > 1:
        request["arrayProperties"] = {"size": size}
    if settings.tags:
        request["tags"] = settings.tags
        request["propagateTags"] = True
    if settings.share_identifier:
        request["shareIdentifier"] = settings.share_identifier
    if settings.priority is not None:
        request["schedulingPriorityOverride"] = settings.priority
    _check_size("the container overrides", overrides, OVERRIDE_CHARACTERS)
    _check_size("the SubmitJob request", request, REQUEST_BYTES)
    return request


def resource_requirements(settings: Settings) -> list[dict[str, str]]:
    """Write a task's resources; on Fargate memory is rounded up to what goes with the vCPUs.

    Raises:
        SettingsError: vCPU, memory or GPUs are not what the platform allows.
    """
    mib = math.ceil(settings.memory * 1024)
    if "FARGATE" in settings.job_definition_extra.get("platformCapabilities", ()):
        mib = _fargate_memory(settings, mib)
    elif settings.vcpu != int(settings.vcpu):
        raise SettingsError(
            f"vcpu is {settings.vcpu:g}: on EC2 a job has a whole number of vCPUs, at least 1; "
            "set vcpu=1, or run on Fargate (platformCapabilities in job_definition_extra)",
            option="vcpu",
        )
    requirements = [
        {"type": "VCPU", "value": f"{settings.vcpu:g}"},
        {"type": "MEMORY", "value": str(mib)},
    ]
    if settings.num_gpus:
        requirements.append({"type": "GPU", "value": str(settings.num_gpus)})
    return requirements


def retry_strategy(settings: Settings) -> dict[str, Any]:
    """Write how many attempts a job has, and which failures end it at once.

    Source:
        https://docs.aws.amazon.com/batch/latest/userguide/job_retries.html
    """
    strategy: dict[str, Any] = {"attempts": settings.retry_attempts}
    if settings.retry_attempts > 1:
        if settings.retry_on == RETRY_ON_FAILURE:
            rules = [{"onExitCode": FINAL_EXIT_CODES, "action": "EXIT"}]
        else:
            rules = _INFRASTRUCTURE_RULES
        strategy["evaluateOnExit"] = rules
    return strategy


def merge(base: Any, extra: Any) -> Any:
    """Merge two documents: tables key by key, lists of named things by name, the rest replaced."""
    if isinstance(base, dict) and isinstance(extra, dict):
        keys = [*base, *(key for key in extra if key not in base)]
        return {
            key: merge(base[key], extra[key])
            if key in base and key in extra
            else base.get(key, extra.get(key))
            for key in keys
        }
    for label in ("name", "type"):
        if _is_list_of(label, base) and _is_list_of(label, extra):
            merged = {item[label]: item for item in base}
            for item in extra:
                merged[item[label]] = merge(merged.get(item[label], {}), item)
            return list(merged.values())
    return extra


def _is_list_of(label: str, value: object) -> bool:
    return isinstance(value, list) and all(isinstance(i, dict) and label in i for i in value)


def _fargate_memory(settings: Settings, mib: int) -> int:
    if settings.num_gpus:
        raise SettingsError("num_gpus must be 0 on Fargate, which has no GPUs", option="num_gpus")
    if settings.vcpu not in _FARGATE:
        allowed = ", ".join(f"{vcpu:g}" for vcpu in _FARGATE)
        raise SettingsError(
            f"vcpu is {settings.vcpu:g}: on Fargate {allowed} are allowed", option="vcpu"
        )
    allowed_mib = _FARGATE[settings.vcpu]
    for step in allowed_mib:
        if step >= mib:
            return step
    raise SettingsError(
        f"memory is {settings.memory:g} GB: on Fargate {settings.vcpu:g} vCPU go with at most "
        f"{allowed_mib[-1] / 1024:g} GB; raise vcpu",
        option="memory",
    )


def _check_size(what: str, document: object, limit: int) -> None:
    size = len(json.dumps(document))
    if size > limit:
        raise TaskTooLargeError(
            f"{what} would have {size} characters, Batch allows {limit}; shorten prefix, tags and "
            "the names in job_definition_extra"
        )
