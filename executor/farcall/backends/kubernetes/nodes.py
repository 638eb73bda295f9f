"""Jobs, Service and host names of jobs with several nodes or groups. No I/O.

The nodes of one group are the indexes of one Indexed Job. A failed node ends all of them, and the
main node's success ends the others. There is one attempt, because a Job replaces single pods, and
a rank that starts alone would wait for the others forever. Only a Volcano job restarts all nodes;
see `farcall.backends.kubernetes.volcano`.

The nodes of a later group have other pods, so each node is a separate Job. In Kubernetes, no Job
ends another: `MultiNodeJob` lists the Jobs to end, and the client that follows the job ends them.

A pod's host name resolves only if a headless Service covers it. One Service, created once, covers
all jobs of a namespace, so that a client that dies leaves no job without host names.

Sources:
    https://kubernetes.io/docs/concepts/workloads/controllers/job/
    https://kubernetes.io/docs/tasks/job/job-with-pod-to-pod-communication/
    https://kubernetes.io/docs/concepts/services-networking/dns-pod-service/
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

from farcall.backends import groups
from farcall.backends.base import JobSpec
from farcall.backends.kubernetes import documents, names, volcano
from farcall.backends.kubernetes.names import (
    CONTAINER,
    INDEX_LABEL,
    MANAGED_LABEL,
    MANAGER,
    NODE_LABEL,
    object_name,
)
from farcall.config.settings import Settings
from farcall.model.errors import SettingsError
from farcall_runtime.contract import (
    ENV_OWN_MAIN_ADDRESS,
    ENV_OWN_NODE_INDEX,
    ENV_OWN_NODES,
)

SERVICE = "farcall-nodes"
"""Name of the headless Service for the nodes of all jobs in a namespace."""

GANG_LABEL = "farcall/gang"
"""Label of the pods that have host names in the Service."""

_GANG = {GANG_LABEL: "yes"}
_MOST_NODES = 1000
_FAILURES = ("Failed", "FailureTarget")
_ENDS = ("Complete", "SuccessCriteriaMet", *_FAILURES)
_OWN_EXIT = " failed with exit code "
"""Text in the Job controller's message for a rule about exit codes.

https://github.com/kubernetes/kubernetes/blob/v1.36.0/pkg/controller/job/pod_failure_policy.go
"""


class Group(NamedTuple):
    """Nodes of a job that have the same pods.

    Attributes:
        first: Index of the first node.
        size: Number of nodes.
        settings: The options with the group's resources.
        container: Fields of the container that the group requests.
        volumes: Volumes of the pod.
    """

    first: int
    size: int
    settings: Settings
    container: dict[str, Any]
    volumes: list[dict[str, Any]]


def check(job: JobSpec) -> None:
    """Check a job's groups against Kubernetes's limits.

    Raises:
        SettingsError: A group is invalid.
    """
    for place, group in enumerate(job.groups):
        with groups.naming(job, place):
            documents.check_group(group)
    if job.nodes > _MOST_NODES:
        raise SettingsError(
            f"the job has {job.nodes} nodes, but the limit is {_MOST_NODES}",
            option="nodes",
        )
    if is_volcano(job) and object_name(job.name)[0].isdigit():
        raise SettingsError(
            f"the job is named {job.name}: Volcano creates a Service with the job's name, "
            "which must begin with a letter. Choose another name.",
            option="name",
        )


def is_several(job: JobSpec) -> bool:
    """Return whether a job needs this module, unlike a plain Job of tasks."""
    return bool(job.groups) or job.nodes > 1


def is_volcano(job: JobSpec) -> bool:
    """Return whether a job, with several groups or restarts, is a Volcano job."""
    settings = job.settings
    wants = len(job.groups) > 1 or settings.retry_attempts > 1
    return settings.scheduler == "volcano" and job.nodes > 1 and wants


def objects(job: JobSpec, image: str = "") -> list[dict[str, Any]]:
    """Return a job's objects in creation order; the last one has the job's name.

    Args:
        job: A job for which `is_several` is true.
        image: Image of its tasks, if it has no groups.

    Raises:
        SettingsError: A group is invalid.
        TaskTooLargeError: An object exceeds a limit of Kubernetes.
    """
    check(job)
    found = _objects(job, image, list(_groups(job, image)))
    for document in found:
        documents.check_size(document)
    return found


def _objects(job: JobSpec, image: str, found: Sequence[Group]) -> list[dict[str, Any]]:
    if job.nodes == 1:
        return [_alone(job, found[0])]
    if is_volcano(job):
        return [_volcano_job(job, found, image)]
    name = object_name(job.name)
    later = [node for group in found[1:] for node in _singles(job, name, group)]
    return [_service(), *later, _indexed(job, name, found[0], image)]


def _groups(job: JobSpec, image: str) -> Iterator[Group]:
    if not job.groups:
        yield Group(0, job.nodes, job.settings, documents.container(job, image), [])
    starts = [0, *accumulate(group.count for group in job.groups)]
    for place, (first, group) in enumerate(zip(starts, job.groups, strict=False)):
        with groups.naming(job, place):
            settings = groups.resources(job.settings, group)
        if group.shm_size is not None:
            settings = settings.model_copy(update={"shm_size": group.shm_size})
        yield Group(first, group.count, settings, *documents.container_of(group))


def _alone(job: JobSpec, group: Group) -> dict[str, Any]:
    """Return the Job of a command on one node, which is retried like a task."""
    spec = {
        **documents.job_spec(job),
        "completionMode": "Indexed",
        "completions": 1,
        "parallelism": 1,
        **documents.retrying(job.settings, is_command=True),
        "template": _template(job, group),
    }
    return _job(job, object_name(job.name), spec)


def _indexed(job: JobSpec, name: str, group: Group, image: str) -> dict[str, Any]:
    index = {"fieldRef": {"fieldPath": f"metadata.annotations['{INDEX_LABEL}']"}}
    spec = {
        **documents.job_spec(job),
        "completionMode": "Indexed",
        "completions": group.size,
        "parallelism": group.size,
        **_once(),
        "successPolicy": {"rules": [{"succeededIndexes": "0"}]},
        "template": _placed(job, name, group, {"valueFrom": index}),
    }
    marks = {} if job.groups else documents.options(job, image)
    if job.settings.scheduler == "volcano":
        marks[documents.VOLCANO_GROUP_SIZE] = str(group.size)
    return _job(job, name, spec, annotations=marks)


def _singles(job: JobSpec, name: str, group: Group) -> Iterator[dict[str, Any]]:
    """Yield the Jobs of a later group's nodes.

    An index counts from 0 in each Job, and a pod cannot add numbers, so each node's document
    contains its number.
    """
    for node in range(group.first, group.first + group.size):
        template = _placed(job, name, group, {"value": str(node)})
        template["metadata"]["labels"][NODE_LABEL] = str(node)
        template["spec"]["hostname"] = _host(name, node)
        spec = {**documents.job_spec(job), "completions": 1, "parallelism": 1, **_once()}
        labels = {NODE_LABEL: str(node)}
        yield _job(job, f"{name}-n{node}", {**spec, "template": template}, labels=labels)


def _once() -> dict[str, Any]:
    """Return the rules by which the first failed pod ends its Job and is named in it."""
    failed = {"containerName": CONTAINER, "operator": "NotIn", "values": [0]}
    rules = [
        {
            "action": "FailJob",
            "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}],
        },
        {"action": "FailJob", "onExitCodes": failed},
    ]
    return {"backoffLimit": 0, "podFailurePolicy": {"rules": rules}}


def _volcano_job(job: JobSpec, found: Sequence[Group], image: str) -> dict[str, Any]:
    """Return a Volcano job with one task per node; a task knows only its own indexes."""
    name = object_name(job.name)
    main = f"{volcano.pod_name(name, 0)}.{name}"
    tasks = []
    for group in found:
        for node in range(group.first, group.first + group.size):
            variables = _variables(job.nodes, {"value": str(node)}, main)
            template = _template(job, group, variables, {NODE_LABEL: str(node)})
            tasks.append((node, template))
    metadata = documents.metadata(job, name)
    if not job.groups:
        metadata["annotations"] |= documents.options(job, image)
    return volcano.document(job, metadata, tasks)


def _placed(job: JobSpec, name: str, group: Group, index: dict[str, Any]) -> dict[str, Any]:
    """Return a template whose pods have host names."""
    variables = _variables(job.nodes, index, f"{_host(name, 0)}.{SERVICE}")
    template = _template(job, group, variables, _GANG)
    template["spec"]["subdomain"] = SERVICE
    return template


def _template(
    job: JobSpec,
    group: Group,
    variables: Sequence[dict[str, Any]] = (),
    labels: dict[str, str] | None = None,
) -> dict[str, Any]:
    container = dict(group.container)
    container["env"] = [*container.get("env", ()), *variables]
    found: dict[str, Any] = documents.template(
        job, group.settings, container, volumes=group.volumes, labels=labels or {}
    )
    return found


def _variables(count: int, index: dict[str, Any], main: str) -> list[dict[str, Any]]:
    """Return a node's variables about itself and the main node."""
    return [
        {"name": ENV_OWN_NODES, "value": str(count)},
        {"name": ENV_OWN_MAIN_ADDRESS, "value": main},
        {"name": ENV_OWN_NODE_INDEX, **index},
    ]


def _host(name: str, node: int) -> str:
    """Return a node's host name, as the Job controller sets it in Indexed Jobs."""
    return f"{name}-{node}"


def _job(
    job: JobSpec,
    name: str,
    spec: dict[str, Any],
    *,
    labels: dict[str, str] | None = None,
    annotations: dict[str, str] | None = None,
) -> dict[str, Any]:
    metadata = documents.metadata(job, name)
    metadata["labels"] = {**metadata.get("labels", {}), **(labels or {})}
    metadata["annotations"] = {**metadata.get("annotations", {}), **(annotations or {})}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": spec}


def _service() -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": SERVICE, "labels": {MANAGED_LABEL: MANAGER}},
        "spec": {
            "clusterIP": "None",
            # A node looks up the others at its start, before its readiness is known.
            "publishNotReadyAddresses": True,
            "selector": _GANG,
        },
    }


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
            found: dict[str, Any] = condition
            return found
    return None


def _is_loss(condition: dict[str, Any]) -> bool:
    """Return whether a Job failed for another reason than its container's exit code."""
    message = str(condition.get("message") or "")
    return condition["type"] in _FAILURES and _OWN_EXIT not in message
