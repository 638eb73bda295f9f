"""Blocked jobs: why a pod is not created, placed or started. No I/O.

Some reasons pass by themselves: a full cluster gets capacity or nodes, a registry responds
again. Others never pass, and a pod waits forever anyway. So each row determines how long farcall
waits: for ``stuck_timeout_s``, for as long as such problems take to pass, or hardly at all.

Sources:
    https://kubernetes.io/docs/concepts/containers/images/
    https://kubernetes.io/docs/tasks/debug/debug-application/debug-pods/
    https://kubernetes.io/docs/concepts/policy/resource-quotas/
    https://kueue.sigs.k8s.io/docs/tasks/troubleshooting/troubleshooting_jobs/
"""

from __future__ import annotations

import enum
import re
from collections.abc import Sequence
from typing import NamedTuple

from farcall.backends.failure_tables import (
    CREATED_BY,
    IMAGE,
    STARTED_BY,
    Fits,
    all_of,
    container,
    status,
)
from farcall.model import errors
from farcall.model.failure_reasons import FailureReason
from farcall.model.jobs import JobDetail


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
