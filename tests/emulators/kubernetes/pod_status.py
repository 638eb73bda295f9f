"""Status of a pod from its kubelet: phase, conditions and container state.

Sources:
    https://kubernetes.io/docs/concepts/workloads/pods/pod-lifecycle/
    https://kubernetes.io/docs/reference/kubernetes-api/workload-resources/pod-v1/#PodStatus
"""

from __future__ import annotations

from typing import Any

from farcall_local import names
from tests.emulators.kubernetes.store import timestamp

CREATING = "ContainerCreating"
DISRUPTED = "DisruptionTarget"


def waiting(pod: dict[str, Any], reason: str = CREATING, message: str = "") -> dict[str, Any]:
    """Return the status of a pod whose container does not run yet."""
    state = {"waiting": {"reason": reason, **({"message": message} if message else {})}}
    unready = ("False", "ContainersNotReady", "containers with unready status")
    return {**_entered(pod, "Pending", *unready), **_containers(pod, state, state)}


def running(pod: dict[str, Any]) -> dict[str, Any]:
    """Return the status of a pod whose container has started."""
    state = {"running": {"startedAt": timestamp()}}
    return {**_entered(pod, "Running", "True"), **_containers(pod, state, state)}


def ended(pod: dict[str, Any], code: int, reason: str, message: str = "") -> dict[str, Any]:
    """Return the status of a pod whose container has ended."""
    phase, why = ("Failed", "PodFailed") if code else ("Succeeded", "PodCompleted")
    [before, *_] = (pod.get("status") or {}).get("containerStatuses") or [{}]
    began = before.get("state", {}).get("running", {}).get("startedAt")
    # The runtime reports the epoch as start time of a container that could not be started.
    epoch = "1970-01-01T00:00:00Z"
    over = {
        "exitCode": code,
        "reason": reason,
        **({"message": message} if message else {}),
        "startedAt": began or (epoch if reason == "StartError" else timestamp()),
        "finishedAt": timestamp(),
    }
    # The kubelet stops native sidecars (SIGTERM) after the container.
    stopped = {**over, "exitCode": 143, "reason": "Error"}
    states = {"terminated": over}, {"terminated": stopped}
    return {**_entered(pod, phase, "False", why), **_containers(pod, *states)}


def failed(pod: dict[str, Any], reason: str, message: str) -> dict[str, Any]:
    """Return the status of a failed pod, with its container's status unchanged."""
    details = {key: value for key, value in (("reason", reason), ("message", message)) if value}
    return {**_entered(pod, "Failed", "False", "PodFailed"), **details}


def disrupted(pod: dict[str, Any], reason: str, message: str) -> dict[str, Any]:
    """Return a pod's status with the condition that the cluster disrupted it.

    Source:
        https://kubernetes.io/docs/concepts/workloads/pods/disruptions/#pod-disruption-conditions
    """
    status = dict(pod.get("status") or {})
    before = status.get("conditions") or []
    status["conditions"] = put(before, DISRUPTED, "True", reason, message)
    return status


def _entered(
    pod: dict[str, Any], phase: str, ready: str, reason: str = "", message: str = ""
) -> dict[str, Any]:
    """Return a pod's status in a phase, with its conditions of readiness."""
    status = pod.get("status") or {}
    conditions = status.get("conditions") or []
    for kind in ("Ready", "ContainersReady"):
        conditions = put(conditions, kind, ready, reason, message)
    return {
        **dict.fromkeys(("hostIP", "podIP"), names.NODE_ADDRESS),
        "startTime": timestamp(),
        **status,
        "phase": phase,
        "conditions": conditions,
    }


def _containers(
    pod: dict[str, Any], state: dict[str, Any], sidecars: dict[str, Any]
) -> dict[str, Any]:
    """Return the statuses of a pod's container and of its native sidecars, which do not run."""
    spec = pod["spec"]
    found = {"containerStatuses": [_container(spec["containers"][0], state)]}
    if added := spec.get("initContainers"):
        found["initContainerStatuses"] = [_container(each, sidecars) for each in added]
    return found


def _container(document: dict[str, Any], state: dict[str, Any]) -> dict[str, Any]:
    return {
        "name": document["name"],
        "image": document["image"],
        "imageID": "" if "waiting" in state else document["image"],
        "ready": "running" in state,
        "started": "running" in state,
        "restartCount": 0,
        "state": state,
    }


def found(document: dict[str, Any], kind: str) -> dict[str, Any] | None:
    """Return an object's condition of a type, or None."""
    conditions = (document.get("status") or {}).get("conditions") or ()
    return next((each for each in conditions if each["type"] == kind), None)


def holds(document: dict[str, Any], kind: str) -> bool:
    """Return whether an object has a condition of a type that is True."""
    condition = found(document, kind)
    return condition is not None and condition["status"] == "True"


def is_over(pod: dict[str, Any]) -> bool:
    """Return whether a pod has succeeded or failed."""
    return (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")


def put(
    conditions: list[dict[str, Any]],
    kind: str,
    status: str,
    reason: str = "",
    message: str = "",
    *,
    probed: bool = False,
) -> list[dict[str, Any]]:
    """Return conditions with one set or replaced; the same list if nothing changes.

    Its transition time is the time of its last change of status. A Job's conditions, which are
    ``probed``, also have a lastProbeTime.
    """
    before = next((each for each in conditions if each["type"] == kind), None)
    words = {"type": kind, "status": status}
    words |= {key: value for key, value in (("reason", reason), ("message", message)) if value}
    if before is not None and {key: before.get(key) for key in words} == words:
        return conditions
    moment = timestamp()
    if before is not None and before["status"] == status:
        moment = before["lastTransitionTime"]
    made = {
        **words,
        "lastProbeTime": timestamp() if probed else None,
        "lastTransitionTime": moment,
    }
    if before is None:
        return [*conditions, made]
    return [made if each is before else each for each in conditions]
