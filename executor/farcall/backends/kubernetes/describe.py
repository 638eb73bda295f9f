"""Parsers of a cluster's Jobs and pods. No I/O.

A Job's status and its pods' statuses are not synchronized, and pods may be deleted: the Job
determines what has ended, and the pods why. `farcall.backends.kubernetes.failure_reasons`
interprets the texts.

Sources:
    https://kubernetes.io/docs/reference/kubernetes-api/workload-resources/job-v1/#JobStatus
    https://kubernetes.io/docs/concepts/workloads/controllers/job/
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, ClassVar, NamedTuple

from farcall.backends import bootstrap
from farcall.backends.failure_tables import waiting
from farcall.backends.kubernetes import failure_reasons, names
from farcall.backends.kubernetes.documents import FAILURES, IGNORED_FAILURES, unescaped
from farcall.backends.kubernetes.failure_reasons import Heals
from farcall.backends.kubernetes.names import (
    CONTAINER,
    ENDED_ANNOTATION,
    INDEX_LABEL,
    JOB_LABEL,
    KIND_LABEL,
    NAME_ANNOTATION,
    NODE_LABEL,
    OPTIONS_ANNOTATION,
    QUEUE_LABEL,
    REASON_ANNOTATION,
    RETRIES_ANNOTATION,
    TAGS_ANNOTATION,
)
from farcall.model.failure_reasons import OWN_REASON, Dwell, FailureReason
from farcall.model.jobs import Attempt, JobDetail, JobStatus, NodeGroup
from farcall.model.timing import Timing
from farcall_runtime.contract import ENV_OWN_NODES

# --- Pod states: the retained facts about a pod, in the cluster's own terms. No I/O
#
# A pod's status may be incomplete: its phase is Failed before a reason is set, an evicted pod has
# no container at all, and a deleted pod does not exist. Missing facts are left empty, and
# `Pod.is_settled` is whether another poll may return more.
#
# Sources:
#     https://kubernetes.io/docs/concepts/workloads/pods/pod-lifecycle/
#     https://kubernetes.io/docs/concepts/workloads/pods/disruptions/#pod-disruption-conditions


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


def read(document: Mapping[str, Any]) -> Pod:
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
            for key in (FAILURES, IGNORED_FAILURES, RETRIES_ANNOTATION)
        ),
        counted=_number(marks.get(FAILURES)) or 0,
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
        found = datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError:
        return None
    return found if found.tzinfo else None


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
    found = moment(state.get("startedAt"))
    return None if found is None or found.year <= 1970 else found


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
    found = f"init container {name}, image {status.get('image')}"
    code = _failed_code(state)
    if not code:
        return f"{_container_reason(state)} ({found})"
    why = words(f"exit code {code}", _container_reason(state))
    log = f"kubectl logs {metadata.get('name')} -c {name}"
    return words(failure_reasons.INIT_FAILED, f"{why} ({found}; {log})")


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


DELETED = "JobDeleted: the Job was deleted"
MAIN_ENDED = "MainNodeEnded: the main node ended, and the other nodes with it"
"""farcall's own reason, because the cluster has none."""

_INSTANCE_TYPE = "node.kubernetes.io/instance-type"
_FAILURES = ("Failed", "FailureTarget")
_SUCCESSES = ("Complete", "SuccessCriteriaMet")
_WAITING_KINDS = ("Workload", "PodGroup")
_QUEUE_CONDITIONS = (
    *(("QuotaReserved", "False"), ("Evicted", "True"), ("Preempted", "True")),
    ("Admitted", "False"),  # without a reason of its own if no quota is reserved
    ("Unschedulable", "True"),
)
"""Conditions of a Workload or PodGroup that explain a wait: causes before consequences.

https://kueue.sigs.k8s.io/docs/concepts/workload/
"""

_DEACTIVATED = "Deactivated"
_START_EVENTS = ("FailedMount", "FailedAttachVolume", "FailedCreatePodSandBox")


class KubernetesDetail(JobDetail):
    """A job, or an array task, as described by its cluster."""

    platform: ClassVar[str] = "Kubernetes"

    @property
    def platform_reason(self) -> str:
        """The informative part of the cluster's reasons for the end."""
        is_hollow = failure_reasons.is_hollow(self.status_reason)
        return self.container_reason if is_hollow else self.reason

    @property
    def places(self) -> Mapping[str, str]:
        """Its namespace, and the pod of its last attempt that has started."""
        found = {"Namespace": self.log_group, "Pod": self.log_stream}
        return {name: text for name, text in found.items() if text}

    @property
    def remedy(self) -> str:
        """Remedy if the cluster reports that it cannot start the job; otherwise empty."""
        row = failure_reasons.row_of(self) if self.is_blocked else None
        return failure_reasons.explained(row.failure_reason, self).remedy if row else ""

    @property
    def is_blocked(self) -> bool:
        """Whether the cluster reports that it cannot start the job at present."""
        is_waiting = not self.status.is_final and self.status is not JobStatus.RUNNING
        return is_waiting and not self.is_terminated and failure_reasons.row_of(self) is not None

    @property
    def likely_cause(self) -> str:
        """Likely cause of a long wait, as a sentence."""
        if self.status_reason:
            why, remedy = self.waiting()
            return f"{why[:1].upper()}{why[1:]}. To do: {remedy}."
        if self.furthest in (JobStatus.SUBMITTED, JobStatus.PENDING):
            return (
                "No controller has created its pods: check kube-controller-manager and the "
                "events of the Job (kubectl describe job)."
            )
        return "The cluster may have no free capacity, or a node may be starting."

    @property
    def is_explained(self) -> bool:
        """Whether the cluster or farcall wrote the status reason; users cannot write one."""
        return True

    @property
    def has_lost_attempts(self) -> bool:
        """Whether it has failed and its pods, which describe its attempts, were deleted."""
        return self.status is JobStatus.FAILED and not self.tried and not self.array_size

    def dwell(self, timing: Timing) -> Dwell:
        """Return the grace periods before a blocked job is reported and terminated."""
        row = failure_reasons.row_of(self)
        if row is None or row.heals is Heals.OFTEN:
            return Dwell(timing.blocked_report_s, None)
        if row.heals is Heals.SOMETIMES:
            return Dwell(timing.blocked_report_s, timing.pull_dwell_s)
        return Dwell(0.0, timing.start_dwell_s)

    def failure_reason(self) -> FailureReason:
        """Return why the job ended; see `farcall.backends.kubernetes.failure_reasons`."""
        return failure_reasons.failure_reason(self)

    def waiting(self) -> tuple[str, str]:
        """Return the state of the job in a sentence, and a remedy."""
        if not self.is_terminated and (lost := failure_reasons.lost_node(self)):
            return lost
        is_held = not self.is_terminated and not self.is_blocked
        held = failure_reasons.held(self) if is_held else None
        return held or waiting(self, failure_reasons.STATES)


class _End(NamedTuple):
    """End of a Job.

    Attributes:
        is_success: Whether it has succeeded.
        reason: The cluster's reason.
        at: Time of the end.
    """

    is_success: bool
    reason: str
    at: datetime | None


class Description:
    """Description of a job, its array tasks or its nodes.

    Args:
        job: The Job.
        events: Events of the job and its pods, and objects that report why it is queued:
            a Workload of Kueue, a PodGroup of Volcano.
        is_deleted: Whether the Job was deleted; ``job`` is its last state.
        parts: All objects of the job, if there are several or one of Volcano.
    """

    def __init__(
        self,
        job: Mapping[str, Any],
        events: Iterable[Mapping[str, Any]] = (),
        *,
        is_deleted: bool = False,
        parts: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        self._spec: Mapping[str, Any] = job.get("spec") or {}
        self._status: Mapping[str, Any] = job.get("status") or {}
        self._events = tuple(events)
        self._parts = parts
        self._base = _base(job, parts)
        self._end = _end(job, is_deleted=is_deleted)
        self._size: int = self._spec.get("completions") or 1
        self._reasons = _table(_annotations(job).get(ENDED_ANNOTATION))

    def whole(self, pods: Sequence[Pod]) -> KubernetesDetail:
        """Describe the job.

        Args:
            pods: Its known pods; of an array, the failed ones and some waiting ones.
        """
        base, end = self._base, self._end
        if not base.groups and self._size <= 1:
            return self._one(base, 0, pods)
        main = next((each for each in reversed(_of(pods)) if each.node == 0), None)
        failed_pod = main if base.groups and end and end.is_success else _failed_pod(pods, end)
        found = self._with_end(base)
        if failed_pod is not None:
            found = replace(
                found,
                exit_code=failed_pod.exit_code,
                container_reason=failed_pod.container_reason,
                log_stream=failed_pod.as_attempt().log_stream,
            )
        if end is None:
            found = self._as_it_waits(found, pods)
        if base.groups:
            status = found.status if end else self._unfinished(main)
            started = main.started_at if main else None
            return replace(
                found, status=status, started_at=started, tried=_attempts_of_job(pods, end)
            )
        return replace(found, array_size=self._size, status_summary=self._summary(pods))

    def task(self, index: int, pods: Sequence[Pod]) -> KubernetesDetail | None:
        """Describe an array task; return None if the index does not exist."""
        if not 0 <= index < self._size:
            return None
        base = replace(self._base, job_id=f"{self._base.job_id}:{index}", groups=())
        return self._one(base, index, [each for each in pods if each.index == index])

    def node(self, rank: int, pods: Sequence[Pod]) -> KubernetesDetail | None:
        """Describe a node of a multi-node job; return None if the index does not exist."""
        base, end = self._base, self._end
        group = next((each for each in base.groups if each.first <= rank <= each.last), None)
        if group is None:
            return None
        base = replace(
            base,
            job_id=f"{base.job_id}#{rank}",
            groups=(),
            image=group.image,
            command=group.command,
            environment={**base.environment, **group.environment},
            vcpu=group.vcpu,
            memory_mib=group.memory_mib,
            gpus=group.gpus,
        )
        own = _of(each for each in pods if each.node == rank)
        last = own[-1] if own else None
        found = _with_pod(self._with_end(base), last, own)
        status = self._node_end(rank, last)
        if status is None:
            return self._as_it_waits(replace(found, status=self._unfinished(last)), own)
        return replace(found, status=status, status_reason=_node_reason(status, last, end))

    def _node_end(self, rank: int, last: Pod | None) -> JobStatus | None:
        """Return how a node ended: by its pod, its own Job, or the entire job."""
        end = self._end
        if last is not None and last.is_over:
            return JobStatus.SUCCEEDED if last.phase == "Succeeded" else JobStatus.FAILED
        own = next((each for each in self._parts if names.rank(each, 0) == rank > 0), None)
        part = _end(own, is_deleted=False) if own is not None else None
        if part is not None or end is None:
            return None if part is None else _of_end(part)
        if own is None and end.is_success and "completedIndexes" in self._status:
            return JobStatus.SUCCEEDED if rank in self._completed else JobStatus.FAILED
        return JobStatus.FAILED if own is not None else _of_end(end)

    @property
    def _completed(self) -> frozenset[int]:
        return names.indexes(self._status.get("completedIndexes"))

    @property
    def _failed(self) -> frozenset[int]:
        return names.indexes(self._status.get("failedIndexes"))

    def _one(self, base: KubernetesDetail, index: int, pods: Iterable[Pod]) -> KubernetesDetail:
        """Describe a task that consists of one pod at a time."""
        own, end = _of(pods), self._end
        last = own[-1] if own else None
        is_suspended = bool(self._spec.get("suspend"))
        found = _with_pod(base, last, own, is_suspended=is_suspended)
        if index in self._completed or (last is not None and last.phase == "Succeeded"):
            return replace(found, status=JobStatus.SUCCEEDED, status_reason="")
        has_failed = index in self._failed or self._is_last(last)
        if not has_failed and end is None:
            return self._as_it_waits(replace(found, status=self._unfinished(last)), own)
        reason = self._why(index, last, has_failed=has_failed)
        return replace(
            found,
            status=JobStatus.SUCCEEDED if end and end.is_success else JobStatus.FAILED,
            status_reason=reason,
            is_terminated=reason.startswith(OWN_REASON),
            stopped_at=found.stopped_at or (end.at if end else None),
        )

    def _why(self, index: int, last: Pod | None, *, has_failed: bool) -> str:
        """Return the reason for a task's end; a cause precedes its consequences."""
        ended, end = self._reasons.get(str(index)), self._end
        if ended:
            return str(ended)
        own = last.as_attempt().status_reason if last else ""
        if end is None or end.is_success:
            return own
        was_over = last is not None and _is_before(last, end) and not last.is_deleting
        if failure_reasons.is_hollow(end.reason) or (has_failed and was_over):
            return own or ("" if last is not None and last.exit_code is not None else end.reason)
        return end.reason

    def _is_last(self, pod: Pod | None) -> bool:
        """Return whether a failed pod is the last of its Job, which reports it later.

        A deleted pod does not end the Job: a suspended Job runs again later, and a Job that ends
        has a condition with the reason.

        Source:
            https://kubernetes.io/docs/concepts/workloads/controllers/job/#pod-failure-policy
        """
        limit = self._spec.get("backoffLimitPerIndex")
        if pod is None or pod.phase != "Failed" or not pod.is_settled or limit is None:
            return False
        if pod.is_deleting or pod.gone or self._spec.get("suspend"):
            return False
        for rule in (self._spec.get("podFailurePolicy") or {}).get("rules") or ():
            if rule.get("onPodConditions"):
                fits = pod.is_disrupted  # the only condition in farcall's rules
            else:
                fits = _fits(rule.get("onExitCodes") or {}, pod.exit_code)
            if fits and rule.get("action") != "Count":
                return bool(rule.get("action") == "FailIndex")
            if fits:
                break
        return bool(pod.counted >= limit)

    def _unfinished(self, last: Pod | None) -> JobStatus:
        """Return the status of an unfinished task."""
        if self._spec.get("suspend"):
            return JobStatus.RUNNABLE
        if last is None:
            return JobStatus.SUBMITTED
        if last.phase in ("Running", "Unknown") and not (last.gone or last.is_unreachable):
            return JobStatus.RUNNING
        # A failed pod is followed by another, or the Job will report its failure.
        is_starting = last.has_place and last.is_pending
        return JobStatus.STARTING if is_starting else JobStatus.RUNNABLE

    def _with_end(self, base: KubernetesDetail) -> KubernetesDetail:
        end = self._end
        if end is None:
            return replace(base, status=JobStatus.PENDING)
        return replace(
            base,
            status=_of_end(end),
            status_reason=end.reason,
            stopped_at=moment(self._status.get("completionTime")) or end.at,
            is_terminated=end.reason.startswith(OWN_REASON),
        )

    def _summary(self, pods: Sequence[Pod]) -> dict[str, int]:
        """Count an array's tasks by status."""
        is_over = self._end is not None
        done = len(self._completed)
        failed = self._size - done if is_over else len(self._failed)
        active = 0 if is_over else max(0, self._status.get("active") or 0)
        running = min(active, max(0, self._status.get("ready") or 0))
        pending = [each for each in pods if each.is_pending]
        placed = sum(each.has_place for each in pending)
        waits = active - running
        starting = waits if placed == len(pending) else round(waits * placed / len(pending))
        starting -= min(starting, sum(each.is_unreachable for each in pods))
        rest = max(0, self._size - done - failed - active)
        is_held = bool(self._spec.get("suspend"))
        found = {
            JobStatus.SUBMITTED: 0 if is_held else rest,
            JobStatus.RUNNABLE: waits - starting + (rest if is_held else 0),
            JobStatus.STARTING: starting,
            JobStatus.RUNNING: running,
            JobStatus.SUCCEEDED: done,
            JobStatus.FAILED: failed,
        }
        return {key.value: number for key, number in found.items() if number}

    def _as_it_waits(self, found: KubernetesDetail, pods: Sequence[Pod]) -> KubernetesDetail:
        """Add the reason that keeps a job from starting, if none of its pods runs."""
        lost = next((each for each in pods if each.is_unreachable), None)
        if lost is not None:
            return replace(found, status_reason=lost.reason)
        if (self._status.get("ready") or 0) and found.status is JobStatus.PENDING:
            return found
        if self._spec.get("suspend"):
            return replace(found, status_reason=words("Suspended", _queue_words(self._events)))
        pending = [each for each in pods if each.is_pending]
        if not pending:
            if self._status.get("active"):
                return found
            return replace(found, status_reason=_last_event(self._events, ("FailedCreate",)))
        blocked = [bool(each.reason or each.container_reason) for each in pending]
        if not all(blocked):
            event = "" if any(blocked) else _last_event(self._events, _START_EVENTS)
            return replace(found, container_reason=event)
        first = pending[0]
        held = _queue_words(self._events) if first.reason else ""
        reason = words(first.reason.partition(":")[0], held) if held else first.reason
        return replace(found, status_reason=reason, container_reason=first.container_reason)


def _node_reason(status: JobStatus, last: Pod | None, end: _End | None) -> str:
    if status is JobStatus.SUCCEEDED:
        return ""
    own = last.as_attempt().status_reason if last is not None else ""
    if end is None:
        return own
    with_whole = end.reason or MAIN_ENDED
    if last is None or last.is_deleting or not last.is_over:
        return with_whole
    is_cancelled = end.reason.startswith(OWN_REASON) and not _is_before(last, end)
    if is_cancelled or last.exit_code is None:
        return last.reason or with_whole
    return last.reason


def _is_before(pod: Pod, end: _End) -> bool:
    return pod.stopped_at is not None and end.at is not None and pod.stopped_at < end.at


def options(job: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options with which a Job was created; empty if unknown."""
    return _table(_annotations(job).get(OPTIONS_ANNOTATION))


def _fits(codes: Mapping[str, Any], exit_code: int | None) -> bool:
    """Return whether a rule on exit codes matches a code; none matches 0."""
    if not exit_code:
        return False
    is_listed: bool = exit_code in (codes.get("values") or ())
    is_wanted = codes.get("operator") == "In"
    return is_listed is is_wanted


def _counted(own: Sequence[Pod], *, is_suspended: bool) -> list[Pod]:
    """Return the pods that count as attempts.

    A suspended Job deletes its pods without counting them, and runs the same attempt again.
    """
    open_ = {each.attempt for each in own if not each.is_over}
    return [
        each
        for each in own
        if not (each.is_deleting or each.gone) or not (is_suspended or each.attempt in open_)
    ]


def _with_pod(
    base: KubernetesDetail, last: Pod | None, own: Sequence[Pod], *, is_suspended: bool = False
) -> KubernetesDetail:
    tried = _tried(_counted(own, is_suspended=is_suspended))
    allowed = base.attempts_allowed + sum(each.is_disrupted for each in own if each.is_over)
    base = replace(base, tried=tried, attempts_allowed=allowed)
    if last is None:
        return base
    return replace(
        base,
        status_reason=last.reason,
        container_reason=last.container_reason,
        exit_code=last.exit_code,
        started_at=last.started_at,
        stopped_at=last.stopped_at,
        log_stream=last.name if last.started_at is not None else "",
        address=last.address,
    )


def _tried(own: Sequence[Pod]) -> tuple[Attempt, ...]:
    """Return the finished attempts, each at the position of its number."""
    over = {each.attempt: each.as_attempt() for each in own if each.is_over}
    if not over:
        return ()
    return tuple(over.get(number, Attempt()) for number in range(1, max(over) + 1))


def _of(pods: Iterable[Pod]) -> list[Pod]:
    """Sort pods in the order of their creation: attempts, the last one last."""
    return sorted(pods, key=lambda each: (each.attempt, str(each.created_at or ""), each.uid))


def _end(job: Mapping[str, Any], *, is_deleted: bool) -> _End | None:
    conditions = (job.get("status") or {}).get("conditions") or ()
    by_type = {each.get("type"): each for each in conditions if each.get("status") == "True"}
    for kind in (*_SUCCESSES, *_FAILURES):
        if kind in by_type:
            found = by_type[kind]
            at = moment(by_type.get("FailureTarget", found).get("lastTransitionTime"))
            if kind in _SUCCESSES:
                return _End(is_success=True, reason="", at=at)
            own = _annotations(job).get(REASON_ANNOTATION)
            said = words(found.get("reason"), found.get("message"))
            return _End(is_success=False, reason=str(own or said), at=at)
    return _End(is_success=False, reason=_deleted(job), at=None) if is_deleted else None


def _of_end(end: _End) -> JobStatus:
    return JobStatus.SUCCEEDED if end.is_success else JobStatus.FAILED


def _deleted(job: Mapping[str, Any]) -> str:
    return str(_annotations(job).get(REASON_ANNOTATION) or DELETED)


def _failed_pod(pods: Sequence[Pod], end: _End | None) -> Pod | None:
    """Return the pod that ended a multi-node job: the named or the first failed one."""
    if end is None or end.is_success:
        return None
    failed = [each for each in pods if each.phase == "Failed" and not each.is_deleting]
    named = [each for each in failed if f"/{each.name} " in f"{end.reason} "]
    failed.sort(key=lambda each: str(each.stopped_at or "~"))
    return next(iter(named or failed), None)


def _attempts_of_job(pods: Sequence[Pod], end: _End | None) -> tuple[Attempt, ...]:
    """Return the attempts of a multi-node job; each attempt consists of all nodes."""
    latest = max((each.attempt for each in pods), default=0)
    main = [each for each in pods if each.node == 0 and (end or each.attempt < latest)]
    return _tried([each for each in main if each.is_over])


def _queue_words(events: Iterable[Mapping[str, Any]]) -> str:
    """Return the reason of Kueue's Workload or Volcano's PodGroup for a job's wait."""
    found = next((each for each in events if each.get("kind") in _WAITING_KINDS), {})
    conditions = (found.get("status") or {}).get("conditions") or ()
    by_kind = {(each.get("type"), each.get("status")): each for each in conditions}
    wanted = [by_kind[kind] for kind in _QUEUE_CONDITIONS if kind in by_kind]
    if (found.get("spec") or {}).get("active") is False:
        evicted = by_kind.get(("Evicted", "True")) or {}
        return words(_DEACTIVATED, evicted.get("message") or "The workload is deactivated")
    return words(wanted[0].get("reason"), wanted[0].get("message")) if wanted else ""


def _last_event(events: Iterable[Mapping[str, Any]], reasons: Sequence[str]) -> str:
    found = [each for each in events if each.get("reason") in reasons]
    found.sort(key=lambda each: str(each.get("lastTimestamp") or each.get("eventTime") or ""))
    return words(found[-1].get("reason"), found[-1].get("message")) if found else ""


# --- constant facts in the document -----------------------------------------------------------


def _base(job: Mapping[str, Any], parts: Sequence[Mapping[str, Any]]) -> KubernetesDetail:
    """Return the facts in a Job's document that do not change."""
    metadata, spec = job.get("metadata") or {}, job.get("spec") or {}
    labels, marks = metadata.get("labels") or {}, _annotations(job)
    template = (spec.get("template") or {}).get("spec") or {}
    container = _container(template)
    resources = _resources(container)
    environment = _environment(container)
    tags = _table(marks.get(TAGS_ANNOTATION))
    command = _command(container)
    limit = spec.get("backoffLimitPerIndex", spec.get("backoffLimit"))
    name = str(metadata.get("name") or "")
    return KubernetesDetail(
        job_id=name,
        name=str(marks.get(NAME_ANNOTATION) or name),
        status=JobStatus.SUBMITTED,
        attempts_allowed=1 + (limit if isinstance(limit, int) and limit < 1000 else 0),
        created_at=moment(metadata.get("creationTimestamp")),
        log_group=str(metadata.get("namespace") or ""),
        environment=environment,
        queue=str(labels.get(QUEUE_LABEL) or ""),
        image=str(container.get("image") or ""),
        command=() if bootstrap.fetched(command) else command,
        runtime=bootstrap.fetched(command),
        vcpu=resources[0],
        memory_mib=resources[1],
        gpus=resources[2],
        time_limit_s=template.get("activeDeadlineSeconds"),
        groups=_groups(parts or [job]),
        instance_type=(template.get("nodeSelector") or {}).get(_INSTANCE_TYPE, ""),
        tags={str(key): str(value) for key, value in tags.items()},
        is_command=labels.get(KIND_LABEL) == "command",
    )


def _groups(objects: Iterable[Mapping[str, Any]]) -> tuple[NodeGroup, ...]:
    """Return the node groups of a multi-node job; equal nodes form one group."""
    templates = [each for one in objects for each in _templates(one)]
    placed = sorted(templates, key=lambda each: each[0])
    if not any(ENV_OWN_NODES in _environment(_container(pod)) for _, _, pod in placed):
        return ()
    found: list[NodeGroup] = []
    for first, count, template in placed:
        container = _container(template)
        vcpu, memory, gpus = _resources(container)
        group = NodeGroup(
            first=first,
            last=first + count - 1,
            image=str(container.get("image") or ""),
            command=_command(container),
            environment=_environment(container),
            vcpu=vcpu,
            memory_mib=memory,
            gpus=gpus,
        )
        before = found[-1] if found else None
        if before is not None and _is_same(before, group):
            found[-1] = replace(before, last=group.last)
        else:
            found.append(group)
    return tuple(found)


def _is_same(one: NodeGroup, other: NodeGroup) -> bool:
    """Return whether two node groups are equal except for their indexes."""
    alike = replace(other, first=one.first, last=one.last, environment=one.environment)
    ranks = failure_reasons.NODE_VARIABLES
    environments = [
        {key: value for key, value in each.environment.items() if key not in ranks}
        for each in (one, other)
    ]
    return one == alike and environments[0] == environments[1]


def _templates(document: Mapping[str, Any]) -> list[tuple[int, int, Mapping[str, Any]]]:
    """Return first index, number and pod spec of each kind of node in an object."""
    spec = document.get("spec") or {}
    if "tasks" in spec:  # Volcano's
        return [
            (
                names.rank(each.get("template") or {}, place),
                each.get("replicas") or 1,
                (each.get("template") or {}).get("spec") or {},
            )
            for place, each in enumerate(spec["tasks"])
        ]
    template = spec.get("template") or {}
    first = names.rank(document, 0)
    return [(first, spec.get("completions") or 1, template.get("spec") or {})]


def _container(template: Mapping[str, Any]) -> Mapping[str, Any]:
    found = template.get("containers") or ()
    own = next((each for each in found if each.get("name") == CONTAINER), None)
    return own if own is not None else next(iter(found), {})


def _command(container: Mapping[str, Any]) -> tuple[str, ...]:
    given = [*(container.get("command") or ()), *(container.get("args") or ())]
    return tuple(unescaped(part) for part in given)


def _environment(container: Mapping[str, Any]) -> dict[str, str]:
    found = (each for each in container.get("env") or () if "value" in each)
    return {each["name"]: unescaped(each["value"] or "") for each in found}


def _resources(container: Mapping[str, Any]) -> tuple[float, int, int]:
    limits = (container.get("resources") or {}).get("limits") or {}
    return names.resources(limits)


def _annotations(job: Mapping[str, Any]) -> Mapping[str, Any]:
    return (job.get("metadata") or {}).get("annotations") or {}


def _table(text: object) -> dict[str, Any]:
    """Parse a JSON annotation; empty if invalid, because other clients can write it."""
    try:
        found = json.loads(text) if isinstance(text, str) else {}
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
