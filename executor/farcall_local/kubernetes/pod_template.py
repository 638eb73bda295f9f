"""Pods of a Job, as its controller makes them of the Job's template.

Sources:
    https://kubernetes.io/docs/concepts/workloads/controllers/job/#completion-mode
    https://kubernetes.io/docs/reference/labels-annotations-taints/
"""

from __future__ import annotations

from typing import Any

INDEX = "batch.kubernetes.io/job-completion-index"
FAILURES = "batch.kubernetes.io/job-index-failure-count"
IGNORED_FAILURES = "batch.kubernetes.io/job-index-ignored-failure-count"
FINALIZER = "batch.kubernetes.io/job-tracking"

ENV_INDEX = "JOB_COMPLETION_INDEX"

#: Most characters of what begins a generated name.
MAX_PREFIX = 58


def is_indexed(job: dict[str, Any]) -> bool:
    """Return whether a Job's pods have indexes."""
    return bool(job["spec"].get("completionMode") == "Indexed")


def index_of(pod: dict[str, Any]) -> int | None:
    """Return a pod's index, None where it has none."""
    text = (pod["metadata"].get("annotations") or {}).get(INDEX, "")
    return int(text) if text.isdecimal() else None


def failures_of(pod: dict[str, Any]) -> tuple[int, int]:
    """Return how often a pod's index had failed before it, and how many more were ignored."""
    annotations = pod["metadata"].get("annotations") or {}
    return int(annotations.get(FAILURES, 0)), int(annotations.get(IGNORED_FAILURES, 0))


class PodTemplate:
    """Makes pods of one Job; what they have in common is shared between their documents.

    Args:
        job: The Job. Its template must not be changed meanwhile.
    """

    def __init__(self, job: dict[str, Any]) -> None:
        template, meta = job["spec"]["template"], job["metadata"]
        self._job = meta["name"]
        self._namespace = meta["namespace"]
        self._meta = template.get("metadata") or {}
        self._spec = dict(template["spec"])
        self._indexed = is_indexed(job)
        self._counts_failures = "backoffLimitPerIndex" in job["spec"]
        if self._indexed:
            for kind in ("containers", "initContainers"):
                if self._spec.get(kind):
                    self._spec[kind] = [_with_index(each) for each in self._spec[kind]]
        self._owner = {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "name": meta["name"],
            "uid": meta["uid"],
            "controller": True,
            "blockOwnerDeletion": True,
        }
        of_job = {"controller-uid": meta["uid"], "job-name": meta["name"]}
        self._labels = {
            **{f"batch.kubernetes.io/{key}": value for key, value in of_job.items()},
            **of_job,
            **(self._meta.get("labels") or {}),
        }

    def pod(self, index: int | None, failures: int = 0, ignored: int = 0) -> dict[str, Any]:
        """Return a new pod.

        Args:
            index: Its index, None for none.
            failures: How often the index has failed, as backoffLimitPerIndex counts.
            ignored: Failures of it that the policy had ignored.
        """
        labels, spec = self._labels, self._spec
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
        meta: dict[str, Any] = {
            "generateName": prefix,
            "namespace": self._namespace,
            "labels": labels,
            "finalizers": [*self._meta.get("finalizers", ()), FINALIZER],
            "ownerReferences": [self._owner],
        }
        if annotations:
            meta["annotations"] = annotations
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": meta,
            "spec": spec,
            "status": {"phase": "Pending", "qosClass": _quality(spec)},
        }


def _with_index(container: dict[str, Any]) -> dict[str, Any]:
    """Return a container that finds its index in its environment, unless it says otherwise."""
    environment = container.get("env") or []
    if any(each["name"] == ENV_INDEX for each in environment):
        return container
    path = f"metadata.labels['{INDEX}']"
    value = {"valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": path}}}
    return {**container, "env": [*environment, {"name": ENV_INDEX, **value}]}


def _quality(spec: dict[str, Any]) -> str:
    """Return a pod's class of service.

    Source:
        https://kubernetes.io/docs/concepts/workloads/pods/pod-qos/
    """
    resources = [each.get("resources") or {} for each in spec["containers"]]
    if not any(each.get("requests") or each.get("limits") for each in resources):
        return "BestEffort"
    guaranteed = all(
        {"cpu", "memory"} <= set(each.get("limits") or ())
        and all(
            (each.get("requests") or each["limits"]).get(name, limit) == limit
            for name, limit in each["limits"].items()
        )
        for each in resources
    )
    return "Guaranteed" if guaranteed else "Burstable"
