"""Multi-node parallel jobs: their nodes, and each node's container.

Ranges of nodes that overlap, and another number of nodes at submission, are not supported.

Sources:
    https://docs.aws.amazon.com/batch/latest/APIReference/API_NodeProperties.html
    https://docs.aws.amazon.com/batch/latest/APIReference/API_NodeRangeProperty.html
    https://docs.aws.amazon.com/batch/latest/APIReference/API_NodeOverrides.html
"""

from __future__ import annotations

import re
from typing import Any

from farcall_local.batch import containers, validate
from farcall_local.batch.containers import Container
from farcall_local.batch.errors import ClientError

MAX_NODES, MAX_GROUPS = 1000, 5

#: AWS's own text: https://github.com/aws/aws-parallelcluster/pull/964
OTHER_TARGETS = "NodeOverride targets should match job definition. Non matching targets - "

_TARGET_NODES = re.compile(r"([0-9]{0,9}):([0-9]{0,9})|([0-9]{1,9})")


def _nodes(text: str, count: int) -> range:
    """Return the indexes for targetNodes: ``0:3``, ``:3``, ``4:``, ``:``, or a single index."""
    match = _TARGET_NODES.fullmatch(text)
    if match is None:
        raise ClientError(f"Target nodes {text!r} are not a range such as 0:3 or 4:.")
    start, end, single = match.groups()
    first = int(single or start or 0)
    indexes = range(first, int(single or end or count - 1) + 1)
    if not indexes or indexes[-1] >= count:
        raise ClientError(f"Target nodes {text} are not within the {count} nodes.")
    return indexes


def check(properties: dict[str, Any]) -> None:
    """Check the nodeProperties of a registration.

    Raises:
        ClientError: The properties break a rule, such as a node that belongs to no group.
    """
    groups, count = properties["nodeRangeProperties"], properties["numNodes"]
    if not 1 <= len(groups) <= MAX_GROUPS:
        raise ClientError(f"There must be between 1 and {MAX_GROUPS} node range properties.")
    if not 1 <= count <= MAX_NODES:
        raise ClientError(f"The number of nodes must be between 1 and {MAX_NODES}.")
    if not 0 <= properties["mainNode"] < count:
        raise ClientError(f"The main node {properties['mainNode']} is not one of the nodes.")
    for group in groups:
        validate.require(group, "container")
        validate.container(group["container"], fargate=False)
    covered = sorted(index for group in groups for index in _nodes(group["targetNodes"], count))
    if covered != list(range(count)):
        raise ClientError(
            "Node ranges must account for all nodes. farcall's emulated Batch requires exactly "
            "one range for each node."
        )


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
    count = properties["numNodes"]
    if overrides.get("numNodes") not in (None, count):
        raise ClientError("farcall's emulated Batch cannot override numNodes.")
    wanted = {
        _nodes(one["targetNodes"], count): one
        for one in overrides.get("nodePropertyOverrides") or ()
    }
    groups, of_node = [], {}
    for group in properties["nodeRangeProperties"]:
        indexes = _nodes(group["targetNodes"], count)
        override = wanted.pop(indexes, {})
        changes = override.get("containerOverrides") or {}
        validate.container_overrides(changes)
        container = containers.overridden(group["container"], changes)
        types = override.get("instanceTypes") or group.get("instanceTypes")
        shown = {**group, "container": container.properties}
        groups.append({**shown, "instanceTypes": types} if types else shown)
        of_node.update(dict.fromkeys(indexes, container))
    if wanted:
        raise ClientError(OTHER_TARGETS + ",".join(one["targetNodes"] for one in wanted.values()))
    result = {**properties, "nodeRangeProperties": groups}
    return result, tuple(of_node[index] for index in range(count))
