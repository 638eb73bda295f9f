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
from dataclasses import replace
from typing import NamedTuple

from farcall.backends.kubernetes.names import CREATED_BY, IMAGE, STARTED_BY, filled
from farcall.backends.matching import Fits, Row, all_of, container, exit_code, status
from farcall.backends.own_failure_reasons import GIVEN, MAP_FAILED, RESULT_MISSING, STARTED
from farcall.model import errors, start_script
from farcall.model.exit_codes import EXITS
from farcall.model.failure_reasons import MEMORY, OWN_REASON, STUCK, Dwell, FailureReason
from farcall.model.jobs import JobDetail, JobStatus
from farcall.model.timing import Timing
from farcall_runtime.contract import ENV_OWN_NODE_INDEX, ExitCode

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


_PULLS = ("ErrImagePull", "ImagePullBackOff", "RegistryUnavailable", "ImageInspectError")


def _pull(*words: str) -> Fits:
    """Match a job whose image cannot be pulled, for one of these reasons."""
    fits = [container(start, *words) for start in (*_PULLS, "SignatureValidationFailed")]
    return lambda detail: any(each(detail) for each in fits)


def says(*words: str) -> Fits:
    """Match a job if the cluster's reasons contain one of these patterns."""
    within = re.compile("|".join(words), re.IGNORECASE)
    return lambda detail: (
        within.search(f"{detail.status_reason}; {detail.container_reason}") is not None
    )


def _stuck_pod(sentence: str, remedy: str) -> FailureReason:
    return FailureReason(errors.JobStuckError, sentence, remedy)


def _image(sentence: str, remedy: str) -> FailureReason:
    return FailureReason(errors.ImageError, sentence, remedy)


_UNPULLED = "the image could not be pulled"

_IMAGES: tuple[Blocked, ...] = (
    Blocked(
        container("InvalidImageName"),
        Heals.NEVER,
        _image(
            f"{_UNPULLED}: its name is not valid", f"check {IMAGE}: use registry/repository:tag"
        ),
    ),
    Blocked(
        container("ErrImageNeverPull"),
        Heals.NEVER,
        _image(
            f"{_UNPULLED}: it is not on the node, and imagePullPolicy is Never",
            f"load {IMAGE} onto each node, or remove imagePullPolicy from pod_overlay",
        ),
    ),
    Blocked(
        _pull("401", "403", "unauthorized", "denied", "authorization failed", "no basic auth"),
        Heals.SOMETIMES,
        _image(
            f"{_UNPULLED}: the registry refused access",
            f"check {IMAGE}; for a private registry name a Secret of type "
            "kubernetes.io/dockerconfigjson in image_pull_secrets, or give the nodes "
            "permission to pull; some registries report a missing repository in the same way",
        ),
    ),
    Blocked(
        _pull("toomanyrequests", "rate limit", "429"),
        Heals.SOMETIMES,
        _image(
            f"{_UNPULLED}: the registry's pull limit has been reached",
            f"copy {IMAGE} to your own registry and use the copy, name a Secret in "
            "image_pull_secrets, or try again later",
        ),
    ),
    Blocked(
        _pull("no match for platform", "no matching manifest"),
        Heals.SOMETIMES,
        _image(
            f"{_UNPULLED}: it was not built for the node's processor",
            f"set architecture to the processor that {IMAGE} was built for, or build it for both",
        ),
    ),
    Blocked(
        _pull("no space left"),
        Heals.SOMETIMES,
        _image(
            f"{_UNPULLED}: the node's disk is full",
            "remove images from the node's disk, or choose other nodes with node_selector",
        ),
    ),
    Blocked(
        _pull("not found", "manifest unknown", "does not exist", "no such image"),
        Heals.SOMETIMES,
        _image(
            f"{_UNPULLED}: it does not exist in the registry",
            f"check {IMAGE}: registry, repository and tag",
        ),
    ),
    Blocked(
        _pull("i/o timeout", "dial tcp", "deadline", "request canceled", "no route", "lookup"),
        Heals.SOMETIMES,
        _image(
            f"{_UNPULLED}: the registry could not be reached",
            "check that the nodes can reach the registry: they must be able to resolve its "
            f"name, and their container runtime must know the proxy, if any; check {IMAGE}, too",
        ),
    ),
    Blocked(
        _pull(),
        Heals.SOMETIMES,
        _image(
            _UNPULLED,
            f"check {IMAGE}, image_pull_secrets, and that the nodes can reach the registry",
        ),
    ),
)

_STARTS: tuple[Blocked, ...] = (
    Blocked(
        container("CreateContainerConfigError", "secret"),
        Heals.NEVER,
        _image(
            "the container could not be created: a Secret, or a key in it, does not exist",
            "create it in the job's namespace, or correct its name in s3_secret, secrets of a "
            "command or pod_overlay",
        ),
    ),
    Blocked(
        container("CreateContainerConfigError", "configmap"),
        Heals.NEVER,
        _image(
            "the container could not be created: a ConfigMap, or a key in it, does not exist",
            "create it in the job's namespace, or correct its name in pod_overlay",
        ),
    ),
    Blocked(
        container("CreateContainerConfigError", "runAsNonRoot", "non-root"),
        Heals.NEVER,
        _image(
            "the container could not be created: its image runs as root, which is forbidden",
            f"build {IMAGE} with a numeric user (USER 10001), or set runAsUser in the "
            "securityContext of pod_overlay",
        ),
    ),
    Blocked(
        container(
            "CreateContainerError", "failed to reserve container name", "context deadline exceeded"
        ),
        Heals.SOMETIMES,
        _image(
            "the node was too slow to create the container",
            "submit it again; if it happens again, check the disk and load of that node",
        ),
    ),
    Blocked(
        container("CreateContainer"),  # CreateContainerConfigError, CreateContainerError
        Heals.NEVER,
        _image("the container could not be created", f"check {CREATED_BY}"),
    ),
    Blocked(
        all_of(
            says("^(.*; )?(StartError|RunContainerError|ContainerCannotRun)"),
            says("exec format error"),
        ),
        Heals.NEVER,
        _image(
            "the container could not be started: the image was built for another architecture",
            f"set architecture to the processor that {IMAGE} was built for, or build it for both",
        ),
    ),
    Blocked(
        says("^(.*; )?(StartError|RunContainerError|ContainerCannotRun|PostStartHookError)"),
        Heals.NEVER,
        _image(
            "the container could not be started", f"check the entry point of {IMAGE}{STARTED_BY}"
        ),
    ),
    Blocked(
        container("FailedMount", "secret", "configmap"),
        Heals.SOMETIMES,
        _image(
            "a volume of the pod could not be mounted: a Secret or ConfigMap does not exist",
            "create it in the job's namespace, or correct its name in pod_overlay",
        ),
    ),
    Blocked(
        says("^(.*; )?Failed(Mount|AttachVolume)"),
        Heals.SOMETIMES,
        _image(
            "a volume of the pod could not be mounted",
            "check mounts and the volumes in pod_overlay: a claim must be bound and "
            "available, and a path must exist on the node",
        ),
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
_UNPLACED = "no node of the cluster accepts the pod"

_PLACES: tuple[Blocked, ...] = (
    Blocked(
        all_of(status("Unschedulable"), says("persistentvolumeclaim", "volume node affinity")),
        Heals.OFTEN,
        _stuck_pod(
            f"{_UNPLACED}: one of its claims does not exist, or is not bound where capacity is "
            "available",
            "check the claims in mounts and pod_overlay (kubectl get pvc)",
        ),
    ),
    Blocked(
        all_of(status("Unschedulable"), says("pod group", "gang", "minMember", "minAvailable")),
        Heals.OFTEN,
        _stuck_pod(
            "Volcano has no capacity for all nodes of the job at once, or none in its queue",
            f"{_LESS} or fewer nodes, or set queue to another queue (kubectl describe queue)",
        ),
    ),
    Blocked(
        all_of(status("Unschedulable"), says("Insufficient [a-z]", "Too many pods")),
        Heals.OFTEN,
        _stuck_pod(
            f"{_UNPLACED}: none has enough free resources",
            f"{_LESS}, wait, or add larger nodes to the cluster; a node offers less than its "
            "machine has (kubectl describe nodes, Allocatable)",
        ),
    ),
    Blocked(
        all_of(status("Unschedulable"), says("taint")),
        Heals.OFTEN,
        _stuck_pod(
            f"{_UNPLACED}: those with free resources have a taint that the pod does not tolerate",
            "name the taint in tolerations if these nodes are meant for such jobs",
        ),
    ),
    Blocked(
        all_of(status("Unschedulable"), says("affinity", "selector")),
        Heals.OFTEN,
        _stuck_pod(
            f"{_UNPLACED}: none has the requested labels",
            "compare node_selector, instance_type and architecture with the labels of the "
            "nodes (kubectl get nodes --show-labels)",
        ),
    ),
    Blocked(
        status("Unschedulable"),
        Heals.OFTEN,
        _stuck_pod(
            _UNPLACED,
            f"wait, or change what the scheduler names: {_LESS}, node_selector, tolerations, "
            "priority_class",
        ),
    ),
)

_MAKING = "the cluster creates no pod for the job"

_CREATIONS: tuple[Blocked, ...] = (
    Blocked(
        all_of(
            status("FailedCreate"),
            says("exceeded quota", "maximum .* usage per", "minimum .* usage per"),
        ),
        Heals.OFTEN,
        _stuck_pod(
            f"{_MAKING}: a quota or a limit of its namespace is exceeded",
            f"{_LESS}, set max_parallel, wait for other jobs, or ask for a higher quota "
            "(kubectl describe quota,limitrange)",
        ),
    ),
    Blocked(
        all_of(status("FailedCreate"), says("serviceaccount", "service account")),
        Heals.SOMETIMES,
        _stuck_pod(
            f"{_MAKING}: its service account does not exist",
            "create the ServiceAccount in the job's namespace, or set service_account to "
            "another one",
        ),
    ),
    Blocked(
        all_of(status("FailedCreate"), says("PriorityClass")),
        Heals.SOMETIMES,
        _stuck_pod(
            f"{_MAKING}: its priority class does not exist",
            "set priority_class to an existing one (kubectl get priorityclasses)",
        ),
    ),
    Blocked(
        all_of(status("FailedCreate"), says("PodSecurity", "security context constraint")),
        Heals.SOMETIMES,
        _stuck_pod(
            f"{_MAKING}: the security rules of its namespace forbid it",
            "remove mounts of type bind and device and the other settings that the message "
            "names, or use a namespace with other rules",
        ),
    ),
    Blocked(
        status("FailedCreate"),
        Heals.SOMETIMES,
        _stuck_pod(
            f"{_MAKING}: an admission rule rejects it",
            "change the settings that the message names, or ask the cluster's administrator "
            "about the rule",
        ),
    ),
    Blocked(
        all_of(
            status("Suspended:"),
            says("maximum capacity", "doesn't exist", "is inactive", "is stopped", "not found"),
        ),
        Heals.OFTEN,
        _stuck_pod(
            "Kueue cannot admit the job with its queue's current configuration",
            f"{_LESS}, set max_parallel, or set queue to another LocalQueue (kubectl describe "
            "localqueue,clusterqueue)",
        ),
    ),
)

BLOCKED = (*_IMAGES, *_STARTS, *_PLACES, *_CREATIONS)
"""Reasons for blocked jobs, specific ones first; the first matching row counts."""


def row_of(detail: JobDetail) -> Blocked | None:
    """Return the row on why a job cannot start; None without a reason."""
    return next((row for row in BLOCKED if row.fits(detail)), None)


# --- Exit codes of containers in a cluster: common failure reasons with own remedies. No I/O


LOST = "set retry_attempts to 2 or more, so that tasks run again after a node is lost"

_RIGHTS = (
    "the pod's permissions on s3_bucket_name (service_account, s3_secret, or the node's role)"
)
_WAY = "the cluster's network must allow pods to reach S3 (endpoint_url)"
_DISK = (
    "give the pod more disk space: ephemeral-storage in the resources of pod_overlay, a node "
    "with a larger disk, or more memory if the temporary folder is in memory"
)

_REMEDIES: dict[int, str] = {
    ExitCode.BAD_ENVIRONMENT: (
        "build image from this version's Dockerfile, and remove FARCALL_ variables from "
        "pod_overlay"
    ),
    ExitCode.BUNDLE_MISSING: (
        "make the lifecycle rule of s3_bucket_name longer than the wait in the queue, and do "
        "not delete objects below bundles/; then submit again. If farcall deleted the object "
        "because the result had been delivered, do nothing"
    ),
    ExitCode.VERSION_MISMATCH: "use the same Python minor version and the same farcall version "
    "here and in image",
    ExitCode.UNREADABLE: 'set packages to "auto", or install the missing packages in image',
    ExitCode.OUTCOME_NOT_STORED: (
        f"add s3:PutObject to {_RIGHTS} (and kms:GenerateDataKey if the bucket is encrypted "
        f"with a key); {_WAY}"
    ),
    ExitCode.DISK_FULL: "exclude packages that the jobs do not need with exclude_packages, "
    f"or {_DISK}",
    ExitCode.STORAGE_UNREACHABLE: f"add s3:GetObject and s3:ListBucket to {_RIGHTS}; {_WAY}",
    ExitCode.SUPERVISOR_FAILED: (
        "see its log for a traceback; a limit of processes (the kubelet's podPidsLimit) is "
        "the most likely cause"
    ),
    ExitCode.CHILD_KILLED: "see its output; s3:PutObject for the result may be missing in "
    f"{_RIGHTS}",
    ExitCode.TERMINATED: f"{LOST}; kubectl delete and a drained node also stop a pod",
    126: "build image from farcall's Dockerfile",
    127: "build image from farcall's Dockerfile",
    ExitCode.RAISED: (
        "see its log; most likely image was not built from farcall's Dockerfile (Python exits "
        "like this if farcall_runtime is missing)"
    ),
}

TASK_EXITS: dict[int, FailureReason] = {
    ExitCode.CANCELLED: FailureReason(
        errors.JobCancelledError, "the task was cancelled", "submit it again if needed"
    ),
    **{
        code: replace(each, remedy=_REMEDIES.get(code, each.remedy))
        for code, each in EXITS.items()
    },
}
"""Exit codes of containers with the task runner."""

_NO_PYTHON = FailureReason(
    errors.ImageError,
    "the image could not run farcall's bootstrap",
    "see its log; stock_image_uri must name an image with python3",
)

RUNTIME_EXITS: dict[int, FailureReason] = {
    ExitCode.BAD_ENVIRONMENT: FailureReason(
        errors.ImageError,
        "the job had no credentials to download farcall's runtime, or did not understand its "
        "start parameters; nothing was run",
        "set service_account to one with a role that can read s3_bucket_name, or s3_secret to "
        "a Secret with AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, and remove FARCALL_ "
        "variables from pod_overlay",
    ),
    ExitCode.BUNDLE_MISSING: FailureReason(
        errors.OutcomeMissingError,
        "the job did not find farcall's runtime, or its input data, in the bucket; nothing "
        "was run",
        "make the lifecycle rule of s3_bucket_name longer than the wait in the queue, and do "
        "not delete objects below runtime/ and bundles/; then submit again, which stores them "
        "again",
    ),
    ExitCode.INTEGRITY: FailureReason(
        errors.IntegrityError,
        "farcall's runtime in the bucket, or the job's input data, differs from what was "
        "stored; nothing was run",
        "find out who else writes to s3_bucket_name, then submit again, which stores the "
        "changed objects again",
    ),
    ExitCode.VERSION_MISMATCH: FailureReason(
        errors.VersionMismatchError,
        "farcall's runtime was built for a different processor, Python or libc than the job's",
        "set architecture to the processor of the cluster's nodes, and stock_image_uri to an "
        "image with glibc (Debian, not Alpine) and the Python minor version used here, or to "
        "an empty string for the official image",
    ),
    ExitCode.STORAGE_UNREACHABLE: FailureReason(
        errors.OutcomeMissingError,
        "the job could not download its data from the bucket; nothing was run",
        f"add s3:GetObject and s3:ListBucket, including runtime/, to {_RIGHTS}; {_WAY}; and "
        "check the clock of its node",
    ),
    ExitCode.DISK_FULL: FailureReason(
        errors.DiskFullError,
        "the job's temporary folder has no space for farcall's runtime or its packages; "
        "nothing was run",
        _DISK,
    ),
    ExitCode.SUPERVISOR_FAILED: FailureReason(
        errors.OutcomeMissingError,
        "farcall's runtime could not be unpacked, or failed, and stored no result",
        "see its log; with readOnlyRootFilesystem, /tmp must be a volume (emptyDir)",
    ),
    126: _NO_PYTHON,
    127: _NO_PYTHON,
    ExitCode.RAISED: _NO_PYTHON,
}
"""Exit codes of containers that download the task runner first."""

_NOT_RUNNABLE = FailureReason(
    errors.CommandError,
    "the command was not found in the image, or is not executable there",
    f"see the job's log, and check the contents of {IMAGE}",
)

COMMAND_EXITS: dict[int, FailureReason] = {
    start_script.TOOLS_MISSING: FailureReason(
        errors.ImageError,
        "the image lacks the tools to download its workspace; nothing was run",
        f"see its log for the missing tool; {IMAGE} needs a shell, coreutils, and python3, "
        "curl or wget; or submit without a workspace",
    ),
    start_script.NO_CREDENTIALS: FailureReason(
        errors.ImageError,
        "the job had no credentials to download its workspace; nothing was run",
        "set s3_secret to a Secret with AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY that can "
        "read s3_bucket_name, or service_account to one with EKS Pod Identity",
    ),
    start_script.NOT_FETCHED: FailureReason(
        errors.CommandError,
        "the job could not download its workspace; nothing was run",
        f"add s3:GetObject to {_RIGHTS}, make the lifecycle rule longer than the wait in the "
        f"queue; and {_WAY}",
    ),
    start_script.TAMPERED: FailureReason(
        errors.IntegrityError,
        "the workspace in the bucket differs from the one that was uploaded; nothing was run",
        "find out who else writes to s3_bucket_name, delete the object that the log names, "
        "then submit again",
    ),
    start_script.NOT_UNPACKED: FailureReason(
        errors.CommandError,
        "the job could not unpack its workspace; nothing was run",
        "see its log for the cause; the container's user must be able to write to the folder, "
        "or choose another folder for the workspace",
    ),
    126: _NOT_RUNNABLE,
    127: _NOT_RUNNABLE,
    137: FailureReason(
        errors.OutOfMemoryError,
        "the container was killed (SIGKILL), most likely because of its memory use",
        MEMORY,
    ),
    143: FailureReason(errors.HostLostError, "the container was stopped (SIGTERM)", LOST),
}
"""Exit codes of commands; first those of the script that downloads a workspace."""


NODE_VARIABLES = (ENV_OWN_NODE_INDEX,)
"""Variables that differ between the nodes of one group."""

_HOLLOW = ("BackoffLimitExceeded", "FailedIndexes")
"""Reasons of Jobs that only mean that the last attempt has failed."""

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
    sentence = found.sentence
    if found.kind in (errors.JobError, errors.CommandError) and detail.exit_code is not None:
        sentence += f" (exit code {detail.exit_code})"
    return FailureReason(found.kind, sentence, filled(found.remedy, detail), detail.exit_code)


def _stuck(detail: JobDetail) -> FailureReason | None:
    """Return why a terminated job was blocked, from its status reason."""
    found = _STUCK.match(detail.status_reason)
    if found is None:
        return None
    said = replace(detail, status_reason=detail.status_reason[found.end() :], container_reason="")
    row = row_of(said)
    if row is not None and row.heals is not Heals.OFTEN:
        return row.failure_reason
    remedy = row.failure_reason.remedy if row else "request less (vcpu, memory, num_gpus)"
    why = f": {row.failure_reason.sentence}" if row else ""
    return FailureReason(
        errors.JobStuckError,
        f"the job could not be placed for stuck_timeout_s and was terminated{why}",
        remedy,
    )


def telling(detail: JobDetail) -> str:
    """Return the informative part of the cluster's reasons for an end."""
    if is_hollow(detail.status_reason):
        return detail.container_reason
    return detail.reason


def is_hollow(reason: str) -> bool:
    """Return whether a Job's reason only means that it has failed."""
    return reason.startswith(_HOLLOW)


def is_blocked(detail: JobDetail) -> bool:
    """Return whether the cluster reports that it cannot start a job at present."""
    is_waiting = not detail.status.is_final and detail.status is not JobStatus.RUNNING
    return is_waiting and not detail.is_terminated and row_of(detail) is not None


def blocked(detail: JobDetail) -> str:
    """Return the remedy for a job that cannot start; empty if it is not blocked."""
    row = row_of(detail)
    return filled(row.failure_reason.remedy, detail) if row else ""


def dwell(detail: JobDetail, timing: Timing) -> Dwell:
    """Return the grace periods before a blocked job is reported and terminated."""
    row = row_of(detail)
    if row is None or row.heals is Heals.OFTEN:
        return Dwell(timing.blocked_told_s, None)
    if row.heals is Heals.SOMETIMES:
        return Dwell(timing.blocked_told_s, timing.pull_dwell_s)
    return Dwell(0.0, timing.start_dwell_s)


def _succeeded(detail: JobDetail) -> bool:
    return detail.status is JobStatus.SUCCEEDED


def _never_ran(detail: JobDetail) -> bool:
    return detail.exit_code is None and not detail.array_size


def _fetches_workspace(detail: JobDetail) -> bool:
    """Return whether the command begins with farcall's start script."""
    return start_script.unwrap(detail.command)[0] is not None


_NODE_GONE = FailureReason(errors.HostLostError, "the job's node was lost", LOST)

_DONE_TO_IT: tuple[Row, ...] = (
    *GIVEN,
    Row(
        status("JobDeleted"),
        FailureReason(
            errors.JobCancelledError,
            "the Job was deleted",
            "find out who did (kubectl delete, or a controller that cleans up), and submit it "
            "again if needed; use farcall cancel to cancel a job and keep its record",
        ),
    ),
    Row(
        status("DeadlineExceeded: Job"),
        FailureReason(
            errors.JobTimeoutError,
            "the Job has its own deadline, which farcall did not set and which has passed",
            "find out who set activeDeadlineSeconds of the Job: a user, or an admission rule",
        ),
    ),
    Row(
        status("DeadlineExceeded"),
        FailureReason(
            errors.JobTimeoutError,
            "the job ran longer than time_limit, so Kubernetes terminated it",
            "raise time_limit, which begins when the node starts the pod and includes pulling "
            "the image",
        ),
    ),
    Row(
        status("MaxFailedIndexesExceeded"),
        FailureReason(
            errors.JobError,
            "too many tasks of the job failed, so the others were terminated",
            "see the errors of the failed tasks, <job ID>:<index>; farcall does not set "
            "maxFailedIndexes, so find out who changed the Job",
        ),
    ),
    Row(
        all_of(status("Evicted"), says("emptydir")),
        FailureReason(
            errors.OutOfMemoryError,
            "a volume of the pod exceeded its size limit, so the pod was evicted",
            "raise shm_size, or the sizeLimit of the volume in pod_overlay",
        ),
    ),
    Row(
        all_of(status("Evicted"), says("ephemeral", "disk", "inodes", "imagefs", "nodefs")),
        FailureReason(
            errors.DiskFullError,
            "the node's disk, or the pod's share of it, was full, so the pod was evicted",
            "write less, write to a claim in mounts, or request ephemeral-storage in the "
            "resources of pod_overlay",
        ),
    ),
    Row(
        status("Evicted"),
        FailureReason(
            errors.HostLostError,
            "the pod was evicted because its node ran out of a resource",
            f"{LOST}; if it is memory, other pods on the node may use more than they request",
        ),
    ),
    Row(
        status("PreemptionByScheduler", "Preempted", "Preempting"),
        FailureReason(
            errors.HostLostError,
            "the pod was preempted by a pod with a higher priority",
            f"{LOST}; or set priority_class to a higher one",
        ),
    ),
    Row(status("DeletionByTaintManager", "NodeLost", "TaintManagerEviction"), _NODE_GONE),
    Row(
        status("DeletionByPodGC"),
        FailureReason(errors.HostLostError, "the job's node no longer exists", LOST),
    ),
    Row(
        status("EvictionByEvictionAPI"),
        FailureReason(
            errors.HostLostError,
            "the pod was evicted, most likely because its node is being drained",
            LOST,
        ),
    ),
    Row(
        status("TerminationByKubelet", "Shutdown", "NodeShutdown", "Terminated"),
        FailureReason(errors.HostLostError, "the job's node was shut down", LOST),
    ),
    Row(
        status("UnexpectedAdmissionError", "OutOf", "NodeAffinity", "NodeName", "NodePorts"),
        FailureReason(
            errors.HostLostError,
            "the node to which the pod was assigned rejected it",
            f"{LOST}; if it happens again, check what the message names",
        ),
    ),
    Row(
        all_of(status("PodFailurePolicy"), says("has condition DisruptionTarget")),
        FailureReason(
            errors.HostLostError,
            "a node of the job was evicted, preempted or lost, so the others were terminated",
            "submit it again",
        ),
    ),
    # Regardless of the exit code: 137, or 1 if only a child process was killed.
    Row(
        container("OOMKilled"),
        FailureReason(errors.OutOfMemoryError, "the container ran out of memory", MEMORY),
    ),
    *(Row(row.fits, row.failure_reason) for row in BLOCKED),
    Row(
        all_of(status("PodFailurePolicy"), lambda detail: not detail.is_command),
        FailureReason(
            errors.JobError,
            "a failure policy that fails the whole job matched a failure of one of its tasks",
            "see the task that the message names; farcall sets no such rule for maps, so find "
            "out who changed the Job",
        ),
    ),
    Row(
        status("PodDeleted"),
        FailureReason(
            errors.JobCancelledError,
            "the pod was deleted while the job ran",
            "find out who did (kubectl delete pod, or a controller), and submit it again if "
            "needed",
        ),
    ),
)
"""Failure reasons from outside, by text; causes come before consequences."""

_GONE = Row(
    _never_ran,
    FailureReason(
        errors.JobError,
        "the job failed, and its pods no longer exist, so the cause is unknown",
        "see its output (farcall logs), and check what deletes pods in its namespace",
    ),
)

ENDINGS: tuple[Row, ...] = (
    Row(_succeeded, RESULT_MISSING),
    *_DONE_TO_IT,
    *(
        Row(all_of(lambda detail: bool(detail.runtime), exit_code(code)), each)
        for code, each in RUNTIME_EXITS.items()
    ),
    *(Row(exit_code(code), each) for code, each in TASK_EXITS.items()),
    _GONE,
    Row(
        lambda detail: bool(detail.array_size),
        FailureReason(
            errors.JobError,
            "a task of the job failed",
            "see the errors of its tasks, <job ID>:<index>",
        ),
    ),
    Row(
        lambda _: True,
        FailureReason(
            errors.JobError,
            "the job failed and stored no result in the bucket",
            "see its log; the pod may lack s3:PutObject on s3_bucket_name (service_account, "
            "s3_secret)",
        ),
    ),
)
"""Failure reasons of function jobs.

The first matching row counts, and the last always matches.
"""

COMMAND_ENDINGS: tuple[Row, ...] = (
    # Reported by the container runtime, before the container's own shell could.
    Row(
        all_of(
            says("^(.*; )?(StartError|ContainerCannotRun|RunContainerError)"),
            says("executable file not found", "permission denied", "no such file"),
        ),
        COMMAND_EXITS[127],
    ),
    *_DONE_TO_IT,
    *(
        Row(all_of(_fetches_workspace, exit_code(code)), each)
        for code, each in COMMAND_EXITS.items()
        if code >= start_script.TOOLS_MISSING and code < 90
    ),
    *(Row(exit_code(code), each) for code, each in COMMAND_EXITS.items() if code > 90),
    _GONE,
    Row(
        lambda _: True,
        FailureReason(errors.CommandError, "the command failed", "see its log"),
    ),
)
"""Failure reasons of command jobs whose command did not return 0."""


# --- Pending reasons: why an unfinished job of a cluster waits. No I/O --------------------------


_STATES = {
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
        (
            "wait; if it takes long, check whether the nodes have free resources (kubectl "
            "describe nodes)"
        ),
    ),
    **STARTED,
}

_SUSPENDED = "Suspended"
_GATED = "SchedulingGated"


def tell(detail: JobDetail) -> tuple[str, str]:
    """Return the state of an unfinished job in a sentence, and a remedy.

    Args:
        detail: A plain job, an array task, or a node.

    Returns:
        The sentence, and the remedy.
    """
    if detail.is_terminated:
        remedy = "wait: it has up to half a minute to clean up"
        return "the job is stopping and has not finished yet", remedy
    row = row_of(detail)
    if row is not None:
        said = detail.reason
        return f"Kubernetes cannot start the job: {said}", filled(
            row.failure_reason.remedy, detail
        )
    if detail.status_reason.startswith((_SUSPENDED, _GATED)):
        return _held(detail)
    sentence, remedy = _STATES[detail.status]
    if detail.attempts:
        tried = f"attempt {detail.attempts} of {detail.attempts_allowed} has failed"
        sentence = f"{tried}; now {sentence}"
    return sentence, remedy.format(job=detail.job_id, whole=detail.job_id.partition("#")[0])


def _held(detail: JobDetail) -> tuple[str, str]:
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
