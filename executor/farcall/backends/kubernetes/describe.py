"""Parsers of a cluster's Jobs and pods. No I/O.

A Job's status and its pods' statuses are not synchronized, and pods may be deleted: the Job
determines what has ended, and the pods why. `farcall.backends.kubernetes.failure_reasons`
interprets the texts.

Sources:
    https://kubernetes.io/docs/reference/kubernetes-api/workload-resources/job-v1/#JobStatus
    https://kubernetes.io/docs/concepts/workloads/controllers/job/
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, NamedTuple

from farcall.backends.kubernetes import failure_reasons, names
from farcall.backends.kubernetes.detail import (
    KubernetesDetail,
    annotations_of,
    constant_facts,
    json_annotation,
)
from farcall.backends.kubernetes.indexes import parse_indexes
from farcall.backends.kubernetes.names import (
    ENDED_ANNOTATION,
    OPTIONS_ANNOTATION,
    REASON_ANNOTATION,
)
from farcall.backends.kubernetes.pods import Pod, moment, words
from farcall.model.failure_reasons import OWN_REASON
from farcall.model.jobs import Attempt, JobStatus

DELETED = "JobDeleted: the Job was deleted"
MAIN_ENDED = "MainNodeEnded: the main node ended, and the other nodes with it"
"""farcall's own reason, because the cluster has none."""

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
        self._base = constant_facts(job, parts)
        self._end = _end(job, is_deleted=is_deleted)
        self._size: int = self._spec.get("completions") or 1
        self._reasons = json_annotation(job, ENDED_ANNOTATION)

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
        detail = self._with_end(base)
        if failed_pod is not None:
            detail = replace(
                detail,
                exit_code=failed_pod.exit_code,
                container_reason=failed_pod.container_reason,
                log_stream=failed_pod.as_attempt().log_stream,
            )
        if end is None:
            detail = self._as_it_waits(detail, pods)
        if base.groups:
            status = detail.status if end else self._unfinished(main)
            started = main.started_at if main else None
            return replace(
                detail, status=status, started_at=started, tried=_attempts_of_job(pods, end)
            )
        return replace(detail, array_size=self._size, status_summary=self._summary(pods))

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
        detail = _with_pod(self._with_end(base), last, own)
        status = self._node_end(rank, last)
        if status is None:
            return self._as_it_waits(replace(detail, status=self._unfinished(last)), own)
        return replace(detail, status=status, status_reason=_node_reason(status, last, end))

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
        return parse_indexes(self._status.get("completedIndexes"))

    @property
    def _failed(self) -> frozenset[int]:
        return parse_indexes(self._status.get("failedIndexes"))

    def _one(self, base: KubernetesDetail, index: int, pods: Iterable[Pod]) -> KubernetesDetail:
        """Describe a task that consists of one pod at a time."""
        own, end = _of(pods), self._end
        last = own[-1] if own else None
        is_suspended = bool(self._spec.get("suspend"))
        detail = _with_pod(base, last, own, is_suspended=is_suspended)
        if index in self._completed or (last is not None and last.phase == "Succeeded"):
            return replace(detail, status=JobStatus.SUCCEEDED, status_reason="")
        has_failed = index in self._failed or self._is_last(last)
        if not has_failed and end is None:
            return self._as_it_waits(replace(detail, status=self._unfinished(last)), own)
        reason = self._why(index, last, has_failed=has_failed)
        return replace(
            detail,
            status=JobStatus.SUCCEEDED if end and end.is_success else JobStatus.FAILED,
            status_reason=reason,
            is_terminated=reason.startswith(OWN_REASON),
            stopped_at=detail.stopped_at or (end.at if end else None),
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
        counts = {
            JobStatus.SUBMITTED: 0 if is_held else rest,
            JobStatus.RUNNABLE: waits - starting + (rest if is_held else 0),
            JobStatus.STARTING: starting,
            JobStatus.RUNNING: running,
            JobStatus.SUCCEEDED: done,
            JobStatus.FAILED: failed,
        }
        return {key.value: number for key, number in counts.items() if number}

    def _as_it_waits(self, detail: KubernetesDetail, pods: Sequence[Pod]) -> KubernetesDetail:
        """Add the reason that keeps a job from starting, if none of its pods runs."""
        lost = next((each for each in pods if each.is_unreachable), None)
        if lost is not None:
            return replace(detail, status_reason=lost.reason)
        if (self._status.get("ready") or 0) and detail.status is JobStatus.PENDING:
            return detail
        if self._spec.get("suspend"):
            return replace(detail, status_reason=words("Suspended", _queue_words(self._events)))
        pending = [each for each in pods if each.is_pending]
        if not pending:
            if self._status.get("active"):
                return detail
            return replace(detail, status_reason=_last_event(self._events, ("FailedCreate",)))
        blocked = [bool(each.reason or each.container_reason) for each in pending]
        if not all(blocked):
            event = "" if any(blocked) else _last_event(self._events, _START_EVENTS)
            return replace(detail, container_reason=event)
        first = pending[0]
        held = _queue_words(self._events) if first.reason else ""
        reason = words(first.reason.partition(":")[0], held) if held else first.reason
        return replace(detail, status_reason=reason, container_reason=first.container_reason)


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
    return json_annotation(job, OPTIONS_ANNOTATION)


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
            condition = by_type[kind]
            at = moment(by_type.get("FailureTarget", condition).get("lastTransitionTime"))
            if kind in _SUCCESSES:
                return _End(is_success=True, reason="", at=at)
            own = annotations_of(job).get(REASON_ANNOTATION)
            said = words(condition.get("reason"), condition.get("message"))
            return _End(is_success=False, reason=str(own or said), at=at)
    return _End(is_success=False, reason=_deleted(job), at=None) if is_deleted else None


def _of_end(end: _End) -> JobStatus:
    return JobStatus.SUCCEEDED if end.is_success else JobStatus.FAILED


def _deleted(job: Mapping[str, Any]) -> str:
    return str(annotations_of(job).get(REASON_ANNOTATION) or DELETED)


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
    waiting = next((each for each in events if each.get("kind") in _WAITING_KINDS), {})
    conditions = (waiting.get("status") or {}).get("conditions") or ()
    by_kind = {(each.get("type"), each.get("status")): each for each in conditions}
    wanted = [by_kind[kind] for kind in _QUEUE_CONDITIONS if kind in by_kind]
    if (waiting.get("spec") or {}).get("active") is False:
        evicted = by_kind.get(("Evicted", "True")) or {}
        return words(_DEACTIVATED, evicted.get("message") or "The workload is deactivated")
    return words(wanted[0].get("reason"), wanted[0].get("message")) if wanted else ""


def _last_event(events: Iterable[Mapping[str, Any]], reasons: Sequence[str]) -> str:
    matching = [each for each in events if each.get("reason") in reasons]
    matching.sort(key=lambda each: str(each.get("lastTimestamp") or each.get("eventTime") or ""))
    return words(matching[-1].get("reason"), matching[-1].get("message")) if matching else ""
