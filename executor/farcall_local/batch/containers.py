"""Container properties: requested resources, and a submission's overrides.

Sources:
    https://docs.aws.amazon.com/batch/latest/APIReference/API_ContainerOverrides.html
    https://docs.aws.amazon.com/batch/latest/APIReference/API_ResourceRequirement.html
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from farcall_local.batch.errors import ClientError

MIN_MEMORY_MIB = 4

#: Memory in MiB for each number of vCPUs on Fargate.
FARGATE_MEMORY_MIB = {
    0.25: (512, 1024, 2048),
    0.5: tuple(range(1024, 4096 + 1, 1024)),
    1.0: tuple(range(2048, 8192 + 1, 1024)),
    2.0: tuple(range(4096, 16384 + 1, 1024)),
    4.0: tuple(range(8192, 30720 + 1, 1024)),
    8.0: tuple(range(16384, 61440 + 1, 4096)),
    16.0: tuple(range(32768, 122880 + 1, 8192)),
    32.0: (61440, 122880, 249856),
}


@dataclass(frozen=True)
class Resources:
    """Resources of one attempt of a job.

    Attributes:
        vcpus: Number of vCPUs: at least 1, or a Fargate value from 0.25.
        memory_mib: Hard memory limit of a container in MiB; not enforced for processes.
        gpus: Number of GPUs.
    """

    vcpus: float
    memory_mib: int
    gpus: int = 0


def _merged(
    base: list[dict[str, str]], override: list[dict[str, str]] | None
) -> list[dict[str, str]]:
    """Return the definition's requirements, overridden by the submission's, by type."""
    values = {item["type"]: item["value"] for item in base}
    values.update({item["type"]: item["value"] for item in override or []})
    return [{"type": kind, "value": value} for kind, value in values.items()]


def parse_resources(requirements: list[dict[str, Any]], *, fargate: bool) -> Resources:
    """Check resourceRequirements.

    Args:
        requirements: Items with ``type`` and ``value``; values are decimal strings.
        fargate: Whether the job is for Fargate, which has fixed combinations of vCPU and memory.

    Raises:
        ClientError: Batch does not accept a type or value, or VCPU or MEMORY is missing.
    """
    values: dict[str, str] = {}
    for item in requirements:
        kind = item.get("type")
        if kind not in ("VCPU", "MEMORY", "GPU"):
            raise ClientError(f"Resource requirement type {kind} is not VCPU, MEMORY or GPU.")
        if kind in values:
            raise ClientError(f"Resource requirement {kind} is given twice.")
        values[kind] = str(item.get("value", ""))
    for kind in ("VCPU", "MEMORY"):
        if kind not in values:
            raise ClientError(f"Container resource requirement {kind} must be specified.")
    memory = _whole(values, "MEMORY", MIN_MEMORY_MIB)
    if fargate:
        return Resources(_fargate_vcpus(values, memory), memory)
    gpus = _whole(values, "GPU", 1) if "GPU" in values else 0
    return Resources(float(_whole(values, "VCPU", 1)), memory, gpus)


def _whole(values: dict[str, str], kind: str, least: int) -> int:
    text = values[kind]
    if not text.isdecimal() or int(text) < least:
        raise ClientError(f"{kind} must be an integer of at least {least}, not {text!r}.")
    return int(text)


def _fargate_vcpus(values: dict[str, str], memory: int) -> float:
    if "GPU" in values:
        raise ClientError("GPU is not supported on Fargate.")
    try:
        vcpus = float(values["VCPU"])
    except ValueError:
        raise ClientError(f"VCPU must be a number, not {values['VCPU']!r}.") from None
    if memory not in FARGATE_MEMORY_MIB.get(vcpus, ()):
        raise ClientError(
            f"Fargate resource requirements for {vcpus:g} vCPU and {memory} MiB are not valid."
        )
    return vcpus


#: Overrides that replace the definition's values; other overrides are merged.
_REPLACING = ("command", "instanceType")


class Container(NamedTuple):
    """Container of a job with its final properties.

    Attributes:
        properties: containerProperties with the overrides applied.
        overrides: The overrides, whose size ECS limits.
        resources: Resources of each attempt.
    """

    properties: dict[str, Any]
    overrides: dict[str, Any]
    resources: Resources


def cleaned(properties: dict[str, Any]) -> dict[str, Any]:
    """Return containerProperties without empty environment variables, as Batch does."""
    variables = properties.get("environment", ())
    return {**properties, "environment": [item for item in variables if item.get("value")]}


def overridden(
    properties: dict[str, Any], overrides: dict[str, Any], *, fargate: bool = False
) -> Container:
    """Merge cleaned containerProperties with containerOverrides.

    Raises:
        ClientError: Batch does not accept the overridden resources.
    """
    variables = {item["name"]: item.get("value", "") for item in properties["environment"]}
    for item in overrides.get("environment") or []:
        variables[item["name"]] = item.get("value", "")
    merged = {**properties, **{key: overrides[key] for key in _REPLACING if overrides.get(key)}}
    merged["environment"] = [{"name": key, "value": value} for key, value in variables.items()]
    merged["resourceRequirements"] = _merged(
        properties["resourceRequirements"], overrides.get("resourceRequirements")
    )
    needed = parse_resources(merged["resourceRequirements"], fargate=fargate)
    return Container(merged, overrides, needed)
