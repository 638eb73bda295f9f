"""Conditions in the status of an object of Kubernetes: one of each type.

Source:
    https://kubernetes.io/docs/reference/generated/kubernetes-api/v1.36/#podcondition-v1-core
"""

from __future__ import annotations

from typing import Any

from farcall_local.kubernetes.store import timestamp


def found(document: dict[str, Any], kind: str) -> dict[str, Any] | None:
    """Return an object's condition of a type."""
    conditions = (document.get("status") or {}).get("conditions") or ()
    return next((each for each in conditions if each["type"] == kind), None)


def holds(document: dict[str, Any], kind: str) -> bool:
    """Say whether an object has a condition of a type that is True."""
    condition = found(document, kind)
    return condition is not None and condition["status"] == "True"


def put(
    conditions: list[dict[str, Any]],
    kind: str,
    status: str,
    reason: str = "",
    message: str = "",
    *,
    probed: bool = False,
) -> list[dict[str, Any]]:
    """Return conditions with one in the place of that of its type; the same ones if it is there.

    The time of its transition is that of the last change of its status. Of a Job's, which are
    ``probed``, lastProbeTime is set.
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
