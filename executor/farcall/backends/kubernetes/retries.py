"""Attempts: which failures Kubernetes retries, and which end a job. No I/O.

Source:
    https://kubernetes.io/docs/tasks/job/pod-failure-policy/
"""

from __future__ import annotations

from typing import Any

from farcall.backends.kubernetes.names import CONTAINER
from farcall.config.settings import Settings
from farcall_runtime.contract import RETRY_ON_FAILURE, ExitCode

_KILLED = 137
_FINAL = (*range(59, 70), _KILLED)
"""The container's own final codes, and SIGKILL, which is usually from the kernel."""


def final_codes(*, is_command: bool) -> tuple[int, ...]:
    """Return the exit codes after which another attempt would fail the same way.

    Args:
        is_command: Whether exit codes are a command's own; the task runner's are more specific.
    """
    return (_KILLED,) if is_command else _FINAL


def of_each_index(settings: Settings, *, is_command: bool) -> dict[str, Any]:
    """Return the attempts of each index of a Job, and the failures that end it at once."""
    attempts: dict[str, Any] = {"backoffLimitPerIndex": settings.retry_attempts - 1}
    if settings.retry_attempts == 1:
        return attempts
    # Evicted or preempted pods, and pods lost with their node, run again and do not count.
    rules = [_on_disruption("Ignore")]
    if settings.retry_on != RETRY_ON_FAILURE:
        # A container with this code was stopped from outside. A container that never existed has
        # no exit code, and matches no rule on exit codes.
        rules.append(_on_exit("FailIndex", "NotIn", ExitCode.TERMINATED))
    else:
        rules.append(_on_exit("FailIndex", "In", *final_codes(is_command=is_command)))
    return {**attempts, "podFailurePolicy": {"rules": rules}}


def none() -> dict[str, Any]:
    """Return the rules by which the first failed pod ends its Job and is named in it."""
    rules = [_on_disruption("FailJob"), _on_exit("FailJob", "NotIn", 0)]
    return {"backoffLimit": 0, "podFailurePolicy": {"rules": rules}}


def _on_disruption(action: str) -> dict[str, Any]:
    condition = {"type": "DisruptionTarget", "status": "True"}
    return {"action": action, "onPodConditions": [condition]}


def _on_exit(action: str, operator: str, *codes: int) -> dict[str, Any]:
    matched = {"containerName": CONTAINER, "operator": operator, "values": list(map(int, codes))}
    return {"action": action, "onExitCodes": matched}
