"""Blocked jobs: what keeps a pod from being made, placed or started, and how long that may last.

What a cluster says of a pod that waits may pass by itself: a full cluster gets room or nodes, a
registry answers again. Some of it never does, and a pod waits for it for ever all the same. So
each row says how long is waited: as long as ``stuck_timeout_s`` says, as long as such things take
to heal, or hardly at all. No I/O.

Sources:
    https://kubernetes.io/docs/concepts/containers/images/
    https://kubernetes.io/docs/tasks/debug/debug-application/debug-pods/
    https://kubernetes.io/docs/concepts/policy/resource-quotas/
    https://kueue.sigs.k8s.io/docs/tasks/troubleshooting/troubleshooting_jobs/
"""

from __future__ import annotations

import enum
import re
from typing import NamedTuple

from farcall.backends.kubernetes.texts import CREATED_BY, IMAGE, STARTED_BY
from farcall.backends.matching import Fits, all_of, container, status
from farcall.model import errors
from farcall.model.endings import Verdict
from farcall.model.jobs import JobDetail


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
        verdict: What is said of a job that ended because of it.
    """

    fits: Fits
    heals: Heals
    verdict: Verdict


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


def _stuck(sentence: str, remedy: str) -> Verdict:
    return Verdict(errors.JobStuckError, sentence, remedy)


def _image(sentence: str, remedy: str) -> Verdict:
    return Verdict(errors.ImageError, sentence, remedy)


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
        Verdict(
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
        _stuck(
            f"{_UNPLACED}: a claim of it is not there, or not bound where there is room",
            "check the claims in mounts and pod_overlay (kubectl get pvc)",
        ),
    ),
    Blocked(
        all_of(status("Unschedulable"), says("pod group", "gang", "minMember", "minAvailable")),
        Heals.OFTEN,
        _stuck(
            "Volcano has no room for all nodes of the job at once, or none in its queue",
            f"{_LESS} or for fewer nodes, or set queue to another (kubectl describe queue)",
        ),
    ),
    Blocked(
        all_of(status("Unschedulable"), says("Insufficient [a-z]", "Too many pods")),
        Heals.OFTEN,
        _stuck(
            f"{_UNPLACED}: it has not so much free",
            f"{_LESS}, wait, or have the cluster get larger nodes; a node offers less than its "
            "machine has (kubectl describe nodes, Allocatable)",
        ),
    ),
    Blocked(
        all_of(status("Unschedulable"), says("taint")),
        Heals.OFTEN,
        _stuck(
            f"{_UNPLACED}: those with room have a taint that it does not tolerate",
            "name the taint in tolerations, if these nodes are meant for such jobs",
        ),
    ),
    Blocked(
        all_of(status("Unschedulable"), says("affinity", "selector")),
        Heals.OFTEN,
        _stuck(
            f"{_UNPLACED}: none has the labels that it asks for",
            "check node_selector, instance_type and architecture against the labels of the nodes "
            "(kubectl get nodes --show-labels)",
        ),
    ),
    Blocked(
        status("Unschedulable"),
        Heals.OFTEN,
        _stuck(
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
        _stuck(
            f"{_MAKING}: a quota or a limit of its namespace is exceeded",
            f"{_LESS}, set max_parallel, wait for other jobs, or have the quota raised (kubectl "
            "describe quota,limitrange)",
        ),
    ),
    Blocked(
        all_of(status("FailedCreate"), says("serviceaccount", "service account")),
        Heals.SOMETIMES,
        _stuck(
            f"{_MAKING}: its service account is not there",
            "make the ServiceAccount in the job's namespace, or set service_account to another",
        ),
    ),
    Blocked(
        all_of(status("FailedCreate"), says("PriorityClass")),
        Heals.SOMETIMES,
        _stuck(
            f"{_MAKING}: its priority class is not there",
            "set priority_class to one that is (kubectl get priorityclasses)",
        ),
    ),
    Blocked(
        all_of(status("FailedCreate"), says("PodSecurity", "security context constraint")),
        Heals.SOMETIMES,
        _stuck(
            f"{_MAKING}: the security rules of its namespace forbid it",
            "leave out mounts of type bind and device, and what else the "
            "words name, or take a namespace with other rules",
        ),
    ),
    Blocked(
        status("FailedCreate"),
        Heals.SOMETIMES,
        _stuck(
            f"{_MAKING}: an admission rule refuses it",
            "change what the words name, or ask whoever runs the cluster for the rule",
        ),
    ),
    Blocked(
        all_of(
            status("Suspended:"),
            says("maximum capacity", "doesn't exist", "is inactive", "is stopped", "not found"),
        ),
        Heals.OFTEN,
        _stuck(
            "Kueue cannot admit the job as its queue is",
            f"{_LESS}, set max_parallel, or set queue to another LocalQueue (kubectl describe "
            "localqueue,clusterqueue)",
        ),
    ),
)

BLOCKED = (*_IMAGES, *_STARTS, *_PLACES, *_CREATIONS)
"""The first row that fits counts: the special ones before the general."""


def row_of(detail: JobDetail) -> Blocked | None:
    """Return the row on what keeps a job from starting; None where nothing is said of that."""
    return next((row for row in BLOCKED if row.fits(detail)), None)
