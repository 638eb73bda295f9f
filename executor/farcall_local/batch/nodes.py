"""Multi-node parallel jobs: their nodes, and each node's container.

If the text of a rejection is AWS's own, the comment at the constant names its source.

Sources:
    https://docs.aws.amazon.com/batch/latest/APIReference/API_NodeProperties.html
    https://docs.aws.amazon.com/batch/latest/APIReference/API_NodeRangeProperty.html
    https://docs.aws.amazon.com/batch/latest/APIReference/API_NodeOverrides.html
    https://docs.aws.amazon.com/batch/latest/userguide/mnp-node-groups.html
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, NamedTuple

from farcall_local.batch import containers, validate
from farcall_local.batch.containers import Container
from farcall_local.batch.errors import ClientError

MAX_NODES, MAX_GROUPS = 1000, 5

#: https://github.com/aws/aws-parallelcluster/pull/964
OTHER_TARGETS = "NodeOverride targets should match job definition. Non matching targets - "

_TARGET_NODES = re.compile(r"([0-9]{0,9}):([0-9]{0,9})|([0-9]{1,9})")


class Target(NamedTuple):
    """Range of nodes.

    Attributes:
        start: Index of the first node.
        end: Index of the last node; None for the job's last node.
    """

    start: int
    end: int | None


def target(text: str) -> Target:
    """Parse targetNodes: ``0:3``, ``:3``, ``4:``, ``:``, or a single index.

    Raises:
        ClientError: The text has another format.
    """
    match = _TARGET_NODES.fullmatch(text)
    if match is None:
        raise ClientError(f"Target nodes {text!r} are not a range such as 0:3 or 4:.")
    start, end, single = match.groups()
    if single:
        return Target(int(single), int(single))
    return Target(int(start or 0), int(end) if end else None)


def check(properties: dict[str, Any]) -> None:
    """Check the nodeProperties of a registration.

    Raises:
        ClientError: The properties break a rule.
    """
    groups = properties["nodeRangeProperties"]
    if not 1 <= len(groups) <= MAX_GROUPS:
        raise ClientError(f"There must be between 1 and {MAX_GROUPS} node range properties.")
    for group in groups:
        for unsupported in ("ecsProperties", "eksProperties"):
            if group.get(unsupported):
                raise ClientError(f"farcall's emulated Batch does not support {unsupported}.")
        validate.require(group, "container")
        validate.container(group["container"], fargate=False)
    _check_cover(properties)
    _check_instance_types(groups)


def cleaned(properties: dict[str, Any]) -> dict[str, Any]:
    """Return checked nodeProperties as Batch stores them."""
    groups = [
        {**group, "container": containers.cleaned(group["container"])}
        for group in properties["nodeRangeProperties"]
    ]
    return {**properties, "nodeRangeProperties": groups}


def overridden(
    properties: dict[str, Any], overrides: dict[str, Any]
) -> tuple[dict[str, Any], tuple[Container, ...]]:
    """Merge cleaned nodeProperties with nodeOverrides.

    Returns:
        The nodeProperties of the job, and the container of each node.

    Raises:
        ClientError: The overrides break a rule, or do not fit the definition.
    """
    if overrides.get("numNodes") not in (None, properties["numNodes"]):
        raise ClientError("farcall's emulated Batch cannot override numNodes.")
    given = properties["nodeRangeProperties"]
    wanted = _by_target(overrides.get("nodePropertyOverrides") or [])
    unknown = set(wanted) - {target(group["targetNodes"]) for group in given}
    if unknown:
        texts = [one["targetNodes"] for key, one in wanted.items() if key in unknown]
        raise ClientError(OTHER_TARGETS + ",".join(texts))
    merged = [_group(group, wanted.get(target(group["targetNodes"]), {})) for group in given]
    groups = [group for group, _ in merged]
    result = {**properties, "nodeRangeProperties": groups}
    _check_instance_types(groups)
    of_node = {
        index: container
        for group, container in merged
        for index in _nodes(group, properties["numNodes"])
    }
    return result, tuple(of_node[index] for index in range(properties["numNodes"]))


def _by_target(overrides: list[dict[str, Any]]) -> dict[Target, dict[str, Any]]:
    found: dict[Target, dict[str, Any]] = {}
    for one in overrides:
        for unsupported in ("ecsPropertiesOverride", "eksPropertiesOverride"):
            if one.get(unsupported):
                raise ClientError(f"farcall's emulated Batch does not support {unsupported}.")
        validate.container_overrides(one.get("containerOverrides"))
        key = target(one["targetNodes"])
        if key in found:
            raise ClientError(f"There are two overrides for the nodes {one['targetNodes']}.")
        found[key] = one
    return found


def _group(group: dict[str, Any], override: dict[str, Any]) -> tuple[dict[str, Any], Container]:
    container = containers.overridden(group["container"], override.get("containerOverrides") or {})
    shown = {**group, "container": container.properties}
    if override.get("instanceTypes"):
        shown["instanceTypes"] = override["instanceTypes"]
    return shown, container


def _check_cover(properties: dict[str, Any]) -> None:
    """Check that each node, including the main node, belongs to a group."""
    count, main = properties["numNodes"], properties["mainNode"]
    if not 1 <= count <= MAX_NODES:
        raise ClientError(f"The number of nodes must be between 1 and {MAX_NODES}.")
    if not 0 <= main < count:
        raise ClientError(f"The main node {main} is not one of the {count} nodes.")
    covered: set[int] = set()
    for group in properties["nodeRangeProperties"]:
        nodes = set(_nodes(group, count))
        if not nodes or max(nodes) >= count:
            raise ClientError(
                f"Target nodes {group['targetNodes']} are not within the {count} nodes."
            )
        if nodes & covered:
            raise ClientError(
                f"Target nodes {group['targetNodes']} overlap another range, which farcall's "
                "emulated Batch does not support."
            )
        covered |= nodes
    missing = set(range(count)) - covered
    if missing:
        raise ClientError(
            f"Node ranges must account for all nodes. Node {min(missing)} is in none."
        )


def _nodes(group: dict[str, Any], count: int) -> range:
    """Return the indexes of a group's nodes, given the total number of nodes."""
    start, end = target(group["targetNodes"])
    return range(start, count if end is None else end + 1)


def _check_instance_types(groups: Iterable[dict[str, Any]]) -> None:
    kinds: set[str] = set()
    for group in groups:
        given = group.get("instanceTypes") or []
        if len(given) > 1:
            raise ClientError("instanceTypes can have one element at most.")
        one = group["container"].get("instanceType")
        kinds.update(given or ([one] if one else []))
    if len(kinds) > 1:
        raise ClientError(
            "All node groups of a multi-node parallel job must use the same instance type, not "
            f"{', '.join(sorted(kinds))}."
        )
