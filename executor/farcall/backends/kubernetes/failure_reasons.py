"""Failure reasons on jobs of a cluster: why one ended, or cannot begin.

No other module reads the texts of Kubernetes, Kueue and Volcano. It explains only jobs that left
no outcome in the bucket, because an outcome takes precedence. No I/O.

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
from farcall.backends.own_failure_reasons import GIVEN, MAP_FAILED
from farcall.model import errors, start_script
from farcall.model.exit_codes import EXITS
from farcall.model.failure_reasons import MEMORY, OWN_REASON, STUCK, Dwell, FailureReason
from farcall.model.jobs import JobDetail, JobStatus
from farcall.model.timing import Timing
from farcall_runtime.contract import ENV_OWN_NODE_INDEX, ExitCode

# --- Blocked jobs: what keeps a pod from being made, placed or started, and how long that may last
#
# What a cluster says of a pod that waits may pass by itself: a full cluster gets room or nodes,
# a registry answers again. Some of it never does, and a pod waits for it forever anyway.
# So each row says how long is waited: as long as ``stuck_timeout_s`` says, as long as such
# things take to heal, or hardly at all. No I/O.
#
# Sources:
#     https://kubernetes.io/docs/concepts/containers/images/
#     https://kubernetes.io/docs/tasks/debug/debug-application/debug-pods/
#     https://kubernetes.io/docs/concepts/policy/resource-quotas/
#     https://kueue.sigs.k8s.io/docs/tasks/troubleshooting/troubleshooting_jobs/


class Heals(enum.Enum):
    """Whether what blocks a job passes by itself.

    OFTEN: It does: the cluster gets room. It is ended after ``stuck_timeout_s`` alone.
    SOMETIMES: It may, within minutes, see `Timing.pull_dwell_s`.
    NEVER: Somebody has to change something; see `Timing.start_dwell_s`.
    """

    OFTEN = "often"
    SOMETIMES = "sometimes"
    NEVER = "never"


class Blocked(NamedTuple):
    """A row of the table.

    Attributes:
        fits: Tells whether it is about a job.
        heals: Whether it passes.
        failure_reason: Reason given for a job that ended because of it.
    """

    fits: Fits
    heals: Heals
    failure_reason: FailureReason


_PULLS = ("ErrImagePull", "ImagePullBackOff", "RegistryUnavailable", "ImageInspectError")


def _pull(*words: str) -> Fits:
    """The image cannot be pulled, and the node says one of these of it."""
    fits = [container(start, *words) for start in (*_PULLS, "SignatureValidationFailed")]
    return lambda detail: any(each(detail) for each in fits)


def says(*words: str) -> Fits:
    """The cluster's words hold one of these patterns."""
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
        _image(f"{_UNPULLED}: its name is none", f"check {IMAGE}: registry/repository:tag"),
    ),
    Blocked(
        container("ErrImageNeverPull"),
        Heals.NEVER,
        _image(
            f"{_UNPULLED}: it is not on the node, and imagePullPolicy is Never",
            f"load {IMAGE} onto each node, or leave imagePullPolicy out of pod_overlay",
        ),
    ),
    Blocked(
        _pull("401", "403", "unauthorized", "denied", "authorization failed", "no basic auth"),
        Heals.SOMETIMES,
        _image(
            f"{_UNPULLED}: the registry refused access",
            f"check {IMAGE}; for a private registry name a Secret of type "
            "kubernetes.io/dockerconfigjson in image_pull_secrets, or give the nodes the right to "
            "pull; a repository that is not there may be refused like that, too",
        ),
    ),
    Blocked(
        _pull("toomanyrequests", "rate limit", "429"),
        Heals.SOMETIMES,
        _image(
            f"{_UNPULLED}: the registry allows no more pulls now",
            f"copy {IMAGE} to a registry of your own and name the copy, name a Secret in "
            "image_pull_secrets, or try again later",
        ),
    ),
    Blocked(
        _pull("no match for platform", "no matching manifest"),
        Heals.SOMETIMES,
        _image(
            f"{_UNPULLED}: it is not made for the node's processor",
            f"set architecture to the processor that {IMAGE} is made for, or build it for both",
        ),
    ),
    Blocked(
        _pull("no space left"),
        Heals.SOMETIMES,
        _image(
            f"{_UNPULLED}: the node's disk is full",
            "clear the node's disk of images, or have other nodes by node_selector",
        ),
    ),
    Blocked(
        _pull("not found", "manifest unknown", "does not exist", "no such image"),
        Heals.SOMETIMES,
        _image(
            f"{_UNPULLED}: the registry does not have it",
            f"check {IMAGE}: registry, repository and tag",
        ),
    ),
    Blocked(
        _pull("i/o timeout", "dial tcp", "deadline", "request canceled", "no route", "lookup"),
        Heals.SOMETIMES,
        _image(
            f"{_UNPULLED}: the registry was not reached",
            "the nodes need a way to the registry: its name has to be known there, and a proxy, "
            f"if any, to their container runtime; check {IMAGE}, too",
        ),
    ),
    Blocked(
        _pull(),
        Heals.SOMETIMES,
        _image(
            _UNPULLED,
            f"check {IMAGE}, image_pull_secrets, and that the nodes reach the registry",
        ),
    ),
)

_STARTS: tuple[Blocked, ...] = (
    Blocked(
        container("CreateContainerConfigError", "secret"),
        Heals.NEVER,
        _image(
            "the container could not be created: a Secret, or a key in it, is not there",
            "make the one that is named in the job's namespace; s3_secret, secrets of a command "
            "and pod_overlay name some",
        ),
    ),
    Blocked(
        container("CreateContainerConfigError", "configmap"),
        Heals.NEVER,
        _image(
            "the container could not be created: a ConfigMap, or a key in it, is not there",
            "make the one that is named in the job's namespace; pod_overlay names it",
        ),
    ),
    Blocked(
        container("CreateContainerConfigError", "runAsNonRoot", "non-root"),
        Heals.NEVER,
        _image(
            "the container could not be created: its image runs as root, which is forbidden",
            f"build {IMAGE} with a user by number (USER 10001), or set runAsUser in the "
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
            "submit it again; where it happens again, look at the disk and load of that node",
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
            "the container could not be started: the image is made for another architecture",
            f"set architecture to the processor that {IMAGE} is made for, or build it for both",
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
            "a volume of the pod could not be mounted: a Secret or ConfigMap is not there",
            "make the one that is named in the job's namespace; pod_overlay names it",
        ),
    ),
    Blocked(
        says("^(.*; )?Failed(Mount|AttachVolume)"),
        Heals.SOMETIMES,
        _image(
            "a volume of the pod could not be mounted",
            "check mounts and the volumes in pod_overlay: a claim has to be "
            "bound and free, and a path has to be there on the node",
        ),
    ),
    Blocked(
        container("FailedCreatePodSandBox"),
        Heals.SOMETIMES,
        FailureReason(
            errors.HostLostError,
            "the node could not make the pod's network",
            "look at the network plugin of the node, or have others by node_selector, and submit "
            "it again",
        ),
    ),
)

_LESS = "ask for less (vcpu, memory, num_gpus)"
_UNPLACED = "no node of the cluster takes the pod"

_PLACES: tuple[Blocked, ...] = (
    Blocked(
        all_of(status("Unschedulable"), says("persistentvolumeclaim", "volume node affinity")),
        Heals.OFTEN,
        _stuck_pod(
            f"{_UNPLACED}: a claim of it is not there, or not bound where there is room",
            "check the claims in mounts and pod_overlay (kubectl get pvc)",
        ),
    ),
    Blocked(
        all_of(status("Unschedulable"), says("pod group", "gang", "minMember", "minAvailable")),
        Heals.OFTEN,
        _stuck_pod(
            "Volcano has no room for all nodes of the job at once, or none in its queue",
            f"{_LESS} or for fewer nodes, or set queue to another (kubectl describe queue)",
        ),
    ),
    Blocked(
        all_of(status("Unschedulable"), says("Insufficient [a-z]", "Too many pods")),
        Heals.OFTEN,
        _stuck_pod(
            f"{_UNPLACED}: it has not so much free",
            f"{_LESS}, wait, or have the cluster get larger nodes; a node offers less than its "
            "machine has (kubectl describe nodes, Allocatable)",
        ),
    ),
    Blocked(
        all_of(status("Unschedulable"), says("taint")),
        Heals.OFTEN,
        _stuck_pod(
            f"{_UNPLACED}: those with room have a taint that it does not tolerate",
            "name the taint in tolerations, if these nodes are meant for such jobs",
        ),
    ),
    Blocked(
        all_of(status("Unschedulable"), says("affinity", "selector")),
        Heals.OFTEN,
        _stuck_pod(
            f"{_UNPLACED}: none has the labels that it asks for",
            "check node_selector, instance_type and architecture against the labels of the nodes "
            "(kubectl get nodes --show-labels)",
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

_MAKING = "the cluster makes no pod for the job"

_CREATIONS: tuple[Blocked, ...] = (
    Blocked(
        all_of(
            status("FailedCreate"),
            says("exceeded quota", "maximum .* usage per", "minimum .* usage per"),
        ),
        Heals.OFTEN,
        _stuck_pod(
            f"{_MAKING}: a quota or a limit of its namespace is exceeded",
            f"{_LESS}, set max_parallel, wait for other jobs, or have the quota raised (kubectl "
            "describe quota,limitrange)",
        ),
    ),
    Blocked(
        all_of(status("FailedCreate"), says("serviceaccount", "service account")),
        Heals.SOMETIMES,
        _stuck_pod(
            f"{_MAKING}: its service account is not there",
            "make the ServiceAccount in the job's namespace, or set service_account to another",
        ),
    ),
    Blocked(
        all_of(status("FailedCreate"), says("PriorityClass")),
        Heals.SOMETIMES,
        _stuck_pod(
            f"{_MAKING}: its priority class is not there",
            "set priority_class to one that is (kubectl get priorityclasses)",
        ),
    ),
    Blocked(
        all_of(status("FailedCreate"), says("PodSecurity", "security context constraint")),
        Heals.SOMETIMES,
        _stuck_pod(
            f"{_MAKING}: the security rules of its namespace forbid it",
            "leave out mounts of type bind and device, and what else the "
            "words name, or take a namespace with other rules",
        ),
    ),
    Blocked(
        status("FailedCreate"),
        Heals.SOMETIMES,
        _stuck_pod(
            f"{_MAKING}: an admission rule refuses it",
            "change what the words name, or ask the cluster's administrator for the rule",
        ),
    ),
    Blocked(
        all_of(
            status("Suspended:"),
            says("maximum capacity", "doesn't exist", "is inactive", "is stopped", "not found"),
        ),
        Heals.OFTEN,
        _stuck_pod(
            "Kueue cannot admit the job as its queue is",
            f"{_LESS}, set max_parallel, or set queue to another LocalQueue (kubectl describe "
            "localqueue,clusterqueue)",
        ),
    ),
)

BLOCKED = (*_IMAGES, *_STARTS, *_PLACES, *_CREATIONS)
"""The first row that fits counts: the special ones before the general."""


def row_of(detail: JobDetail) -> Blocked | None:
    """Return the row on what keeps a job from starting; None if the cluster gives no reason."""
    return next((row for row in BLOCKED if row.fits(detail)), None)


# --- Exit codes of containers in a cluster: the same endings as everywhere, and what to do there
#
# No I/O.


LOST = "set retry_attempts to 2 or more: what a node's loss ends is then run again"

_RIGHTS = "the pod's rights on s3_bucket_name (service_account, s3_secret, or the node's role)"
_WAY = "the cluster's network has to let pods reach S3 (endpoint_url)"
_DISK = (
    "give the pod more disk: ephemeral-storage in the resources of pod_overlay, or a node with a "
    "larger one; where the temporary folder is memory, more of that"
)

_REMEDIES: dict[int, str] = {
    ExitCode.BAD_ENVIRONMENT: "build image from this version's Dockerfile, and leave out of "
    "pod_overlay what sets FARCALL_ variables",
    ExitCode.BUNDLE_MISSING: "a lifecycle rule of s3_bucket_name must not be shorter than the "
    "wait in the queue, and bundles must not be deleted; then submit again. Nothing is to be "
    "done where farcall deleted it, for the value had been delivered",
    ExitCode.VERSION_MISMATCH: "use the same Python minor and the same farcall here and in image",
    ExitCode.UNREADABLE: 'set packages to "auto", or install what they import in image',
    ExitCode.OUTCOME_NOT_STORED: f"s3:PutObject is missing in {_RIGHTS} (and "
    f"kms:GenerateDataKey where it is encrypted with a key); {_WAY}",
    ExitCode.DISK_FULL: f"leave out what jobs do not need by exclude_packages, or {_DISK}",
    ExitCode.STORAGE_UNREACHABLE: f"s3:GetObject and s3:ListBucket have to be in {_RIGHTS}; "
    f"{_WAY}",
    ExitCode.SUPERVISOR_FAILED: "its log may have a traceback; a limit of processes (the "
    "kubelet's podPidsLimit) is the most likely cause",
    ExitCode.CHILD_KILLED: "see its output; s3:PutObject for the outcome may be missing in "
    f"{_RIGHTS}",
    ExitCode.TERMINATED: f"{LOST}; kubectl delete and a drained node tell a pod to stop, too",
    126: "build image from farcall's Dockerfile",
    127: "build image from farcall's Dockerfile",
    ExitCode.RAISED: "its log says more; most likely image was not built from farcall's "
    "Dockerfile (Python leaves like this where it lacks farcall_runtime)",
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
"""Of containers that hold the task runner."""

_NO_PYTHON = FailureReason(
    errors.ImageError,
    "the image could not run farcall's bootstrap",
    "its log says more; stock_image_uri must name an image with python3",
)

RUNTIME_EXITS: dict[int, FailureReason] = {
    ExitCode.BAD_ENVIRONMENT: FailureReason(
        errors.ImageError,
        "the job had no credentials to fetch farcall's runtime with, or did not understand how it "
        "was started; nothing was run",
        "set service_account to one with a role that may read s3_bucket_name, or s3_secret to a "
        "Secret with AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, and leave out of pod_overlay "
        "what sets FARCALL_ variables",
    ),
    ExitCode.BUNDLE_MISSING: FailureReason(
        errors.OutcomeMissingError,
        "the job did not find farcall's runtime, or its payload, in the bucket, and ran nothing",
        "a lifecycle rule of s3_bucket_name must not be shorter than the wait in the queue, and "
        "what is below runtime/ and bundles/ must not be deleted; then submit again, which stores "
        "them again",
    ),
    ExitCode.INTEGRITY: FailureReason(
        errors.IntegrityError,
        "farcall's runtime in the bucket, or the job's payload, is not what was stored; nothing "
        "of it was run",
        "find out who else writes to s3_bucket_name, then submit again, which stores what was "
        "changed again",
    ),
    ExitCode.VERSION_MISMATCH: FailureReason(
        errors.VersionMismatchError,
        "farcall's runtime is made for another processor, Python or libc than the job has",
        "set architecture to the processor of the cluster's nodes, and stock_image_uri to an "
        "image with glibc (Debian's, not Alpine's) and the Python minor that is used here, "
        "empty for the official one",
    ),
    ExitCode.STORAGE_UNREACHABLE: FailureReason(
        errors.OutcomeMissingError,
        "the job could not fetch from the bucket what it needs, and ran nothing",
        f"s3:GetObject and s3:ListBucket have to be in {_RIGHTS}, what is below runtime/ too; "
        f"{_WAY}; and the clock of its node must be right",
    ),
    ExitCode.DISK_FULL: FailureReason(
        errors.DiskFullError,
        "the job's temporary folder has no room for farcall's runtime or its packages, and it ran "
        "nothing",
        _DISK,
    ),
    ExitCode.SUPERVISOR_FAILED: FailureReason(
        errors.OutcomeMissingError,
        "farcall's runtime could not be unpacked, or failed, and left no outcome",
        "its log says why; with readOnlyRootFilesystem /tmp has to be a volume (emptyDir)",
    ),
    126: _NO_PYTHON,
    127: _NO_PYTHON,
    ExitCode.RAISED: _NO_PYTHON,
}
"""Of containers that fetch the task runner first."""

_NOT_RUNNABLE = FailureReason(
    errors.CommandError,
    "the command was not found in the image, or cannot be run there",
    f"see the job's log, and what {IMAGE} has",
)

COMMAND_EXITS: dict[int, FailureReason] = {
    start_script.TOOLS_MISSING: FailureReason(
        errors.ImageError,
        "the image lacks what its workspace is fetched with; nothing was run",
        f"its log names it; {IMAGE} needs a shell, coreutils, and python3, curl or wget; or "
        "submit without a workspace",
    ),
    start_script.NO_CREDENTIALS: FailureReason(
        errors.ImageError,
        "the job had no credentials to fetch its workspace with; nothing was run",
        "set s3_secret to a Secret with AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY that may read "
        "s3_bucket_name, or service_account to one with EKS Pod Identity",
    ),
    start_script.NOT_FETCHED: FailureReason(
        errors.CommandError,
        "the job could not fetch its workspace; nothing was run",
        f"s3:GetObject has to be in {_RIGHTS}, a lifecycle rule must not be shorter than the wait "
        f"in the queue, and {_WAY}",
    ),
    start_script.TAMPERED: FailureReason(
        errors.IntegrityError,
        "the workspace in the bucket is not the one that was uploaded; nothing was run",
        "find out who else writes to s3_bucket_name, delete the object that its log names, then "
        "submit again",
    ),
    start_script.NOT_UNPACKED: FailureReason(
        errors.CommandError,
        "the job could not unpack its workspace; nothing was run",
        "its log says where and why; the container's user must be able to write there, or name "
        "another folder for the workspace",
    ),
    126: _NOT_RUNNABLE,
    127: _NOT_RUNNABLE,
    137: FailureReason(
        errors.OutOfMemoryError,
        "the container was killed (SIGKILL), most often for its memory",
        MEMORY,
    ),
    143: FailureReason(errors.HostLostError, "the container was stopped (SIGTERM)", LOST),
}
"""Of commands: first those of the script that fetches a workspace."""


NODE_VARIABLES = (ENV_OWN_NODE_INDEX,)
"""Variables that differ from node to node of one group."""

_HOLLOW = ("BackoffLimitExceeded", "FailedIndexes")
"""Reasons of Jobs that say no more than that an attempt was the last one."""

_STUCK = re.compile(rf"{OWN_REASON}{STUCK}[^:]*: ")


def failure_reason(detail: JobDetail) -> FailureReason:
    """Say why a job that left no outcome ended.

    Args:
        detail: A job whose status is final, or what is known of a failed attempt.

    Returns:
        The first row of the table that fits. Where it was ended because it was blocked, the one on
        what blocked it.
    """
    if detail.map_failure:  # which ended its children that had not ended
        return MAP_FAILED
    rows = COMMAND_ENDINGS if detail.is_command else ENDINGS
    found = _stuck(detail) or next(row.failure_reason for row in rows if row.fits(detail))
    sentence = found.sentence
    if found.kind in (errors.JobError, errors.CommandError) and detail.exit_code is not None:
        sentence += f" (exit code {detail.exit_code})"
    return FailureReason(found.kind, sentence, filled(found.remedy, detail), detail.exit_code)


def _stuck(detail: JobDetail) -> FailureReason | None:
    """Return why a job was blocked that was ended for it, by the words in its reason."""
    found = _STUCK.match(detail.status_reason)
    if found is None:
        return None
    said = replace(detail, status_reason=detail.status_reason[found.end() :], container_reason="")
    row = row_of(said)
    if row is not None and row.heals is not Heals.OFTEN:
        return row.failure_reason
    remedy = row.failure_reason.remedy if row else "ask for less (vcpu, memory, num_gpus)"
    why = f": {row.failure_reason.sentence}" if row else ""
    return FailureReason(
        errors.JobStuckError,
        f"the job could not be placed for stuck_timeout_s and was ended{why}",
        remedy,
    )


def telling(detail: JobDetail) -> str:
    """Return of the cluster's words on an end those that say something."""
    if is_hollow(detail.status_reason):
        return detail.container_reason
    return detail.reason


def is_hollow(reason: str) -> bool:
    """Return whether a Job's words say no more than that it has failed."""
    return reason.startswith(_HOLLOW)


def is_blocked(detail: JobDetail) -> bool:
    """Return whether the cluster says that it cannot start a job as things are."""
    is_waiting = not detail.status.is_final and detail.status is not JobStatus.RUNNING
    return is_waiting and not detail.is_terminated and row_of(detail) is not None


def blocked(detail: JobDetail) -> str:
    """Return what to do about a job that cannot be started; empty where nothing keeps it."""
    row = row_of(detail)
    return filled(row.failure_reason.remedy, detail) if row else ""


def dwell(detail: JobDetail, timing: Timing) -> Dwell:
    """Return how long a job may be blocked before a warning, and before its end."""
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
    """Its command begins with farcall's start script, whose exit codes are known."""
    return start_script.unwrap(detail.command)[0] is not None


_NODE_GONE = FailureReason(errors.HostLostError, "the node under the job was lost", LOST)

_DONE_TO_IT: tuple[Row, ...] = (
    *GIVEN,
    Row(
        status("JobDeleted"),
        FailureReason(
            errors.JobCancelledError,
            "the Job was deleted",
            "ask who did (kubectl delete, or a controller that cleans up), and submit it again if "
            "needed; farcall cancel ends a job and keeps its record",
        ),
    ),
    Row(
        status("DeadlineExceeded: Job"),
        FailureReason(
            errors.JobTimeoutError,
            "the Job has a deadline as a whole, which farcall did not set, and it has passed",
            "ask who set activeDeadlineSeconds of the Job: a person, or an admission rule",
        ),
    ),
    Row(
        status("DeadlineExceeded"),
        FailureReason(
            errors.JobTimeoutError,
            "the job ran longer than time_limit, and Kubernetes ended it",
            "raise time_limit, which counts from the node's start of the pod: pulling the image "
            "is part of it",
        ),
    ),
    Row(
        status("MaxFailedIndexesExceeded"),
        FailureReason(
            errors.JobError,
            "too many tasks of the job failed, and the others were ended",
            "see the errors of those that failed, <job ID>:<index>; farcall sets no "
            "maxFailedIndexes, so ask who changed the Job",
        ),
    ),
    Row(
        all_of(status("Evicted"), says("emptydir")),
        FailureReason(
            errors.OutOfMemoryError,
            "a volume of the pod has more in it than its limit, and the pod was evicted",
            "raise shm_size, or the sizeLimit of the volume in pod_overlay",
        ),
    ),
    Row(
        all_of(status("Evicted"), says("ephemeral", "disk", "inodes", "imagefs", "nodefs")),
        FailureReason(
            errors.DiskFullError,
            "the node's disk was full, or the pod's share of it, and the pod was evicted",
            "write less, write to a claim of mounts, or ask for ephemeral-storage in the "
            "resources of pod_overlay",
        ),
    ),
    Row(
        status("Evicted"),
        FailureReason(
            errors.HostLostError,
            "the pod was evicted, for its node lacked something",
            f"{LOST}; where it is memory, others on the node may use more than they ask for",
        ),
    ),
    Row(
        status("PreemptionByScheduler", "Preempted", "Preempting"),
        FailureReason(
            errors.HostLostError,
            "the pod was preempted: one of higher priority took its place",
            f"{LOST}; or set priority_class to a higher one",
        ),
    ),
    Row(status("DeletionByTaintManager", "NodeLost", "TaintManagerEviction"), _NODE_GONE),
    Row(
        status("DeletionByPodGC"),
        FailureReason(errors.HostLostError, "the node under the job is no more", LOST),
    ),
    Row(
        status("EvictionByEvictionAPI"),
        FailureReason(
            errors.HostLostError,
            "the pod was evicted: its node is being drained, most likely",
            LOST,
        ),
    ),
    Row(
        status("TerminationByKubelet", "Shutdown", "NodeShutdown", "Terminated"),
        FailureReason(errors.HostLostError, "the node under the job was shut down", LOST),
    ),
    Row(
        status("UnexpectedAdmissionError", "OutOf", "NodeAffinity", "NodeName", "NodePorts"),
        FailureReason(
            errors.HostLostError,
            "the node to which the pod was given did not take it",
            f"{LOST}; where it happens again, look at what is named there",
        ),
    ),
    Row(
        all_of(status("PodFailurePolicy"), says("has condition DisruptionTarget")),
        FailureReason(
            errors.HostLostError,
            "a node of the job was evicted, preempted or lost, and the others were ended",
            "submit it again",
        ),
    ),
    # Whatever the exit code: 137, or 1 where only a child process was killed.
    Row(
        container("OOMKilled"),
        FailureReason(errors.OutOfMemoryError, "the container ran out of memory", MEMORY),
    ),
    *(Row(row.fits, row.failure_reason) for row in BLOCKED),
    Row(
        all_of(status("PodFailurePolicy"), lambda detail: not detail.is_command),
        FailureReason(
            errors.JobError,
            "a failure policy that ends the whole job matched a failure of one of its tasks",
            "see the task that the words name; farcall sets no such rule for maps, so ask who "
            "changed the Job",
        ),
    ),
    Row(
        status("PodDeleted"),
        FailureReason(
            errors.JobCancelledError,
            "the pod was deleted while the job ran",
            "ask who did (kubectl delete pod, or a controller), and submit it again if needed",
        ),
    ),
)
"""What was done to a job, known by the texts: the cause before what followed from it."""

_GONE = Row(
    _never_ran,
    FailureReason(
        errors.JobError,
        "the job failed and its pods are gone, so nothing tells why",
        "look at its output (farcall logs), and at what deletes pods in its namespace",
    ),
)

ENDINGS: tuple[Row, ...] = (
    Row(
        _succeeded,
        FailureReason(
            errors.OutcomeMissingError,
            "the job succeeded, and there is no outcome in the bucket (or there was one, and it "
            "was delivered before)",
            "image must be built from farcall's Dockerfile, or be empty; where another client "
            "took the outcome, set keep_artifacts; nothing else may delete outcomes",
        ),
    ),
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
            "the job failed and left no outcome in the bucket",
            "its log says more; the pod may lack s3:PutObject on s3_bucket_name (service_account, "
            "s3_secret)",
        ),
    ),
)
"""How jobs of functions end; the first row that fits counts, and the last one always fits."""

COMMAND_ENDINGS: tuple[Row, ...] = (
    # As the container runtime tells it before the container's own shell could.
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
        FailureReason(errors.CommandError, "the command failed", "its log says more"),
    ),
)
"""How command jobs end whose command did not return 0."""


# --- Pending reasons: what a job of a cluster that has not ended does or waits for. No I/O ------


_STATES = {
    JobStatus.SUBMITTED: (
        "Kubernetes has accepted the job and has yet to make its pod",
        "wait some seconds; after an attempt that failed it waits for 10 s, and longer each time",
    ),
    JobStatus.PENDING: (
        "the job's tasks are under way",
        "wait; `farcall describe {job}` counts them",
    ),
    JobStatus.RUNNABLE: (
        "the job waits for a place to run",
        "wait; if it lasts, check whether the nodes have room (kubectl describe nodes)",
    ),
    JobStatus.STARTING: (
        "the job has a place, and its container is being started",
        "wait; pulling a large image takes minutes",
    ),
    JobStatus.RUNNING: (
        "the job runs",
        "`farcall logs -f {job}` shows what it prints, `farcall cancel {whole}` ends it",
    ),
}

_SUSPENDED = "Suspended"
_GATED = "SchedulingGated"


def tell(detail: JobDetail) -> tuple[str, str]:
    """Say of a job that has not ended what it does or waits for, and what to do.

    Args:
        detail: A plain job, a child of a map, or a node.

    Returns:
        The sentence, and the remedy.
    """
    if detail.is_terminated:
        remedy = "wait: it has up to half a minute to clean up"
        return "the job is stopping and has not ended yet", remedy
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
        sentence = f"the job is held back by its queue: {why}"
        return sentence, "wait; kubectl describe workload, or podgroup, tells more"
    whole = detail.job_id.partition(":")[0]
    remedy = (
        "wait for Kueue to admit it; if no queue has suspended it, a user did, who can let it "
        f'continue: kubectl patch job {whole} --type merge -p \'{{"spec":{{"suspend":false}}}}\''
    )
    return "the job is suspended, and nothing of it starts", remedy
