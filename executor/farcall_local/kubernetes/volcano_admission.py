"""Volcano's admission of jobs: what it fills in, and what it refuses.

Sources:
    https://github.com/volcano-sh/volcano/blob/master/pkg/webhooks/admission/jobs/mutate/mutate_job.go
    https://github.com/volcano-sh/volcano/blob/master/pkg/webhooks/admission/jobs/validate/admit_job.go
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from farcall_local.kubernetes.errors import BadRequestError
from farcall_local.kubernetes.kinds import VOLCANO_QUEUE
from farcall_local.kubernetes.store import Store

SCHEDULER, QUEUE = "volcano", "default"
MAX_RETRY = 3

_EVENTS = (
    *("*", "PodFailed", "PodEvicted", "PodPending", "Unknown", "TaskCompleted", "TaskFailed"),
    "JobUpdated",
)
_ACTIONS = (
    *("AbortJob", "RestartJob", "RestartTask", "RestartPod", "RestartPartition", "TerminateJob"),
    *("CompleteJob", "ResumeJob"),
)
_PLUGINS = ("svc", "env", "ssh", "tensorflow", "pytorch", "mpi", "hcclrank", "ray")
_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


def default(job: dict[str, Any]) -> dict[str, Any]:
    """Return a job with what Volcano fills in.

    Args:
        job: Its document.
    """
    spec = dict(job.get("spec") or {})
    spec["queue"] = spec.get("queue") or QUEUE
    spec["schedulerName"] = spec.get("schedulerName") or SCHEDULER
    spec["maxRetry"] = spec.get("maxRetry") or MAX_RETRY
    spec["tasks"] = [_task(place, task) for place, task in enumerate(spec.get("tasks") or ())]
    least = sum(task["minAvailable"] for task in spec["tasks"])
    spec["minAvailable"] = spec.get("minAvailable") or least
    return {**job, "spec": spec}


def _task(place: int, task: dict[str, Any]) -> dict[str, Any]:
    replicas = task.get("replicas", 1)
    return {
        **task,
        "name": task.get("name") or f"default{place}",
        "replicas": replicas,
        "minAvailable": task.get("minAvailable", replicas),
        "maxRetry": task.get("maxRetry") or MAX_RETRY,
    }


def check(store: Store, job: dict[str, Any]) -> None:
    """Refuse a job, in Volcano's words.

    Args:
        store: Holds the queues.
        job: The document as `default` returns it.

    Raises:
        BadRequestError: It breaks a rule.
    """
    said = "".join(_objections(store, job)).strip()
    if said:
        raise BadRequestError(
            f'admission webhook "validatejob.volcano.sh" denied the request: {said}'
        )


def _objections(store: Store, job: dict[str, Any]) -> Iterator[str]:
    spec, name = job["spec"], job["metadata"].get("name", "")
    if not spec["tasks"]:
        yield "No task specified in job spec"
        return
    names: set[str] = set()
    for place, task in enumerate(spec["tasks"]):
        yield from _task_objections(name, place, task, names)
    if sum(task["replicas"] for task in spec["tasks"]) < spec["minAvailable"]:
        yield " job 'minAvailable' should not be greater than total replicas in tasks;"
    yield from _policy_objections("spec.policies", spec.get("policies") or ())
    for plugin in spec.get("plugins") or ():
        if plugin not in _PLUGINS:
            yield f" unable to find job plugin: {plugin};"
    queue = store.get(VOLCANO_QUEUE, "", spec["queue"])
    if queue is None:
        name = f'queue.scheduling.volcano.sh "{spec["queue"]}"'
        yield f" unable to find job queue: {name} not found;"
        return
    state = (queue.get("status") or {}).get("state", "")
    if state != "Open":
        yield (
            " can only submit job to queue with state `Open`, "
            f"queue `{spec['queue']}` status is `{state}`;"
        )


def _task_objections(job: str, place: int, task: dict[str, Any], names: set[str]) -> Iterator[str]:
    name = task["name"]
    if task["minAvailable"] > task["replicas"]:
        yield f" 'minAvailable' is greater than 'replicas' in task: {name}, job: {job};"
    if name in names:
        yield f" duplicated task name {name};"
    names.add(name)
    yield from _policy_objections("spec.tasks.policies", task.get("policies") or ())
    pod = f"{job}-{name}-{place}"
    if not _LABEL.fullmatch(pod):
        yield (
            f"create pod with name {pod} validate failed [must be no more than 63 characters, "
            "lower case, digits and hyphens];"
        )


def _policy_objections(path: str, policies: Any) -> Iterator[str]:
    seen: set[Any] = set()
    for policy in policies:
        yield from _contradictions(policy)
        for event in _events(policy):
            if event not in _EVENTS:
                yield f'{path}: Invalid value: "{event}": invalid policy event'
        if policy.get("action") not in _ACTIONS:
            yield f'{path}: Invalid value: "{policy.get("action")}": invalid policy action'
        code = policy.get("exitCode")
        for each in [*_events(policy), *([] if code is None else [code])]:
            if each in seen:
                kind = "event" if isinstance(each, str) else "exitCode"
                yield f"duplicate {kind} {each}  across different policy"
            seen.add(each)
    if "*" in seen and len(seen) > 1:
        yield "if there's * here, no other policy should be here"


def _contradictions(policy: dict[str, Any]) -> Iterator[str]:
    has_event, code = bool(_events(policy)), policy.get("exitCode")
    if has_event and code is not None:
        yield "must not specify event and exitCode simultaneously"
    elif not has_event and code is None:
        yield "either event and exitCode should be specified"
    elif code == 0:
        yield "0 is not a valid error code"


def _events(policy: dict[str, Any]) -> list[str]:
    return list(dict.fromkeys([*policy.get("events", ()), *filter(None, [policy.get("event")])]))
