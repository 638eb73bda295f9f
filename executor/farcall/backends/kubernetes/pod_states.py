"""Pod states: what is kept of a pod, in the words in which its cluster tells of it. No I/O.

A pod may be seen half told: its phase says Failed before any reason is there, an evicted one has
no container at all, and a deleted one is gone. What is missing is left empty, and
`Pod.is_settled` tells whether a second look may say more.

Sources:
    https://kubernetes.io/docs/concepts/workloads/pods/pod-lifecycle/
    https://kubernetes.io/docs/concepts/workloads/pods/disruptions/#pod-disruption-conditions
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from farcall.backends.kubernetes.documents import FAILURES, IGNORED_FAILURES
from farcall.backends.kubernetes.names import CONTAINER, INDEX_LABEL, JOB_LABEL, NODE_LABEL
from farcall.model.jobs import Attempt

_RESTARTS = "volcano.sh/job-retry-count"
"""Annotation of a Volcano job's pod: how often the job was begun anew before."""

_COUNTS = (FAILURES, IGNORED_FAILURES, _RESTARTS)

DELETED = "PodDeleted: the pod was deleted"
"""What stands for the cluster's words where it has none: these are farcall's."""


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod, or what is left of it.

    Attributes:
        uid: Its own.
        name: Its name; that of its log, too.
        job: Its job's ID.
        index: Its completion index; None where it has none.
        node: Its number among its job's nodes.
        attempt: Number of the attempt that it is, from 1.
        counted: How many attempts before it have failed and count.
        phase: Such as ``Pending``.
        reason: The cluster's words on its end, or on why it has no place.
        container_reason: The node's words on its container.
        exit_code: Of its container, or None.
        created_at: When it was made.
        started_at: When its container began to run, or None.
        stopped_at: When that ended, or None.
        has_place: Whether it was given a node.
        is_disrupted: Whether it was taken away: evicted, preempted, lost with its node.
        is_deleting: Whether somebody deleted it, the Job's controller, too.
        address: IP address of it; else empty.
        gone: Whether it is no more.
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
    is_deleting: bool = False
    address: str = ""
    gone: bool = False

    @property
    def is_over(self) -> bool:
        """Whether it runs no more, and will not again."""
        return self.gone or self.phase in ("Succeeded", "Failed")

    @property
    def is_pending(self) -> bool:
        """Whether its container does not run yet."""
        return not self.gone and self.phase == "Pending"

    @property
    def is_settled(self) -> bool:
        """Whether all that will be told of its end is there."""
        is_told = self.reason or self.container_reason or self.exit_code is not None
        return self.phase != "Failed" or self.gone or bool(is_told)

    def deleted(self) -> Pod:
        """Return the same pod, which is no more."""
        return replace(self, gone=True)

    def as_attempt(self) -> Attempt:
        """Return it as an attempt of its task."""
        lost = "" if self.exit_code is not None and not self.is_deleting else DELETED
        reason = self.reason or (lost if self.gone or self.is_deleting else "")
        return Attempt(
            reason,
            self.container_reason,
            self.exit_code,
            self.name if self.started_at is not None else "",
            self.started_at,
            self.stopped_at,
        )


def read(document: Mapping[str, Any]) -> Pod:
    """Read a pod.

    Args:
        document: The object, as the API server has it.
    """
    metadata, status = document.get("metadata") or {}, document.get("status") or {}
    labels, marks = metadata.get("labels") or {}, metadata.get("annotations") or {}
    conditions = {each.get("type"): each for each in status.get("conditions") or ()}
    disrupted = _true(conditions.get("DisruptionTarget"))
    scheduled = conditions.get("PodScheduled") or {}
    index = _number(marks.get(INDEX_LABEL, labels.get(INDEX_LABEL)))
    state = _state(status)
    ended = state.get("terminated") or {}
    begun = state.get("running") or ended
    phase = str(status.get("phase") or "Pending")
    return Pod(
        uid=str(metadata.get("uid") or ""),
        name=str(metadata.get("name") or ""),
        job=str(labels.get(JOB_LABEL) or ""),
        index=index,
        node=_number(labels.get(NODE_LABEL)) or index or 0,
        attempt=1
        + sum(_number(marks.get(key)) or 0 for key in (FAILURES, IGNORED_FAILURES, _RESTARTS)),
        counted=_number(marks.get(FAILURES)) or 0,
        phase=phase,
        reason=_reason(status, disrupted, scheduled if phase == "Pending" else {}),
        container_reason=_container_reason(state),
        exit_code=_number(ended.get("exitCode")),
        created_at=moment(metadata.get("creationTimestamp")),
        started_at=moment(begun.get("startedAt")),
        stopped_at=moment(ended.get("finishedAt")),
        has_place=bool((document.get("spec") or {}).get("nodeName") or _true(scheduled)),
        is_disrupted=bool(disrupted),
        is_deleting="deletionTimestamp" in metadata,
        address=str(status.get("podIP") or ""),
    )


def words(reason: object, message: object = "") -> str:
    """Put the cluster's word for something and its sentence on it together."""
    return ": ".join(str(part).strip() for part in (reason, message) if part)


def moment(text: object) -> datetime | None:
    """Read a time of Kubernetes's; None where there is none, or it is no time."""
    if not isinstance(text, str):
        return None
    try:
        found = datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError:
        return None
    return found if found.tzinfo else None


def _reason(
    status: Mapping[str, Any], disrupted: Mapping[str, Any], scheduled: Mapping[str, Any]
) -> str:
    """Return why it ended, or waits: the status says the former better than a condition."""
    if status.get("reason"):
        return words(status["reason"], status.get("message"))
    if disrupted:
        return words(disrupted.get("reason"), disrupted.get("message"))
    if scheduled.get("status") == "False":
        return words(scheduled.get("reason"), scheduled.get("message"))
    return ""


def _state(status: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the state of the task's container, or of one before it that keeps it waiting."""
    for each in status.get("initContainerStatuses") or ():
        state: Mapping[str, Any] = each.get("state") or {}
        failed = (state.get("terminated") or {}).get("exitCode")
        waits = (state.get("waiting") or {}).get("reason") not in (None, "PodInitializing")
        if failed or waits:
            return state
    found = status.get("containerStatuses") or ()
    own: Mapping[str, Any] = next((each for each in found if each.get("name") == CONTAINER), {})
    return own.get("state") or {}


def _container_reason(state: Mapping[str, Any]) -> str:
    """Return the node's words: none where they say no more than that it runs or has ended."""
    said = state.get("terminated") or state.get("waiting") or {}
    hollow = ("Completed", "Error", "ContainerCreating", "PodInitializing")
    reason, message = said.get("reason"), said.get("message")
    return "" if reason in hollow and not message else words(reason, message)


def _true(condition: Mapping[str, Any] | None) -> Mapping[str, Any]:
    return condition if condition and condition.get("status") == "True" else {}


def _number(value: object) -> int | None:
    """Read a whole number, which others may have written."""
    try:
        return int(value)  # type: ignore[call-overload,no-any-return]
    except (TypeError, ValueError):
        return None
