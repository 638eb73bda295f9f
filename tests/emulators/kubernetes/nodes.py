"""The Kubernetes emulator's node, which is this machine, and the admission of pods.

The texts are from Kubernetes 1.36's scheduler and API server, without amounts and preemption. The
node accepts pods by resources
and ``nodeSelector``; it has no taints, and affinity is ignored.

Sources:
    https://kubernetes.io/docs/concepts/scheduling-eviction/assign-pod-node/
    https://kubernetes.io/docs/reference/access-authn-authz/admission-controllers/
    https://kubernetes.io/docs/concepts/policy/resource-quotas/
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from farcall_local import names
from tests.emulators.kubernetes import pod_status
from tests.emulators.kubernetes.errors import ForbiddenError
from tests.emulators.kubernetes.kinds import POD, RESOURCE_QUOTA, SERVICE_ACCOUNT
from tests.emulators.kubernetes.store import Store, timestamp

#: Name of the node, and its maximum number of pods.
NAME, MAX_PODS = "farcall-local", 110


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
                "kubernetes.io/arch": "arm64" if names.IS_ARM else "amd64",
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
) -> list[str]:
    """Return the scheduler's reasons against a pod on the node; none if the node accepts it."""
    labels: dict[str, str] = document["metadata"].get("labels") or {}
    selector: dict[str, str] = spec.get("nodeSelector") or {}
    if not selector.items() <= labels.items():
        return ["node(s) didn't match Pod's node affinity/selector"]
    wanted = requests(spec)
    short = [name for name, value in wanted.items() if value and value > free.get(name, 0)]
    return ["Too many pods" if name == "pods" else f"Insufficient {name}" for name in short]


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
    assert found is not None
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


def admit_pod(store: Store, pod: dict[str, Any]) -> dict[str, Any]:
    """Return a new pod as it is admitted.

    A Job's controller records a refusal as FailedCreate: such a Job has no pods.

    Raises:
        ForbiddenError: Its service account does not exist, or a quota is used up.
    """
    namespace = pod["metadata"]["namespace"]
    account = pod["spec"].get("serviceAccountName") or "default"
    if not store.get(SERVICE_ACCOUNT, namespace, account) and account != "default":
        raise _refusal(
            pod,
            f"error looking up service account {namespace}/{account}: "
            f'serviceaccount "{account}" not found',
        )
    quotas = store.list(RESOURCE_QUOTA, namespace)
    if quotas:
        wanted, used = _counted(pod), Counter[str]()
        for each in store.list(POD, namespace):
            if not pod_status.is_over(each):
                used.update(_counted(each))
        for quota in quotas:
            _check_quota(pod, quota, wanted, used)
    return {**pod, "spec": {**pod["spec"], "serviceAccountName": account}}


def _check_quota(
    pod: dict[str, Any], quota: dict[str, Any], wanted: Counter[str], used: Counter[str]
) -> None:
    hard = quota.get("spec", {}).get("hard") or {}
    over = [
        name
        for name in sorted(hard)
        if wanted[name]
        and used[name] + wanted[name] > amount(name.removeprefix("requests."), hard[name])
    ]
    if over:
        limits = ",".join(f"{name}={hard[name]}" for name in over)
        raise _refusal(pod, f"exceeded quota: {quota['metadata']['name']}, limited: {limits}")


def _counted(pod: dict[str, Any]) -> Counter[str]:
    """Return how much of each quota a pod uses."""
    wanted = requests(pod["spec"])
    return Counter({**wanted, **{f"requests.{name}": each for name, each in wanted.items()}})


def _refusal(pod: dict[str, Any], why: str) -> ForbiddenError:
    meta = pod["metadata"]
    return ForbiddenError(f'pods "{meta.get("name") or meta["generateName"]}" is forbidden: {why}')
