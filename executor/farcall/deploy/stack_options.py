"""Options that a stack gives: values of farcall's options that name what it has. No I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from farcall.deploy.parameters import FARGATE, FARGATE_SPOT, KINDS
from farcall.deploy.stack import State
from farcall.model.settings import Settings

_EXTRA = "job_definition_extra"
_PACKAGES = "auto"
"""Without a custom image, jobs get the packages that the code imports."""

_BY_OUTPUT = {
    "s3_bucket_name": "Bucket",
    "batch_job_role_name": "JobRole",
    "batch_execution_role_name": "ExecutionRole",
    "batch_job_log_group_name": "LogGroup",
}


def queues(state: State) -> dict[str, str]:
    """Return the names of the queues that a stack has, by kind of compute."""
    outputs = state.outputs
    return {name: outputs[kind.queue] for name, kind in KINDS.items() if kind.queue in outputs}


def names(state: State) -> dict[str, str]:
    """Return the options that name a bucket, a log group and roles, as the stack has them."""
    return {option: state.outputs[output] for option, output in _BY_OUTPUT.items()}


def options(
    state: State, region: str, *, kind: str, is_public: bool, there: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the options by which jobs run in a stack.

    Args:
        state: The stack, which is well.
        region: Its region.
        kind: The kind of compute whose queue jobs go to.
        is_public: Whether its subnets give public addresses, without which jobs on Fargate reach
            nothing there.
        there: The options of the file that they are for.
    """
    architecture = state.parameters["Architecture"]
    found: dict[str, Any] = {"region": region, "queue": queues(state)[kind]}
    found |= names(state)
    defaults = Settings.model_fields
    prefix = state.parameters["KeyPrefix"].rstrip("/")
    for option, value in (("architecture", architecture), ("prefix", prefix)):
        if option in there or value != defaults[option].default:
            found[option] = value
    if "packages" not in there and not there.get("image"):
        found["packages"] = _PACKAGES
    extra = without_fargate(there.get(_EXTRA, {}))
    if kind in (FARGATE, FARGATE_SPOT):
        extra = _on_fargate(extra, architecture, is_public=is_public)
    if extra != there.get(_EXTRA, {}):
        found[_EXTRA] = extra
    return found


def of_stack(name: str, region: str, there: Mapping[str, Any]) -> list[str]:
    """Return which options of a file name what a stack has, or had.

    Args:
        name: The stack's name, by which all that it has is named.
        region: Its region.
        there: The options of the file.
    """
    if there.get("region", region) != region:
        return []
    begins = {
        "s3_bucket_name": f"{name}-bucket-",
        "batch_job_role_name": f"{name}-JobRole-",
        "batch_execution_role_name": f"{name}-ExecutionRole-",
    }
    found = [o for o, start in begins.items() if str(there.get(o, "")).startswith(start)]
    if there.get("batch_job_log_group_name") == f"/farcall/{name}":
        found.append("batch_job_log_group_name")
    if there.get("queue") in [f"{name}-{kind}" for kind in KINDS]:
        found += [o for o in ("queue", "region", "architecture") if o in there]
        found += ["packages"] if there.get("packages") == _PACKAGES else []
        if _EXTRA in there and not without_fargate(there[_EXTRA]):
            found.append(_EXTRA)
    return found


def without_fargate(extra: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``job_definition_extra`` without what a job has on Fargate alone."""
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
    """Return ``job_definition_extra`` with what a job needs on Fargate.

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


def main_kind(state: State, asked: Sequence[str], there: Mapping[str, Any]) -> str:
    """Return the kind of compute whose queue jobs go to.

    That is the first one asked for; else the one that the file names already; else the first that
    the stack has.
    """
    by_queue = {queue: kind for kind, queue in queues(state).items()}
    return (
        next(iter(asked), "")
        or by_queue.get(there.get("queue", ""))
        or next(iter(by_queue.values()))
    )
