"""Container properties: a definition's properties with a submission's overrides.

Source:
    https://docs.aws.amazon.com/batch/latest/APIReference/API_ContainerOverrides.html
"""

from __future__ import annotations

from typing import Any, NamedTuple

from farcall_local.batch import resources
from farcall_local.batch.resources import Resources

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
    merged["resourceRequirements"] = resources.merge(
        properties["resourceRequirements"], overrides.get("resourceRequirements")
    )
    needed = resources.parse(merged["resourceRequirements"], fargate=fargate)
    return Container(merged, overrides, needed)
