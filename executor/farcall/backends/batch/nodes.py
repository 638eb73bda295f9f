"""Node groups: containers of command jobs, properties of multi-node jobs. No I/O.

Groups that Batch would refuse are rejected here; the error names the group and the field.

Sources:
    https://docs.aws.amazon.com/batch/latest/APIReference/API_NodeProperties.html
    https://docs.aws.amazon.com/batch/latest/APIReference/API_ContainerProperties.html
    https://docs.aws.amazon.com/batch/latest/userguide/multi-node-parallel-jobs.html
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

from farcall.backends import groups
from farcall.backends.base import JobSpec
from farcall.backends.groups import check_each, is_whole, naming, wrong
from farcall.config.settings import Settings
from farcall.model.commands import (
    BindMount,
    ClaimMount,
    Device,
    EfsMount,
    Mount,
    Nodes,
    Ulimit,
)
from farcall.model.errors import SettingsError

MOST_NODES, MOST_GROUPS = 1000, 5

_PERMISSIONS = {"r": "READ", "w": "WRITE", "m": "MKNOD"}
_RESERVED = "AWS_BATCH"
"""Prefix of variables that Batch refuses.

https://docs.aws.amazon.com/batch/latest/APIReference/API_ContainerProperties.html
"""

_ULIMITS = (
    *("core", "cpu", "data", "fsize", "locks", "memlock", "msgqueue", "nice", "nofile", "nproc"),
    *("rss", "rtprio", "rttime", "sigpending", "stack"),
)
"""https://docs.aws.amazon.com/batch/latest/APIReference/API_Ulimit.html"""

_EXECUTION_ROLE = "batch_execution_role_name"

_FILE_SYSTEM = re.compile(r"fs-[0-9a-f]{8,40}")
_ACCESS_POINT = re.compile(r"fsap-[0-9a-f]{8,40}")


def check(job: JobSpec) -> None:
    """Check that Batch accepts a job's groups.

    Raises:
        SettingsError: A group is invalid.
    """
    if len(job.groups) > MOST_GROUPS:
        raise SettingsError(
            f"the job has {len(job.groups)} groups of nodes, but Batch supports at most "
            f"{MOST_GROUPS}. Merge groups that run the same command, or submit several jobs.",
            option="groups",
        )
    for place, group in enumerate(job.groups):
        with naming(job, place):
            _check_group(group)
            _check_roles(job.settings, group.mounts, group.secrets)
    if not job.groups:
        _check_roles(job.settings, (), job.settings.secrets)
    if job.nodes > MOST_NODES:
        raise SettingsError(
            f"the job has {job.nodes} nodes, but Batch supports at most {MOST_NODES}. Request "
            "fewer nodes.",
            option="nodes",
        )


def container(group: Nodes) -> dict[str, Any]:
    """Return the container fields of a group that SubmitJob does not override."""
    names = [f"mount-{number}" for number in range(len(group.mounts))]
    pairs = list(zip(names, group.mounts, strict=True))
    shared_mib = None if group.shm_size is None else math.ceil(group.shm_size * 1024)
    linux = {"devices": list(map(_device, group.devices)), "sharedMemorySize": shared_mib}
    fields = {
        "image": group.image,
        "volumes": [_volume(name, mount) for name, mount in pairs],
        "mountPoints": [
            {"sourceVolume": name, "containerPath": mount.path, "readOnly": mount.read_only}
            for name, mount in pairs
        ],
        "linuxParameters": {key: value for key, value in linux.items() if value},
        "ulimits": [
            {"name": limit.name, "softLimit": limit.soft, "hardLimit": limit.hard}
            for limit in group.ulimits
        ],
        "secrets": secrets(group.secrets),
        "privileged": group.privileged,
        "user": group.user,
    }
    return {key: value for key, value in fields.items() if value}


def secrets(places: Mapping[str, str]) -> list[dict[str, str]]:
    """Return the secrets of a container, sorted by name."""
    return [{"name": name, "valueFrom": places[name]} for name in sorted(places)]


def properties(job: JobSpec, containers: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return nodeProperties.

    Args:
        job: The job.
        containers: The container of each group; without groups, the task runner's.
    """
    type_ = job.settings.instance_type
    ranges = [
        {
            "targetNodes": target,
            "container": each,
            **({"instanceTypes": [type_]} if type_ else {}),
        }
        for target, each in zip(_targets(job), containers, strict=True)
    ]
    return {"numNodes": job.nodes, "mainNode": 0, "nodeRangeProperties": ranges}


def overrides(job: JobSpec, each: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return nodeOverrides for the container overrides of each group."""
    return {
        "nodePropertyOverrides": [
            {"targetNodes": target, "containerOverrides": one}
            for target, one in zip(_targets(job), each, strict=True)
        ]
    }


def _targets(job: JobSpec) -> list[str]:
    counts = [group.count for group in job.groups] or [job.nodes]
    ends = list(accumulate(counts))
    return [f"{end - count}:{end - 1}" for count, end in zip(counts, ends, strict=True)]


def _check_group(group: Nodes) -> None:
    groups.check(group)
    for what, variables in (("env", group.env), ("secrets", group.secrets)):
        taken = next((name for name in variables if name.startswith(_RESERVED)), None)
        if taken is not None:
            raise wrong(what, taken, f"Batch reserves names that begin with {_RESERVED}")
    check_each(_check_mount, group.mounts)
    check_each(_check_ulimit, group.ulimits)


def _check_roles(settings: Settings, mounts: Sequence[Mount], secrets: Mapping[str, str]) -> None:
    """Reject features that need a role on Batch, if the options do not name one."""
    extra = settings.job_definition_extra.get("containerProperties", {})
    points = [mount.access_point for mount in mounts if isinstance(mount, EfsMount)]
    for option, value, role, name in (
        ("mounts", "".join(points[:1]), "jobRoleArn", "batch_job_role_name"),
        ("secrets", "".join(list(secrets)[:1]), "executionRoleArn", _EXECUTION_ROLE),
    ):
        if value and not (getattr(settings, name) or extra.get(role)):
            raise SettingsError(
                f"{option} has {value!r}, which requires a role on Batch. Set {name}.",
                option=option,
            )


def _check_ulimit(limit: Ulimit) -> None:
    if limit.name not in _ULIMITS:
        raise wrong("ulimits", limit.name, f"Batch supports {', '.join(_ULIMITS)}")
    if not (is_whole(limit.soft) and is_whole(limit.hard)):
        raise wrong("ulimits", limit, "use two whole numbers")
    if 0 <= limit.hard < limit.soft:
        raise wrong("ulimits", limit, "the soft limit must not exceed the hard limit")


def _check_mount(mount: Mount) -> None:
    if isinstance(mount, EfsMount):
        _check_efs(mount)
    elif isinstance(mount, ClaimMount):
        raise wrong(
            "mounts", mount.claim, "Batch does not support claims. Use an EfsMount, or Kubernetes."
        )
    elif not mount.source.startswith("/"):
        raise wrong(
            "mounts", mount.source, "use an absolute path on the instance, beginning with /"
        )


def _check_efs(mount: EfsMount) -> None:
    if not _FILE_SYSTEM.fullmatch(mount.file_system):
        raise wrong("mounts", mount.file_system, "the ID of an EFS file system begins with fs-")
    if mount.access_point and not _ACCESS_POINT.fullmatch(mount.access_point):
        raise wrong("mounts", mount.access_point, "the ID of an access point begins with fsap-")
    if mount.access_point and mount.root != "/":
        raise wrong("mounts", mount.root, "an access point has its own root. Remove root.")
    if not mount.root.startswith("/"):
        raise wrong(
            "mounts", mount.root, "use an absolute path in the file system, beginning with /"
        )


def _volume(name: str, mount: Mount) -> dict[str, Any]:
    if isinstance(mount, BindMount):
        return {"name": name, "host": {"sourcePath": mount.source}}
    assert isinstance(mount, EfsMount)  # noqa: S101  # for the type checker
    return {"name": name, "efsVolumeConfiguration": _efs(mount)}


def _efs(mount: EfsMount) -> dict[str, Any]:
    configuration: dict[str, Any] = {
        "fileSystemId": mount.file_system,
        "transitEncryption": "ENABLED",
    }
    if mount.access_point:
        configuration["authorizationConfig"] = {
            "accessPointId": mount.access_point,
            "iam": "ENABLED",
        }
    else:
        configuration["rootDirectory"] = mount.root
    return configuration


def _device(device: Device) -> dict[str, Any]:
    return {
        "hostPath": device.source,
        "containerPath": device.path or device.source,
        "permissions": [_PERMISSIONS[letter] for letter in "rwm" if letter in device.permissions],
    }
