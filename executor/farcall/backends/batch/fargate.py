"""Fargate's sizes, and features that it lacks. No I/O."""

from __future__ import annotations

from collections.abc import Sequence

from farcall.backends import groups
from farcall.backends.base import JobSpec
from farcall.backends.batch.placement import hint
from farcall.config.settings import Settings
from farcall.model.commands import BindMount, Nodes
from farcall.model.errors import SettingsError

# Valid resources on Fargate: MiB of memory by vCPU.
# https://docs.aws.amazon.com/batch/latest/APIReference/API_ResourceRequirement.html
_SIZES: dict[float, Sequence[int]] = {
    0.25: (512, 1024, 2048),
    0.5: range(1024, 4096 + 1, 1024),
    1: range(2048, 8192 + 1, 1024),
    2: range(4096, 16384 + 1, 1024),
    4: range(8192, 30720 + 1, 1024),
    8: range(16384, 61440 + 1, 4096),
    16: range(32768, 122880 + 1, 8192),
    32: (61440, 122880, 249856),
}


def is_requested(settings: Settings) -> bool:
    """Return whether the options request Fargate."""
    return "FARGATE" in settings.job_definition_extra.get("platformCapabilities", ())


def check(job: JobSpec) -> None:
    """Reject a job on Fargate that needs an EC2 instance.

    Raises:
        SettingsError: A feature is not supported on Fargate.
    """
    if not is_requested(job.settings):
        return
    if job.is_multi_node:
        why = (
            f"{job.nodes} nodes"
            if job.nodes > 1
            else f"instance type {job.settings.instance_type}"
        )
        raise SettingsError(
            f"the job requests {why}, which Fargate does not support. Use one node without "
            "instance_type, or an EC2 queue (platformCapabilities in job_definition_extra).",
            option="nodes" if job.nodes > 1 else "instance_type",
        )
    for place, group in enumerate(job.groups):
        with groups.naming(job, place):
            _check_features(group)


def _check_features(group: Nodes) -> None:
    """Reject features that only EC2 instances support."""
    folders = [mount.source for mount in group.mounts if isinstance(mount, BindMount)]
    requested = {
        "mounts": ", ".join(folders),
        "devices": ", ".join(device.source for device in group.devices),
        "shm_size": group.shm_size,
        "ulimits": ", ".join(limit.name for limit in group.ulimits),
        "privileged": group.privileged,
    }
    for option, value in requested.items():
        if value:
            raise SettingsError(
                f"{option} is {value}, which Fargate does not support. Remove it, or run on "
                "EC2 (platformCapabilities in job_definition_extra).",
                option=option,
            )


def memory_mib(settings: Settings, mib: int) -> int:
    """Round a task's memory up to a valid value on Fargate.

    Raises:
        SettingsError: The option vcpu, memory or num_gpus is invalid there.
    """
    if settings.num_gpus:
        raise SettingsError(
            f"num_gpus={settings.num_gpus} is not supported on Fargate, which has no GPUs; set "
            "num_gpus to 0",
            option="num_gpus",
        )
    if settings.vcpu not in _SIZES:
        allowed = ", ".join(f"{vcpu:g}" for vcpu in _SIZES)
        raise SettingsError(
            f"vcpu={settings.vcpu:g} is not supported on Fargate; use one of {allowed}",
            option="vcpu",
        )
    allowed_mib = _SIZES[settings.vcpu]
    for step in allowed_mib:
        if step >= mib:
            return step
    raise SettingsError(
        f"memory={settings.memory:g} GiB is not supported on Fargate with {settings.vcpu:g} "
        f"vCPU, which allows at most {allowed_mib[-1] / 1024:g} GiB; raise vcpu, or reduce "
        f"memory{hint(settings)}",
        option="memory",
    )
