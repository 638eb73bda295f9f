"""Failure reasons of a cluster's jobs: why a job failed, or cannot start.

Only this module, `farcall.backends.kubernetes.blocked` and
`farcall.backends.kubernetes.pending_reasons` interpret the texts of Kubernetes, Kueue and Volcano.
They explain only jobs without an outcome in the bucket, because an outcome takes precedence. No
I/O.

Sources:
    https://kubernetes.io/docs/concepts/workloads/controllers/job/
    https://kubernetes.io/docs/concepts/workloads/pods/disruptions/#pod-disruption-conditions
    https://kubernetes.io/docs/concepts/scheduling-eviction/node-pressure-eviction/
    https://kubernetes.io/docs/concepts/cluster-administration/node-shutdown/
"""

from __future__ import annotations

import re
from dataclasses import replace

from farcall.backends.failure_tables import (
    COMMAND_FAILED,
    GIVEN,
    IMAGE,
    MAP_FAILED,
    NOT_RUNNABLE,
    RESULT_MISSING,
    Row,
    Words,
    all_of,
    command_exits,
    container,
    filled,
    has_succeeded,
    row,
    status,
    task_exits,
)
from farcall.backends.kubernetes.blocked import BLOCKED, Heals, matches, row_of
from farcall.model import errors
from farcall.model.failure_reasons import MEMORY, OWN_REASON, STUCK, FailureReason
from farcall.model.jobs import JobDetail
from farcall.model.names import KUBERNETES, PLATFORMS
from farcall_runtime.contract import ENV_OWN_NODE_INDEX

LOST = "set retry_attempts to 2 or more, so that tasks run again after a node is lost"

WORDS = Words(
    credentials="set service_account to one with a role that can read s3_bucket_name, or "
    "s3_secret to a Secret with AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
    script_credentials="set s3_secret to a Secret with AWS_ACCESS_KEY_ID and "
    "AWS_SECRET_ACCESS_KEY that can read s3_bucket_name, or service_account to one with EKS Pod "
    "Identity",
    machines="the cluster's nodes",
    image="python3",
    lost=LOST,
    created_by=(
        "mounts, s3_secret and pod_overlay",
        "mounts, devices, secrets and user of the command, and pod_overlay",
    ),
    started_by=("pod_overlay", ", the command, and pod_overlay"),
)

NODE_VARIABLES = (ENV_OWN_NODE_INDEX,)
"""Variables that differ between the nodes of one group."""

_HOLLOW = ("BackoffLimitExceeded", "FailedIndexes")
"""Reasons of Jobs that only mean that the last attempt has failed."""

_INIT_CONTAINER = re.compile(r"\(init container ([^,]+), image ([^;)]+)")
_STUCK = re.compile(rf"{OWN_REASON}{STUCK}[^:]*: ")


def failure_reason(detail: JobDetail) -> FailureReason:
    """Return why a job without an outcome ended.

    Args:
        detail: A job with a final status, or the known facts about a failed attempt.

    Returns:
        The failure reason of the first matching row. If the job was terminated because it was
        blocked, the reason for that.
    """
    if detail.map_failure:  # its unfinished tasks were terminated
        return MAP_FAILED
    rows = COMMAND_ENDINGS if detail.is_command else ENDINGS
    reason = _stuck(detail) or next(row.failure_reason for row in rows if row.fits(detail))
    return explained(reason, detail)


def explained(reason: FailureReason, detail: JobDetail) -> FailureReason:
    """Return a failure reason with the job's facts, or the blocking init container's image."""
    init = _INIT_CONTAINER.search(f"{detail.status_reason}; {detail.container_reason}")
    if init is not None:
        image = f"the image {init[2]} of init container {init[1]}, which farcall does not add"
        reason = replace(reason, remedy=reason.remedy.replace(IMAGE, image))
    return filled(reason, WORDS, detail)


def _stuck(detail: JobDetail) -> FailureReason | None:
    """Return why a terminated job was blocked, from its status reason."""
    match = _STUCK.match(detail.status_reason)
    if match is None:
        return None
    trimmed = replace(
        detail, status_reason=detail.status_reason[match.end() :], container_reason=""
    )
    row = row_of(trimmed)
    if row is not None and row.heals is not Heals.OFTEN:
        return row.failure_reason
    remedy = row.failure_reason.remedy if row else "request less (vcpu, memory, num_gpus)"
    why = f": {row.failure_reason.sentence}" if row else ""
    return FailureReason(
        errors.JobStuckError,
        f"the job could not be placed for stuck_timeout_s and was terminated{why}",
        remedy,
    )


def is_hollow(reason: str) -> bool:
    """Return whether a Job's reason only means that it has failed."""
    return reason.startswith(_HOLLOW)


def _never_ran(detail: JobDetail) -> bool:
    return detail.exit_code is None and not detail.array_size


INIT_FAILED = "InitContainerFailed"
"""farcall's own reason, because the cluster has none."""

_NOT_READY = "NodeNotReady"


def node_not_ready(node: str) -> str:
    """Return farcall's own reason for a pod whose node does not respond."""
    return f"{_NOT_READY}: node {node} does not respond"


def lost_node(detail: JobDetail) -> tuple[str, str] | None:
    """Return a sentence and a remedy for a task whose node does not respond."""
    if not detail.status_reason.startswith(_NOT_READY):
        return None
    node = detail.status_reason.split()[2]
    remedy = (
        "wait for the node; if it does not return, its tasks run again after `kubectl delete node "
        f"{node}`, or `kubectl taint nodes {node} "
        "node.kubernetes.io/out-of-service=nodeshutdown:NoExecute`"
    )
    return f"node {node} does not respond, so its tasks neither finish nor run again", remedy


_NODE_GONE = FailureReason(errors.HostLostError, "the job's node was lost", LOST)

_DONE_TO_IT: tuple[Row, ...] = (
    *GIVEN,
    row(
        status("JobDeleted"),
        errors.JobCancelledError,
        "the Job was deleted",
        "find out who did (kubectl delete, or a controller that cleans up), and submit it "
        "again if needed; use farcall cancel to cancel a job and keep its record",
    ),
    row(
        status("DeadlineExceeded: Job"),
        errors.JobTimeoutError,
        "the Job has its own deadline, which farcall did not set and which has passed",
        "find out who set activeDeadlineSeconds of the Job: a user, or an admission rule",
    ),
    row(
        status("DeadlineExceeded"),
        errors.JobTimeoutError,
        "the job ran longer than time_limit, so Kubernetes terminated it",
        "raise time_limit, which begins when the node starts the pod and includes pulling "
        "the image",
    ),
    row(
        status("MaxFailedIndexesExceeded"),
        errors.JobError,
        "too many tasks of the job failed, so the others were terminated",
        "see the errors of the failed tasks, <job ID>:<index>; farcall does not set "
        "maxFailedIndexes, so find out who changed the Job",
    ),
    row(
        all_of(status("Evicted"), matches("emptydir")),
        errors.OutOfMemoryError,
        "a volume of the pod exceeded its size limit, so the pod was evicted",
        "raise shm_size, or the sizeLimit of the volume in pod_overlay",
    ),
    row(
        all_of(status("Evicted"), matches("ephemeral", "disk", "inodes", "imagefs", "nodefs")),
        errors.DiskFullError,
        "the node's disk, or the pod's share of it, was full, so the pod was evicted",
        "write less, write to a claim in mounts, or request ephemeral-storage in the "
        "resources of pod_overlay",
    ),
    row(
        status("Evicted"),
        errors.HostLostError,
        "the pod was evicted because its node ran out of a resource",
        f"{LOST}; if it is memory, other pods on the node may use more than they request",
    ),
    row(
        status("PreemptionByScheduler", "Preempted", "Preempting"),
        errors.HostLostError,
        "the pod was preempted by a pod with a higher priority",
        f"{LOST}; or set priority_class to a higher one",
    ),
    Row(
        status("DeletionByTaintManager", "NodeLost", "TaintManagerEviction", _NOT_READY),
        _NODE_GONE,
    ),
    row(status("DeletionByPodGC"), errors.HostLostError, "the job's node no longer exists", LOST),
    row(
        status("EvictionByEvictionAPI"),
        errors.HostLostError,
        "the pod was evicted, most likely because its node is being drained",
        LOST,
    ),
    row(
        status("TerminationByKubelet", "Shutdown", "NodeShutdown", "Terminated"),
        errors.HostLostError,
        "the job's node was shut down",
        LOST,
    ),
    row(
        status("UnexpectedAdmissionError", "OutOf", "NodeAffinity", "NodeName", "NodePorts"),
        errors.HostLostError,
        "the node to which the pod was assigned rejected it",
        f"{LOST}; if it happens again, check what the message names",
    ),
    row(
        all_of(status("PodFailurePolicy"), matches("has condition DisruptionTarget")),
        errors.HostLostError,
        "a node of the job was evicted, preempted or lost, so the others were terminated",
        "submit it again",
    ),
    row(
        container(INIT_FAILED),
        errors.ImageError,
        "an init container of the pod failed, so the task did not start",
        "see its log with the command in the message; farcall adds no init containers, so check "
        "pod_overlay, or ask who injects it into pods of the namespace",
    ),
    # Regardless of the exit code: 137, or 1 if only a child process was killed.
    row(
        container("OOMKilled"),
        errors.OutOfMemoryError,
        "the container ran out of memory",
        MEMORY,
    ),
    *(Row(row.fits, row.failure_reason) for row in BLOCKED),
    row(
        all_of(status("PodFailurePolicy"), lambda detail: not detail.is_command),
        errors.JobError,
        "a failure policy that fails the whole job matched a failure of one of its tasks",
        "see the task that the message names; farcall sets no such rule for maps, so find "
        "out who changed the Job",
    ),
    row(
        status("PodDeleted"),
        errors.JobCancelledError,
        "the pod was deleted while the job ran",
        "find out who did (kubectl delete pod, or a controller), and submit it again if needed",
    ),
)
"""Failure reasons from outside, by text; causes come before consequences."""

_GONE = row(
    _never_ran,
    errors.JobError,
    "the job failed, and its pods no longer exist, so the cause is unknown",
    "see its output (farcall logs), and check what deletes pods in its namespace",
)

ENDINGS: tuple[Row, ...] = (
    Row(has_succeeded, RESULT_MISSING),
    *_DONE_TO_IT,
    *task_exits(PLATFORMS[KUBERNETES], WORDS),
    _GONE,
    row(
        lambda detail: bool(detail.array_size),
        errors.JobError,
        "a task of the job failed",
        "see the errors of its tasks, <job ID>:<index>",
    ),
    row(
        lambda _: True,
        errors.JobError,
        "the job failed and stored no result in the bucket",
        "see its log; the pod may lack s3:PutObject on s3_bucket_name (service_account, "
        "s3_secret)",
    ),
)
"""Failure reasons of function jobs.

The first matching row counts, and the last always matches.
"""

COMMAND_ENDINGS: tuple[Row, ...] = (
    # Reported by the container runtime, before the container's own shell could.
    Row(
        all_of(
            matches("^(.*; )?(StartError|ContainerCannotRun|RunContainerError)"),
            matches("executable file not found", "permission denied", "no such file"),
        ),
        NOT_RUNNABLE,
    ),
    *_DONE_TO_IT,
    *command_exits(PLATFORMS[KUBERNETES], WORDS),
    _GONE,
    COMMAND_FAILED,
)
"""Failure reasons of command jobs whose command did not return 0."""
