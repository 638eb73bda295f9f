"""The Kubernetes emulator's node, which is this machine: its resources and admission of pods.

The texts are from Kubernetes 1.36's scheduler. The node admits pods by resources and
``nodeSelector``; it has no taints, and affinity is ignored.

Source:
    https://kubernetes.io/docs/concepts/scheduling-eviction/assign-pod-node/
"""

from __future__ import annotations

import math
import platform
import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from farcall_local.kubernetes import pod_status
from farcall_local.kubernetes.store import timestamp

#: Name of the node, and its maximum number of pods.
NAME, MAX_PODS = "farcall-local", 110

_ARCHITECTURES = {"aarch64": "arm64", "arm64": "arm64"}
"""Kubernetes' name of a processor, by the system's name."""


def node(cpu: float) -> dict[str, Any]:
    """Return the ready node."""
    # The memory of processes is not limited.
    has = {"cpu": f"{cpu:g}", "memory": "1Ti", "pods": str(MAX_PODS)}
    [ready] = pod_status.put(
        [], "Ready", "True", "KubeletReady", "kubelet is posting ready status"
    )
    del ready["lastProbeTime"]
    return {
        "metadata": {
            "name": NAME,
            "labels": {
                "kubernetes.io/hostname": NAME,
                "kubernetes.io/os": "linux",
                "kubernetes.io/arch": _ARCHITECTURES.get(platform.machine().lower(), "amd64"),
            },
        },
        "spec": {},
        "status": {
            "capacity": has,
            "allocatable": has,
            "conditions": [{**ready, "lastHeartbeatTime": timestamp()}],
        },
    }


def objections(
    document: dict[str, Any], spec: dict[str, Any], free: Mapping[str, int]
) -> tuple[list[str], bool]:
    """Return the reasons why the node does not accept a pod.

    Returns:
        The scheduler's reasons, none if the node accepts it; and whether fewer pods would help.
    """
    labels: dict[str, str] = document["metadata"].get("labels") or {}
    selector: dict[str, str] = spec.get("nodeSelector") or {}
    if not selector.items() <= labels.items():
        return ["node(s) didn't match Pod's node affinity/selector"], False
    wanted = requests(spec)
    short = [name for name, value in wanted.items() if value and value > free.get(name, 0)]
    return ["Too many pods" if name == "pods" else f"Insufficient {name}" for name in short], True


_SUFFIXES = {
    **{suffix: Decimal(1000) ** power for power, suffix in enumerate("kMGTPE", 1)},
    **{f"{suffix}i": Decimal(1024) ** power for power, suffix in enumerate("KMGTPE", 1)},
    **{suffix: Decimal(1000) ** -power for power, suffix in enumerate("mun", 1)},
    "": Decimal(1),
}
_QUANTITY = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)([a-zA-Z]{0,2})")


def is_quantity(text: Any) -> bool:
    """Return whether a value is a quantity."""
    found = _QUANTITY.fullmatch(str(text))
    return found is not None and found[2] in _SUFFIXES


def amount(resource: str, quantity: Any) -> int:
    """Return the amount of a resource: thousandths of cpu, else whole units."""
    found = _QUANTITY.fullmatch(str(quantity))
    assert found is not None  # noqa: S101 - the schema has checked it
    value = Decimal(found[1]) * _SUFFIXES[found[2]]
    return math.ceil(value * 1000 if resource == "cpu" else value)


def amounts(quantities: Mapping[str, Any] | None) -> dict[str, int]:
    """Return the amounts of a list of resources."""
    return {name: amount(name, each) for name, each in (quantities or {}).items()}


def requests(pod_spec: dict[str, Any]) -> dict[str, int]:
    """Return the requests of a pod's containers, and one pod.

    A container that has a limit and no request requests the limit.
    """
    found = {"pods": 1}
    for container in pod_spec["containers"]:
        resources = container.get("resources") or {}
        wanted = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
        for name, value in amounts(wanted).items():
            found[name] = found.get(name, 0) + value
    return found
