"""Conversion of containerProperties to Docker's HostConfig. No I/O.

Sources:
    https://docs.aws.amazon.com/batch/latest/APIReference/API_ContainerProperties.html
    https://docs.aws.amazon.com/batch/latest/APIReference/API_LinuxParameters.html
    https://docs.docker.com/reference/api/engine/version/v1.41/#tag/Container/operation/ContainerCreate
"""

from __future__ import annotations

from typing import Any

from farcall_local.batch.containers import Resources
from farcall_local.runners.runner import StartError

_MIB = 1024 * 1024
_PERMISSIONS = ("READ", "WRITE", "MKNOD")


def host_config(container: dict[str, Any], resources: Resources, cpus: int) -> dict[str, Any]:
    """Build a container's HostConfig.

    Args:
        container: containerProperties.
        resources: Resources of the attempt.
        cpus: Number of the machine's processors, Docker's maximum for a limit. On EC2 a vCPU is a
            share of the instance; here it is a limit, so that a job gets only what it requests.

    Raises:
        StartError: The definition requires something that this machine lacks.
    """
    linux = container.get("linuxParameters") or {}
    memory = resources.memory_mib * _MIB
    config: dict[str, Any] = {
        "NetworkMode": "host",
        # The output is read from the connection; Docker need not store it, too.
        "LogConfig": {"Type": "none", "Config": {}},
        "NanoCpus": int(min(resources.vcpus, cpus) * 1e9),
        "Memory": memory,
        # Memory and swap together. AWS's images for ECS instances have no swap space.
        "MemorySwap": memory + linux.get("maxSwap", 0) * _MIB,
        "Mounts": _mounts(container),
        "Privileged": container.get("privileged", False),
        "ReadonlyRootfs": container.get("readonlyRootFilesystem", False),
        "Ulimits": [
            {"Name": limit["name"], "Soft": limit["softLimit"], "Hard": limit["hardLimit"]}
            for limit in container.get("ulimits") or ()
        ],
        **_linux(linux),
    }
    if resources.gpus:
        config["DeviceRequests"] = [{"Count": resources.gpus, "Capabilities": [["gpu"]]}]
    return config


def refuse_secrets(container: dict[str, Any]) -> None:
    """Reject a container with secrets.

    Raises:
        StartError: The definition names secrets.
    """
    names = ", ".join(each["name"] for each in container.get("secrets") or ())
    if names:
        raise StartError(
            f"ResourceInitializationError: unable to pull secrets ({names}): the local AWS "
            "emulator has no Secrets Manager and no Parameter Store. Use the option environment "
            "here"
        )


def folders(container: dict[str, Any]) -> dict[str, str]:
    """Return the local paths of a container's mount points, by path in the container."""
    volumes = {each.get("name"): each.get("host") or {} for each in container.get("volumes") or ()}
    points = container.get("mountPoints") or ()
    shown = {each["containerPath"]: volumes.get(each.get("sourceVolume"), {}) for each in points}
    return {path: host["sourcePath"] for path, host in shown.items() if host.get("sourcePath")}


def bind(source: str, target: str, *, read_only: bool = True) -> dict[str, Any]:
    """Build a bind mount of a path of this machine."""
    return {"Type": "bind", "Source": source, "Target": target, "ReadOnly": read_only}


def _linux(linux: dict[str, Any]) -> dict[str, Any]:
    config: dict[str, Any] = {"Init": linux.get("initProcessEnabled", False)}
    if "swappiness" in linux:
        config["MemorySwappiness"] = linux["swappiness"]
    if linux.get("sharedMemorySize"):
        config["ShmSize"] = linux["sharedMemorySize"] * _MIB
    config["Tmpfs"] = {
        item["containerPath"]: ",".join([*item.get("mountOptions", ()), f"size={item['size']}m"])
        for item in linux.get("tmpfs") or ()
    }
    config["Devices"] = [
        {
            "PathOnHost": item["hostPath"],
            "PathInContainer": item.get("containerPath") or item["hostPath"],
            "CgroupPermissions": "".join(
                permission[0].lower() for permission in item.get("permissions") or _PERMISSIONS
            ),
        }
        for item in linux.get("devices") or ()
    ]
    return config


def _mounts(container: dict[str, Any]) -> list[dict[str, Any]]:
    volumes = {volume.get("name"): volume for volume in container.get("volumes") or ()}
    return [_mount(point, volumes) for point in container.get("mountPoints") or ()]


def _mount(point: dict[str, Any], volumes: dict[str | None, dict[str, Any]]) -> dict[str, Any]:
    volume = volumes.get(point.get("sourceVolume"), {})
    read_only = point.get("readOnly", False)
    for kind in ("efsVolumeConfiguration", "s3filesVolumeConfiguration"):
        if kind in volume:
            raise StartError(
                f"ResourceInitializationError: farcall's local AWS emulator has no {kind}"
            )
    source = (volume.get("host") or {}).get("sourcePath")
    if source:
        return bind(source, point["containerPath"], read_only=read_only)
    # Without a source, Docker creates a volume, which is deleted with the container.
    return {"Type": "volume", "Target": point["containerPath"], "ReadOnly": read_only}
