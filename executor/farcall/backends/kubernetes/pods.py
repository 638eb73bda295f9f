"""Pod states: the retained facts about a pod, in the cluster's terms. No I/O.

A pod's status may be incomplete: its phase is Failed before a reason is set, an evicted pod has
no container at all, and a deleted pod does not exist. Missing facts are left empty, and
`Pod.is_settled` is whether another poll may return more.

Sources:
    https://kubernetes.io/docs/concepts/workloads/pods/pod-lifecycle/
    https://kubernetes.io/docs/concepts/workloads/pods/disruptions/#pod-disruption-conditions
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from farcall.backends.kubernetes import failure_reasons
from farcall.backends.kubernetes.names import (
    CONTAINER,
    FAILURES_ANNOTATION,
    IGNORED_FAILURES_ANNOTATION,
    INDEX_LABEL,
    JOB_LABEL,
    NODE_LABEL,
    RETRIES_ANNOTATION,
)
from farcall.model.jobs import Attempt

POD_DELETED = "PodDeleted: the pod was deleted"
"""farcall's own reason, because the cluster has none for a deleted pod."""


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod, or its last known state.

    Attributes:
        uid: The pod's UID.
        name: Name of the pod, and of its log.
        job: Its job's ID.
        index: Its completion index; None if it has none.
        node: Its index among its job's nodes.
        attempt: Number of the attempt, from 1.
        counted: Number of earlier failed attempts that count.
        phase: Such as ``Pending``.
        reason: The cluster's reason for its end, or for not placing it.
        container_reason: The node's reason about its container.
        exit_code: Exit code of its container, or None.
        created_at: Time of its creation.
        started_at: Time at which its container started, or None.
        stopped_at: Time at which its container ended, or None.
        has_place: Whether it was assigned to a node.
        is_disrupted: Whether it was evicted, preempted, or lost with its node.
        is_unreachable: Whether its node does not respond.
        is_deleting: Whether it is being deleted, by a user or by the Job's controller, and was
            not over before.
        address: Its IP address; empty if it has none.
        gone: Whether it was deleted.
    """

    uid: str
    name: str
    job: str
    index: int | None = None
    node: int = 0
    attempt: int = 1
    counted: int = 0
    phase: str = "Pending"
    reason: str = ""
    container_reason: str = ""
    exit_code: int | None = None
    created_at: datetime | None = None
    started_at: datetime | None = None
    stopped_at: datetime | None = None
    has_place: bool = False
    is_disrupted: bool = False
    is_unreachable: bool = False
    is_deleting: bool = False
    address: str = ""
    gone: bool = False

    @property
    def is_over(self) -> bool:
        """Whether it has ended for good."""
        return self.gone or self.phase in ("Succeeded", "Failed")

    @property
    def is_pending(self) -> bool:
        """Whether its container does not run yet."""
        return not self.gone and self.phase == "Pending"

    @property
    def is_settled(self) -> bool:
        """Whether its status is complete: the kubelet adds nothing more."""
        has_reason = self.reason or self.container_reason or self.exit_code is not None
        return self.phase != "Failed" or self.gone or bool(has_reason)

    def deleted(self) -> Pod:
        """Return the same pod, marked as deleted."""
        return replace(self, gone=True)

    def as_attempt(self) -> Attempt:
        """Return the pod as an attempt of its task."""
        lost = "" if self.exit_code is not None and not self.is_deleting else POD_DELETED
        reason = self.reason or (lost if self.gone or self.is_deleting else "")
        return Attempt(
            reason,
            self.container_reason,
            self.exit_code,
            self.name if self.started_at is not None else "",
            self.started_at,
            self.stopped_at,
        )


def read_pod(document: Mapping[str, Any]) -> Pod:
    """Parse a pod.

    Args:
        document: The object from the API server.
    """
    metadata, status = document.get("metadata") or {}, document.get("status") or {}
    labels, marks = metadata.get("labels") or {}, metadata.get("annotations") or {}
    conditions = {each.get("type"): each for each in status.get("conditions") or ()}
    disrupted = _true(conditions.get("DisruptionTarget"))
    scheduled = conditions.get("PodScheduled") or {}
    index = _number(marks.get(INDEX_LABEL, labels.get(INDEX_LABEL)))
    phase = str(status.get("phase") or "Pending")
    state = _own_state(status)
    blocking = _blocking_init_container(document.get("spec") or {}, status)
    ended = state.get("terminated") or {}
    begun = state.get("running") or ended
    stopped_at = moment(ended.get("finishedAt"))
    node = str((document.get("spec") or {}).get("nodeName") or "")
    is_unreachable = phase == "Running" and _is_unreachable(conditions)
    return Pod(
        uid=str(metadata.get("uid") or ""),
        name=str(metadata.get("name") or ""),
        job=str(labels.get(JOB_LABEL) or ""),
        index=index,
        node=_number(labels.get(NODE_LABEL)) or index or 0,
        attempt=1
        + sum(
            _number(marks.get(key)) or 0
            for key in (FAILURES_ANNOTATION, IGNORED_FAILURES_ANNOTATION, RETRIES_ANNOTATION)
        ),
        counted=_number(marks.get(FAILURES_ANNOTATION)) or 0,
        phase=phase,
        reason=(failure_reasons.node_not_ready(node) if is_unreachable else "")
        or _reason(status, disrupted, scheduled if phase == "Pending" else {}),
        container_reason=_init_reason(metadata, blocking)
        if blocking
        else _container_reason(state),
        exit_code=_number(ended.get("exitCode")),
        created_at=moment(metadata.get("creationTimestamp")),
        started_at=_started_at(begun),
        stopped_at=stopped_at,
        has_place=bool(node or _true(scheduled)),
        is_disrupted=bool(disrupted),
        is_unreachable=is_unreachable,
        is_deleting=_is_deleting(metadata, stopped_at),
        address=str(status.get("podIP") or ""),
    )


def words(reason: object, message: object = "") -> str:
    """Join the cluster's reason and message."""
    return ": ".join(str(part).strip() for part in (reason, message) if part)


def moment(text: object) -> datetime | None:
    """Parse a time of Kubernetes; return None if it is missing or invalid."""
    if not isinstance(text, str):
        return None
    try:
        parsed = datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError:
        return None
    return parsed if parsed.tzinfo else None


def _reason(
    status: Mapping[str, Any], disrupted: Mapping[str, Any], scheduled: Mapping[str, Any]
) -> str:
    """Return why it ended or waits; the status is more precise than a condition."""
    if status.get("reason"):
        return words(status["reason"], status.get("message"))
    if disrupted:
        return words(disrupted.get("reason"), disrupted.get("message"))
    if scheduled.get("status") == "False":
        return words(scheduled.get("reason"), scheduled.get("message"))
    return ""


def _started_at(state: Mapping[str, Any]) -> datetime | None:
    """Return a container's start; runtimes report 1970 if it could not be started."""
    started_at = moment(state.get("startedAt"))
    return None if started_at is None or started_at.year <= 1970 else started_at


def _is_unreachable(conditions: Mapping[Any, Mapping[str, Any]]) -> bool:
    """Return whether a running pod's node does not respond.

    Source:
        https://kubernetes.io/docs/concepts/architecture/nodes/#node-controller
    """
    ready = conditions.get("Ready") or {}
    # Each kubelet gives a reason if a pod is not ready; the node controller gives none.
    is_marked = ready.get("status") == "False" and not ready.get("reason")
    disrupted = _true(conditions.get("DisruptionTarget"))
    return is_marked or disrupted.get("reason") == "DeletionByTaintManager"


def _own_state(status: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the state of the task's container."""
    statuses = status.get("containerStatuses") or ()
    return next((_of_container(each) for each in statuses if each.get("name") == CONTAINER), {})


def _blocking_init_container(
    spec: Mapping[str, Any], status: Mapping[str, Any]
) -> Mapping[str, Any]:
    """Return the status of the init container that keeps the task's from starting."""
    own = _own_state(status)
    if own and not _is_initializing(own):
        return {}
    sidecars = {
        each.get("name")
        for each in spec.get("initContainers") or ()
        if each.get("restartPolicy") == "Always"
    }
    statuses: Sequence[Mapping[str, Any]] = status.get("initContainerStatuses") or ()
    for each in statuses:
        state = _of_container(each)
        # A native sidecar stops after the task's container, with an exit code of its own.
        has_failed = each.get("name") not in sidecars and _failed_code(state)
        if has_failed or ("waiting" in state and not _is_initializing(state)):
            return each
    return {}


def _init_reason(metadata: Mapping[str, Any], status: Mapping[str, Any]) -> str:
    """Return the reason of a blocking init container, with its name and image."""
    state, name = _of_container(status), status.get("name")
    container = f"init container {name}, image {status.get('image')}"
    code = _failed_code(state)
    if not code:
        return f"{_container_reason(state)} ({container})"
    why = words(f"exit code {code}", _container_reason(state))
    log = f"kubectl logs {metadata.get('name')} -c {name}"
    return words(failure_reasons.INIT_FAILED, f"{why} ({container}; {log})")


def _is_deleting(metadata: Mapping[str, Any], stopped_at: datetime | None) -> bool:
    """Return whether a pod is being deleted, and its container had not ended before."""
    if "deletionTimestamp" not in metadata:
        return False
    deadline = moment(metadata["deletionTimestamp"])
    if deadline is None or stopped_at is None:
        return True
    grace = timedelta(seconds=_number(metadata.get("deletionGracePeriodSeconds")) or 0)
    return stopped_at >= deadline - grace


def _of_container(status: Mapping[str, Any]) -> Mapping[str, Any]:
    state: Mapping[str, Any] = status.get("state") or {}
    return state


def _is_initializing(state: Mapping[str, Any]) -> bool:
    """Return whether a container waits for init containers."""
    waiting = state.get("waiting")
    return waiting is not None and waiting.get("reason") in (None, "PodInitializing")


def _failed_code(state: Mapping[str, Any]) -> int:
    """Return the exit code of a failed container; otherwise 0."""
    return (state.get("terminated") or {}).get("exitCode") or 0


def _container_reason(state: Mapping[str, Any]) -> str:
    """Return the node's reason; empty if it only repeats the state."""
    said = state.get("terminated") or state.get("waiting") or {}
    hollow = ("Completed", "Error", "ContainerCreating", "PodInitializing")
    reason, message = said.get("reason"), said.get("message")
    return "" if reason in hollow and not message else words(reason, message)


def _true(condition: Mapping[str, Any] | None) -> Mapping[str, Any]:
    return condition if condition and condition.get("status") == "True" else {}


def _number(value: object) -> int | None:
    """Parse an integer that other writers may have stored."""
    try:
        return int(value)  # type: ignore[call-overload,no-any-return]
    except (TypeError, ValueError):
        return None
