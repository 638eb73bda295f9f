"""Volcano's job controller: pods of a job's tasks, its policies, its phases, and Commands.

Sources:
    https://github.com/volcano-sh/volcano/tree/master/pkg/controllers/job
    https://volcano.sh/en/docs/vcjob/
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

from farcall_local.kubernetes import volcano_plugins
from farcall_local.kubernetes.admission import admit_pod
from farcall_local.kubernetes.errors import ForbiddenError
from farcall_local.kubernetes.kinds import (
    POD,
    POD_GROUP,
    VOLCANO_COMMAND,
    VOLCANO_JOB,
    Kind,
)
from farcall_local.kubernetes.recorder import NORMAL, WARNING, Recorder
from farcall_local.kubernetes.store import Store, timestamp
from farcall_local.kubernetes.timing import Timing
from farcall_local.kubernetes.volcano_gangs import GROUP, resources_of
from farcall_local.kubernetes.work_queue import WorkQueue

VERSION, RETRIES, TASK = (
    "volcano.sh/job-version",
    "volcano.sh/job-retry-count",
    "volcano.sh/task-spec",
)

_SYNC = "SyncJob"
_STOPS = {"AbortJob": "Aborting", "TerminateJob": "Terminating", "CompleteJob": "Completing"}
_ENDS = {"Aborting": "Aborted", "Terminating": "Terminated", "Completing": "Completed"}
_RESTARTS = ("RestartTask", "RestartPod", "RestartPartition")
FINISHED = ("Completed", "Failed", "Terminated")

_NONE: tuple[str, ...] = ()
_ENDED = ("Succeeded", "Failed")
"""Phases of pods that stay when a job is stopped."""

Key = tuple[str, str]
Status = dict[str, Any]


class Request(NamedTuple):
    """Something that has happened to a job.

    Attributes:
        event: Such as ``PodFailed``; empty for a command.
        action: What is to be done, where somebody has said; empty for what the policies say.
        task: Name of the pod's task.
        pod: Name of the pod.
        code: Its exit code.
        version: Of the job, as the pod has it.
    """

    event: str = ""
    action: str = ""
    task: str = ""
    pod: str = ""
    code: int = 0
    version: int = 0


class VolcanoController:
    """Looks at each Volcano job when it or one of its pods has changed, or somebody commands.

    Args:
        store: Holds them.
        timing: How long things take.
    """

    def __init__(self, store: Store, timing: Timing) -> None:
        self._store = store
        self._timing = timing
        self._loop = asyncio.get_running_loop()
        self._recorder = Recorder(store, "vc-controller-manager")
        self._pods: dict[str, dict[str, dict[str, Any]]] = {}  # by the job's UID, and by name
        self._keys: dict[str, Key] = {}
        self._phases: dict[str, str] = {}
        self._requests: dict[Key, list[Request]] = {}
        self._killed: set[str] = set()  # UIDs of pods whose end is no event
        self._queue: WorkQueue[Key] = WorkQueue(self._look, lambda: timing.sync_s)

    def close(self) -> None:
        """Look at nothing any more."""
        self._queue.close()

    # --- what happens -------------------------------------------------------------------------

    def note(self, change: str, kind: Kind, document: dict[str, Any]) -> None:
        """Take in a change of the store."""
        if kind == VOLCANO_JOB:
            self._note_job(change, document)
        elif kind == POD:
            self._note_pod(change, document)
        elif kind == POD_GROUP:
            for ref in document["metadata"].get("ownerReferences") or ():
                if ref["uid"] in self._keys:
                    self._queue.add(self._keys[ref["uid"]])
        elif kind == VOLCANO_COMMAND and change == "ADDED":
            self._loop.call_soon(self._command, document)

    def _note_job(self, change: str, job: dict[str, Any]) -> None:
        uid, key = job["metadata"]["uid"], _key(job)
        if change == "DELETED":
            for known in (self._keys, self._phases, self._pods):
                known.pop(uid, None)
            self._requests.pop(key, None)
            self._queue.forget(key)
            return
        is_new = uid not in self._keys
        self._keys[uid] = key
        if is_new or self._phases.get(uid) != _phase(job):
            self._phases[uid] = _phase(job)
            self._queue.add(key)

    def _note_pod(self, change: str, pod: dict[str, Any]) -> None:
        uid = _owner(pod)
        if uid is None:
            return
        pods, name = self._pods.setdefault(uid, {}), pod["metadata"]["name"]
        before = pods.get(name)
        if change == "DELETED":
            pods.pop(name, None)
            request = self._gone(pod)
        else:
            pods[name] = pod
            request = self._moved(pods, pod, before)
        if uid in self._keys:
            if request is not None:
                self._requests.setdefault(self._keys[uid], []).append(request)
            self._queue.add(self._keys[uid])

    def _gone(self, pod: dict[str, Any]) -> Request | None:
        uid = pod["metadata"]["uid"]
        if uid in self._killed:
            self._killed.discard(uid)
            return None
        return _request("PodEvicted", pod)

    def _moved(
        self,
        pods: dict[str, dict[str, Any]],
        pod: dict[str, Any],
        before: dict[str, Any] | None,
    ) -> Request | None:
        phase = _pod_phase(pod)
        if pod["metadata"]["uid"] in self._killed or phase == (before and _pod_phase(before)):
            return None
        if phase == "Failed":
            return _request("PodFailed", pod)
        if phase == "Succeeded":
            task = _annotations(pod)[TASK]
            alike = [each for each in pods.values() if _annotations(each).get(TASK) == task]
            if all(_pod_phase(each) == "Succeeded" for each in alike):
                return _request("TaskCompleted", pod)
        return None

    def _command(self, command: dict[str, Any]) -> None:
        """Carry a Command out once: it goes before."""
        meta, target = command["metadata"], command.get("target") or {}
        if self._store.get(VOLCANO_COMMAND, meta["namespace"], meta["name"]) is None:
            return
        self._store.delete(VOLCANO_COMMAND, meta["namespace"], meta["name"])
        job = self._store.get(VOLCANO_JOB, meta["namespace"], target.get("name", ""))
        if job is None or target.get("kind") != VOLCANO_JOB.kind:
            return
        self._recorder.tell(
            job,
            NORMAL,
            "CommandIssued",
            f"Start to execute command {command.get('action')}, and clean it up to make sure "
            "executed not more than once.",
        )
        self._requests.setdefault(_key(job), []).append(Request(action=command.get("action", "")))
        self._queue.add(_key(job))

    # --- what is done -------------------------------------------------------------------------

    def _look(self, key: Key) -> None:
        requests = [*self._requests.pop(key, ()), Request(action=_SYNC)]
        for request in requests:
            job = self._store.get(VOLCANO_JOB, *key)
            if job is None or job["metadata"].get("deletionTimestamp"):
                return
            self._execute(job, request)
        self._expire(key)

    def _execute(self, job: dict[str, Any], request: Request) -> None:
        phase, action = _phase(job), action_of(job, request)
        if phase in FINISHED or (phase == "Aborted" and action != "ResumeJob"):
            self._kill(job, _ENDED, None)
        elif phase in _ENDS:
            self._end(job, phase, action)
        elif phase == "Aborted":
            self._kill(job, _ENDED, _restart)
        elif phase == "Restarting":
            self._restart(job, action)
        elif action in _STOPS:
            self._kill(job, _ENDED, lambda status: _enter(status, _STOPS[action]))
        elif action == "RestartJob":
            self._kill(job, _NONE, _restart)
        elif action in _RESTARTS:
            self._kill_some(job, request, whole_task=action == "RestartTask")
        else:
            self._sync(job)

    def _end(self, job: dict[str, Any], phase: str, action: str) -> None:
        if phase == "Aborting" and action == "ResumeJob":
            self._kill(job, _ENDED, _restart)
        elif self._kill(job, _ENDED, None):
            status = self._counted(job)
            self._write(job, _enter(status, _ENDS[phase]))
        else:
            self._write(job, self._counted(job))

    def _restart(self, job: dict[str, Any], action: str) -> None:
        """Begin anew when nothing of the old attempt is left, if there is to be another."""
        if action != _SYNC:
            self._kill(job, _NONE, None)
        status = self._counted(job)
        total = sum(task["replicas"] for task in job["spec"]["tasks"])
        if status.get("retryCount", 0) >= job["spec"]["maxRetry"]:
            _enter(status, "Failed")
        elif total - status.get("terminating", 0) >= job["spec"]["minAvailable"]:
            _enter(status, "Pending")
        self._write(job, status)

    def _kill(
        self,
        job: dict[str, Any],
        kept: tuple[str, ...],
        update: Callable[[Status], Status] | None,
    ) -> bool:
        """Delete a job's pods, but for those in a phase; say whether none of them is alive."""
        retries = (job.get("status") or {}).get("retryCount", 0)
        if retries >= job["spec"]["maxRetry"] - 1:
            kept = _ENDED  # the last attempt's pods stay, and their logs
        doomed = [
            pod
            for pod in self._pods.get(job["metadata"]["uid"], {}).values()
            if not pod["metadata"].get("deletionTimestamp") and _pod_phase(pod) not in kept
        ]
        self._delete(doomed)
        if update is not None:
            status = update(self._counted(job))
            status["version"] = status.get("version", 0) + 1
            volcano_plugins.remove(self._store, job)
            self._write(job, status)
        namespace, name = job["metadata"]["namespace"], _group(job)
        if self._store.get(POD_GROUP, namespace, name) is not None:
            self._store.delete(POD_GROUP, namespace, name)
        alive = self._pods.get(job["metadata"]["uid"], {}).values()
        return all(_pod_phase(pod) in _ENDED for pod in alive)

    def _kill_some(self, job: dict[str, Any], request: Request, *, whole_task: bool) -> None:
        pods = self._pods.get(job["metadata"]["uid"], {})
        doomed = [
            pod
            for name, pod in pods.items()
            if name == request.pod or (whole_task and _annotations(pod).get(TASK) == request.task)
        ]
        self._delete(doomed)
        self._write(job, _restart(self._counted(job)))

    def _delete(self, pods: list[dict[str, Any]]) -> None:
        for pod in pods:
            meta = pod["metadata"]
            self._killed.add(meta["uid"])
            if self._store.get(POD, meta["namespace"], meta["name"]) is not None:
                self._store.delete(POD, meta["namespace"], meta["name"])

    def _sync(self, job: dict[str, Any]) -> None:
        """Make what is missing, count what there is, and move on."""
        resources = volcano_plugins.make(self._store, job)
        group = self._store.get(POD_GROUP, job["metadata"]["namespace"], _group(job))
        if group is None:
            self._store.create(POD_GROUP, _pod_group(job))
        elif (group.get("status") or {}).get("phase") in ("Inqueue", "Running"):
            self._make_pods(job)
        status = self._counted(job)
        if resources:
            status["controlledResources"] = resources
        if _phase(job) == "Running":
            end = outcome(job["spec"], status)
            if end:
                _enter(status, end)
        elif not _phase(job):
            _enter(status, "Pending")
        elif _reached(status) >= job["spec"]["minAvailable"]:
            _enter(status, "Running")
        self._write(job, status)

    def _make_pods(self, job: dict[str, Any]) -> None:
        there = self._pods.get(job["metadata"]["uid"], {})
        for task in job["spec"]["tasks"]:
            for number in range(task["replicas"]):
                name = volcano_plugins.pod_name(job, task["name"], number)
                if (
                    name not in there
                    and self._store.get(POD, job["metadata"]["namespace"], name) is None
                ):
                    self._make_pod(
                        job, volcano_plugins.changed(job, _pod(job, task, name, number), number)
                    )

    def _make_pod(self, job: dict[str, Any], pod: dict[str, Any]) -> None:
        try:
            self._store.create(POD, admit_pod(self._store, pod))
        except ForbiddenError as error:
            name = pod["metadata"]["name"]
            text = f"Error creating pods: [failed to create pod {name}, err: {error}]"
            self._recorder.tell(job, WARNING, "FailedCreate", text)
            self._queue.add(_key(job), self._timing.refused_s)

    def _counted(self, job: dict[str, Any]) -> Status:
        """Return the job's status with the numbers of its pods by phase."""
        status = dict(job.get("status") or {})
        counts: Counter[str] = Counter()
        tasks: dict[str, Counter[str]] = {}
        for pod in self._pods.get(job["metadata"]["uid"], {}).values():
            phase = _pod_phase(pod)
            if pod["metadata"].get("deletionTimestamp") and phase not in _ENDED:
                counts["terminating"] += 1
                continue
            counts[phase.lower()] += 1
            tasks.setdefault(_annotations(pod).get(TASK, ""), Counter())[phase] += 1
        for name in ("pending", "running", "succeeded", "failed", "terminating", "unknown"):
            status.pop(name, None)
            if counts[name]:
                status[name] = counts[name]
        status["taskStatusCount"] = {task: {"phase": dict(each)} for task, each in tasks.items()}
        status["minAvailable"] = job["spec"]["minAvailable"]
        return status

    def _write(self, job: dict[str, Any], status: Status) -> None:
        there = self._store.get(VOLCANO_JOB, *_key(job))
        if there is not None:
            self._store.update(VOLCANO_JOB, {**there, "status": status})

    def _expire(self, key: Key) -> None:
        job = self._store.get(VOLCANO_JOB, *key)
        ttl = job["spec"].get("ttlSecondsAfterFinished") if job else None
        if job is None or ttl is None or _phase(job) not in FINISHED:
            return
        self._loop.call_later(ttl * self._timing.ttl_scale, self._forget, job["metadata"]["uid"])

    def _forget(self, uid: str) -> None:
        key = self._keys.get(uid)
        if key is not None and self._store.get(VOLCANO_JOB, *key) is not None:
            self._store.delete(VOLCANO_JOB, *key)


def action_of(job: dict[str, Any], request: Request) -> str:
    """Return what is to be done about something that has happened, by the job's policies."""
    if request.action:
        return request.action
    if request.version < (job.get("status") or {}).get("version", 0):
        return _SYNC
    spec = job["spec"]
    own: dict[str, Any] = next(
        (task for task in spec["tasks"] if task["name"] == request.task), {}
    )
    for policy in [*own.get("policies", ()), *spec.get("policies", ())]:
        events = [*policy.get("events", ()), policy.get("event")]
        if request.event in events or "*" in events:
            return str(policy["action"])
        if policy.get("exitCode") is not None and policy["exitCode"] == request.code:
            return str(policy["action"])
    return _SYNC


def outcome(spec: dict[str, Any], status: Status) -> str:
    """Return the phase in which a job that runs comes to its end; empty if it goes on."""
    succeeded = status.get("succeeded", 0)
    wanted = spec.get("minSuccess")
    if wanted is not None and succeeded >= wanted:
        return "Completed"
    if succeeded + status.get("failed", 0) < sum(task["replicas"] for task in spec["tasks"]):
        return ""
    if spec["minAvailable"] >= sum(task["minAvailable"] for task in spec["tasks"]):
        counts = status.get("taskStatusCount") or {}
        for task in spec["tasks"]:
            count = counts.get(task["name"])
            if count and count["phase"].get("Succeeded", 0) < task["minAvailable"]:
                return "Failed"
    if wanted is not None or succeeded < spec["minAvailable"]:
        return "Failed"
    return "Completed"


def _reached(status: Status) -> int:
    return sum(status.get(name, 0) for name in ("running", "succeeded", "failed"))


def _enter(status: Status, phase: str) -> Status:
    moment = timestamp()
    status["state"] = {"phase": phase, "lastTransitionTime": moment}
    told = {"status": phase, "lastTransitionTime": moment}
    status["conditions"] = [*status.get("conditions", ()), told]
    return status


def _restart(status: Status) -> Status:
    status["retryCount"] = status.get("retryCount", 0) + 1
    return _enter(status, "Restarting")


def _pod(job: dict[str, Any], task: dict[str, Any], name: str, number: int) -> dict[str, Any]:
    template, meta, spec = task["template"], job["metadata"], job["spec"]
    own = template.get("metadata") or {}
    status = job.get("status") or {}
    told = {
        "volcano.sh/task-index": str(number),
        TASK: task["name"],
        "volcano.sh/job-name": meta["name"],
        "volcano.sh/queue-name": spec["queue"],
    }
    annotations = {
        **told,
        GROUP: _group(job),
        VERSION: str(status.get("version", 0)),
        "volcano.sh/template-uid": f"{meta['name']}-{task['name']}",
        RETRIES: str(status.get("retryCount", 0)),
    }
    wanted = {
        **template["spec"],
        "schedulerName": template["spec"].get("schedulerName") or spec["schedulerName"],
    }
    if spec.get("priorityClassName") and not wanted.get("priorityClassName"):
        wanted["priorityClassName"] = spec["priorityClassName"]
    labels = {**told, "volcano.sh/job-namespace": meta["namespace"]}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": meta["namespace"],
            "ownerReferences": [volcano_plugins.owner(job)],
            "labels": {**(own.get("labels") or {}), **labels},
            "annotations": {**(own.get("annotations") or {}), **annotations},
        },
        "spec": wanted,
        "status": {"phase": "Pending"},
    }


def _pod_group(job: dict[str, Any]) -> dict[str, Any]:
    spec = job["spec"]
    pods = [
        task["template"]["spec"] for task in spec["tasks"] for _ in range(task["minAvailable"])
    ]
    wanted = {
        "minMember": spec["minAvailable"],
        "queue": spec["queue"],
        "minResources": resources_of(pods[: spec["minAvailable"]]),
        "minTaskMember": {task["name"]: task["minAvailable"] for task in spec["tasks"]},
    }
    if spec.get("priorityClassName"):
        wanted["priorityClassName"] = spec["priorityClassName"]
    meta = {
        "name": _group(job),
        "namespace": job["metadata"]["namespace"],
        "ownerReferences": [volcano_plugins.owner(job)],
    }
    return {"metadata": meta, "spec": wanted, "status": {"phase": "Pending"}}


def _group(job: dict[str, Any]) -> str:
    return f"{job['metadata']['name']}-{job['metadata']['uid']}"


def _request(event: str, pod: dict[str, Any]) -> Request:
    annotations = _annotations(pod)
    statuses = (pod.get("status") or {}).get("containerStatuses") or [{}]
    ended = (statuses[0].get("state") or {}).get("terminated") or {}
    code = ended.get("exitCode", 0) if event == "PodFailed" else 0
    name, version = pod["metadata"]["name"], int(annotations.get(VERSION, 0))
    return Request(event, "", annotations.get(TASK, ""), name, code, version)


def _annotations(pod: dict[str, Any]) -> dict[str, str]:
    return pod["metadata"].get("annotations") or {}


def _pod_phase(pod: dict[str, Any]) -> str:
    return str((pod.get("status") or {}).get("phase") or "Pending")


def _phase(job: dict[str, Any]) -> str:
    return str(((job.get("status") or {}).get("state") or {}).get("phase") or "")


def _owner(pod: dict[str, Any]) -> str | None:
    for ref in pod["metadata"].get("ownerReferences") or ():
        if ref.get("controller") and ref.get("apiVersion") == VOLCANO_JOB.api_version:
            return str(ref["uid"])
    return None


def _key(job: dict[str, Any]) -> Key:
    return job["metadata"]["namespace"], job["metadata"]["name"]
