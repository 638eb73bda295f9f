"""Pods as the options ask for them: resources, placement, volumes, security. No I/O.

Sources:
    https://kubernetes.io/docs/reference/kubernetes-api/workload-resources/pod-v1/
    https://kubernetes.io/docs/reference/labels-annotations-taints/
    https://kubernetes.io/docs/concepts/storage/volumes/
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from farcall.backends.base import JobSpec
from farcall.model.errors import SettingsError
from farcall.model.settings import Settings

_SHARED_MEMORY = "/dev/shm"  # noqa: S108  # a place in the container
_ARCHITECTURE, _INSTANCE_TYPE = "kubernetes.io/arch", "node.kubernetes.io/instance-type"
_ARCHITECTURES = {"x86_64": "amd64", "arm64": "arm64"}
_GPU = "nvidia.com/gpu"
_SCHEDULER = "volcano"


def spec(settings: Settings, *, is_command: bool = False) -> dict[str, Any]:
    """Write what a pod has beside its container and its volumes.

    Args:
        settings: The options.
        is_command: Whether its image is anybody's, made for whatever processor.

    Raises:
        SettingsError: The options contradict each other.
    """
    _check_queue(settings)
    found: dict[str, Any] = {
        "restartPolicy": "Never",
        "activeDeadlineSeconds": settings.time_limit,
        "enableServiceLinks": False,
        "serviceAccountName": settings.service_account,
        "priorityClassName": settings.priority_class,
        "schedulerName": _SCHEDULER if settings.scheduler == "volcano" else "",
        "nodeSelector": _selector(settings, is_command=is_command),
        "tolerations": settings.tolerations,
        "imagePullSecrets": [{"name": name} for name in settings.image_pull_secrets],
    }
    found = {key: value for key, value in found.items() if value not in ("", [], {})}
    # Whose rights nobody asked for, a task has no token of.
    return found if settings.service_account else {**found, "automountServiceAccountToken": False}


def resources(settings: Settings) -> dict[str, str]:
    """Write the limits of a container, which are its requests, too."""
    # No float may make one more of what is a whole number of thousandths.
    milli = math.ceil(round(settings.vcpu * 1000, 6))
    cpu = f"{milli}m" if milli % 1000 else str(milli // 1000)
    found = {"cpu": cpu, "memory": f"{math.ceil(settings.memory * 1024)}Mi"}
    return {**found, _GPU: str(settings.num_gpus)} if settings.num_gpus else found


def security(settings: Settings, given: Mapping[str, Any]) -> dict[str, Any]:
    """Write the security context of a container."""
    if not any(mount["type"] == "device" for mount in settings.mounts):
        return dict(given)
    # Kubernetes hands no device over by itself: a container that sees the node's is privileged,
    # and the API refuses that beside a ban on more privileges.
    return {
        **{key: value for key, value in given.items() if key != "allowPrivilegeEscalation"},
        "privileged": True,
    }


def volumes(
    job: JobSpec, settings: Settings, given: Iterable[Mapping[str, Any]]
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Write the volumes that the options ask for, and where the container has them.

    Args:
        job: The job.
        settings: Its options.
        given: What else is mounted into the container, which comes before theirs.

    Raises:
        SettingsError: Two of them are to be at one place, or there is no room.
    """
    found = [(f"volume-{n}", *_mount(each)) for n, each in enumerate(settings.mounts)]
    if settings.shm_size is not None:
        found.append(("shared-memory", *_shared_memory(settings)))
    places = [mounted["mountPath"].rstrip("/") for _, _, mounted in found]
    twice = next((place for place in places if places.count(place) > 1), "")
    if twice:
        raise SettingsError(
            f"mounts has {twice!r}, where something else is mounted; name another dst",
            option="mounts",
        )
    taken = {each["mountPath"] for each in given}
    found = [each for each in found if each[2]["mountPath"] not in taken]
    return (
        [{"name": name, **volume} for name, volume, _ in found],
        [{"name": name, **mounted} for name, _, mounted in found],
    )


def _mount(mount: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a member of the option ``mounts`` as a volume, and where it is mounted."""
    read_only, mounted = mount["readonly"], {"mountPath": mount["dst"]}
    if mount["type"] == "volume":
        volume: dict[str, Any] = {"persistentVolumeClaim": {"claimName": mount["src"]}}
    else:
        # Nothing tells which kind of device it is. One that is not there keeps the container from
        # being created; a wrong kind would have the pod wait for it for ever.
        volume = {"hostPath": {"path": mount["src"]}}
    if mount["type"] == "device":
        read_only = "w" not in mount["perm"]
    return volume, {**mounted, "readOnly": True} if read_only else mounted


def _shared_memory(settings: Settings) -> tuple[dict[str, Any], dict[str, Any]]:
    assert settings.shm_size is not None  # noqa: S101  # says so to the type checker
    if settings.shm_size > settings.memory:
        raise SettingsError(
            f"shm_size is {settings.shm_size:g} GiB and memory {settings.memory:g} GiB: what lies "
            "in /dev/shm counts as memory; raise memory, or ask for less",
            option="shm_size",
        )
    size = f"{math.ceil(settings.shm_size * 1024)}Mi"
    return {"emptyDir": {"medium": "Memory", "sizeLimit": size}}, {"mountPath": _SHARED_MEMORY}


def _selector(settings: Settings, *, is_command: bool) -> dict[str, str]:
    wanted = {_INSTANCE_TYPE: ("instance_type", settings.instance_type)}
    if not is_command:  # whose image is made for whatever processor it is
        wanted[_ARCHITECTURE] = ("architecture", _ARCHITECTURES[settings.architecture])
    found = dict(settings.node_selector)
    for label, (option, value) in wanted.items():
        if value and found.setdefault(label, value) != value:
            raise SettingsError(
                f"node_selector has {label} = {found[label]!r}, and {option} asks for {value!r}; "
                f"leave it out there, or set {option} to the same",
                option="node_selector",
            )
    return found


def _check_queue(settings: Settings) -> None:
    if settings.scheduler == "kueue" and not settings.queue:
        raise SettingsError(
            "scheduler is 'kueue' and queue is empty: Kueue admits the jobs of its LocalQueues "
            "alone; set queue to the name of one (kubectl get localqueues)",
            option="queue",
        )
    if settings.scheduler == "default" and settings.queue:
        raise SettingsError(
            f"queue is {settings.queue!r}, and the cluster's own scheduler has none; set "
            "scheduler to 'kueue' or 'volcano', or leave queue empty",
            option="queue",
        )
