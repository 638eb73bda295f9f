"""Admission of pods to the local Kubernetes emulator: service accounts, priorities and quotas.

Who makes a pod is refused with Forbidden, and a Job's controller tells that as FailedCreate: such
a Job has no pod at all.

Sources:
    https://kubernetes.io/docs/reference/access-authn-authz/admission-controllers/
    https://kubernetes.io/docs/concepts/policy/resource-quotas/
"""

from __future__ import annotations

from typing import Any

from farcall_local.kubernetes import nodes
from farcall_local.kubernetes.errors import ForbiddenError
from farcall_local.kubernetes.kinds import POD, PRIORITY_CLASS, RESOURCE_QUOTA, SERVICE_ACCOUNT
from farcall_local.kubernetes.store import Store

DEFAULT_ACCOUNT = "default"

#: Priorities that every cluster has.
SYSTEM_PRIORITIES = {
    "system-cluster-critical": 2_000_000_000,
    "system-node-critical": 2_000_001_000,
}


def admit_pod(store: Store, pod: dict[str, Any]) -> dict[str, Any]:
    """Return a new pod as it is admitted.

    Raises:
        ForbiddenError: It is not.
    """
    spec = pod["spec"]
    spec = {"serviceAccountName": DEFAULT_ACCOUNT, **spec, "priority": _priority(store, pod)}
    _check_account(store, pod, spec["serviceAccountName"] or DEFAULT_ACCOUNT)
    _check_quotas(store, pod)
    return {**pod, "spec": spec}


def _refusal(pod: dict[str, Any], why: str) -> ForbiddenError:
    meta = pod["metadata"]
    return ForbiddenError(f'pods "{meta.get("name") or meta["generateName"]}" is forbidden: {why}')


def _priority(store: Store, pod: dict[str, Any]) -> int:
    name = pod["spec"].get("priorityClassName")
    if not name:
        return 0
    if name in SYSTEM_PRIORITIES:
        return SYSTEM_PRIORITIES[name]
    found = store.get(PRIORITY_CLASS, "", name)
    if found is None:
        raise _refusal(pod, f"no PriorityClass with name {name} was found")
    return int(found["value"])


def _check_account(store: Store, pod: dict[str, Any], name: str) -> None:
    namespace = pod["metadata"]["namespace"]
    # The account that each namespace has by itself is there soon after the namespace.
    if name != DEFAULT_ACCOUNT and store.get(SERVICE_ACCOUNT, namespace, name) is None:
        raise _refusal(
            pod,
            f"error looking up service account {namespace}/{name}: "
            f'serviceaccount "{name}" not found',
        )


def _check_quotas(store: Store, pod: dict[str, Any]) -> None:
    quotas = store.list(RESOURCE_QUOTA, pod["metadata"]["namespace"])
    if not quotas:
        return
    wanted = _counted(pod)
    used = _used(store, pod["metadata"]["namespace"])
    for quota in quotas:
        _check_quota(pod, quota, wanted, used)


def _check_quota(
    pod: dict[str, Any], quota: dict[str, Any], wanted: dict[str, int], used: dict[str, int]
) -> None:
    name, hard = quota["metadata"]["name"], quota.get("spec", {}).get("hard") or {}
    limits = {each: nodes.amount(_resource(each), value) for each, value in hard.items()}
    unsaid = sorted(each for each in limits if _is_compute(each) and each not in wanted)
    if unsaid:
        said = "; ".join(f"{each} for: {_containers(pod)}" for each in unsaid)
        raise _refusal(pod, f"failed quota: {name}: must specify {said}")
    over = sorted(
        each
        for each, most in limits.items()
        if each in wanted and used.get(each, 0) + wanted[each] > most
    )
    if over:
        parts = {
            "requested": ",".join(f"{each}={_text(each, wanted[each])}" for each in over),
            "used": ",".join(f"{each}={_text(each, used.get(each, 0))}" for each in over),
            "limited": ",".join(f"{each}={hard[each]}" for each in over),
        }
        told = ", ".join(f"{key}: {value}" for key, value in parts.items())
        raise _refusal(pod, f"exceeded quota: {name}, {told}")


def _used(store: Store, namespace: str) -> dict[str, int]:
    """Return what counts of a namespace: pods that have not ended."""
    found: dict[str, int] = {}
    for pod in store.list(POD, namespace):
        if (pod.get("status") or {}).get("phase") not in ("Succeeded", "Failed"):
            for name, value in _counted(pod).items():
                found[name] = found.get(name, 0) + value
    return found


def _counted(pod: dict[str, Any]) -> dict[str, int]:
    """Return what a pod counts for, by a quota's names."""
    found: dict[str, int] = {"pods": 1, "count/pods": 1}
    for name, value in nodes.requests(pod["spec"]).items():
        if name != "pods":
            found[f"requests.{name}"] = found[name] = value
    for container in pod["spec"]["containers"]:
        limits = nodes.amounts((container.get("resources") or {}).get("limits"))
        for name, value in limits.items():
            found[f"limits.{name}"] = found.get(f"limits.{name}", 0) + value
    return found


def _resource(name: str) -> str:
    return name.removeprefix("requests.").removeprefix("limits.")


def _is_compute(name: str) -> bool:
    return _resource(name) in ("cpu", "memory")


def _containers(pod: dict[str, Any]) -> str:
    return ",".join(each["name"] for each in pod["spec"]["containers"])


def _text(name: str, value: int) -> str:
    if _resource(name) != "cpu":
        return str(value)
    return f"{value}m" if value % 1000 else str(value // 1000)
