"""Job controller: creates and counts the pods of Jobs, and finishes Jobs.

Rules and texts are from Kubernetes 1.36. Pods are counted as soon as they have finished, so
status.uncountedTerminatedPods is always empty; a pod is replaced when it has ended, as with
``podReplacementPolicy: Failed``; and parallelism does not change while a Job runs.

Sources:
    https://kubernetes.io/docs/concepts/workloads/controllers/job/
    https://github.com/kubernetes/kubernetes/blob/v1.36.2/pkg/controller/job/job_controller.go
    https://github.com/kubernetes/enhancements/tree/master/keps/sig-apps/3850-backoff-limits-per-index-for-indexed-jobs
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any, NamedTuple

from tests.emulators.kubernetes import job_pods, pod_status
from tests.emulators.kubernetes.errors import ForbiddenError
from tests.emulators.kubernetes.job_pods import JobPods, is_indexed
from tests.emulators.kubernetes.kinds import JOB, POD, Kind
from tests.emulators.kubernetes.nodes import admit_pod
from tests.emulators.kubernetes.recorder import NORMAL, WARNING, Recorder
from tests.emulators.kubernetes.store import Store, key_of, timestamp
from tests.emulators.kubernetes.timing import Timing, doubled

#: Maximum number of pods that one sync of a Job creates.
MAX_PODS_A_SYNC = 500

Key = tuple[str, str]

_log = logging.getLogger("farcall")


class Finish(NamedTuple):
    """End of a Job.

    Attributes:
        target: First condition: ``FailureTarget`` or ``SuccessCriteriaMet``.
        reason: Reason in one word.
        message: Message in one sentence.
    """

    target: str
    reason: str
    message: str

    @property
    def condition(self) -> str:
        """Last condition of the Job."""
        return "Complete" if self.target == "SuccessCriteriaMet" else "Failed"


_TOO_OFTEN = Finish(
    "FailureTarget", "BackoffLimitExceeded", "Job has reached the specified backoff limit"
)
_TOO_LONG = Finish(
    "FailureTarget", "DeadlineExceeded", "Job was active longer than specified deadline"
)
_FAILED_INDEXES = Finish("FailureTarget", "FailedIndexes", "Job has failed indexes")
_COMPLETE = Finish(
    "SuccessCriteriaMet", "CompletionsReached", "Reached expected number of succeeded pods"
)


def has_finished(job: dict[str, Any]) -> bool:
    """Return whether a Job has finished."""
    return pod_status.holds(job, "Complete") or pod_status.holds(job, "Failed")


class JobStatus:
    """New status of a Job.

    Attributes:
        start: The startTime; None if the Job was not started.
    """

    def __init__(self, job: dict[str, Any]) -> None:
        self._job = job
        before = job.get("status") or {}
        self._conditions: list[dict[str, Any]] = before.get("conditions") or []
        self._end: str | None = before.get("completionTime")
        self.start: str | None = before.get("startTime")

    @property
    def finish(self) -> Finish | None:
        """End of the Job, if it is already decided."""
        for each in self._conditions:
            if each["type"] in ("FailureTarget", "SuccessCriteriaMet"):
                return Finish(each["type"], each["reason"], each["message"])
        return None

    def put(self, kind: str, status: str, reason: str, message: str) -> bool:
        """Set a condition; return whether it is new. No condition begins as False."""
        if status == "False" and all(each["type"] != kind for each in self._conditions):
            return False
        before = self._conditions
        self._conditions = pod_status.put(before, kind, status, reason, message, probed=True)
        return self._conditions is not before

    def end_as(self, finish: Finish) -> None:
        """Set the last condition."""
        self.put(finish.condition, "True", finish.reason, finish.message)
        if finish.condition == "Complete":
            self._end = timestamp()

    def document(self, pods: JobPods) -> dict[str, Any]:
        """Return the status as a document.

        Counts of 0 are omitted, except those that are pointers in Kubernetes' own type.
        """
        found: dict[str, Any] = {
            "active": len(pods.active),
            "succeeded": pods.succeeded,
            "failed": pods.failed,
            "conditions": self._conditions,
            "startTime": self.start,
            "completionTime": self._end,
        }
        if is_indexed(self._job):
            found["completedIndexes"] = job_pods.written(pods.succeeded_indexes)
        found = {key: value for key, value in found.items() if value}
        if "backoffLimitPerIndex" in self._job["spec"]:
            found["failedIndexes"] = job_pods.written(pods.failed_indexes)
        found["ready"] = len(pods.ready)
        found["terminating"] = len(pods.terminating)
        found["uncountedTerminatedPods"] = {}
        return found


class JobController:
    """Controller that syncs a Job after changes of it or its pods, and at deadlines."""

    def __init__(self, store: Store, timing: Timing) -> None:
        self._store = store
        self._timing = timing
        self._loop = asyncio.get_running_loop()
        self._recorder = Recorder(store, "job-controller")
        self._pods: dict[str, JobPods] = {}  # by the Job's UID
        self._keys: dict[str, Key] = {}
        self._waiting: dict[Key, asyncio.TimerHandle] = {}
        self._synced_at: dict[Key, float] = {}

    def close(self) -> None:
        """Stop."""
        for waiting in self._waiting.values():
            waiting.cancel()

    def on_change(self, change: str, kind: Kind, document: dict[str, Any]) -> None:
        """Process a change of the store."""
        if kind is JOB:
            self._record_job(change, document)
        elif kind is POD:
            self._record_pod(change, document)

    def _record_job(self, change: str, job: dict[str, Any]) -> None:
        uid, key = job["metadata"]["uid"], key_of(job)
        if change == "DELETED":
            # A new Job may already have the name, without the old Job's pods.
            self._keys.pop(uid, None)
            pods = self._pods.pop(uid, None)
            self._synced_at.pop(key, None)
            waiting = self._waiting.pop(key, None)
            if waiting is not None:
                waiting.cancel()
            for pod in pods.all() if pods else []:
                self._loop.call_soon(self._strip, pod)
            return
        if uid not in self._keys:
            self._keys[uid] = key
            self._pods[uid] = JobPods(job, self._timing)
        self._schedule_sync(key)

    def _record_pod(self, change: str, pod: dict[str, Any]) -> None:
        owner = _owner(pod)
        if owner in self._pods:
            self._pods[owner].on_change(change, pod)
            self._schedule_sync(self._keys[owner])
        elif owner and change != "DELETED":
            self._loop.call_soon(self._strip, pod)

    def _schedule_sync(self, key: Key, delay_s: float = 0.0) -> None:
        """Schedule a sync of a Job, at least `Timing.sync_s` after the last one."""
        due = self._loop.time() + delay_s
        if key in self._synced_at:
            due = max(due, self._synced_at[key] + self._timing.sync_s)
        waiting = self._waiting.get(key)
        if waiting is not None:
            if waiting.when() <= due:
                return
            waiting.cancel()
        self._waiting[key] = self._loop.call_at(due, self._run_sync, key)

    def _run_sync(self, key: Key) -> None:
        del self._waiting[key]
        self._synced_at[key] = self._loop.time()
        try:
            self._sync(key)
        except Exception:
            _log.exception("The local Kubernetes emulator could not handle the Job %s", key)

    def _sync(self, key: Key) -> None:
        job = self._store.get(JOB, *key)
        if job is None:
            return
        pods = self._pods[job["metadata"]["uid"]]
        if has_finished(job):
            for pod in list(pods.uncounted.values()):
                self._strip(pod)
            return
        status = JobStatus(job)
        if not _is_suspended(job) and status.start is None:
            status.start, pods.started = timestamp(), self._loop.time()
        for pod in list(pods.uncounted.values()):
            if pod_status.is_over(pod):
                pods.count(pod, self._loop.time())
                self._strip(pod)
        finish = status.finish or self._finish(job, pods) or self._go_on(job, pods, status)
        if finish is not None:
            self._end(key, job, pods, status, finish)
        self._write(job, status.document(pods))

    def _write(self, job: dict[str, Any], status: dict[str, Any]) -> None:
        stored = self._store.get(JOB, *key_of(job))
        if stored is not None:
            self._store.update(JOB, {**stored, "status": status})

    def _finish(self, job: dict[str, Any], pods: JobPods) -> Finish | None:
        """Return the end of a Job, or None if it continues."""
        spec = job["spec"]
        if pods.fail_message:
            return Finish("FailureTarget", "PodFailurePolicy", pods.fail_message)
        if pods.failed > spec["backoffLimit"]:
            return _TOO_OFTEN
        if self._is_past_deadline(job, pods):
            return _TOO_LONG
        if pods.failed_indexes and (
            len(pods.failed_indexes) + pods.succeeded >= spec["completions"]
        ):
            return _FAILED_INDEXES
        return _succeeds_early(job, pods)

    def _is_past_deadline(self, job: dict[str, Any], pods: JobPods) -> bool:
        limit = job["spec"].get("activeDeadlineSeconds")
        if limit is None or pods.started is None or _is_suspended(job):
            return False
        left = pods.started + limit * self._timing.deadline_scale - self._loop.time()
        if left > 0:
            self._schedule_sync(key_of(job), left)
        return bool(left <= 0)

    def _go_on(self, job: dict[str, Any], pods: JobPods, status: JobStatus) -> Finish | None:
        """Create pods, or delete a suspended Job's; return the end of a complete Job."""
        if _is_suspended(job):
            for pod in list(pods.active.values()):
                self._strip(pod)  # so it does not count as failed
                self._delete(job, pod)
        else:
            self._make(job, pods)
        if not pods.active and pods.succeeded >= job["spec"]["completions"]:
            return _COMPLETE
        if _is_suspended(job):
            status.start = pods.started = None
            if status.put("Suspended", "True", "JobSuspended", "Job suspended"):
                self._recorder.record(job, NORMAL, "Suspended", "Job suspended")
        elif status.put("Suspended", "False", "JobResumed", "Job resumed"):
            self._recorder.record(job, NORMAL, "Resumed", "Job resumed")
            # The deadline limits the time for which a Job is active without a break.
            status.start, pods.started = timestamp(), self._loop.time()
            self._schedule_sync(key_of(job))
        return None

    def _make(self, job: dict[str, Any], pods: JobPods) -> None:
        """Create the pods that are missing and may be created now."""
        key, moment, spec = key_of(job), self._loop.time(), job["spec"]
        wanted = min(spec["completions"] - pods.succeeded, spec["parallelism"])
        missing = wanted - len(pods.active) - len(pods.terminating)
        if missing <= 0:
            return
        if pods.refused_until > moment:
            self._schedule_sync(key, pods.refused_until - moment)
            return
        most = min(missing, MAX_PODS_A_SYNC)
        chosen: list[int | None] = [None] * most
        if is_indexed(job):
            pending = pods.pending(most)
            chosen = [index for index in pending if pods.retry(index).due <= moment]
            later = [due for index in pending if (due := pods.retry(index).due) > moment]
            if later:
                self._schedule_sync(key, min(later) - moment)
        if self._make_pods(job, pods, chosen) and missing > most:
            self._schedule_sync(key)

    def _make_pods(self, job: dict[str, Any], pods: JobPods, chosen: list[int | None]) -> bool:
        """Create pods until one is rejected; return whether all were admitted."""
        for index in chosen:
            _, failures, ignored = pods.retry(index)
            pod = pods.template.pod(index, failures, ignored)
            try:
                pod = self._store.create(POD, admit_pod(self._store, pod))
            except ForbiddenError as error:
                self._recorder.record(job, WARNING, "FailedCreate", f"Error creating: {error}")
                pause = doubled(self._timing.refused_s, pods.refusals)
                pods.refusals += 1
                pods.refused_until = self._loop.time() + pause
                self._schedule_sync(key_of(job), pause)
                return False
            text = f"Created pod: {pod['metadata']['name']}"
            self._recorder.record(job, NORMAL, "SuccessfulCreate", text)
        pods.refusals = 0
        return True

    def _delete(self, job: dict[str, Any], pod: dict[str, Any]) -> None:
        if self._store.get(POD, *key_of(pod)) is not None:
            self._store.delete(POD, *key_of(pod))
            text = f"Deleted pod: {pod['metadata']['name']}"
            self._recorder.record(job, NORMAL, "SuccessfulDelete", text)

    def _end(
        self, key: Key, job: dict[str, Any], pods: JobPods, status: JobStatus, finish: Finish
    ) -> None:
        """End a Job's pods, each of which counts as failed, and then the Job."""
        for pod in list(pods.active.values()):
            self._delete(job, pod)
        for pod in list(pods.uncounted.values()):
            if finish.target == "FailureTarget":
                pods.count_lost(pod)
            self._strip(pod)
        if status.put(finish.target, "True", finish.reason, finish.message):
            # A watch sees it before the Job has ended.
            self._write(job, status.document(pods))
        if pods.active:
            self._schedule_sync(key)
        elif not pods.terminating:
            status.end_as(finish)
            event = (WARNING, finish.reason, finish.message)
            if finish.condition == "Complete":
                event = (NORMAL, "Completed", "Job completed")
            self._recorder.record(job, *event)

    def _strip(self, pod: dict[str, Any]) -> None:
        """Remove the finalizer of a pod."""
        stored = self._store.get(POD, *key_of(pod))
        if stored is None or stored["metadata"]["uid"] != pod["metadata"]["uid"]:
            return
        if "finalizers" in stored["metadata"]:
            stripped = dict(stored["metadata"])
            del stripped["finalizers"]
            self._store.update(POD, {**stored, "metadata": stripped})


def _succeeds_early(job: dict[str, Any], pods: JobPods) -> Finish | None:
    """Return a Job's end if all indexes of a success policy rule have succeeded.

    Source:
        https://kubernetes.io/docs/concepts/workloads/controllers/job/#success-policy
    """
    for number, rule in enumerate((job["spec"].get("successPolicy") or {}).get("rules") or ()):
        wanted = job_pods.read(rule.get("succeededIndexes", ""))
        if wanted and wanted <= pods.succeeded_indexes:
            return Finish(
                "SuccessCriteriaMet", "SuccessPolicy", f"Matched rules at index {number}"
            )
    return None


def _is_suspended(job: dict[str, Any]) -> bool:
    return bool(job["spec"].get("suspend"))


def _owner(pod: dict[str, Any]) -> str:
    """Return the UID of a pod's Job; empty if it has none."""
    for owner in pod["metadata"].get("ownerReferences") or ():
        if owner.get("controller") and owner["kind"] == "Job":
            return str(owner["uid"])
    return ""
