"""Parameters of the stack: requested and current ones, as in the template. No I/O."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from farcall.model.errors import FarcallError

EC2, SPOT, FARGATE, FARGATE_SPOT = "ec2", "spot", "fargate", "fargate-spot"


class Kind(NamedTuple):
    """Kind of compute, for which a stack may have a queue.

    Attributes:
        parameter: Template parameter that enables the kind.
        queue: Name of the queue in the template, and of the output with its actual name.
        text: Description for messages.
    """

    parameter: str
    queue: str
    text: str


KINDS = {
    EC2: Kind("Ec2", "Ec2Queue", "EC2 on demand"),
    SPOT: Kind("Spot", "SpotQueue", "EC2 Spot"),
    FARGATE: Kind("Fargate", "FargateQueue", "Fargate"),
    FARGATE_SPOT: Kind("FargateSpot", "FargateSpotQueue", "Fargate Spot"),
}
INSTANCES = (EC2, SPOT)

_YES, _NO = "true", "false"
_SHORTEST_MIN, _LONGEST_MIN = 20, 10080
"""https://docs.aws.amazon.com/batch/latest/APIReference/API_ComputeScalingPolicy.html"""

_DEFAULTS = {
    "Ec2": _YES,
    "Spot": _NO,
    "Fargate": _NO,
    "FargateSpot": _NO,
    "MaxVcpus": "256",
    "InstanceTypes": "",
    "Architecture": "x86_64",
    "Gpu": _NO,
    "WarmMinutes": "0",
    "PermissionsBoundary": "",
}
"""Defaults, as in the template, whose own defaults are for use without farcall."""

_TYPE = re.compile(r"[a-z0-9_-]+(\.[a-z0-9-]+)?")
_BOUNDARY = re.compile(r"arn:[a-z-]+:iam::(\d{12}|aws):policy/.+")


def requested(
    *,
    compute: Sequence[str] = (),
    max_vcpus: int | None = None,
    instance_types: Sequence[str] | None = None,
    gpu: bool | None = None,
    arm64: bool | None = None,
    warm_s: float | None = None,
    permissions_boundary: str | None = None,
) -> dict[str, str]:
    """Return requested parameters; None, or no kind of compute, requests nothing.

    Args:
        compute: Kinds of compute from `KINDS`.
        max_vcpus: Maximum vCPUs of each kind.
        instance_types: Instance types or families; empty for Batch's choice.
        gpu: Whether instances have GPUs.
        arm64: Whether instances have ARM processors.
        warm_s: Seconds for which an idle instance is retained; 0 for Batch's default.
        permissions_boundary: ARN of a policy; empty for none.

    Raises:
        FarcallError: A value is invalid; the message names the option.
    """
    wrong = [each for each in instance_types or () if not _TYPE.fullmatch(each)]
    if wrong:
        raise FarcallError(
            f"--instance-types has {wrong[0]!r}; use types such as m7i.large, families such as "
            "c7i, or Batch's default_x86_64 and default_arm64"
        )
    minutes = (warm_s or 0) / 60
    if minutes and (not _SHORTEST_MIN <= minutes <= _LONGEST_MIN or minutes % 1):
        raise FarcallError(
            f"--warm is {warm_s:g} s; use whole minutes from {_SHORTEST_MIN}m to 1w, or 0 "
            "to let Batch decide when to terminate idle instances"
        )
    if permissions_boundary and not _BOUNDARY.fullmatch(permissions_boundary):
        raise FarcallError(
            f"--permissions-boundary is {permissions_boundary!r}; use the ARN of a policy, such "
            "as arn:aws:iam::111122223333:policy/boundary"
        )
    parameters: dict[str, Any] = {
        "MaxVcpus": max_vcpus,
        "InstanceTypes": None if instance_types is None else ",".join(instance_types),
        "Architecture": None if arm64 is None else "arm64" if arm64 else "x86_64",
        "Gpu": None if gpu is None else _truth(gpu),
        "WarmMinutes": None if warm_s is None else round(minutes),
        "PermissionsBoundary": permissions_boundary,
    }
    if compute:
        parameters |= {kind.parameter: _truth(name in compute) for name, kind in KINDS.items()}
    return {name: str(value) for name, value in parameters.items() if value is not None}


def merged(wanted: Mapping[str, str], before: Mapping[str, str], prefix: str) -> dict[str, str]:
    """Return all parameters except the network's.

    Args:
        wanted: The `requested` parameters.
        before: Parameters of the existing stack; empty for a new stack.
        prefix: The option ``prefix``.

    Raises:
        FarcallError: The combination of parameters is not supported.
    """
    before = {name: value for name, value in before.items() if name in _DEFAULTS}
    parameters = {**_DEFAULTS, **before, **wanted}
    changed = any(
        parameters[name] != before.get(name, parameters[name]) for name in ("Architecture", "Gpu")
    )
    if changed and "InstanceTypes" not in wanted:
        parameters["InstanceTypes"] = ""  # the current types suit the previous hardware
    _check_together(parameters)
    return parameters | {"KeyPrefix": f"{prefix}/" if prefix else ""}


def compute(parameters: Mapping[str, str]) -> list[str]:
    """Return the kinds of compute that parameters enable."""
    return [name for name, kind in KINDS.items() if parameters.get(kind.parameter) == _YES]


def _truth(value: bool) -> str:
    return _YES if value else _NO


def _check_together(parameters: Mapping[str, str]) -> None:
    """Reject parameters that cannot be combined.

    Source:
        https://docs.aws.amazon.com/batch/latest/APIReference/API_Ec2Configuration.html
        https://docs.aws.amazon.com/batch/latest/APIReference/API_RuntimePlatform.html
    """
    kinds, is_arm = compute(parameters), parameters["Architecture"] == "arm64"
    has_instances = not set(kinds).isdisjoint(INSTANCES)
    if parameters["Gpu"] == _YES and not has_instances:
        raise FarcallError("--gpu: Fargate has no GPUs; add --compute ec2 or --compute spot")
    if parameters["Gpu"] == _YES and is_arm:
        raise FarcallError("--gpu: Amazon's GPU image is only for x86_64; leave out --arm64")
    if is_arm and FARGATE_SPOT in kinds:
        raise FarcallError(
            "--arm64: Batch has no ARM on Fargate Spot; use --compute spot, or leave out --arm64"
        )
    for name, option in (("InstanceTypes", "--instance-types"), ("WarmMinutes", "--warm")):
        if parameters[name] not in ("", "0") and not has_instances:
            none = "''" if name == "InstanceTypes" else "0"
            raise FarcallError(
                f"{option} is {parameters[name]}, but Fargate has no instances; add --compute ec2 "
                f"or --compute spot, or set {option} {none}"
            )
