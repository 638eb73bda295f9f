"""Placement limits: what EC2 and Fargate could ever run. No I/O.

Batch accepts a job that fits nowhere, and lets it wait forever. This module rejects such jobs if
that is certain: the capacity of unmanaged environments, and of unknown instance types, is not
known.

Sources:
    https://docs.aws.amazon.com/batch/latest/userguide/job_stuck_in_runnable.html
    https://aws.amazon.com/ec2/instance-types/
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from farcall.backends import groups
from farcall.backends.base import JobSpec
from farcall.config.settings import Settings
from farcall.model.commands import BindMount, Nodes
from farcall.model.errors import SettingsError


class Misfit(NamedTuple):
    """The reason that a compute environment cannot run a job.

    Attributes:
        option: The option whose value is too large.
        reason: The environment's limit.
        remedy: The remedy.
    """

    option: str
    reason: str
    remedy: str


class _Most(NamedTuple):
    """An instance's maximum resources; None if unknown."""

    vcpus: int | None
    memory_gb: int | None
    gpus: int | None


_UNKNOWN = _Most(None, None, None)

_FAMILY = re.compile(r"([a-z]+)(\d)[a-z0-9-]*")
_LARGEST = {4: 16, 5: 24, 6: 48, 7: 48, 8: 96}
"""Largest ``<n>xlarge`` of the families c, m and r, by generation."""

_XLARGE_VCPUS, _MORE_VCPUS = 4, 4
"""vCPUs of ``xlarge``, and the additional vCPUs of some larger sizes.

The number is multiplied in larger sizes; some, such as ``c4.8xlarge``, have four more.
"""

_XLARGE_GB = {"c": 8, "m": 16, "r": 32}
_MORE_MEMORY = "c5n"

_WITHOUT_GPUS = {"a", "c", "d", "h", "hpc", "i", "im", "is", "m", "r", "t", "u", "x", "z"}
_MOST_GPUS = {"p2": 16, "p3": 8, "p4": 8, "p5": 8, "g3": 4, "g4": 8, "g5": 8, "g6": 8}

_GENERAL = ("optimal", "default_x86_64", "default_arm64")
"""Names for families c, m and r of several generations."""

_LIKELY_MIB = 512


def check(environments: Sequence[Mapping[str, Any]], settings: Settings, nodes: int = 1) -> None:
    """Reject a job that no compute environment of a queue could ever run.

    Args:
        environments: Batch's descriptions of all environments of the queue; empty if unknown.
        settings: The options; resources are those of a node.
        nodes: Number of the job's nodes.

    Raises:
        SettingsError: No environment could run the job.
    """
    misfits = []
    for environment in environments:
        found = misfit(environment, settings, nodes)
        if found is None:
            return
        misfits.append((environment["computeEnvironmentName"], found))
    if misfits:
        option, _, remedy = misfits[0][1]
        reasons = "; ".join(f"{name} {found.reason}" for name, found in misfits)
        value = getattr(settings, option)
        raise SettingsError(
            f"{option} is {value if isinstance(value, str) else format(value, 'g')}, so a job "
            f"in queue {settings.queue!r} would wait indefinitely: {reasons}; {remedy}, or set "
            "queue to another queue",
            option=option,
        )


def doubt(environments: Sequence[Mapping[str, Any]], settings: Settings) -> str:
    """Return a warning if memory looks like MiB and may be too large; otherwise empty.

    Args:
        environments: All environments of the queue; empty if unknown.
        settings: The options.
    """
    endless = settings.model_copy(update={"memory": math.inf})
    if environments and all(misfit(each, endless) for each in environments):
        return ""
    return f"memory is {settings.memory:g} GiB{hint(settings)}" if hint(settings) else ""


def misfit(environment: Mapping[str, Any], settings: Settings, nodes: int = 1) -> Misfit | None:
    """Return why a compute environment can never run a job; None if it may.

    Args:
        environment: Batch's description.
        settings: The options; resources are those of a node.
        nodes: Number of the job's nodes.
    """
    resources = environment.get("computeResources") or {}
    if environment.get("type") == "UNMANAGED" or not resources:
        return None
    most = resources.get("maxvCpus")
    if most is not None and most < settings.vcpu * nodes:
        whole = f" on {nodes} nodes" if nodes > 1 else ""
        remedy = f"raise maxvCpus, or reduce vcpu{' or nodes' if whole else ''}"
        return Misfit("vcpu", f"has at most {most} vCPUs{whole}", remedy)
    if str(resources.get("type", "")).startswith("FARGATE"):  # checked elsewhere
        return None
    types = [settings.instance_type] if settings.instance_type else resources.get("instanceTypes")
    return _misfit_of(list(map(_most, types or ["unknown"])), settings)


def _misfit_of(types: list[_Most], settings: Settings) -> Misfit | None:
    wanted = {"vcpu": settings.vcpu, "memory": settings.memory, "num_gpus": settings.num_gpus}
    each = dict(zip(wanted, zip(*types, strict=True), strict=True))
    for option, amount in wanted.items():
        known = [most for most in each[option] if most is not None]
        if len(known) < len(types):
            continue
        largest = max(known)
        if option == "num_gpus" and amount > largest:
            reason = f"has instances with {f'at most {largest}' if largest else 'no'} GPUs"
            return Misfit(option, reason, "reduce num_gpus to a supported number")
        if option == "vcpu" and amount > largest:
            reason = f"has instances with at most {largest} vCPUs"
            return Misfit(option, reason, "reduce vcpu")
        if option == "memory" and amount >= largest:  # the system uses some of it
            reason = f"has instances with less than {largest} GiB for jobs"
            return Misfit(option, reason, f"reduce memory{hint(settings)}")
    return None


def hint(settings: Settings) -> str:
    """Return the corrected value if memory looks like MiB; otherwise empty."""
    if settings.memory < _LIKELY_MIB:
        return ""
    wanted = settings.memory / 1024
    return f" (memory is in GiB: {settings.memory:g} MiB is memory={wanted:g})"


def _most(kind: str) -> _Most:
    """Return the maximum resources of an instance type, family or group of families."""
    if kind in _GENERAL:
        most = max(_LARGEST.values())
        return _Most(most * _XLARGE_VCPUS, most * max(_XLARGE_GB.values()), 0)
    family, _, size = kind.partition(".")
    found = _FAMILY.fullmatch(family)
    if found is None:
        return _UNKNOWN
    letters, generation = found[1], int(found[2])
    gpus = 0 if letters in _WITHOUT_GPUS else _MOST_GPUS.get(f"{letters}{generation}")
    xlarges = _xlarges(size, generation)
    if letters not in _XLARGE_GB or generation not in _LARGEST or xlarges is None:
        return _Most(None, None, gpus)
    memory = None if family == _MORE_MEMORY else xlarges * _XLARGE_GB[letters]
    return _Most(xlarges * _XLARGE_VCPUS + _MORE_VCPUS, memory, gpus)


def _xlarges(size: str, generation: int) -> int | None:
    """Return an instance's maximum number of ``xlarge`` units; None if unknown."""
    if not size or size.startswith("metal"):
        return _LARGEST.get(generation)
    found = re.fullmatch(r"(\d*)x?large|medium|small|micro|nano", size)
    return int(found[1] or 1) if found else None


# --- Fargate ------------------------------------------------------------------------------------


# Valid resources on Fargate: MiB of memory by vCPU.
# https://docs.aws.amazon.com/batch/latest/APIReference/API_ResourceRequirement.html
_FARGATE: dict[float, Sequence[int]] = {
    0.25: (512, 1024, 2048),
    0.5: range(1024, 4096 + 1, 1024),
    1: range(2048, 8192 + 1, 1024),
    2: range(4096, 16384 + 1, 1024),
    4: range(8192, 30720 + 1, 1024),
    8: range(16384, 61440 + 1, 4096),
    16: range(32768, 122880 + 1, 8192),
    32: (61440, 122880, 249856),
}


def runs_on_fargate(settings: Settings) -> bool:
    """Return whether the options request Fargate."""
    return "FARGATE" in settings.job_definition_extra.get("platformCapabilities", ())


def check_fargate(job: JobSpec) -> None:
    """Reject a job on Fargate that needs an EC2 instance.

    Raises:
        SettingsError: A feature is not supported on Fargate.
    """
    if not runs_on_fargate(job.settings):
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
    for option, found in requested.items():
        if found:
            raise SettingsError(
                f"{option} is {found}, which Fargate does not support. Remove it, or run on "
                "EC2 (platformCapabilities in job_definition_extra).",
                option=option,
            )


def fargate_memory_mib(settings: Settings, mib: int) -> int:
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
    if settings.vcpu not in _FARGATE:
        allowed = ", ".join(f"{vcpu:g}" for vcpu in _FARGATE)
        raise SettingsError(
            f"vcpu={settings.vcpu:g} is not supported on Fargate; use one of {allowed}",
            option="vcpu",
        )
    allowed_mib = _FARGATE[settings.vcpu]
    for step in allowed_mib:
        if step >= mib:
            return step
    raise SettingsError(
        f"memory={settings.memory:g} GiB is not supported on Fargate with {settings.vcpu:g} "
        f"vCPU, which allows at most {allowed_mib[-1] / 1024:g} GiB; raise vcpu, or reduce "
        f"memory{hint(settings)}",
        option="memory",
    )
