"""Status of a pod from its kubelet: phase, conditions and container state.

Sources:
    https://kubernetes.io/docs/concepts/workloads/pods/pod-lifecycle/
    https://kubernetes.io/docs/reference/kubernetes-api/workload-resources/pod-v1/#PodStatus
"""

from __future__ import annotations

from typing import Any

from farcall_local import names
from farcall_local.kubernetes.store import timestamp

CREATING = "ContainerCreating"
DISRUPTED = "DisruptionTarget"


def waiting(pod: dict[str, Any], reason: str = CREATING, message: str = "") -> dict[str, Any]:
    """Return the status of a pod whose container does not run yet."""
    state = {"waiting": {"reason": reason, **({"message": message} if message else {})}}
    found = _begun(pod, "Pending")
    unready = ("False", "ContainersNotReady", "containers with unready status")
    found["conditions"] = _with_ready(found["conditions"], *unready)
    return {**found, "containerStatuses": [_container(pod, state)]}


def running(pod: dict[str, Any]) -> dict[str, Any]:
    """Return the status of a pod whose container has started."""
    found = _begun(pod, "Running")
    found["conditions"] = _with_ready(found["conditions"], "True")
    container = _container(pod, {"running": {"startedAt": timestamp()}})
    return {**found, "containerStatuses": [container]}


def ended(pod: dict[str, Any], code: int, reason: str, message: str = "") -> dict[str, Any]:
    """Return the status of a pod whose container has ended."""
    phase = "Failed" if code else "Succeeded"
    found = _begun(pod, phase)
    found["conditions"] = _over(found["conditions"], phase)
    state = _state(pod)
    began = state.get("running", {}).get("startedAt")
    over: dict[str, Any] = {"exitCode": code, "reason": reason}
    if message:
        over["message"] = message
    # The runtime reports the epoch as start time of a container that could not be started.
    over["startedAt"] = began or (
        "1970-01-01T00:00:00Z" if reason == "StartError" else timestamp()
    )
    over["finishedAt"] = timestamp()
    return {**found, "containerStatuses": [_container(pod, {"terminated": over})]}


def failed(pod: dict[str, Any], reason: str, message: str) -> dict[str, Any]:
    """Return the status of a failed pod, with its container's status unchanged."""
    found = _begun(pod, "Failed")
    found["conditions"] = _over(found["conditions"], "Failed")
    details = {key: value for key, value in (("reason", reason), ("message", message)) if value}
    return {**found, **details}


def disrupted(pod: dict[str, Any], reason: str, message: str) -> dict[str, Any]:
    """Return a pod's status with the condition that the cluster disrupted it.

    Source:
        https://kubernetes.io/docs/concepts/workloads/pods/disruptions/#pod-disruption-conditions
    """
    status = dict(pod.get("status") or {})
    before = status.get("conditions") or []
    status["conditions"] = put(before, DISRUPTED, "True", reason, message)
    return status


def _begun(pod: dict[str, Any], phase: str) -> dict[str, Any]:
    address = names.NODE_ADDRESS
    before = dict(pod.get("status") or {})
    begun = {
        "hostIP": address,
        "podIP": address,
        "startTime": timestamp(),
        "conditions": [],
    }
    return {**begun, **before, "phase": phase}


def _with_ready(
    found: list[dict[str, Any]], status: str, reason: str = "", message: str = ""
) -> list[dict[str, Any]]:
    for kind in ("Ready", "ContainersReady"):
        found = put(found, kind, status, reason, message)
    return found


def _over(found: list[dict[str, Any]], phase: str) -> list[dict[str, Any]]:
    return _with_ready(found, "False", "PodFailed" if phase == "Failed" else "PodCompleted")


def _state(pod: dict[str, Any]) -> dict[str, Any]:
    statuses = (pod.get("status") or {}).get("containerStatuses") or [{}]
    state: dict[str, Any] = statuses[0].get("state", {})
    return state


def _container(pod: dict[str, Any], state: dict[str, Any]) -> dict[str, Any]:
    document = pod["spec"]["containers"][0]
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
