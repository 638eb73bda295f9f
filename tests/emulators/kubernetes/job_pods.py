"""Pods of one Job: their template, and their state, updated with each change of one of them.

So a sync of a Job with 10,000 pods only costs the changes since the last sync. The number of
failures of an index is stored here; Kubernetes' own controller reads it from the last failed pod.

Sources:
    https://kubernetes.io/docs/concepts/workloads/controllers/job/
    https://kubernetes.io/docs/reference/labels-annotations-taints/
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any, NamedTuple

from tests.emulators.kubernetes import pod_status
from tests.emulators.kubernetes.timing import Timing, doubled

INDEX = "batch.kubernetes.io/job-completion-index"
FAILURES = "batch.kubernetes.io/job-index-failure-count"
IGNORED_FAILURES = "batch.kubernetes.io/job-index-ignored-failure-count"
FINALIZER = "batch.kubernetes.io/job-tracking"

ENV_INDEX = "JOB_COMPLETION_INDEX"

#: Maximum length of the prefix of a generated name.
MAX_PREFIX = 58


def is_indexed(job: dict[str, Any]) -> bool:
    """Return whether a Job's pods have indexes."""
    return bool(job["spec"].get("completionMode") == "Indexed")


def index_of(pod: dict[str, Any]) -> int | None:
    """Return a pod's index; None if it has none."""
    text = (pod["metadata"].get("annotations") or {}).get(INDEX, "")
    return int(text) if text.isdecimal() else None


def failures_of(pod: dict[str, Any]) -> tuple[int, int]:
    """Return the number of earlier failures of a pod's index, counted and ignored."""
    annotations = pod["metadata"].get("annotations") or {}
    return int(annotations.get(FAILURES, 0)), int(annotations.get(IGNORED_FAILURES, 0))


class PodTemplate:
    """Common part of a Job's pods, which share it in memory."""

    def __init__(self, job: dict[str, Any]) -> None:
        meta, template = job["metadata"], job["spec"]["template"]
        self._job: str = meta["name"]
        self._namespace: str = meta["namespace"]
        self._counts_failures = "backoffLimitPerIndex" in job["spec"]
        self._meta: dict[str, Any] = template.get("metadata") or {}
        self._spec: dict[str, Any] = template["spec"]
        if is_indexed(job):
            containers = [_with_index(each) for each in self._spec["containers"]]
            self._spec = {**self._spec, "containers": containers}
        self._owner = {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "name": meta["name"],
            "uid": meta["uid"],
            "controller": True,
            "blockOwnerDeletion": True,
        }

    def pod(self, index: int | None, failures: int = 0, ignored: int = 0) -> dict[str, Any]:
        """Return a new pod.

        Args:
            index: Index of the pod, or None.
            failures: Earlier failures of the index that backoffLimitPerIndex counts.
            ignored: Earlier failures that the policy ignored.
        """
        labels, spec = self._meta.get("labels") or {}, self._spec
        annotations = dict(self._meta.get("annotations") or {})
        prefix = f"{self._job[: MAX_PREFIX - 1]}-"
        if index is not None:
            labels = {**labels, INDEX: str(index)}
            annotations[INDEX] = str(index)
            if self._counts_failures:
                annotations[FAILURES] = str(failures)
                if ignored:
                    annotations[IGNORED_FAILURES] = str(ignored)
            spec = {**spec, "hostname": f"{self._job}-{index}"}
            end = f"-{index}-"
            prefix = self._job[: MAX_PREFIX - len(end)] + end
        return {
            "metadata": {
                "generateName": prefix,
                "namespace": self._namespace,
                "labels": labels,
                **({"annotations": annotations} if annotations else {}),
                "finalizers": [FINALIZER],
                "ownerReferences": [self._owner],
            },
            "spec": spec,
            "status": {"phase": "Pending"},
        }


def _with_index(container: dict[str, Any]) -> dict[str, Any]:
    """Return a container with its index in its environment."""
    environment = container.get("env") or []
    if any(each["name"] == ENV_INDEX for each in environment):
        return container
    path = f"metadata.labels['{INDEX}']"
    value = {"valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": path}}}
    return {**container, "env": [*environment, {"name": ENV_INDEX, **value}]}


class Retry(NamedTuple):
    """Retry of an index.

    Attributes:
        due: Time of the retry, by the event loop's clock.
        failures: Failures that backoffLimitPerIndex counts.
        ignored: Failures that the policy ignored.
    """

    due: float = 0.0
    failures: int = 0
    ignored: int = 0


class JobPods:
    """Pods of one Job.

    Attributes:
        template: Creates its pods.
        active: Pods that are running or will run, by name.
        terminating: Pods that are being deleted and have not finished.
        ready: Names of running pods.
        uncounted: Pods that have finished, or are being deleted, and are not counted yet.
        succeeded: Number of succeeded pods, or indexes of an Indexed Job.
        failed: Number of failed pods, except those that the policy ignored.
        succeeded_indexes: Succeeded indexes of an Indexed Job.
        failed_indexes: Failed indexes of a Job with backoffLimitPerIndex.
        fail_message: Reason why the policy fails the Job; empty if it does not.
        started: When the Job was started or resumed, in time of the event loop.
        refusals: Number of rejected pods since the last admitted one.
        refused_until: When pods may be created again, in time of the event loop.
    """

    def __init__(self, job: dict[str, Any], timing: Timing) -> None:
        self.template = PodTemplate(job)
        # These fields are immutable.
        self._policy = job["spec"].get("podFailurePolicy")
        self._limit = job["spec"].get("backoffLimitPerIndex")
        self._completions = job["spec"]["completions"]
        self._timing = timing
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
        self._retries: dict[int, Retry] = {}
        self._open: set[int] = set()  # indexes that need a pod again
        self._fresh = 0  # the first index that has had no pod
        self._failures = 0  # since the last success, for a Job without per-index limits

    def on_change(self, change: str, pod: dict[str, Any]) -> None:
        """Process a pod's change: ``ADDED``, ``MODIFIED`` or ``DELETED``."""
        meta, name, index = pod["metadata"], pod["metadata"]["name"], index_of(pod)
        was_there = name in self.active or name in self.terminating
        for known in (self.active, self.terminating, self.uncounted):
            known.pop(name, None)
        self.ready.discard(name)
        ended, gone = pod_status.is_over(pod), change == "DELETED"
        is_there = not ended and not gone
        if is_there:
            where = self.terminating if meta.get("deletionTimestamp") else self.active
            where[name] = pod
            if pod_status.holds(pod, "Ready"):
                self.ready.add(name)
        tracked = FINALIZER in (meta.get("finalizers") or ()) and not gone
        if tracked and (ended or meta.get("deletionTimestamp")):
            self.uncounted[name] = pod
        if index is None:
            return
        if is_there:
            self._open.discard(index)
            self._fresh = max(self._fresh, index + 1)
        elif was_there and index not in self.succeeded_indexes | self.failed_indexes:
            self._open.add(index)

    def all(self) -> list[dict[str, Any]]:
        """Return the pods that are not counted yet."""
        return list({**self.active, **self.terminating, **self.uncounted}.values())

    def count(self, pod: dict[str, Any], now: float) -> None:
        """Count a finished pod."""
        index = index_of(pod)
        if pod["status"]["phase"] == "Failed":
            self._count_failure(pod, index, now)
            return
        self._failures = 0
        self.succeeded += 1
        if index is not None:
            self.succeeded_indexes.add(index)
            self.succeeded = len(self.succeeded_indexes)
            self._open.discard(index)

    def count_lost(self, pod: dict[str, Any]) -> None:
        """Count a pod that fails with its Job; its index does not fail."""
        self.failed += match(self._policy, pod).action != IGNORE

    def _count_failure(self, pod: dict[str, Any], index: int | None, now: float) -> None:
        found = match(self._policy, pod)
        if found.action == FAIL_JOB:
            self.fail_message = self.fail_message or found.message
        ignored = found.action == IGNORE
        self.failed += not ignored
        if index is None or self._limit is None:
            if not ignored:
                pause = doubled(self._timing.retry_s, self._failures)
                self.refused_until = max(self.refused_until, now + pause)
                self._failures += 1
            return
        if index in self.succeeded_indexes:
            return
        failures, ignored_before = failures_of(pod)
        if found.action == FAIL_INDEX or (not ignored and failures >= self._limit):
            self.failed_indexes.add(index)
            self._open.discard(index)
            return
        # Ignored failures lengthen the pause, too.
        pause = doubled(self._timing.retry_s, failures + ignored_before)
        self._retries[index] = Retry(
            now + pause, failures + (not ignored), ignored_before + ignored
        )

    def pending(self, most: int) -> list[int]:
        """Return the first indexes that have neither a pod nor a result."""
        fresh = range(self._fresh, self._completions)
        return list(itertools.islice(itertools.chain(sorted(self._open), fresh), most))

    def retry(self, index: int | None) -> Retry:
        """Return when an index may have a pod, and its earlier failures."""
        return Retry() if index is None else self._retries.get(index, Retry())


#: Actions of a rule.
FAIL_JOB, FAIL_INDEX, IGNORE, COUNT = "FailJob", "FailIndex", "Ignore", "Count"


class Match(NamedTuple):
    """Result of a policy for a failed pod.

    Attributes:
        action: Action of the matching rule; ``Count`` if none matches.
        message: Reason for the Job's failure, if it fails.
    """

    action: str = COUNT
    message: str = ""


def match(policy: dict[str, Any] | None, pod: dict[str, Any]) -> Match:
    """Return the result of a Job's policy for a failed pod."""
    for number, rule in enumerate((policy or {}).get("rules") or ()):
        if rule.get("onExitCodes"):
            found = _on_exit_codes(rule["onExitCodes"], pod)
        else:
            found = _on_conditions(rule.get("onPodConditions") or (), pod)
        if found:
            message = f"{found} matching {rule['action']} rule at index {number}"
            return Match(rule["action"], message)
    return Match()


def _on_exit_codes(wanted: dict[str, Any], pod: dict[str, Any]) -> str:
    for container in pod["status"].get("containerStatuses") or []:
        ended = container.get("state", {}).get("terminated")
        name = wanted.get("containerName")
        # An exit code of 0 matches nothing, not even NotIn.
        if not ended or not ended["exitCode"] or name not in (None, container["name"]):
            continue
        if (ended["exitCode"] in wanted["values"]) == (wanted["operator"] == "In"):
            return (
                f"Container {container['name']} for pod {_name(pod)} failed with exit code "
                f"{ended['exitCode']}"
            )
    return ""


def _on_conditions(wanted: Iterable[dict[str, Any]], pod: dict[str, Any]) -> str:
    for pattern in wanted:
        there = pod_status.found(pod, pattern["type"])
        if there and there["status"] == pattern.get("status", "True"):
            return f"Pod {_name(pod)} has condition {pattern['type']}"
    return ""


def _name(pod: dict[str, Any]) -> str:
    return f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"


def written(indexes: Iterable[int]) -> str:
    """Format indexes as numbers and ranges; a range has at least three indexes."""
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
    """Parse the result of `written`."""
    found: set[int] = set()
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        found.update(range(int(first), int(last or first) + 1))
    return found
