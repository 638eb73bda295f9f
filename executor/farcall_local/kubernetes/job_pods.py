"""What is known of the pods of one Job, kept up with each change of one of them.

So a look at a Job of 10,000 pods costs what has changed since the last look. A failed pod's index
is tried again here after its pause; what had failed is remembered here, where Kubernetes's own
controller reads it from the last failed pod, whose finalizer it keeps for that.

Source:
    https://kubernetes.io/docs/concepts/workloads/controllers/job/#backoff-limit-per-index
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from farcall_local.kubernetes import pod_status
from farcall_local.kubernetes.pod_template import FINALIZER, failures_of, index_of, is_indexed
from farcall_local.kubernetes.store import timestamp
from farcall_local.kubernetes.timing import Timing, doubled

#: Phases in which a pod stays.
FINAL = ("Succeeded", "Failed")


@dataclass
class Retry:
    """When an index may be tried again.

    Attributes:
        due: On the event loop's clock.
        failures: Of the index so far, as backoffLimitPerIndex counts.
        ignored: Those that the policy had ignored.
    """

    due: float
    failures: int
    ignored: int


class JobPods:
    """The pods of one Job, and what became of those that have ended.

    Attributes:
        active: Those that are to run, or do, by name.
        terminating: Those that are being deleted and have not ended.
        ready: Names of those that run.
        uncounted: Those that the Job has not counted yet, and that have ended or are being
            deleted.
        succeeded: Pods that have; of an Indexed Job, indexes.
        failed: Pods that have, except those that were ignored.
        succeeded_indexes: Of an Indexed Job.
        failed_indexes: Of one with backoffLimitPerIndex.
        fail_message: Why a policy fails the whole Job; empty where none does.
        started: When the Job was started or resumed, on the event loop's clock.
        refusals: Pods in succession that were not admitted.
    """

    def __init__(self) -> None:
        self.active: dict[str, dict[str, Any]] = {}
        self.terminating: dict[str, dict[str, Any]] = {}
        self.ready: set[str] = set()
        self.uncounted: dict[str, dict[str, Any]] = {}
        self.succeeded = 0
        self.failed = 0
        self.succeeded_indexes: set[int] = set()
        self.failed_indexes: set[int] = set()
        self.fail_message = ""
        self.started: float | None = None
        self.refusals = 0
        self.refused_until = 0.0
        self._by_index: dict[int, set[str]] = {}
        self._retries: dict[int, Retry] = {}
        self._open: set[int] = set()  # indexes to be tried again
        self._fresh = 0  # the first index that never was tried
        self._failures = 0  # since the last success, of a Job without limits of its indexes
        self._last_failure = 0.0

    def note(self, change: str, pod: dict[str, Any]) -> None:
        """Take in a pod's change: ``ADDED``, ``MODIFIED`` or ``DELETED``."""
        meta, status = pod["metadata"], pod.get("status") or {}
        name, index = meta["name"], index_of(pod)
        was_there = name in self.active or name in self.terminating
        self.active.pop(name, None)
        self.terminating.pop(name, None)
        self.uncounted.pop(name, None)
        self.ready.discard(name)
        ended, gone = status.get("phase") in FINAL, change == "DELETED"
        if not ended and not gone:
            where = self.terminating if meta.get("deletionTimestamp") else self.active
            where[name] = pod
            if pod_status.holds(pod, "Ready"):
                self.ready.add(name)
        tracked = FINALIZER in (meta.get("finalizers") or ()) and not gone
        if tracked and (ended or meta.get("deletionTimestamp")):
            self.uncounted[name] = pod
        if index is not None:
            self._note_index(index, name, there=not ended and not gone, was_there=was_there)

    def _note_index(self, index: int, name: str, *, there: bool, was_there: bool) -> None:
        names = self._by_index.setdefault(index, set())
        if there:
            names.add(name)
            self._open.discard(index)
            return
        names.discard(name)
        if not names:
            del self._by_index[index]
            if was_there and not self._has_ended(index):
                self._open.add(index)

    def all(self) -> list[dict[str, Any]]:
        """Return the pods that have not been counted."""
        return list({**self.active, **self.terminating, **self.uncounted}.values())

    def count(self, job: dict[str, Any], pod: dict[str, Any], now: float, timing: Timing) -> None:
        """Count a pod that has ended, or is taken to have failed."""
        index = index_of(pod)
        if index is not None and index >= job["spec"]["completions"]:
            return
        if (pod.get("status") or {}).get("phase") == "Succeeded":
            self._count_success(index)
        else:
            self._count_failure(job, pod, index, now, timing)

    def count_lost(self, job: dict[str, Any], pod: dict[str, Any]) -> None:
        """Count a pod that the Job's end takes along: it has failed, and its index has not."""
        found = match(job["spec"].get("podFailurePolicy"), pod)
        self.failed += found.action != IGNORE

    def _count_success(self, index: int | None) -> None:
        self._failures = 0
        if index is None:
            self.succeeded += 1
            return
        self.succeeded_indexes.add(index)
        self.succeeded = len(self.succeeded_indexes)
        self._open.discard(index)
        self._retries.pop(index, None)

    def _count_failure(
        self,
        job: dict[str, Any],
        pod: dict[str, Any],
        index: int | None,
        now: float,
        timing: Timing,
    ) -> None:
        found = match(job["spec"].get("podFailurePolicy"), pod)
        if found.action == FAIL_JOB:
            self.fail_message = self.fail_message or found.message
        ignored = found.action == IGNORE
        if not ignored:
            self.failed += 1
            self._failures += 1
            self._last_failure = now
        limit = job["spec"].get("backoffLimitPerIndex")
        if index is None or limit is None or index in self.succeeded_indexes:
            return
        failures, ignored_before = failures_of(pod)
        if found.action == FAIL_INDEX or (not ignored and failures >= limit):
            self.failed_indexes.add(index)
            self._open.discard(index)
            self._retries.pop(index, None)
            return
        # Ignored failures lengthen the pause, too.
        pause = doubled(timing.retry_s, failures + ignored_before, timing.retry_max_s)
        self._retries[index] = Retry(
            now + pause, failures + (not ignored), ignored_before + ignored
        )

    def pause_s(self, now: float, timing: Timing) -> float:
        """Return for how long a Job without limits of its indexes makes no pod."""
        if not self._failures:
            return 0.0
        pause = doubled(timing.retry_s, self._failures - 1, timing.retry_max_s)
        return max(0.0, self._last_failure + pause - now)

    def pending(self, job: dict[str, Any], most: int) -> list[int]:
        """Return the first indexes that have neither a pod nor an end.

        Where pods are replaced when they are gone, an index whose pod is being deleted has one.
        """
        completions = job["spec"]["completions"]
        again = {index for index in self._open if index < completions}
        if not replaces_failed_only(job):
            again.update(
                index
                for index in map(index_of, self.terminating.values())
                if index is not None and self._is_free(index, completions)
            )
        found = sorted(again)[:most]
        while self._fresh < completions and not self._is_new(self._fresh):
            self._fresh += 1
        fresh = (each for each in range(self._fresh, completions) if self._is_new(each))
        return sorted([*found, *itertools.islice(fresh, most)])[:most]

    def _is_new(self, index: int) -> bool:
        return not (index in self._by_index or index in self._open or self._has_ended(index))

    def _is_free(self, index: int, completions: int) -> bool:
        if index >= completions or self._has_ended(index):
            return False
        return not any(name in self.active for name in self._by_index.get(index, ()))

    def _has_ended(self, index: int) -> bool:
        return index in self.succeeded_indexes or index in self.failed_indexes

    def retry(self, index: int) -> Retry:
        """Return what is known of an index that is to have a pod."""
        return self._retries.get(index) or Retry(0.0, 0, 0)

    def excess(self, job: dict[str, Any], wanted: int) -> list[dict[str, Any]]:
        """Return the active pods that are too many: the least advanced of them.

        Of an Indexed Job first those whose index is not the Job's any more.
        """
        many = len(self.active) - wanted
        if many <= 0:
            return []
        end = job["spec"]["completions"] if is_indexed(job) else 0

        def order(pod: dict[str, Any]) -> tuple[bool, ...]:
            outside = is_indexed(job) and (index_of(pod) or 0) >= end
            return (not outside, *_advance(pod))

        return sorted(self.active.values(), key=order)[:many]


def _advance(pod: dict[str, Any]) -> tuple[bool, bool, bool]:
    running = (pod.get("status") or {}).get("phase") == "Running"
    return bool(pod["spec"].get("nodeName")), running, pod_status.holds(pod, "Ready")


def replaces_failed_only(job: dict[str, Any]) -> bool:
    """Return whether a pod is replaced only when it has ended, not while it is being deleted.

    Source:
        https://kubernetes.io/docs/concepts/workloads/controllers/job/#pod-replacement-policy
    """
    spec = job["spec"]
    return bool(spec.get("podReplacementPolicy") == "Failed" or spec.get("podFailurePolicy"))


def has_failed(job: dict[str, Any], pod: dict[str, Any]) -> bool:
    """Return whether a Job takes a pod for failed."""
    phase = (pod.get("status") or {}).get("phase")
    if phase == "Failed" or replaces_failed_only(job):
        return bool(phase == "Failed")
    return bool(pod["metadata"].get("deletionTimestamp")) and phase != "Succeeded"


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
    """Return whether a Job has ended."""
    return pod_status.holds(job, "Complete") or pod_status.holds(job, "Failed")


class JobStatus:
    """A Job's status as it is to be.

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
        self.conditions = pod_status.put(before, kind, status, reason, message, probed=True)
        return self.conditions is not before

    def end_as(self, finish: Finish) -> None:
        """Set the condition that says that the Job has ended."""
        self.put(finish.condition, "True", finish.reason, finish.message)
        if finish.condition == "Complete":
            self.end = timestamp()

    def document(self, pods: JobPods) -> dict[str, Any]:
        """Return the status as it is to be written.

        Counts that are 0 are left out, except those that are pointers in Kubernetes's own type.
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
            found["completedIndexes"] = written(pods.succeeded_indexes)
        found = {key: value for key, value in found.items() if value}
        if "backoffLimitPerIndex" in self._job["spec"]:
            found["failedIndexes"] = written(pods.failed_indexes)
        found["ready"] = len(pods.ready)
        found["terminating"] = len(pods.terminating)
        found["uncountedTerminatedPods"] = {}
        return found


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


def written(indexes: Iterable[int]) -> str:
    """Write indexes as numbers and ranges. Two in succession are no range: ``1,2``."""
    parts: list[list[int]] = []
    for index in sorted(indexes):
        if parts and parts[-1][1] == index - 1:
            parts[-1][1] = index
        else:
            parts.append([index, index])
    return ",".join(_part(first, last) for first, last in parts)


def _part(first: int, last: int) -> str:
    if first == last:
        return str(first)
    return f"{first},{last}" if last == first + 1 else f"{first}-{last}"


def read(text: str) -> set[int]:
    """Return the indexes of a text that `written` made."""
    found: set[int] = set()
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        found.update(range(int(first), int(last or first) + 1))
    return found
