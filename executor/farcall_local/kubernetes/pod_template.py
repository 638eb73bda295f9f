"""Pods of a Job, as its controller creates them from the Job's template.

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
