"""Blocked jobs: why Batch cannot place a job. No I/O."""

from __future__ import annotations

from farcall.model.jobs import JobDetail, JobStatus

_WORDS = ("MISCONFIGURATION:", "CAPACITY:", "ACTION_REQUIRED", "UNDETERMINED")

REMEDIES = {
    "INSUFFICIENT_INSTANCE_CAPACITY": (
        "wait, or set queue to one whose compute environment has more instance types, more "
        "subnets or on-demand capacity"
    ),
    "COMPUTE_ENVIRONMENT_MAX_RESOURCE": (
        "request less (vcpu, memory, num_gpus), or raise the maximum vCPUs (maxvCpus) of the "
        "queue's compute environment"
    ),
    "JOB_RESOURCE_REQUIREMENT": (
        "request less (vcpu, memory, num_gpus), or set queue to one with larger instances; an "
        "instance offers a few hundred MiB less memory than its type has"
    ),
    "EC2_INSTANCE_CONFIGURATION_UNSUPPORTED": (
        "change the instance types of the queue's compute environment: none of them is "
        "available in its subnets"
    ),
    "SERVICE_ROLE_PERMISSIONS": (
        "attach the policy AWSBatchServiceRole to the service role of the queue's compute "
        "environment"
    ),
    "ACTION_REQUIRED": (
        "repair the queue's compute environments, which are invalid; see the statusReason of each"
    ),
    "MISCONFIGURATION:": (
        "change what Batch names in the queue's compute environment, or request less (vcpu, "
        "memory, num_gpus)"
    ),
    "CAPACITY:": "wait, or set queue to one whose compute environment has other capacity",
    "UNDETERMINED": (
        "check that the queue's compute environment is ENABLED and VALID, that its instances "
        "can reach ECS, and that vcpu, memory and num_gpus fit into one of them"
    ),
}
"""Remedies by a text in Batch's reason; specific texts come before general ones."""


def is_blocked(detail: JobDetail) -> bool:
    """Return whether Batch reports that it cannot place a job at present."""
    return detail.status is JobStatus.RUNNABLE and detail.status_reason.startswith(_WORDS)


def remedy(reason: str) -> str:
    """Return the remedy for a job that Batch cannot place.

    Args:
        reason: A text that contains Batch's reason.

    Returns:
        The remedy; empty if the text contains no known reason.
    """
    return next((text for word, text in REMEDIES.items() if word in reason), "")
