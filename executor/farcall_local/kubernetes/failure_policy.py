"""Pod failure policy of a Job: what a failed pod means, by its exit code or its conditions.

The first rule that matches counts. Texts are those of Kubernetes 1.36's Job controller.

Source:
    https://kubernetes.io/docs/concepts/workloads/controllers/job/#pod-failure-policy
"""

from __future__ import annotations

from typing import Any, NamedTuple

#: What a rule can say.
FAIL_JOB, FAIL_INDEX, IGNORE, COUNT = "FailJob", "FailIndex", "Ignore", "Count"


class Match(NamedTuple):
    """What a policy says of a failed pod.

    Attributes:
        action: Of the rule that matched; ``Count`` where none did.
        message: Why the Job fails, where it does.
    """

    action: str = COUNT
    message: str = ""


def match(policy: dict[str, Any] | None, pod: dict[str, Any]) -> Match:
    """Return what a Job's policy says of a pod that has failed."""
    for number, rule in enumerate((policy or {}).get("rules") or ()):
        found = _matches(rule, pod)
        if found:
            message = f"{found} matching {rule['action']} rule at index {number}"
            return Match(rule["action"], message)
    return Match()


def _matches(rule: dict[str, Any], pod: dict[str, Any]) -> str:
    if rule.get("onExitCodes"):
        return _on_exit_codes(rule["onExitCodes"], pod)
    return _on_conditions(rule.get("onPodConditions") or (), pod)


def _on_exit_codes(wanted: dict[str, Any], pod: dict[str, Any]) -> str:
    status = pod.get("status", {})
    statuses = (status.get("initContainerStatuses") or [], status.get("containerStatuses") or [])
    for container in (each for part in statuses for each in part):
        ended = container.get("state", {}).get("terminated")
        name = wanted.get("containerName")
        # An exit code of 0 matches nothing, NotIn neither.
        if not ended or not ended["exitCode"] or name not in (None, container["name"]):
            continue
        if (ended["exitCode"] in wanted["values"]) == (wanted["operator"] == "In"):
            return (
                f"Container {container['name']} for pod {_name(pod)} failed with exit code "
                f"{ended['exitCode']}"
            )
    return ""


def _on_conditions(wanted: Any, pod: dict[str, Any]) -> str:
    there = {
        each["type"]: each["status"] for each in pod.get("status", {}).get("conditions") or ()
    }
    for pattern in wanted:
        if there.get(pattern["type"]) == pattern.get("status", "True"):
            return f"Pod {_name(pod)} has condition {pattern['type']}"
    return ""


def _name(pod: dict[str, Any]) -> str:
    return f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"
