"""Jobs and pods as a cluster returns them, with farcall's labels and annotations."""

from __future__ import annotations

from typing import Any

from farcall import Settings
from farcall.backends.base import JobSpec
from farcall.backends.kubernetes.documents import KubernetesJob
from farcall.backends.kubernetes.pods import Pod, read_pod
from farcall.model.commands import Nodes

NAME = "simulate-0a1b"
IMAGE = "registry.example.org/task:1"
BUNDLE = "s3://some-bucket/team/v1/ann-20261123T210000Z-a1b2c3/bundles/0a1b"


def at(second: int) -> str:
    return f"2026-11-23T21:{second // 60:02}:{second % 60:02}Z"


def condition(kind: str, reason: str = "", message: str = "", status: str = "True", second=50):
    return {
        "type": kind,
        "status": status,
        "reason": reason,
        "message": message,
        "lastTransitionTime": at(second),
    }


def job(
    size: int = 1,
    *conditions: dict[str, Any],
    annotations: dict[str, str] | None = None,
    suspend: bool | None = None,
    runtime=None,
    command: bool = False,
    options: dict[str, Any] | None = None,
    **status: Any,
) -> dict[str, Any]:
    environment = {"FARCALL_RUN": "ann-1"} if command else {"FARCALL_BUNDLE": BUNDLE}
    settings = Settings(backend="kubernetes", **(options or {}))
    spec = JobSpec(
        NAME, size, environment, settings, runtime=runtime, requests={} if command else None
    )
    (found,) = KubernetesJob(spec, IMAGE).objects()
    found["metadata"] |= {"namespace": "sim", "uid": "u", "creationTimestamp": at(0)}
    found["metadata"]["annotations"] |= annotations or {}
    if suspend is not None:
        found["spec"]["suspend"] = suspend
    found["status"] = {**status, "conditions": list(conditions)} if conditions else status
    return found


def pod(
    phase: str = "Failed",
    index: int = 0,
    *,
    attempt: int = 1,
    name: str = "",
    reason: str = "",
    message: str = "",
    conditions: tuple[dict[str, Any], ...] = (),
    waiting: dict[str, str] | None = None,
    running: bool = False,
    exit_code: int | None = None,
    container_reason: str = "",
    container_message: str = "",
    deleting: bool = False,
    placed: bool = True,
    stopped: int = 40,
    labels: dict[str, str] | None = None,
) -> Pod:
    """Return a pod as read from the API server's document."""
    state: dict[str, Any] = {}
    if waiting is not None:
        state["waiting"] = waiting
    if running:
        state["running"] = {"startedAt": at(10)}
    if exit_code is not None:
        state["terminated"] = {
            "exitCode": exit_code,
            "reason": container_reason or ("Completed" if exit_code == 0 else "Error"),
            "message": container_message,
            "startedAt": at(10),
            "finishedAt": at(stopped),
        }
    name = name or f"{NAME}-{index}-{'abcdefgh'[attempt]}xyz1"
    document: dict[str, Any] = {
        "metadata": {
            "name": name,
            "uid": f"uid-{name}",
            "creationTimestamp": at(attempt),
            "labels": {"farcall/job": NAME, **(labels or {})},
            "annotations": {
                "batch.kubernetes.io/job-completion-index": str(index),
                "batch.kubernetes.io/job-index-failure-count": str(attempt - 1),
            },
        },
        "spec": {"nodeName": "node-1"} if placed else {},
        "status": {"phase": phase, "conditions": list(conditions)},
    }
    if deleting:
        document["metadata"] |= {"deletionTimestamp": at(45), "deletionGracePeriodSeconds": 30}
    if reason:
        document["status"] |= {"reason": reason, "message": message}
    if state:
        document["status"]["containerStatuses"] = [{"name": "task", "state": state}]
    return read_pod(document)


def unscheduled(message: str, reason: str = "Unschedulable") -> Pod:
    return pod(
        "Pending",
        placed=False,
        conditions=(condition("PodScheduled", reason, message, status="False"),),
    )


def event(reason: str, message: str, second: int = 20) -> dict[str, Any]:
    return {"kind": "Event", "reason": reason, "message": message, "lastTimestamp": at(second)}


def command_pod(**fields: Any) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return container and volumes of a command's pod, without farcall's own variables."""
    groups = (Nodes(1, "busybox:1", **fields),)
    (document,) = KubernetesJob(
        JobSpec("one", 1, {}, Settings(backend="kubernetes"), groups)
    ).objects()
    pod = document["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    container["env"] = [each for each in container["env"] if "FARCALL_" not in each["name"]]
    return container, pod.get("volumes", [])
