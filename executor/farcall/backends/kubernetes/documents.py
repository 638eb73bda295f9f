"""Job documents: the objects of a job, in the order of their creation. No I/O.

All tasks of an array are the indexes of one Job, and a single task is a Job with one index, so
that each has its own number of attempts.

The nodes of a group are the indexes of one Indexed Job. A failed node ends all of them, and the
main node's success ends the others. There is one attempt, because a Job replaces single pods, and
a rank that starts alone would wait for the others forever. Only a Volcano job restarts all nodes;
see `farcall.backends.kubernetes.volcano`.

The nodes of a later group have other pods, so each node is a separate Job; see
`farcall.backends.kubernetes.nodes`.

A pod's host name resolves only if a headless Service covers it. One Service, created once, covers
all jobs of a namespace, so that a client that dies leaves no job without host names.

Sources:
    https://kubernetes.io/docs/reference/kubernetes-api/workload-resources/job-v1/
    https://kubernetes.io/docs/concepts/workloads/controllers/job/
    https://kubernetes.io/docs/tasks/job/job-with-pod-to-pod-communication/
    https://kubernetes.io/docs/concepts/services-networking/dns-pod-service/
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from farcall.backends import groups
from farcall.backends.base import JobSpec
from farcall.backends.kubernetes import group_checks, names, retries, volcano
from farcall.backends.kubernetes.names import (
    GANG_LABEL,
    INDEX_LABEL,
    JOB_LABEL,
    KUEUE_QUEUE,
    MANAGED_LABEL,
    MANAGER,
    NAME_ANNOTATION,
    NODE_LABEL,
    OPTIONS_ANNOTATION,
    TAGS_ANNOTATION,
)
from farcall.backends.kubernetes.pod_template import PodTemplate
from farcall.model.commands import ENV_RUN
from farcall.model.errors import SettingsError, TaskTooLargeError
from farcall_runtime import contract

LARGEST_ARRAY = 10_000
"""Maximum tasks of one Job, as on Batch; Kubernetes supports 100,000 or more."""

REQUEST_BYTES = 1536 * 1024
"""Maximum size of a document in bytes; etcd refuses larger requests.

https://etcd.io/docs/v3.6/dev-guide/limit/
"""

ANNOTATION_BYTES = 256 * 1024
"""Maximum size of all annotations of an object in bytes, keys and values.

https://kubernetes.io/docs/reference/labels-annotations-taints/
"""

_KUEUE_LEAST = "kueue.x-k8s.io/job-min-parallelism"
"""https://kueue.sigs.k8s.io/docs/tasks/run/jobs/"""

_VOLCANO_GROUP_SIZE = "scheduling.volcano.sh/group-min-member"
"""https://github.com/volcano-sh/volcano/blob/master/pkg/controllers/podgroup/pg_controller_handler.go"""

_SERVICE = "farcall-nodes"
"""Name of the headless Service for the nodes of all jobs in a namespace."""

_GANG = {GANG_LABEL: "yes"}

_RETRIED = (
    *("vcpu", "memory", "num_gpus", "nodes", "instance_type", "architecture", "time_limit"),
    *("retry_attempts", "retry_on", "service_account", "queue"),
    *("scheduler", "priority_class", "image_pull_secrets", "node_selector", "tolerations"),
    *("mounts", "shm_size", "s3_secret", "max_parallel", "ttl", "pod_overlay", "tags"),
    *("environment", "secrets"),
)
"""Options, other than the image, that a retry must reproduce."""

_REMEDY = "shorten commands, env, tags and pod_overlay: move long texts to the image or to S3"


class KubernetesJob:
    """Builder of a job's objects.

    Args:
        spec: The job.
        image: Image of its tasks; commands have images of their own.
    """

    def __init__(self, spec: JobSpec, image: str = "") -> None:
        self._spec, self._settings, self._image = spec, spec.settings, image
        bundle = spec.environment.get(contract.ENV_BUNDLE, "")
        run = contract.Location.parse(bundle).root.rpartition("/")[2] if bundle else ""
        self._labels = names.labels(
            spec.name,
            run or spec.environment.get(ENV_RUN, ""),
            self._settings.queue,
            is_command=spec.is_command,
        )
        self._name = self._labels[JOB_LABEL]

    def objects(self) -> list[dict[str, Any]]:
        """Return the objects in creation order; the last one has the job's name.

        Raises:
            SettingsError: The options, or a group, do not result in a valid job.
            TaskTooLargeError: An object exceeds a limit of Kubernetes.
        """
        group_checks.check(self._spec)
        if self._is_volcano and self._name[0].isdigit():
            raise SettingsError(
                f"the job is named {self._spec.name}: Volcano creates a Service with the job's "
                "name, which must begin with a letter. Choose another name.",
                option="name",
            )
        objects = self._objects(list(self._templates()))
        for document in objects:
            _check_size(document)
        return objects

    @property
    def _is_volcano(self) -> bool:
        """Whether several groups or restarts require a Volcano job."""
        wants = len(self._spec.groups) > 1 or self._settings.retry_attempts > 1
        return self._settings.scheduler == "volcano" and self._spec.nodes > 1 and wants

    def _templates(self) -> Iterator[PodTemplate]:
        """Yield the pod template of each group, or of the tasks."""
        spec, first = self._spec, 0
        for group, resources in zip(spec.groups or (None,), groups.each(spec), strict=True):
            settings = resources
            if group and group.shm_size is not None:
                settings = resources.model_copy(update={"shm_size": group.shm_size})
            template = PodTemplate(spec, self._labels, settings, self._image, group, first)
            yield template
            first = template.nodes.stop

    def _objects(self, templates: Sequence[PodTemplate]) -> list[dict[str, Any]]:
        main, *later = templates
        if self._spec.nodes == 1:
            return [self._independent(main)]
        if self._is_volcano:
            return [volcano.document(self._spec, self._metadata(self._name), templates)]
        singles = [self._single(each, node) for each in later for node in each.nodes]
        return [_service(), *singles, self._indexed(main)]

    def _independent(self, template: PodTemplate) -> dict[str, Any]:
        """Return the Job of tasks, or of a command, that run on one node each."""
        spec, size, annotations = self._spec, self._spec.size, {}
        parallelism = min(self._settings.max_parallel or size, size)
        if not spec.groups:  # tasks of one job may run at different times
            if self._settings.scheduler == "kueue" and parallelism > 1:
                # Kueue's webhook rejects a value that is not below the Job's parallelism.
                annotations[_KUEUE_LEAST] = "1"
            if self._settings.scheduler == "volcano":
                annotations[_VOLCANO_GROUP_SIZE] = "1"
        fields = {
            "completionMode": "Indexed",
            "completions": size,
            "parallelism": parallelism,
            **retries.of_each_index(self._settings, is_command=bool(spec.groups)),
            "template": template.document(),
        }
        return self._job(fields, annotations=annotations)

    def _indexed(self, template: PodTemplate) -> dict[str, Any]:
        """Return the Job of the first group, whose nodes are its indexes."""
        size, annotations = len(template.nodes), {}
        if self._settings.scheduler == "volcano":
            annotations[_VOLCANO_GROUP_SIZE] = str(size)
        index = {"fieldRef": {"fieldPath": f"metadata.annotations['{INDEX_LABEL}']"}}
        fields = {
            "completionMode": "Indexed",
            "completions": size,
            "parallelism": size,
            **retries.none(),
            "successPolicy": {"rules": [{"succeededIndexes": "0"}]},
            "template": self._placed(template, {"valueFrom": index}),
        }
        return self._job(fields, annotations=annotations)

    def _single(self, template: PodTemplate, node: int) -> dict[str, Any]:
        """Return the Job of a later group's node.

        An index counts from 0 in each Job, and a pod cannot add numbers, so each node's document
        contains its number.
        """
        label = {NODE_LABEL: str(node)}
        document = self._placed(template, {"value": str(node)})
        document["metadata"]["labels"] |= label
        document["spec"]["hostname"] = self._host(node)
        fields = {"completions": 1, "parallelism": 1, **retries.none(), "template": document}
        return self._job(fields, name=f"{self._name}-n{node}", labels=label)

    def _placed(self, template: PodTemplate, index: dict[str, Any]) -> dict[str, Any]:
        """Return a template whose pods have host names."""
        document = template.document(index, f"{self._host(0)}.{_SERVICE}", _GANG)
        document["spec"]["subdomain"] = _SERVICE
        return document

    def _host(self, node: int) -> str:
        """Return a node's host name, as the Job controller sets it in Indexed Jobs."""
        return f"{self._name}-{node}"

    def _job(
        self,
        fields: Mapping[str, Any],
        *,
        name: str = "",
        labels: Mapping[str, str] | None = None,
        annotations: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        """Return a Job with the fields that all Jobs have."""
        metadata = self._metadata(name or self._name)
        metadata["labels"] |= labels or {}
        metadata["annotations"] |= annotations or {}
        spec: dict[str, Any] = {"podReplacementPolicy": "Failed"}
        if self._settings.ttl is not None:
            spec["ttlSecondsAfterFinished"] = self._settings.ttl
        if self._settings.scheduler == "kueue":
            spec["suspend"] = True  # until Kueue admits it
        return {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": metadata,
            "spec": {**spec, **fields},
        }

    def _metadata(self, name: str) -> dict[str, Any]:
        """Return name, labels and annotations of an object."""
        settings = self._settings
        labels, annotations = dict(self._labels), {NAME_ANNOTATION: self._spec.name}
        if settings.queue and settings.scheduler == "kueue":
            labels[KUEUE_QUEUE] = settings.queue
        if settings.tags:
            annotations[TAGS_ANNOTATION] = json.dumps(settings.tags, sort_keys=True)
        if not self._spec.groups:
            annotations[OPTIONS_ANNOTATION] = self._options()
        return {"name": name, "labels": labels, "annotations": annotations}

    def _options(self) -> str:
        """Return the options for resubmission, as JSON."""
        options = {name: getattr(self._settings, name) for name in _RETRIED}
        if self._spec.runtime:
            options |= {"image": "", "stock_image_uri": self._image}
        else:
            options["image"] = self._image
        return json.dumps(options, sort_keys=True)


def _service() -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": _SERVICE, "labels": {MANAGED_LABEL: MANAGER}},
        "spec": {
            "clusterIP": "None",
            # A node looks up the others at its start, before its readiness is known.
            "publishNotReadyAddresses": True,
            "selector": _GANG,
        },
    }


def _check_size(document: Mapping[str, Any]) -> None:
    spec = document["spec"]
    for owner in (spec, *spec.get("tasks", ())):
        if "template" in owner:
            _check_annotations("the pods", owner["template"])
    _check_annotations("the Job", document)
    size = len(json.dumps(document, ensure_ascii=False).encode())
    if size > REQUEST_BYTES:
        raise TaskTooLargeError(
            f"the Job would have {size} bytes, but Kubernetes accepts at most {REQUEST_BYTES}; "
            f"{_REMEDY}"
        )


def _check_annotations(what: str, document: Mapping[str, Any]) -> None:
    annotations = document["metadata"].get("annotations") or {}
    size = sum(len(part.encode()) for item in annotations.items() for part in item)
    if size > ANNOTATION_BYTES:
        raise TaskTooLargeError(
            f"the annotations of {what} would have {size} bytes, but Kubernetes accepts at "
            f"most {ANNOTATION_BYTES}; shorten tags, pod_overlay and the options of the job"
        )
