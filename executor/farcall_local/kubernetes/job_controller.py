"""Job controller: creates and counts the pods of Jobs, and finishes Jobs.

Rules and texts are those of Kubernetes 1.36. It leaves out what nobody can see: pods are counted
the moment they have ended, so status.uncountedTerminatedPods is always empty.

Sources:
    https://kubernetes.io/docs/concepts/workloads/controllers/job/
    https://github.com/kubernetes/kubernetes/blob/v1.36.2/pkg/controller/job/job_controller.go
    https://github.com/kubernetes/enhancements/tree/master/keps/sig-apps/3850-backoff-limits-per-index-for-indexed-jobs
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from farcall_local.kubernetes import job_pods
from farcall_local.kubernetes.admission import admit_pod
from farcall_local.kubernetes.errors import ForbiddenError
from farcall_local.kubernetes.job_pods import (
    COMPLETE,
    FAILED_INDEXES,
    POLICY,
    TOO_LONG,
    TOO_MANY_INDEXES,
    TOO_OFTEN,
    Finish,
    JobPods,
    JobStatus,
    has_failed,
    has_finished,
    replaces_failed_only,
)
from farcall_local.kubernetes.kinds import JOB, POD, Kind
from farcall_local.kubernetes.pod_template import FINALIZER, PodTemplate, is_indexed
from farcall_local.kubernetes.recorder import NORMAL, WARNING, Recorder
from farcall_local.kubernetes.store import Store, timestamp
from farcall_local.kubernetes.timing import Timing, doubled

#: Pods that are made or deleted in one look at a Job.
MAX_PODS_A_SYNC = 500
#: Longest pause after pods that were not admitted, in seconds.
MAX_REFUSED_S = 60.0
#: The value of managedBy that means this controller.
NAME = "kubernetes.io/job-controller"

Key = tuple[str, str]


class JobController:
    """Looks at each Job when it or one of its pods has changed, or something is due."""

    def __init__(self, store: Store, timing: Timing) -> None:
        self._store = store
        self._timing = timing
        self._loop = asyncio.get_running_loop()
        self._recorder = Recorder(store, "job-controller")
        self._pods: dict[str, JobPods] = {}  # by the Job's UID
        self._keys: dict[str, Key] = {}
        self._templates: dict[str, tuple[Any, PodTemplate]] = {}
        self._queue: WorkQueue[Key] = WorkQueue(self._sync, lambda: timing.sync_s)

    def close(self) -> None:
        """Look at nothing any more."""
        self._queue.close()

    def note(self, change: str, kind: Kind, document: dict[str, Any]) -> None:
        """Take in a change of the store."""
        if kind == JOB:
            self._note_job(change, document)
        elif kind == POD:
            self._note_pod(change, document)

    def _note_job(self, change: str, job: dict[str, Any]) -> None:
        uid, key = job["metadata"]["uid"], _key(job)
        if change == "DELETED":
            # A new Job may have the name already, and none of the old one's pods.
            self._keys.pop(uid, None)
            self._templates.pop(uid, None)
            pods = self._pods.pop(uid, None)
            self._queue.forget(key)
            for pod in pods.all() if pods else []:
                self._loop.call_soon(self._strip, pod)
            return
        if uid not in self._keys:
            self._keys[uid] = key
            self._pods[uid] = JobPods()
        self._queue.add(key, self._timing.delays.get("Create", 0.0) if change == "ADDED" else 0.0)

    def _note_pod(self, change: str, pod: dict[str, Any]) -> None:
        owner = _owner(pod)
        if owner is None:
            return
        if owner not in self._pods:
            if change != "DELETED":
                self._loop.call_soon(self._strip, pod)
            return
        self._pods[owner].note(change, pod)
        self._queue.add(self._keys[owner])

    def _sync(self, key: Key) -> None:
        job = self._store.get(JOB, *key)
        if job is None or job["spec"].get("managedBy", NAME) != NAME:
            return
        pods = self._pods[job["metadata"]["uid"]]
        if has_finished(job):
            for pod in list(pods.uncounted.values()):
                self._strip(pod)
            return
        status = JobStatus(job)
        if not _is_suspended(job) and status.start is None:
            status.start, pods.started = timestamp(), self._loop.time()
        self._count(job, pods)
        finish = status.finish or self._finish(job, pods)
        if finish is None:
            finish = self._go_on(job, pods, status)
        if finish is not None:
            self._end(key, job, pods, status, finish)
        self._write(job, status.document(pods))

    def _write(self, job: dict[str, Any], status: dict[str, Any]) -> None:
        there = self._store.get(JOB, *_key(job))
        if there is not None:
            self._store.update(JOB, {**there, "status": status})

    def _count(self, job: dict[str, Any], pods: JobPods) -> None:
        """Count what has ended, and let go of it."""
        for pod in list(pods.uncounted.values()):
            deleted = bool(job["metadata"].get("deletionTimestamp"))
            if (pod.get("status") or {}).get("phase") == "Succeeded" or has_failed(job, pod):
                pods.count(job, pod, self._loop.time(), self._timing)
                self._strip(pod)
            elif deleted:
                self._strip(pod)

    def _finish(self, job: dict[str, Any], pods: JobPods) -> Finish | None:
        """Return how a Job ends, where it does."""
        spec = job["spec"]
        if pods.fail_message:
            return Finish("FailureTarget", POLICY, pods.fail_message)
        if pods.failed > spec.get("backoffLimit", 6):
            return TOO_OFTEN
        if self._is_past_deadline(job, pods):
            return TOO_LONG
        if "backoffLimitPerIndex" in spec and pods.failed_indexes:
            if len(pods.failed_indexes) > spec.get("maxFailedIndexes", spec["completions"]):
                return TOO_MANY_INDEXES
            if len(pods.failed_indexes) + pods.succeeded >= spec["completions"]:
                return FAILED_INDEXES
        return _succeeds_early(job, pods)

    def _is_past_deadline(self, job: dict[str, Any], pods: JobPods) -> bool:
        limit = job["spec"].get("activeDeadlineSeconds")
        if limit is None or pods.started is None or _is_suspended(job):
            return False
        left = pods.started + limit * self._timing.deadline_scale - self._loop.time()
        if left > 0:
            self._queue.add(_key(job), left)
        return bool(left <= 0)

    def _go_on(self, job: dict[str, Any], pods: JobPods, status: JobStatus) -> Finish | None:
        """Make and delete pods as the Job wants it; return its end where it is complete."""
        if not job["metadata"].get("deletionTimestamp"):
            self._manage(job, pods)
        wanted = job["spec"].get("completions")
        if not pods.active and pods.succeeded >= (1 if wanted is None else wanted):
            return COMPLETE
        if job["metadata"].get("deletionTimestamp"):
            return None
        if _is_suspended(job):
            status.start = pods.started = None
            if status.put("Suspended", "True", "JobSuspended", "Job suspended"):
                self._recorder.tell(job, NORMAL, "Suspended", "Job suspended")
        elif status.put("Suspended", "False", "JobResumed", "Job resumed"):
            self._recorder.tell(job, NORMAL, "Resumed", "Job resumed")
            # The deadline is of the time for which a Job is active without a break.
            status.start, pods.started = timestamp(), self._loop.time()
            self._queue.add(_key(job))
        return None

    def _manage(self, job: dict[str, Any], pods: JobPods) -> None:
        if _is_suspended(job):
            self._remove(job, list(pods.active.values()))
            return
        parallelism = job["spec"].get("parallelism", 1)
        completions = job["spec"].get("completions")
        if completions is None:
            wanted = len(pods.active) if pods.succeeded else parallelism
        else:
            wanted = max(0, min(completions - pods.succeeded, parallelism))
        excess = pods.excess(job, wanted)
        if excess:
            self._remove(job, excess)
            return
        missing = wanted - len(pods.active)
        if replaces_failed_only(job):
            missing -= len(pods.terminating)
        if missing > 0:
            self._make(job, pods, missing)

    def _make(self, job: dict[str, Any], pods: JobPods, missing: int) -> None:
        """Make pods, at most so many, of those that may be made now."""
        key, moment = _key(job), self._loop.time()
        pause = pods.refused_until - moment
        if "backoffLimitPerIndex" not in job["spec"]:
            pause = max(pause, pods.pause_s(moment, self._timing))
        if pause > 0:
            self._queue.add(key, pause)
            return
        most = min(missing, MAX_PODS_A_SYNC)
        chosen: list[int | None] = [None] * most
        if is_indexed(job):
            pending = pods.pending(job, most)
            chosen = [index for index in pending if pods.retry(index).due <= moment]
            later = [pods.retry(index).due for index in pending if index not in set(chosen)]
            if later:
                self._queue.add(key, min(later) - moment)
        if self._make_pods(job, pods, chosen) and missing > most:
            self._queue.add(key)

    def _make_pods(self, job: dict[str, Any], pods: JobPods, chosen: list[int | None]) -> bool:
        """Make pods until one is not admitted; say whether all were."""
        template = self._template(job)
        for index in chosen:
            retry = pods.retry(-1 if index is None else index)
            pod = template.pod(index, retry.failures, retry.ignored)
            try:
                pod = self._store.create(POD, admit_pod(self._store, pod))
            except ForbiddenError as error:
                self._recorder.tell(job, WARNING, "FailedCreate", f"Error creating: {error}")
                timing = self._timing
                pause = doubled(timing.refused_s, pods.refusals, MAX_REFUSED_S)
                pods.refusals += 1
                pods.refused_until = self._loop.time() + pause
                self._queue.add(_key(job), pause)
                return False
            self._recorder.tell(
                job, NORMAL, "SuccessfulCreate", f"Created pod: {pod['metadata']['name']}"
            )
        pods.refusals = 0
        return True

    def _template(self, job: dict[str, Any]) -> PodTemplate:
        uid, template = job["metadata"]["uid"], job["spec"]["template"]
        known = self._templates.get(uid)
        # It can be changed while a Job is suspended.
        if known is None or known[0] is not template:
            known = self._templates[uid] = (template, PodTemplate(job))
        return known[1]

    def _remove(self, job: dict[str, Any], pods: list[dict[str, Any]]) -> None:
        """Delete pods that are not wanted any more, and which so do not count as failed."""
        for pod in pods[:MAX_PODS_A_SYNC]:
            self._strip(pod)
            self._delete(job, pod)
        if len(pods) > MAX_PODS_A_SYNC:
            self._queue.add(_key(job))

    def _delete(self, job: dict[str, Any], pod: dict[str, Any]) -> None:
        meta = pod["metadata"]
        if self._store.get(POD, meta["namespace"], meta["name"]) is not None:
            self._store.delete(POD, meta["namespace"], meta["name"])
            text = f"Deleted pod: {meta['name']}"
            self._recorder.tell(job, NORMAL, "SuccessfulDelete", text)

    def _end(
        self, key: Key, job: dict[str, Any], pods: JobPods, status: JobStatus, finish: Finish
    ) -> None:
        """End a Job: first its pods, of which each that has not ended counts as failed."""
        for pod in list(pods.active.values())[:MAX_PODS_A_SYNC]:
            self._delete(job, pod)
        failed = finish.target == "FailureTarget"
        for pod in list(pods.terminating.values())[:MAX_PODS_A_SYNC]:
            if FINALIZER in (pod["metadata"].get("finalizers") or ()):
                if failed:
                    pods.count_lost(job, pod)
                self._strip(pod)
        if status.put(finish.target, "True", finish.reason, finish.message):
            # It is seen before the Job has ended, by whoever watches.
            self._write(job, status.document(pods))
        if pods.active:
            self._queue.add(key)
        elif not pods.terminating:
            status.end_as(finish)
            self._tell_end(job, finish)

    def _tell_end(self, job: dict[str, Any], finish: Finish) -> None:
        if finish.condition == "Complete":
            self._recorder.tell(job, NORMAL, "Completed", "Job completed")
        else:
            self._recorder.tell(job, WARNING, finish.reason, finish.message)

    def _strip(self, pod: dict[str, Any]) -> None:
        """Take the finalizer from a pod."""
        meta = pod["metadata"]
        there = self._store.get(POD, meta["namespace"], meta["name"])
        if there is None or there["metadata"]["uid"] != meta["uid"]:
            return
        left = [each for each in there["metadata"].get("finalizers") or () if each != FINALIZER]
        if len(left) != len(there["metadata"].get("finalizers") or ()):
            changed = {**there["metadata"], "finalizers": left}
            if not left:
                del changed["finalizers"]
            self._store.update(POD, {**there, "metadata": changed})


def _succeeds_early(job: dict[str, Any], pods: JobPods) -> Finish | None:
    """Return a Job's end by its success policy, where one of the rules is met.

    Source:
        https://kubernetes.io/docs/concepts/workloads/controllers/job/#success-policy
    """
    for number, rule in enumerate((job["spec"].get("successPolicy") or {}).get("rules") or ()):
        found = pods.succeeded_indexes
        wanted = len(found) + 1
        if rule.get("succeededIndexes"):
            named = job_pods.read(rule["succeededIndexes"])
            found, wanted = found & named, len(named)
        if len(found) >= rule.get("succeededCount", wanted):
            return Finish(
                "SuccessCriteriaMet", "SuccessPolicy", f"Matched rules at index {number}"
            )
    return None


def _is_suspended(job: dict[str, Any]) -> bool:
    return bool(job["spec"].get("suspend"))


def _key(job: dict[str, Any]) -> Key:
    return job["metadata"]["namespace"], job["metadata"]["name"]


def _owner(pod: dict[str, Any]) -> str | None:
    """Return the UID of the Job that a pod is of."""
    for owner in pod["metadata"].get("ownerReferences") or ():
        if (
            owner.get("controller")
            and owner["kind"] == "Job"
            and owner["apiVersion"] == "batch/v1"
        ):
            return str(owner["uid"])
    return None


K = TypeVar("K")

_log = logging.getLogger("farcall")


class WorkQueue(Generic[K]):
    """Has keys handled on the event loop, soon or after a pause.

    Args:
        handle: Looks at what a key names; what it raises is logged, and ends nothing.
        pause_s: Least seconds between two looks at one key; asked each time.
    """

    def __init__(self, handle: Callable[[K], None], pause_s: Callable[[], float]) -> None:
        self._handle = handle
        self._pause_s = pause_s
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[K, asyncio.TimerHandle] = {}
        self._looked_at: dict[K, float] = {}

    def add(self, key: K, delay_s: float = 0.0) -> None:
        """Have a key handled, at the latest after so many seconds."""
        due = self._loop.time() + delay_s
        last = self._looked_at.get(key)
        if last is not None:
            due = max(due, last + self._pause_s())
        waiting = self._waiting.get(key)
        if waiting is not None:
            if waiting.when() <= due:
                return
            waiting.cancel()
        self._waiting[key] = self._loop.call_at(due, self._look, key)

    def forget(self, key: K) -> None:
        """Drop a key that is no more."""
        self._looked_at.pop(key, None)
        waiting = self._waiting.pop(key, None)
        if waiting is not None:
            waiting.cancel()

    def close(self) -> None:
        """Handle nothing any more."""
        for waiting in self._waiting.values():
            waiting.cancel()
        self._waiting.clear()

    def _look(self, key: K) -> None:
        del self._waiting[key]
        self._looked_at[key] = self._loop.time()
        try:
            self._handle(key)
        except Exception:
            _log.exception("The local Kubernetes emulator could not handle %s", key)
