"""Requests that a user edited. No I/O."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any

from farcall.backends.base import JobSpec
from farcall.backends.batch.documents import (
    OVERRIDE_CHARACTERS,
    OWN_REMEDY,
    REQUEST_BYTES,
    Definition,
    check_size,
    named,
)
from farcall.model.errors import SettingsError

_DEFINITION, _SUBMISSION = "RegisterJobDefinition", "SubmitJob"
_ROLES = ("jobRoleArn", "executionRoleArn")


def edited_definition(requests: Mapping[str, Any], roles: Mapping[str, str]) -> Definition:
    """Return the definition in the edited requests.

    Args:
        requests: The requests, in the form of `Backend.plan`.
        roles: ARNs of roles, by their placeholders in the requests.

    Raises:
        SettingsError: There is no definition.
        TaskTooLargeError: The definition exceeds a limit of Batch.
    """
    document = _part(requests, _DEFINITION)
    document.pop("jobDefinitionName", None)
    each = list(containers(document))
    for container in each:
        for key in _ROLES:
            if container.get(key) in roles:
                container[key] = roles[container[key]]
    is_own = any(container.get(key) for container in each for key in ("command", "environment"))
    return named(document, is_own=is_own)


def containers(document: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the container of each group of nodes in a definition."""
    if "containerProperties" in document:
        yield document["containerProperties"]
    for each in document.get("nodeProperties", {}).get("nodeRangeProperties", ()):
        if "container" in each:
            yield each["container"]


def edited_request(job: JobSpec, definition_arn: str) -> dict[str, Any]:
    """Return the edited SubmitJob request with the job's own variables.

    Raises:
        SettingsError: There is no request.
        TaskTooLargeError: The request exceeds a limit of Batch or ECS.
    """
    requests = job.requests or {}
    request = _part(requests, _SUBMISSION)
    request |= {
        "jobName": job.name,
        "jobQueue": job.settings.queue,
        "jobDefinition": definition_arn,
    }
    for each in _overrides(request, _part(requests, _DEFINITION)):
        variables = {one["name"]: one for one in each.get("environment", ())}
        own = {name: {"name": name, "value": job.environment[name]} for name in job.environment}
        each["environment"] = [*{**variables, **own}.values()]
        check_size("the container overrides", each, OVERRIDE_CHARACTERS, OWN_REMEDY)
    check_size("the SubmitJob request", request, REQUEST_BYTES, OWN_REMEDY)
    return request


def _part(requests: Mapping[str, Any], name: str) -> dict[str, Any]:
    part = requests.get(name)
    if not isinstance(part, dict):
        raise SettingsError(f"the request has no {name}. Keep what the dry run wrote there.")
    return copy.deepcopy(part)


def _overrides(request: dict[str, Any], document: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the container overrides of each group of nodes; create missing ones."""
    ranges = document.get("nodeProperties", {}).get("nodeRangeProperties")
    if ranges is None:
        return [request.setdefault("containerOverrides", {})]
    each = request.setdefault("nodeOverrides", {}).setdefault(
        "nodePropertyOverrides", [{"targetNodes": one["targetNodes"]} for one in ranges]
    )
    return [one.setdefault("containerOverrides", {}) for one in each]
