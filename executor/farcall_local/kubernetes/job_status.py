"""Status of a Job while its controller looks at it: counts and conditions, written once.

Texts are those of Kubernetes 1.36's Job controller.

Source:
    https://kubernetes.io/docs/reference/kubernetes-api/workload-resources/job-v1/#JobStatus
"""

from __future__ import annotations

from typing import Any, NamedTuple

from farcall_local.kubernetes import conditions, indexes
from farcall_local.kubernetes.job_pods import JobPods
from farcall_local.kubernetes.pod_template import is_indexed
from farcall_local.kubernetes.store import timestamp


class Finish(NamedTuple):
    """How a Job ends.

    Attributes:
        target: ``FailureTarget`` or ``SuccessCriteriaMet``, which it is told first.
        reason: A word.
        message: A sentence.
    """

    target: str
    reason: str
    message: str

    @property
    def condition(self) -> str:
        """The condition that says that it has ended."""
        return "Complete" if self.target == "SuccessCriteriaMet" else "Failed"


POLICY, BACKOFF, DEADLINE = "PodFailurePolicy", "BackoffLimitExceeded", "DeadlineExceeded"

TOO_OFTEN = Finish("FailureTarget", BACKOFF, "Job has reached the specified backoff limit")
TOO_LONG = Finish("FailureTarget", DEADLINE, "Job was active longer than specified deadline")
TOO_MANY_INDEXES = Finish(
    "FailureTarget",
    "MaxFailedIndexesExceeded",
    "Job has exceeded the specified maximal number of failed indexes",
)
FAILED_INDEXES = Finish("FailureTarget", "FailedIndexes", "Job has failed indexes")
COMPLETE = Finish(
    "SuccessCriteriaMet", "CompletionsReached", "Reached expected number of succeeded pods"
)


def has_finished(job: dict[str, Any]) -> bool:
    """Say whether a Job has ended."""
    return conditions.holds(job, "Complete") or conditions.holds(job, "Failed")


class JobStatus:
    """A Job's status as it is to be.

    Args:
        job: The Job as it is.

    Attributes:
        conditions: Its conditions.
        start: Its startTime, None where it was not started.
        end: Its completionTime, None where it is not complete.
    """

    def __init__(self, job: dict[str, Any]) -> None:
        self._job = job
        before = job.get("status") or {}
        self.conditions: list[dict[str, Any]] = before.get("conditions") or []
        self.start: str | None = before.get("startTime")
        self.end: str | None = before.get("completionTime")

    @property
    def finish(self) -> Finish | None:
        """How the Job ends, where that was decided before."""
        for each in self.conditions:
            if each["type"] in ("FailureTarget", "SuccessCriteriaMet"):
                return Finish(each["type"], each.get("reason", ""), each.get("message", ""))
        return None

    def put(self, kind: str, status: str, reason: str, message: str) -> bool:
        """Set a condition; say whether that changes anything. None is made to be False."""
        if status == "False" and all(each["type"] != kind for each in self.conditions):
            return False
        before = self.conditions
        self.conditions = conditions.put(before, kind, status, reason, message, probed=True)
        return self.conditions is not before

    def end_as(self, finish: Finish) -> None:
        """Set the condition that says that the Job has ended."""
        self.put(finish.condition, "True", finish.reason, finish.message)
        if finish.condition == "Complete":
            self.end = timestamp()

    def document(self, pods: JobPods) -> dict[str, Any]:
        """Return the status as it is to be written.

        Counts that are 0 are left out, but for those that are pointers in Kubernetes's own type.
        """
        found: dict[str, Any] = {
            "active": len(pods.active),
            "succeeded": pods.succeeded,
            "failed": pods.failed,
            "conditions": self.conditions,
            "startTime": self.start,
            "completionTime": self.end,
        }
        if is_indexed(self._job):
            found["completedIndexes"] = indexes.written(pods.succeeded_indexes)
        found = {key: value for key, value in found.items() if value}
        if "backoffLimitPerIndex" in self._job["spec"]:
            found["failedIndexes"] = indexes.written(pods.failed_indexes)
        found["ready"] = len(pods.ready)
        found["terminating"] = len(pods.terminating)
        found["uncountedTerminatedPods"] = {}
        return found
