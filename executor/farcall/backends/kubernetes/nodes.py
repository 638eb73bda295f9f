"""Jobs of one multi-node job, combined. No I/O.

The nodes of later groups are Jobs of their own, and in Kubernetes, no Job ends another:
`MultiNodeJob` lists the Jobs to end, and the client that follows the job ends them.

Source:
    https://kubernetes.io/docs/concepts/workloads/controllers/job/
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from farcall.backends.kubernetes import names

_FAILURES = ("Failed", "FailureTarget")
_ENDS = ("Complete", "SuccessCriteriaMet", *_FAILURES)
_OWN_EXIT = " failed with exit code "
"""Text in the Job controller's message for a rule about exit codes.

https://github.com/kubernetes/kubernetes/blob/v1.36.0/pkg/controller/job/pod_failure_policy.go
"""


class MultiNodeJob:
    """The Jobs of one job of several groups, combined.

    Args:
        jobs: The cluster's documents; the main Job may be missing.
    """

    def __init__(self, jobs: Sequence[dict[str, Any]]) -> None:
        self._jobs = jobs
        self._main = next((each for each in jobs if not names.rank(each, 0)), None)

    @property
    def job(self) -> dict[str, Any] | None:
        """The main node's Job, ended if the combined job has ended; None if missing.

        The main node decides. If a node of a later group exits by itself, the main node still
        decides; if it was lost, or never started, the combined job ends.
        """
        main = self._main
        if main is None or _end(main):
            return main
        lost = next((end for each in self._jobs if (end := _end(each)) and _is_loss(end)), None)
        if lost is None:
            return main
        status = main.get("status") or {}
        conditions = [*(status.get("conditions") or ()), lost]
        return {**main, "status": {**status, "conditions": conditions}}

    @property
    def left(self) -> list[dict[str, Any]]:
        """The Jobs that still run although the combined job has ended."""
        whole = self.job
        if whole is None or _end(whole) is None:
            return []
        return [each for each in self._jobs if _end(each) is None]


def has_failed(job: Mapping[str, Any]) -> bool:
    """Return whether a Job has failed, even if some of its pods are still stopping."""
    condition = _end(job)
    return condition is not None and condition["type"] in _FAILURES


def _end(job: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the condition with which a Job ended, or is about to end."""
    for condition in (job.get("status") or {}).get("conditions") or ():
        if condition.get("type") in _ENDS and condition.get("status") == "True":
            end: dict[str, Any] = condition
            return end
    return None


def _is_loss(condition: dict[str, Any]) -> bool:
    """Return whether a Job failed for another reason than its container's exit code."""
    message = str(condition.get("message") or "")
    return condition["type"] in _FAILURES and _OWN_EXIT not in message
