"""Validation rules for job definitions and submissions.

botocore's model has almost none of these rules, so only the service reports violations. Each
function raises `ClientError` or returns nothing.

Sources:
    https://docs.aws.amazon.com/batch/latest/APIReference/API_RegisterJobDefinition.html
    https://docs.aws.amazon.com/batch/latest/APIReference/API_ContainerProperties.html
    https://docs.aws.amazon.com/batch/latest/APIReference/API_SubmitJob.html
    https://docs.aws.amazon.com/batch/latest/userguide/service_limits.html
"""

from __future__ import annotations

import re
from typing import Any

from farcall_local.batch import containers
from farcall_local.batch.errors import ClientError

MIN_TIMEOUT_S = 60
MAX_TAGS = 50
MAX_REASON_LENGTH = 1024
MAX_DEFINITION_BYTES = 24 * 1024
MAX_SUBMISSION_BYTES = 30 * 1024
MIN_ARRAY_SIZE, MAX_ARRAY_SIZE = 2, 10_000

_NAME = re.compile(r"[A-Za-z0-9_-]{1,128}")
_JOB_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,127}")
_TAG_KEY = re.compile(r"[\w .:/=+@-]{1,128}")
_TAG_VALUE = re.compile(r"[\w .:/=+@-]{0,256}")
_ROLE_ARN = re.compile(r"arn:aws[a-z-]*:iam::\d{12}:role/.+")

#: Required member of each definition type, which other types exclude.
PROPERTIES = {"container": "containerProperties", "multinode": "nodeProperties"}

#: Container properties that belong to one platform.
_FARGATE_ONLY = ("networkConfiguration", "fargatePlatformConfiguration", "ephemeralStorage")
_EC2_ONLY = ("privileged", "ulimits", "instanceType")


def require(document: dict[str, Any], *names: str) -> None:
    """Check that each parameter is present and not empty."""
    for name in names:
        if not document.get(name):
            raise ClientError(f"{name} must be specified.")


def name(value: str, what: str) -> None:
    """Check the name of a definition, queue or compute environment."""
    if not _NAME.fullmatch(value):
        raise ClientError(
            f"{what} should match valid pattern: up to 128 letters, digits, hyphens and "
            "underscores."
        )


def job_name(value: str) -> None:
    """Check a job name, which must also begin with a letter or digit."""
    if not _JOB_NAME.fullmatch(value):
        raise ClientError("Job name should match valid pattern")


def tags(value: dict[str, str] | None) -> None:
    """Check 1 to 50 tags, with keys of 1 to 128 and values of up to 256 characters.

    https://docs.aws.amazon.com/batch/latest/userguide/using-tags.html
    """
    if value is None:
        return
    if not 1 <= len(value) <= MAX_TAGS:
        raise ClientError(f"The number of tags must be between 1 and {MAX_TAGS}.")
    for key, text in value.items():
        is_valid = _TAG_KEY.fullmatch(key) and _TAG_VALUE.fullmatch(text)
        if not is_valid or key.lower().startswith("aws:"):
            raise ClientError(f"Tag {key!r} is not valid.")


def timeout(value: dict[str, Any] | None) -> None:
    """Check that a timeout is at least 60 s."""
    if value is not None and value.get("attemptDurationSeconds", 0) < MIN_TIMEOUT_S:
        raise ClientError(
            f"Job attempt duration timeout must be at least {MIN_TIMEOUT_S} seconds."
        )


def priority(value: int | None) -> None:
    """Check a scheduling priority, 0 to 9999."""
    if value is not None and not 0 <= value <= 9999:
        raise ClientError("Scheduling priority must be between 0 and 9999.")


def environment(variables: list[dict[str, str]] | None) -> None:
    """Check that no variable has a name that Batch reserves."""
    for variable in variables or []:
        if not variable.get("name"):
            raise ClientError("Environment variable name must be specified.")
        if variable["name"].startswith("AWS_BATCH"):
            raise ClientError("Environment variables cannot start with 'AWS_BATCH'.")


def reason(document: dict[str, Any]) -> None:
    """Check the reason of a cancellation, 1 to 1024 characters."""
    require(document, "reason")
    if len(document["reason"]) > MAX_REASON_LENGTH:
        raise ClientError(f"Reason can have at most {MAX_REASON_LENGTH} characters.")


def definition(document: dict[str, Any]) -> None:
    """Check a job definition, except its retry strategy and nodeProperties."""
    require(document, "jobDefinitionName", "type")
    name(document["jobDefinitionName"], "Job definition name")
    _type(document)
    fargate = _is_fargate(document)
    if document["type"] == "container":
        container(document["containerProperties"], fargate=fargate)
    elif fargate:
        raise ClientError("Multi-node parallel jobs are not supported on Fargate.")
    timeout(document.get("timeout"))
    tags(document.get("tags"))
    priority(document.get("schedulingPriority"))


def _type(document: dict[str, Any]) -> None:
    """Check a definition's type, and that it has only that type's properties."""
    for unsupported in ("ecsProperties", "eksProperties"):
        if document.get(unsupported):
            raise ClientError(f"farcall's emulated Batch does not support {unsupported}.")
    if document["type"] not in PROPERTIES:
        raise ClientError(f"Job definition type {document['type']} is not supported.")
    for kind, properties in PROPERTIES.items():
        if kind == document["type"]:
            require(document, properties)
        elif document.get(properties):
            raise ClientError(f"{properties} should not be set for {document['type']} jobs.")


def _is_fargate(document: dict[str, Any]) -> bool:
    platforms = document.get("platformCapabilities") or ["EC2"]
    if platforms not in (["EC2"], ["FARGATE"]):
        raise ClientError("Platform capabilities must be either EC2 or FARGATE.")
    return bool(platforms == ["FARGATE"])


def container(properties: dict[str, Any], *, fargate: bool) -> None:
    """Check containerProperties."""
    require(properties, "image")
    if len(properties["image"]) > 255:
        raise ClientError("Image can have at most 255 characters.")
    containers.parse_resources(properties.get("resourceRequirements") or [], fargate=fargate)
    environment(properties.get("environment"))
    for role in ("jobRoleArn", "executionRoleArn"):
        if properties.get(role) and not _ROLE_ARN.fullmatch(properties[role]):
            raise ClientError(f"{role} {properties[role]!r} is not the ARN of a role.")
    if fargate or properties.get("secrets"):
        require(properties, "executionRoleArn")
    misplaced = _EC2_ONLY if fargate else _FARGATE_ONLY
    for field in misplaced:
        if properties.get(field):
            platform = "Fargate" if fargate else "EC2"
            raise ClientError(f"{field} is not supported on {platform}.")


def submission(document: dict[str, Any], size_bytes: int) -> None:
    """Check a SubmitJob request, except its references and retry strategy."""
    if size_bytes > MAX_SUBMISSION_BYTES:
        kib = -(-size_bytes // 1024)
        raise ClientError(f"Job size must be less than 30 KiB, got {kib} KiB")
    require(document, "jobName", "jobQueue", "jobDefinition")
    job_name(document["jobName"])
    for unsupported in ("ecsPropertiesOverride", "eksPropertiesOverride", "dependsOn"):
        if document.get(unsupported):
            raise ClientError(f"farcall's emulated Batch does not support {unsupported}.")
    size = (document.get("arrayProperties") or {}).get("size")
    if size is not None and not MIN_ARRAY_SIZE <= size <= MAX_ARRAY_SIZE:
        raise ClientError(f"Array size must be between {MIN_ARRAY_SIZE} and {MAX_ARRAY_SIZE}.")
    container_overrides(document.get("containerOverrides"))
    timeout(document.get("timeout"))
    tags(document.get("tags"))
    priority(document.get("schedulingPriorityOverride"))


def container_overrides(overrides: dict[str, Any] | None) -> None:
    """Check containerOverrides, except the resources, which are checked when merged."""
    overrides = overrides or {}
    environment(overrides.get("environment"))
    if "" in (overrides.get("command") or []):
        raise ClientError("Container command can't contain an empty string.")
