"""Nodes of the local Kubernetes emulator: what they have, and which of them takes a pod.

Texts are those of Kubernetes 1.36's scheduler. Of affinity, only required node affinity is looked
at; a pod that asks for more is placed as if it did not.

Sources:
    https://kubernetes.io/docs/concepts/scheduling-eviction/taint-and-toleration/
    https://kubernetes.io/docs/concepts/scheduling-eviction/assign-pod-node/
"""

from __future__ import annotations

import math
import platform
import re
from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Any

from farcall_local import names
from farcall_local.kubernetes import pod_status
from farcall_local.kubernetes.store import timestamp

#: What the kubelet of a node is called by default, and how many pods it takes.
NAME, MAX_PODS = "farcall-local", 110
VERSION = "v1.36.2"

UNSCHEDULABLE = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}
_NO_SCHEDULE = ("NoSchedule", "NoExecute")


_ARCHITECTURES = {"aarch64": "arm64", "arm64": "arm64"}
"""What Kubernetes calls this machine's processor, by what its system does."""

#: What the schema requires of a node's system, and nobody asks for.
_UNKNOWN = (
    *("machineID", "systemUUID", "bootID", "kernelVersion", "osImage"),
    *("containerRuntimeVersion", "kubeProxyVersion", "architecture"),
)


def node(
    name: str,
    resources: Mapping[str, Any],
    *,
    labels: Mapping[str, str] | None = None,
    taints: Iterable[Mapping[str, str]] = (),
) -> dict[str, Any]:
    """Return a node that is ready.

    Args:
        name: Its name.
        resources: Quantities of ``cpu``, ``memory``, ``nvidia.com/gpu`` and the like.
        labels: Besides its name.
        taints: Each with key, effect and perhaps value.
    """
    has = {name: str(quantity) for name, quantity in resources.items()}
    has.setdefault("pods", str(MAX_PODS))
    ready = pod_status.put([], "Ready", "True", "KubeletReady", "kubelet is posting ready status")
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "labels": {
                "kubernetes.io/hostname": name,
                "kubernetes.io/os": "linux",
                "kubernetes.io/arch": _ARCHITECTURES.get(platform.machine().lower(), "amd64"),
                **(labels or {}),
            },
        },
        "spec": {"taints": [dict(each) for each in taints]} if taints else {},
        "status": {
            "capacity": has,
            "allocatable": has,
            "conditions": [_of_node(each) for each in ready],
            "addresses": [
                {"type": "InternalIP", "address": names.NODE_ADDRESS},
                {"type": "Hostname", "address": name},
            ],
            "nodeInfo": {
                **dict.fromkeys(_UNKNOWN, ""),
                "kubeletVersion": VERSION,
                "operatingSystem": "linux",
            },
        },
    }


def objections(
    document: dict[str, Any], spec: dict[str, Any], free: Mapping[str, int]
) -> tuple[list[str], bool]:
    """Say why a node does not take a pod.

    Returns:
        The scheduler's words, none where it takes it; and whether less of others would help.
    """
    cordoned = (document.get("spec") or {}).get("unschedulable")
    if cordoned and not tolerates(spec, UNSCHEDULABLE):
        return ["node(s) were unschedulable"], False
    taint = _untolerated(document, spec)
    if taint is not None:
        said = f"{{{taint['key']}: {taint.get('value', '')}}}"
        return [f"node(s) had untolerated taint {said}"], False
    if not _matches(document, spec):
        return ["node(s) didn't match Pod's node affinity/selector"], False
    wanted = requests(spec)
    short = [name for name, value in wanted.items() if value and value > free.get(name, 0)]
    return ["Too many pods" if name == "pods" else f"Insufficient {name}" for name in short], True


def tolerates(spec: dict[str, Any], taint: Mapping[str, Any]) -> bool:
    """Return whether a pod tolerates a taint."""
    return any(_tolerates(each, taint) for each in spec.get("tolerations") or ())


def _untolerated(document: dict[str, Any], spec: dict[str, Any]) -> Mapping[str, Any] | None:
    taints: list[dict[str, Any]] = (document.get("spec") or {}).get("taints") or []
    for taint in taints:
        if taint["effect"] in _NO_SCHEDULE and not tolerates(spec, taint):
            return taint
    return None


def _tolerates(toleration: dict[str, Any], taint: Mapping[str, Any]) -> bool:
    if toleration.get("effect") not in (None, "", taint["effect"]):
        return False
    if not toleration.get("key"):
        return bool(toleration.get("operator") == "Exists")
    if toleration["key"] != taint["key"]:
        return False
    by_value = toleration.get("operator", "Equal") == "Equal"
    return not by_value or bool((toleration.get("value") or "") == (taint.get("value") or ""))


def _matches(document: dict[str, Any], spec: dict[str, Any]) -> bool:
    labels: dict[str, str] = document["metadata"].get("labels") or {}
    wanted: dict[str, str] = spec.get("nodeSelector") or {}
    if any(labels.get(name) != value for name, value in wanted.items()):
        return False
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    required: dict[str, Any] | None = affinity.get(
        "requiredDuringSchedulingIgnoredDuringExecution"
    )
    if not required:
        return True
    return any(
        all(_holds(labels, each) for each in term.get("matchExpressions") or ())
        for term in required["nodeSelectorTerms"]
    )


def _holds(labels: Mapping[str, str], expression: dict[str, Any]) -> bool:
    key, operator = expression["key"], expression["operator"]
    value, values = labels.get(key), expression.get("values") or []
    if operator in ("Exists", "DoesNotExist"):
        return bool((key in labels) == (operator == "Exists"))
    if operator in ("In", "NotIn"):
        return bool((value in values) == (operator == "In"))
    if value is None or not value.lstrip("-").isdecimal():
        return False
    limit = int(values[0])
    return int(value) > limit if operator == "Gt" else int(value) < limit


def _of_node(condition: Mapping[str, Any]) -> dict[str, Any]:
    """Return a condition as nodes have it: with a heartbeat, and without a probe."""
    kept = {key: value for key, value in condition.items() if key != "lastProbeTime"}
    return {**kept, "lastHeartbeatTime": timestamp()}


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
