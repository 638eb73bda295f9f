"""Placement limits: what EC2 and Fargate could ever run. No I/O.

Batch accepts a job that exceeds the vCPUs of each compute environment, and lets it wait forever.
This module rejects such jobs. For a job that fits on no instance type, Batch itself reports
``JOB_RESOURCE_REQUIREMENT`` while the job waits.

Source:
    https://docs.aws.amazon.com/batch/latest/userguide/job_stuck_in_runnable.html
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from farcall.config.settings import Settings
from farcall.model.errors import SettingsError

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
    limits = [limit(environment, settings, nodes) for environment in environments]
    if limits and all(limits):
        names = [environment["computeEnvironmentName"] for environment in environments]
        reasons = "; ".join(f"{name} {reason}" for name, reason in zip(names, limits, strict=True))
        raise SettingsError(
            f"vcpu is {settings.vcpu:g}, so a job in queue {settings.queue!r} would wait "
            f"indefinitely: {reasons}; raise maxvCpus, reduce vcpu or nodes, or set queue to "
            "another queue",
            option="vcpu",
        )


def limit(environment: Mapping[str, Any], settings: Settings, nodes: int = 1) -> str:
    """Return the limit of a compute environment that a job exceeds; empty if there is none.

    Args:
        environment: Batch's description. An unmanaged environment has no known limit.
        settings: The options; resources are those of a node.
        nodes: Number of the job's nodes.
    """
    most = (environment.get("computeResources") or {}).get("maxvCpus")
    if environment.get("type") == "UNMANAGED" or most is None or most >= settings.vcpu * nodes:
        return ""
    return f"has at most {most} vCPUs" + (f" on {nodes} nodes" if nodes > 1 else "")


def hint(settings: Settings) -> str:
    """Return the corrected value if memory looks like MiB; otherwise empty."""
    if settings.memory < _LIKELY_MIB:
        return ""
    wanted = settings.memory / 1024
    return f" (memory is in GiB: {settings.memory:g} MiB is memory={wanted:g})"
