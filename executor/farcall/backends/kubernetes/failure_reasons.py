"""Failure reasons of a cluster's jobs: why a job failed, or cannot start.

No other module interprets the texts of Kubernetes, Kueue and Volcano. It explains only jobs
without
an outcome in the bucket, because an outcome takes precedence. No I/O.

Sources:
    https://kubernetes.io/docs/concepts/workloads/controllers/job/
    https://kubernetes.io/docs/concepts/workloads/pods/disruptions/#pod-disruption-conditions
    https://kubernetes.io/docs/concepts/scheduling-eviction/node-pressure-eviction/
    https://kubernetes.io/docs/concepts/cluster-administration/node-shutdown/
"""

from __future__ import annotations

import enum
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from farcall.backends.failure_tables import (
    COMMAND_FAILED,
    CREATED_BY,
    GIVEN,
    IMAGE,
    MAP_FAILED,
    NOT_RUNNABLE,
    RESULT_MISSING,
    STARTED_BY,
    Fits,
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
from farcall.model import errors
from farcall.model.failure_reasons import MEMORY, OWN_REASON, STUCK, FailureReason
from farcall.model.jobs import JobDetail, JobStatus
from farcall.model.names import KUBERNETES, PLATFORMS
from farcall_runtime.contract import ENV_OWN_NODE_INDEX

# --- Blocked jobs: why a pod is not created, placed or started, and for how long. No I/O
#
# Some reasons pass by themselves: a full cluster gets capacity or nodes, a registry responds
# again. Others never pass, and a pod waits forever anyway. So each row determines how long farcall
# waits: for ``stuck_timeout_s``, for as long as such problems take to pass, or hardly at all.
#
# Sources:
#     https://kubernetes.io/docs/concepts/containers/images/
#     https://kubernetes.io/docs/tasks/debug/debug-application/debug-pods/
#     https://kubernetes.io/docs/concepts/policy/resource-quotas/
#     https://kueue.sigs.k8s.io/docs/tasks/troubleshooting/troubleshooting_jobs/


class Heals(enum.Enum):
    """Whether the reason that blocks a job passes by itself.

    OFTEN: It passes when the cluster has capacity. Only ``stuck_timeout_s`` ends the job.
    SOMETIMES: It may pass within minutes; see `Timing.pull_dwell_s`.
    NEVER: A user has to change something; see `Timing.start_dwell_s`.
    """

    OFTEN = "often"
    SOMETIMES = "sometimes"
    NEVER = "never"


class Blocked(NamedTuple):
    """A row of the table.

    Attributes:
        fits: Returns whether the row applies to a job.
        heals: Whether the reason passes by itself.
        failure_reason: Failure reason of a job that was terminated because of it.
    """

    fits: Fits
    heals: Heals
    failure_reason: FailureReason


def matches(*words: str) -> Fits:
    """Match a job if the cluster's reasons contain one of these patterns."""
    within = re.compile("|".join(words), re.IGNORECASE)
    return lambda detail: (
        within.search(f"{detail.status_reason}; {detail.container_reason}") is not None
    )


def _stuck_pod(fits: Fits, heals: Heals, sentence: str, remedy: str) -> Blocked:
    return Blocked(fits, heals, FailureReason(errors.JobStuckError, sentence, remedy))


def _image(fits: Fits, heals: Heals, sentence: str, remedy: str) -> Blocked:
    return Blocked(fits, heals, FailureReason(errors.ImageError, sentence, remedy))


_PULLS = (
    *("ErrImagePull", "ImagePullBackOff", "RegistryUnavailable", "ImageInspectError"),
    "SignatureValidationFailed",
)
_UNPULLED = "the image could not be pulled"


def _unpulled(words: Sequence[str], why: str, remedy: str) -> Blocked:
    """Return the row for an image that cannot be pulled, for one of these reasons."""
    fits = [container(start, *words) for start in _PULLS]
    sentence = f"{_UNPULLED}: {why}" if why else _UNPULLED
    return _image(
        lambda detail: any(each(detail) for each in fits), Heals.SOMETIMES, sentence, remedy
    )


_UNPLACED = "no node of the cluster accepts the pod"


def _unplaced(words: Sequence[str], sentence: str, remedy: str) -> Blocked:
    """Return the row for a pod that the scheduler cannot place, for one of these reasons."""
    return _stuck_pod(
        all_of(status("Unschedulable"), matches(*words)), Heals.OFTEN, sentence, remedy
    )


_IMAGES: tuple[Blocked, ...] = (
    _image(
        container("InvalidImageName"),
        Heals.NEVER,
        f"{_UNPULLED}: its name is not valid",
        f"check {IMAGE}: use registry/repository:tag",
    ),
    _image(
        container("ErrImageNeverPull"),
        Heals.NEVER,
        f"{_UNPULLED}: it is not on the node, and imagePullPolicy is Never",
        f"load {IMAGE} onto each node, or remove imagePullPolicy from pod_overlay",
    ),
    _unpulled(
        ("401", "403", "unauthorized", "denied", "authorization failed", "no basic auth"),
        "the registry refused access",
        f"check {IMAGE}; for a private registry name a Secret of type "
        "kubernetes.io/dockerconfigjson in image_pull_secrets, or give the nodes "
        "permission to pull; some registries report a missing repository in the same way",
    ),
    _unpulled(
        ("toomanyrequests", "rate limit", "429"),
        "the registry's pull limit has been reached",
        f"copy {IMAGE} to your own registry and use the copy, name a Secret in "
        "image_pull_secrets, or try again later",
    ),
    _unpulled(
        ("no match for platform", "no matching manifest"),
        "it was not built for the node's processor",
        f"set architecture to the processor that {IMAGE} was built for, or build it for both",
    ),
    _unpulled(
        ("no space left",),
        "the node's disk is full",
        "remove images from the node's disk, or choose other nodes with node_selector",
    ),
    _unpulled(
        ("not found", "manifest unknown", "does not exist", "no such image"),
        "it does not exist in the registry",
        f"check {IMAGE}: registry, repository and tag",
    ),
    _unpulled(
        ("i/o timeout", "dial tcp", "deadline", "request canceled", "no route", "lookup"),
        "the registry could not be reached",
        "check that the nodes can reach the registry: they must be able to resolve its "
        f"name, and their container runtime must know the proxy, if any; check {IMAGE}, too",
    ),
    _unpulled(
        (),
        "",
        f"check {IMAGE}, image_pull_secrets, and that the nodes can reach the registry",
    ),
)

_STARTS: tuple[Blocked, ...] = (
    _image(
        container("CreateContainerConfigError", "secret"),
        Heals.NEVER,
        "the container could not be created: a Secret, or a key in it, does not exist",
        "create it in the job's namespace, or correct its name in s3_secret, secrets of a "
        "command or pod_overlay",
    ),
    _image(
        container("CreateContainerConfigError", "configmap"),
        Heals.NEVER,
        "the container could not be created: a ConfigMap, or a key in it, does not exist",
        "create it in the job's namespace, or correct its name in pod_overlay",
    ),
    _image(
        container("CreateContainerConfigError", "runAsNonRoot", "non-root"),
        Heals.NEVER,
        "the container could not be created: its image runs as root, which is forbidden",
        f"build {IMAGE} with a numeric user (USER 10001), or set runAsUser in the "
        "securityContext of pod_overlay",
    ),
    _image(
        container(
            "CreateContainerError", "failed to reserve container name", "context deadline exceeded"
        ),
        Heals.SOMETIMES,
        "the node was too slow to create the container",
        "submit it again; if it happens again, check the disk and load of that node",
    ),
    _image(
        container("CreateContainer"),  # CreateContainerConfigError, CreateContainerError
        Heals.NEVER,
        "the container could not be created",
        f"check {CREATED_BY}",
    ),
    _image(
        all_of(
            matches("^(.*; )?(StartError|RunContainerError|ContainerCannotRun)"),
            matches("exec format error"),
        ),
        Heals.NEVER,
        "the container could not be started: the image was built for another architecture",
        f"set architecture to the processor that {IMAGE} was built for, or build it for both",
    ),
    _image(
        matches("^(.*; )?(StartError|RunContainerError|ContainerCannotRun|PostStartHookError)"),
        Heals.NEVER,
        "the container could not be started",
        f"check the entry point of {IMAGE}{STARTED_BY}",
    ),
    _image(
        container("FailedMount", "secret", "configmap"),
        Heals.SOMETIMES,
        "a volume of the pod could not be mounted: a Secret or ConfigMap does not exist",
        "create it in the job's namespace, or correct its name in pod_overlay",
    ),
    _image(
        matches("^(.*; )?Failed(Mount|AttachVolume)"),
        Heals.SOMETIMES,
        "a volume of the pod could not be mounted",
        "check mounts and the volumes in pod_overlay: a claim must be bound and "
        "available, and a path must exist on the node",
    ),
    Blocked(
        container("FailedCreatePodSandBox"),
        Heals.SOMETIMES,
        FailureReason(
            errors.HostLostError,
            "the node could not create the pod's network",
            "check the network plugin of the node, or choose other nodes with node_selector, "
            "and submit it again",
        ),
    ),
)

_LESS = "request less (vcpu, memory, num_gpus)"
_PLACES: tuple[Blocked, ...] = (
    _unplaced(
        ("persistentvolumeclaim", "volume node affinity"),
        f"{_UNPLACED}: one of its claims does not exist, or is not bound where capacity is "
        "available",
        "check the claims in mounts and pod_overlay (kubectl get pvc)",
    ),
    _unplaced(
        ("pod group", "gang", "minMember", "minAvailable"),
        "Volcano has no capacity for all nodes of the job at once, or none in its queue",
        f"{_LESS} or fewer nodes, or set queue to another queue (kubectl describe queue)",
    ),
    _unplaced(
        ("Insufficient [a-z]", "Too many pods"),
        f"{_UNPLACED}: none has enough free resources",
        f"{_LESS}, wait, or add larger nodes to the cluster; a node offers less than its "
        "machine has (kubectl describe nodes, Allocatable)",
    ),
    _unplaced(
        ("taint",),
        f"{_UNPLACED}: those with free resources have a taint that the pod does not tolerate",
        "name the taint in tolerations if these nodes are meant for such jobs",
    ),
    _unplaced(
        ("affinity", "selector"),
        f"{_UNPLACED}: none has the requested labels",
        "compare node_selector, instance_type and architecture with the labels of the "
        "nodes (kubectl get nodes --show-labels)",
    ),
    _unplaced(
        (),
        _UNPLACED,
        f"wait, or change what the scheduler names: {_LESS}, node_selector, tolerations, "
        "priority_class",
    ),
)

_MAKING = "the cluster creates no pod for the job"

_SECURITY_CONTEXT = (
    '{"spec": {"securityContext": {"runAsNonRoot": true, "runAsUser": 10001, "seccompProfile": '
    '{"type": "RuntimeDefault"}}, "containers": [{"name": "task", "securityContext": '
    '{"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}}}]}}'
)
"""Overlay that the Pod Security Standard "restricted" accepts.

https://kubernetes.io/docs/concepts/security/pod-security-standards/
"""

_CREATIONS: tuple[Blocked, ...] = (
    _stuck_pod(
        all_of(status("FailedCreate"), matches("minimum .* usage per")),
        Heals.SOMETIMES,
        f"{_MAKING}: it requests less than a LimitRange of its namespace requires",
        "request more (vcpu, memory): at least the minimum that the message names",
    ),
    _stuck_pod(
        all_of(
            status("FailedCreate"),
            matches("exceeded quota", "maximum .* usage per"),
        ),
        Heals.OFTEN,
        f"{_MAKING}: a quota or a limit of its namespace is exceeded",
        f"{_LESS}, set max_parallel, wait for other jobs, or ask for a higher quota "
        "(kubectl describe quota,limitrange)",
    ),
    _stuck_pod(
        all_of(status("FailedCreate"), matches("serviceaccount", "service account")),
        Heals.SOMETIMES,
        f"{_MAKING}: its service account does not exist",
        "create the ServiceAccount in the job's namespace, or set service_account to another one",
    ),
    _stuck_pod(
        all_of(status("FailedCreate"), matches("PriorityClass")),
        Heals.SOMETIMES,
        f"{_MAKING}: its priority class does not exist",
        "set priority_class to an existing one (kubectl get priorityclasses)",
    ),
    _stuck_pod(
        all_of(status("FailedCreate"), matches("PodSecurity", "security context constraint")),
        Heals.SOMETIMES,
        f"{_MAKING}: the security rules of its namespace forbid it",
        "change the settings that the message names: remove mounts of type bind and device, and "
        f"set what it requires in pod_overlay, such as {_SECURITY_CONTEXT}",
    ),
    _stuck_pod(
        all_of(status("FailedCreate"), matches("forbidden", "denied", "admission")),
        Heals.SOMETIMES,
        f"{_MAKING}: an admission rule rejects it",
        "change the settings that the message names, or ask the cluster's administrator "
        "about the rule",
    ),
    _stuck_pod(
        status("FailedCreate"),
        Heals.SOMETIMES,
        f"{_MAKING}: its API server failed",
        "wait, because Kubernetes tries again; if it lasts, ask the cluster's administrator",
    ),
    _stuck_pod(
        status("Suspended: Deactivated"),
        Heals.OFTEN,
        "an administrator, or a limit of Kueue, has deactivated the job's workload",
        "find out why (kubectl describe workload), and set its spec.active to true, or cancel the "
        "job and submit it again",
    ),
    _stuck_pod(
        all_of(
            status("Suspended:"),
            matches("maximum capacity", "doesn't exist", "is inactive", "is stopped", "not found"),
        ),
        Heals.OFTEN,
        "Kueue cannot admit the job with its queue's current configuration",
        f"{_LESS}, set max_parallel, or set queue to another LocalQueue (kubectl describe "
        "localqueue,clusterqueue)",
    ),
)

BLOCKED = (*_IMAGES, *_STARTS, *_PLACES, *_CREATIONS)
"""Reasons for blocked jobs, specific ones first; the first matching row counts."""


def row_of(detail: JobDetail) -> Blocked | None:
    """Return the row on why a job cannot start; None without a reason."""
    return next((row for row in BLOCKED if row.fits(detail)), None)


# --- Reasons for ends, in the order of the rows: causes come before their consequences ----------


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
    found = _stuck(detail) or next(row.failure_reason for row in rows if row.fits(detail))
    return explained(found, detail)


def explained(found: FailureReason, detail: JobDetail) -> FailureReason:
    """Return a failure reason with the job's facts, or the blocking init container's image."""
    init = _INIT_CONTAINER.search(f"{detail.status_reason}; {detail.container_reason}")
    if init is not None:
        image = f"the image {init[2]} of init container {init[1]}, which farcall does not add"
        found = replace(found, remedy=found.remedy.replace(IMAGE, image))
    return filled(found, WORDS, detail)


def _stuck(detail: JobDetail) -> FailureReason | None:
    """Return why a terminated job was blocked, from its status reason."""
    found = _STUCK.match(detail.status_reason)
    if found is None:
        return None
    trimmed = replace(
        detail, status_reason=detail.status_reason[found.end() :], container_reason=""
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


# --- Pending reasons: why an unfinished job of a cluster waits. No I/O --------------------------


STATES = {
    JobStatus.SUBMITTED: (
        "Kubernetes has accepted the job and has not created its pod yet",
        "wait a few seconds; after a failed attempt it waits for 10 s, and longer each time",
    ),
    JobStatus.PENDING: (
        "the job's tasks are in progress",
        "wait; run `farcall describe {job}` to count them",
    ),
    JobStatus.RUNNABLE: (
        "the job is waiting for capacity",
        "wait; if it takes long, check the free resources of the nodes (kubectl describe nodes)",
    ),
}

_SUSPENDED = "Suspended"
_GATED = "SchedulingGated"


def held(detail: JobDetail) -> tuple[str, str] | None:
    """Return why a queue, or a user, holds a job back; None if none does."""
    if not detail.status_reason.startswith((_SUSPENDED, _GATED)):
        return None
    _, _, why = detail.status_reason.partition(": ")
    if why:
        sentence = f"the job's queue holds it back: {why}"
        return sentence, "wait; run kubectl describe workload, or podgroup, for details"
    whole = detail.job_id.partition(":")[0]
    remedy = (
        "wait for Kueue to admit it; if it was suspended by a user instead of a queue, resume it: "
        f'kubectl patch job {whole} --type merge -p \'{{"spec":{{"suspend":false}}}}\''
    )
    return "the job is suspended, so it does not start", remedy
