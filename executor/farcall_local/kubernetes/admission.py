"""Admission of pods to the local Kubernetes emulator: service accounts and quotas.

The creator of a pod is refused with Forbidden. A Job's controller records that as FailedCreate:
such a Job has no pods.

Sources:
    https://kubernetes.io/docs/reference/access-authn-authz/admission-controllers/
    https://kubernetes.io/docs/concepts/policy/resource-quotas/
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from farcall_local.kubernetes import nodes, pod_status
from farcall_local.kubernetes.errors import ForbiddenError
from farcall_local.kubernetes.kinds import POD, RESOURCE_QUOTA, SERVICE_ACCOUNT
from farcall_local.kubernetes.store import Store


def admit_pod(store: Store, pod: dict[str, Any]) -> dict[str, Any]:
    """Return a new pod as it is admitted.

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
        and used[name] + wanted[name] > nodes.amount(name.removeprefix("requests."), hard[name])
    ]
    if over:
        parts = {
            "requested": [_text(name, wanted[name]) for name in over],
            "used": [_text(name, used[name]) for name in over],
            "limited": [f"{name}={hard[name]}" for name in over],
        }
        listed = ", ".join(f"{key}: {','.join(each)}" for key, each in parts.items())
        raise _refusal(pod, f"exceeded quota: {quota['metadata']['name']}, {listed}")


def _counted(pod: dict[str, Any]) -> Counter[str]:
    """Return how much of each quota a pod uses."""
    wanted = nodes.requests(pod["spec"])
    return Counter({**wanted, **{f"requests.{name}": each for name, each in wanted.items()}})


def _text(name: str, value: int) -> str:
    if not name.endswith("cpu"):
        return f"{name}={value}"
    return f"{name}={value}m" if value % 1000 else f"{name}={value // 1000}"


def _refusal(pod: dict[str, Any], why: str) -> ForbiddenError:
    meta = pod["metadata"]
    return ForbiddenError(f'pods "{meta.get("name") or meta["generateName"]}" is forbidden: {why}')
