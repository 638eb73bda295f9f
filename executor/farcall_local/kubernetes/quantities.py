"""Quantities of Kubernetes, such as ``500m`` of cpu and ``2Gi`` of memory, as whole numbers.

Source:
    https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/quantity/
"""

from __future__ import annotations

import math
import re
from decimal import Decimal
from typing import Any

_SUFFIXES = {
    **{suffix: Decimal(1000) ** power for power, suffix in enumerate("kMGTPE", 1)},
    **{f"{suffix}i": Decimal(1024) ** power for power, suffix in enumerate("KMGTPE", 1)},
    **{suffix: Decimal(1000) ** -power for power, suffix in enumerate("mun", 1)},
    "": Decimal(1),
}
_QUANTITY = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)([a-zA-Z]{0,2})")


def parse(quantity: Any) -> Decimal:
    """Return a quantity's value.

    Raises:
        ValueError: It is none.
    """
    found = _QUANTITY.fullmatch(str(quantity))
    if found is None or found[2] not in _SUFFIXES:
        raise ValueError(f"{quantity!r} is no quantity such as 500m, 2 or 2Gi")
    return Decimal(found[1]) * _SUFFIXES[found[2]]


def amount(resource: str, quantity: Any) -> int:
    """Return how much of a resource a quantity is: thousandths of cpu, else whole ones."""
    value = parse(quantity)
    return math.ceil(value * 1000 if resource == "cpu" else value)


def amounts(quantities: dict[str, Any] | None) -> dict[str, int]:
    """Return the amounts of a list of resources."""
    return {name: amount(name, each) for name, each in (quantities or {}).items()}


def requests(pod_spec: dict[str, Any]) -> dict[str, int]:
    """Return what the scheduler counts of a pod: the requests of its containers, and one pod.

    A container that has a limit and no request requests the limit, as the API server has it.
    """
    found = {"pods": 1}
    for container in pod_spec["containers"]:
        resources = container.get("resources") or {}
        wanted = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
        for name, value in amounts(wanted).items():
            found[name] = found.get(name, 0) + value
    return found
