"""Validation of a container's volumes, devices and limits at registration.

Whether a file system, a folder or a device exists is only known when a job starts. Each function
raises `ClientError` or returns nothing.

Sources:
    https://docs.aws.amazon.com/batch/latest/APIReference/API_ContainerProperties.html
    https://docs.aws.amazon.com/batch/latest/APIReference/API_EFSVolumeConfiguration.html
    https://docs.aws.amazon.com/batch/latest/APIReference/API_EFSAuthorizationConfig.html
    https://docs.aws.amazon.com/batch/latest/APIReference/API_LinuxParameters.html
    https://docs.aws.amazon.com/batch/latest/APIReference/API_Ulimit.html
"""

from __future__ import annotations

import re
from typing import Any

from farcall_local.batch.errors import ClientError

MAX_ROOT_LENGTH = 4096
MAX_PORT = 65_535
MAX_SWAPPINESS = 100

#: https://docs.aws.amazon.com/batch/latest/APIReference/API_Volume.html
_VOLUME_NAME = re.compile(r"[A-Za-z0-9_-]{1,255}")
_SWITCH = ("ENABLED", "DISABLED")
#: https://docs.aws.amazon.com/batch/latest/APIReference/API_Device.html
_PERMISSIONS = ("READ", "WRITE", "MKNOD")
_ULIMITS = (
    "core",
    "cpu",
    "data",
    "fsize",
    "locks",
    "memlock",
    "msgqueue",
    "nice",
    "nofile",
    "nproc",
    "rss",
    "rtprio",
    "rttime",
    "sigpending",
    "stack",
)


def check(properties: dict[str, Any]) -> None:
    """Check volumes, mountPoints, linuxParameters, ulimits and secrets.

    Raises:
        ClientError: They break a rule.
    """
    volumes = properties.get("volumes") or ()
    for volume in volumes:
        _volume(volume, has_job_role=bool(properties.get("jobRoleArn")))
    names = {volume["name"] for volume in volumes}
    for point in properties.get("mountPoints") or ():
        _mount_point(point, names)
    _linux(properties.get("linuxParameters") or {})
    for limit in properties.get("ulimits") or ():
        _one_of(limit["name"], _ULIMITS, "Ulimit name")
    for secret in properties.get("secrets") or ():
        if not secret["name"] or not secret["valueFrom"]:
            raise ClientError("A secret must have a name and a valueFrom.")


def _volume(volume: dict[str, Any], *, has_job_role: bool) -> None:
    name = volume.get("name") or ""
    if not _VOLUME_NAME.fullmatch(name):
        raise ClientError(
            f"Volume name {name!r} should be up to 255 letters, digits, hyphens and underscores."
        )
    efs = volume.get("efsVolumeConfiguration")
    if efs is not None:
        _efs(name, efs, has_job_role=has_job_role)


def _efs(name: str, efs: dict[str, Any], *, has_job_role: bool) -> None:
    root = efs.get("rootDirectory") or "/"
    encryption = efs.get("transitEncryption") or "DISABLED"
    authorization = efs.get("authorizationConfig") or {}
    iam = authorization.get("iam") or "DISABLED"
    if not efs["fileSystemId"]:
        raise ClientError(f"Volume {name} must have a fileSystemId.")
    if len(root) > MAX_ROOT_LENGTH:
        raise ClientError(f"rootDirectory can have at most {MAX_ROOT_LENGTH} characters.")
    _one_of(encryption, _SWITCH, "transitEncryption")
    _one_of(iam, _SWITCH, "iam")
    _within(efs.get("transitEncryptionPort"), 0, MAX_PORT, "transitEncryptionPort")
    if authorization.get("accessPointId") and root != "/":
        raise ClientError(
            f"rootDirectory of volume {name} must be omitted or / with an access point."
        )
    if (authorization.get("accessPointId") or iam == "ENABLED") and encryption != "ENABLED":
        raise ClientError(
            f"transitEncryption of volume {name} must be ENABLED with an access point or iam."
        )
    if iam == "ENABLED" and not has_job_role:
        raise ClientError(
            f"jobRoleArn must be specified, because iam of volume {name} is ENABLED."
        )


def _mount_point(point: dict[str, Any], volumes: set[str]) -> None:
    name, path = point.get("sourceVolume"), point.get("containerPath")
    if not path:
        raise ClientError(f"The mount point of volume {name!r} must have a containerPath.")
    if name not in volumes:
        raise ClientError(f"Mount point {path} has the volume {name!r}, which is not there.")


def _linux(linux: dict[str, Any]) -> None:
    for device in linux.get("devices") or ():
        if not device["hostPath"]:
            raise ClientError("A device must have a hostPath.")
        for permission in device.get("permissions") or ():
            _one_of(permission, _PERMISSIONS, "Device permission")
    for each in linux.get("tmpfs") or ():
        _within(each["size"], 1, None, "size of a tmpfs")
    _within(linux.get("sharedMemorySize"), 1, None, "sharedMemorySize")
    _within(linux.get("maxSwap"), 0, None, "maxSwap")
    _within(linux.get("swappiness"), 0, MAX_SWAPPINESS, "swappiness")


def _one_of(value: str, allowed: tuple[str, ...], what: str) -> None:
    if value not in allowed:
        raise ClientError(f"{what} {value!r} is not one of {', '.join(allowed)}.")


def _within(value: int | None, least: int, most: int | None, what: str) -> None:
    if value is None:
        return
    if value < least or (most is not None and value > most):
        bounds = f"between {least} and {most}" if most is not None else f"at least {least}"
        raise ClientError(f"{what} must be {bounds}, not {value}.")
