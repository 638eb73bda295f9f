"""Volcano jobs: their documents, parsing and termination. No I/O.

Volcano restarts all nodes or none: a policy restarts the job, which creates its attempts. They
are limited by ``maxRetry``, the number of all attempts, not only of the retries. Volcano's
admission replaces 0 with 3.

Sources:
    https://volcano.sh/en/docs/vcjob/
    https://github.com/volcano-sh/volcano/blob/master/pkg/controllers/job/state/running.go
    https://github.com/volcano-sh/volcano/blob/master/pkg/controllers/job/state/restarting.go
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from farcall.backends.base import JobSpec
from farcall.backends.kubernetes import retries
from farcall.backends.kubernetes.names import NODE_LABEL, RETRIES_ANNOTATION
from farcall.backends.kubernetes.pod_template import PodTemplate
from farcall.config.settings import Settings
from farcall_runtime.contract import ENV_FAILED_ATTEMPTS, RETRY_ON_FAILURE, ExitCode

API_VERSION, KIND = "batch.volcano.sh/v1alpha1", "Job"
COMMAND_API_VERSION = "bus.volcano.sh/v1alpha1"
_RESTART, _TERMINATE = "RestartJob", "TerminateJob"
_FAILED_PHASES = ("Failed", "Terminated", "Aborted")
_PHASES_UNDER_WAY = {"Completing": "SuccessCriteriaMet", "Terminating": "FailureTarget"}


def document(
    job: JobSpec, metadata: dict[str, Any], templates: Iterable[PodTemplate]
) -> dict[str, Any]:
    """Return a Volcano job with one task per node; a task knows only its own indexes."""
    settings = job.settings
    main = f"{metadata['name']}-{_task_name(0)}-0.{metadata['name']}"
    tasks = [
        _task(node, template.document({"value": str(node)}, main, {NODE_LABEL: str(node)}))
        for template in templates
        for node in template.nodes
    ]
    tasks[0]["policies"] = [{"event": "TaskCompleted", "action": "CompleteJob"}]
    spec: dict[str, Any] = {
        "schedulerName": "volcano",
        "minAvailable": len(tasks),
        "maxRetry": settings.retry_attempts,
        "plugins": {"svc": ["--publish-not-ready-addresses"], "env": []},
        "policies": _policies(settings, is_command=bool(job.groups)),
        "tasks": tasks,
    }
    if settings.queue:
        spec["queue"] = settings.queue
    if settings.priority_class:
        spec["priorityClassName"] = settings.priority_class
    if settings.ttl is not None:
        spec["ttlSecondsAfterFinished"] = settings.ttl
    return {"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata, "spec": spec}


def _task(number: int, template: dict[str, Any]) -> dict[str, Any]:
    attempt = {"fieldRef": {"fieldPath": f"metadata.annotations['{RETRIES_ANNOTATION}']"}}
    container = template["spec"]["containers"][0]
    others = [each for each in container.get("env", ()) if each["name"] != ENV_FAILED_ATTEMPTS]
    container["env"] = [*others, {"name": ENV_FAILED_ATTEMPTS, "valueFrom": attempt}]
    return {"name": _task_name(number), "replicas": 1, "minAvailable": 1, "template": template}


def _task_name(number: int) -> str:
    """Return the name of a node's task, which its pod's name and host name contain."""
    return f"n{number}"


def _policies(settings: Settings, *, is_command: bool) -> list[dict[str, Any]]:
    """Return the policies for pods that fail, or are deleted by other users."""
    if settings.retry_attempts == 1:
        # A restart would delete the pods, and their logs.
        return [_on("PodEvicted", _TERMINATE), _on("PodFailed", _TERMINATE)]
    evicted = _on("PodEvicted", _RESTART)
    if settings.retry_on != RETRY_ON_FAILURE:
        stopped = {"exitCode": int(ExitCode.TERMINATED), "action": _RESTART}
        return [evicted, stopped, _on("PodFailed", _TERMINATE)]
    final = retries.final_codes(is_command=is_command)
    ends = [{"exitCode": code, "action": _TERMINATE} for code in final]
    # The first matching policy counts.
    return [evicted, *ends, _on("PodFailed", _RESTART)]


def _on(event: str, action: str) -> dict[str, Any]:
    return {"event": event, "action": action}


def command(job: Mapping[str, Any], action: str = "AbortJob") -> dict[str, Any]:
    """Return the Command that ends a Volcano job; its object and ended pods remain.

    Source:
        https://github.com/volcano-sh/volcano/blob/master/pkg/cli/util/util.go
    """
    metadata = job["metadata"]
    target = {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "name": metadata["name"],
        "uid": metadata["uid"],
    }
    return {
        "apiVersion": COMMAND_API_VERSION,
        "kind": "Command",
        "metadata": {
            "generateName": f"{metadata['name']}-{action.lower()}-",
            "ownerReferences": [target],
        },
        "action": action,
        "target": target,
    }


def is_one(document: Mapping[str, Any]) -> bool:
    """Return whether a document is a Volcano job, not a Kubernetes Job."""
    return document.get("apiVersion") == API_VERSION


def as_job(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return a Volcano job in the form of a Kubernetes Job."""
    spec, status = document.get("spec") or {}, document.get("status") or {}
    tasks = spec.get("tasks") or [{}]
    state = status.get("state") or {}
    pending, running = status.get("pending") or 0, status.get("running") or 0
    job_status: dict[str, Any] = {
        "active": pending + running,
        "ready": running,
        "succeeded": status.get("succeeded") or 0,
        "failed": status.get("failed") or 0,
        "conditions": _conditions(state),
    }
    if state.get("phase") == "Completed":
        job_status["completionTime"] = state.get("lastTransitionTime")
    return {
        "apiVersion": document.get("apiVersion"),
        "kind": KIND,
        "metadata": document["metadata"],
        "spec": {
            "completionMode": "Indexed",
            "completions": sum(task.get("replicas") or 0 for task in tasks),
            "backoffLimit": max(1, spec.get("maxRetry") or 1) - 1,
            "template": tasks[0].get("template") or {},
        },
        "status": job_status,
    }


def _conditions(state: Mapping[str, Any]) -> list[dict[str, Any]]:
    phase = state.get("phase") or ""
    if phase == "Completed":
        kind = "Complete"
    elif phase in _FAILED_PHASES:
        kind = "Failed"
    else:
        kind = _PHASES_UNDER_WAY.get(phase, "")
    if not kind:
        return []
    reason = state.get("reason") or f"Volcano{phase}"
    return [
        {
            "type": kind,
            "status": "True",
            "reason": reason,
            "message": state.get("message") or f"Volcano reports the job as {phase}",
            "lastTransitionTime": state.get("lastTransitionTime"),
        }
    ]
