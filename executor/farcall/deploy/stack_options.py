"""Options for a stack: values of options that name its resources. No I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from farcall.config.settings import Settings
from farcall.deploy.parameters import FARGATE, FARGATE_SPOT, KINDS
from farcall.deploy.stack import State

_EXTRA = "job_definition_extra"
_PACKAGES = "auto"
"""Value of ``packages`` without a custom image, for the packages the code imports."""

_BY_OUTPUT = {
    "s3_bucket_name": "Bucket",
    "batch_job_role_name": "JobRole",
    "batch_execution_role_name": "ExecutionRole",
    "batch_job_log_group_name": "LogGroup",
}


def queues(state: State) -> dict[str, str]:
    """Return the names of a stack's queues by kind of compute."""
    outputs = state.outputs
    return {name: outputs[kind.queue] for name, kind in KINDS.items() if kind.queue in outputs}


def names(state: State) -> dict[str, str]:
    """Return the options that name the stack's bucket, log group and roles."""
    return {option: state.outputs[output] for option, output in _BY_OUTPUT.items()}


def options(
    state: State, region: str, *, kind: str, is_public: bool, there: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the options for running jobs in a stack.

    Args:
        state: State of the stack, whose last operation succeeded.
        region: Region of the stack.
        kind: Kind of compute whose queue is used.
        is_public: Whether the subnets assign public IP addresses, without which jobs on Fargate
            have no network access there.
        there: Current options of the file.
    """
    architecture = state.parameters["Architecture"]
    stack_options: dict[str, Any] = {"region": region, "queue": queues(state)[kind]}
    stack_options |= names(state)
    defaults = Settings.model_fields
    prefix = state.parameters["KeyPrefix"].rstrip("/")
    for option, value in (("architecture", architecture), ("prefix", prefix)):
        if option in there or value != defaults[option].default:
            stack_options[option] = value
    if "packages" not in there and not there.get("image"):
        stack_options["packages"] = _PACKAGES
    extra = without_fargate(there.get(_EXTRA, {}))
    if kind in (FARGATE, FARGATE_SPOT):
        extra = _on_fargate(extra, architecture, is_public=is_public)
    if extra != there.get(_EXTRA, {}):
        stack_options[_EXTRA] = extra
    return stack_options


def of_stack(name: str, region: str, there: Mapping[str, Any]) -> list[str]:
    """Return the options of a file that name a stack's current or former resources.

    Args:
        name: Name of the stack, which is part of its resources' names.
        region: Region of the stack.
        there: The options of the file.
    """
    if there.get("region", region) != region:
        return []
    begins = {
        "s3_bucket_name": f"{name}-bucket-",
        "batch_job_role_name": f"{name}-JobRole-",
        "batch_execution_role_name": f"{name}-ExecutionRole-",
    }
    stale = [o for o, start in begins.items() if str(there.get(o, "")).startswith(start)]
    if there.get("batch_job_log_group_name") == f"/farcall/{name}":
        stale.append("batch_job_log_group_name")
    if there.get("queue") in [f"{name}-{kind}" for kind in KINDS]:
        stale += [o for o in ("queue", "region", "architecture") if o in there]
        stale += ["packages"] if there.get("packages") == _PACKAGES else []
        if _EXTRA in there and not without_fargate(there[_EXTRA]):
            stale.append(_EXTRA)
    return stale


def without_fargate(extra: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``job_definition_extra`` without the fields for Fargate."""
    if "FARGATE" not in extra.get("platformCapabilities", ()):
        return dict(extra)
    container = {
        key: value
        for key, value in extra.get("containerProperties", {}).items()
        if key not in ("networkConfiguration", "runtimePlatform")
    }
    others = ("platformCapabilities", "containerProperties")
    rest = {key: value for key, value in extra.items() if key not in others}
    return rest | ({"containerProperties": container} if container else {})


def _on_fargate(extra: Mapping[str, Any], architecture: str, *, is_public: bool) -> dict[str, Any]:
    """Return ``job_definition_extra`` with the fields that a job needs on Fargate.

    Source:
        https://docs.aws.amazon.com/batch/latest/userguide/fargate.html
    """
    container = dict(extra.get("containerProperties", {}))
    address = "ENABLED" if is_public else "DISABLED"
    container["networkConfiguration"] = {"assignPublicIp": address}
    if architecture == "arm64":
        container["runtimePlatform"] = {
            "cpuArchitecture": "ARM64",
            "operatingSystemFamily": "LINUX",
        }
    return {**extra, "platformCapabilities": ["FARGATE"], "containerProperties": container}


def main_kind(state: State, requested: Sequence[str], there: Mapping[str, Any]) -> str:
    """Return the kind of compute whose queue is used.

    It is the first requested kind, otherwise the kind of the file's queue, otherwise the stack's
    first kind.
    """
    by_queue = {queue: kind for kind, queue in queues(state).items()}
    return (
        next(iter(requested), "")
        or by_queue.get(there.get("queue", ""))
        or next(iter(by_queue.values()))
    )
