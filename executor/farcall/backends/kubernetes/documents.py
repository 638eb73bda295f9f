"""Job documents: the Indexed Job that settings make, and the template of its pods. No I/O.

All of a map's tasks are the indexes of one Job, and a single task is a Job with one index, so that
each has its own number of attempts. Names are in `farcall.backends.kubernetes.names`; what belongs
to nodes that work together is made of these parts by the module ``nodes``.

Sources:
    https://kubernetes.io/docs/reference/kubernetes-api/workload-resources/job-v1/
    https://kubernetes.io/docs/reference/kubernetes-api/workload-resources/pod-v1/
    https://kubernetes.io/docs/concepts/workloads/controllers/job/
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from farcall.backends import bootstrap
from farcall.backends.base import STOCK_ENVIRONMENT, STOCK_USER, JobSpec, Runtime
from farcall.backends.kubernetes import overlay, pods
from farcall.backends.kubernetes.names import (
    CONTAINER,
    INDEX_LABEL,
    JOB_LABEL,
    KIND_LABEL,
    MANAGED_LABEL,
    MANAGER,
    NAME_ANNOTATION,
    OPTIONS_ANNOTATION,
    QUEUE_LABEL,
    RUN_LABEL,
    TAGS_ANNOTATION,
    object_name,
    run_label,
)
from farcall.model.commands import ENV_RUN
from farcall.model.errors import TaskTooLargeError
from farcall.model.settings import Settings
from farcall_runtime import contract
from farcall_runtime.contract import ExitCode

LARGEST_ARRAY = 10_000
"""Tasks of one Job, as on Batch. Kubernetes takes 100,000 at this form, and more at others."""

REQUEST_BYTES = 1536 * 1024
"""Of a document: etcd refuses a larger request, https://etcd.io/docs/v3.6/dev-guide/limit/"""

ANNOTATION_BYTES = 256 * 1024
"""Of all annotations of an object, keys and values.

https://kubernetes.io/docs/reference/labels-annotations-taints/
"""

KUEUE_QUEUE = "kueue.x-k8s.io/queue-name"
_KUEUE_LEAST = "kueue.x-k8s.io/job-min-parallelism"
"""https://kueue.sigs.k8s.io/docs/tasks/run/jobs/"""

_VOLCANO_QUEUE = "scheduling.volcano.sh/queue-name"
VOLCANO_GROUP_SIZE = "scheduling.volcano.sh/group-min-member"
"""https://github.com/volcano-sh/volcano/blob/master/pkg/controllers/podgroup/pg_controller_handler.go"""

FAILURES = "batch.kubernetes.io/job-index-failure-count"
IGNORED_FAILURES = "batch.kubernetes.io/job-index-ignored-failure-count"

_KILLED = 137
_FINAL = (*range(59, 70), _KILLED)
"""Exit codes after which another attempt would end the same way: the container's own final ones,
and SIGKILL, which comes most often from the kernel."""

_RETRIED = (
    *("vcpu", "memory", "num_gpus", "nodes", "instance_type", "architecture", "time_limit"),
    *("retry_attempts", "retry_on", "service_account", "queue"),
    *("scheduler", "priority_class", "image_pull_secrets", "node_selector", "tolerations"),
    *("mounts", "shm_size", "s3_secret", "max_parallel", "ttl", "pod_overlay", "tags"),
)
"""Options that make a job another one, beside its image."""

_REMEDY = "shorten commands, env, tags and pod_overlay: what is long belongs into the image or S3"


def job(spec: JobSpec, image: str) -> dict[str, Any]:
    """Write the Job of tasks that run on one node each.

    Raises:
        SettingsError: The options do not make a job that a cluster takes.
        TaskTooLargeError: It exceeds a limit of Kubernetes.
    """
    name, settings = object_name(spec.name), spec.settings
    metadata_ = metadata(spec, name)
    metadata_["annotations"] |= {**options(spec, image), **_several(settings)}
    document = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": metadata_,
        "spec": {
            **job_spec(spec),
            "completionMode": "Indexed",
            "completions": spec.size,
            "parallelism": min(settings.max_parallel or spec.size, spec.size),
            **retrying(settings),
            "template": template(spec, settings, container(spec, image)),
        },
    }
    check_size(document)
    return document


def metadata(spec: JobSpec, name: str) -> dict[str, Any]:
    """Write what an object of a job is called and marked with."""
    settings = spec.settings
    labels = _labels(spec)
    if settings.queue and settings.scheduler == "kueue":
        labels[KUEUE_QUEUE] = settings.queue
    annotations = {NAME_ANNOTATION: spec.name}
    if settings.tags:
        annotations[TAGS_ANNOTATION] = json.dumps(settings.tags, sort_keys=True)
    return {"name": name, "labels": labels, "annotations": annotations}


def job_spec(spec: JobSpec) -> dict[str, Any]:
    """Write what each Job has beside its pods, their number and their attempts."""
    settings = spec.settings
    found: dict[str, Any] = {"podReplacementPolicy": "Failed"}
    if settings.ttl is not None:
        found["ttlSecondsAfterFinished"] = settings.ttl
    if settings.scheduler == "kueue":
        found["suspend"] = True  # until Kueue admits it
    return found


def retrying(settings: Settings, *, is_command: bool = False) -> dict[str, Any]:
    """Write how many attempts each index has, and which failures end it at once.

    Args:
        settings: The options.
        is_command: Whether exit codes are a command's own; the task runner's say more.

    Source:
        https://kubernetes.io/docs/tasks/job/pod-failure-policy/
    """
    found: dict[str, Any] = {"backoffLimitPerIndex": settings.retry_attempts - 1}
    if settings.retry_attempts == 1:
        return found
    # What is evicted, preempted or lost with its node is run again, and does not count.
    disrupted = {
        "action": "Ignore",
        "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}],
    }
    rules = [disrupted]
    if settings.retry_on != contract.RETRY_ON_FAILURE:
        # What was told to stop was so by its surroundings; a container that was never there has
        # no exit code, and no rule on one is about it.
        rules.append(_final("NotIn", [ExitCode.TERMINATED]))
    else:
        rules.append(_final("In", [_KILLED] if is_command else list(_FINAL)))
    found["podFailurePolicy"] = {"rules": rules}
    return found


def _final(operator: str, codes: list[int]) -> dict[str, Any]:
    matched = {"containerName": CONTAINER, "operator": operator, "values": list(map(int, codes))}
    return {"action": "FailIndex", "onExitCodes": matched}


def template(
    spec: JobSpec,
    settings: Settings,
    given: Mapping[str, Any],
    *,
    volumes: Iterable[Mapping[str, Any]] = (),
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Write the template of a job's pods.

    Args:
        spec: The job.
        settings: The options, with the resources of these pods.
        given: Image, arguments, variables and the like of the container.
        volumes: Volumes that are mounted into it.
        labels: Labels beside those of all pods.
        annotations: Annotations.

    Raises:
        SettingsError: The options do not make a pod that a cluster takes.
        TaskTooLargeError: It has more annotations than an object may have.
    """
    extra, mounted = pods.volumes(spec, settings, given.get("volumeMounts", ()))
    resources = pods.resources(settings)
    own = {
        **given,
        "name": CONTAINER,
        "env": _variables(spec, given.get("env", ())),
        "resources": {"limits": resources, "requests": resources},
        "volumeMounts": [*given.get("volumeMounts", ()), *mounted],
        "securityContext": pods.security(settings, given.get("securityContext", {})),
    }
    if settings.s3_secret:
        own["envFrom"] = [{"secretRef": {"name": settings.s3_secret}}]
    found = {
        **pods.spec(settings, is_command=spec.is_command),
        "containers": [{key: value for key, value in own.items() if value}],
        "volumes": [*volumes, *extra],
    }
    marks = dict(annotations or {})
    if settings.queue and settings.scheduler == "volcano":
        marks[_VOLCANO_QUEUE] = settings.queue
    document = {
        "metadata": {"labels": {**_labels(spec), **(labels or {})}, "annotations": marks},
        "spec": {key: value for key, value in found.items() if value != []},
    }
    if not marks:
        del document["metadata"]["annotations"]
    merged = overlay.merged(document, settings, has_command=spec.runtime is not None)
    check_annotations("the pods", merged)
    return merged


def _labels(spec: JobSpec) -> dict[str, str]:
    run = spec.environment.get(ENV_RUN, "")
    bundle = spec.environment.get(contract.ENV_BUNDLE, "")
    if bundle:
        run = contract.Location.parse(bundle).root.rpartition("/")[2]
    labels = {
        MANAGED_LABEL: MANAGER,
        KIND_LABEL: "command" if spec.is_command else "task",
        JOB_LABEL: object_name(spec.name),
        RUN_LABEL: run_label(run),
        QUEUE_LABEL: run_label(spec.settings.queue),
    }
    return {key: value for key, value in labels.items() if value}


def _several(settings: Settings) -> dict[str, str]:
    """Return what tells a queue that tasks need not run at the same time."""
    if settings.scheduler == "kueue":
        return {_KUEUE_LEAST: "1"}
    return {VOLCANO_GROUP_SIZE: "1"} if settings.scheduler == "volcano" else {}


def options(spec: JobSpec, image: str) -> dict[str, str]:
    """Write the annotation with the options by which a job of tasks like this one is made."""
    found = {name: getattr(spec.settings, name) for name in _RETRIED}
    found |= {"image": "", "stock_image_uri": image} if spec.runtime else {"image": image}
    return {OPTIONS_ANNOTATION: json.dumps(found, sort_keys=True)}


def container(spec: JobSpec, image: str) -> dict[str, Any]:
    """Write image and command of the container of a task."""
    return {"image": image, **(_bootstrapped(spec.runtime) if spec.runtime else {})}


def _bootstrapped(runtime: Runtime) -> dict[str, Any]:
    """Return what a container has whose image holds nothing of farcall's."""
    user, _, group = STOCK_USER.partition(":")
    return {
        # In the place of the image's entry point.
        "command": [escaped(part) for part in bootstrap.command(runtime)],
        "env": variables(STOCK_ENVIRONMENT),
        "securityContext": {
            "runAsUser": int(user),
            "runAsGroup": int(group),
            "runAsNonRoot": True,
            # What namespaces ask for that are restricted:
            # https://kubernetes.io/docs/concepts/security/pod-security-standards/
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "seccompProfile": {"type": "RuntimeDefault"},
        },
    }


def _variables(spec: JobSpec, given: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Write the variables of a container: those of its pod, those given, and the job's own."""
    own = {**spec.environment, contract.ENV_OWN_JOB_ID: object_name(spec.name)}
    settings, said = spec.settings, []
    if spec.size > 1:
        said.append(_annotated(contract.ENV_OWN_INDEX, INDEX_LABEL))
        # Kueue may have fewer of them run at a time than were asked for.
        if settings.scheduler == "kueue" or (settings.max_parallel or spec.size) < spec.size:
            own[contract.ENV_CANCELLABLE] = "1"
    said.append(_annotated(contract.ENV_FAILED_ATTEMPTS, FAILURES))
    said.append(_annotated(contract.ENV_IGNORED_ATTEMPTS, IGNORED_FAILURES))
    taken = {each["name"] for each in said} | own.keys()
    return [*said, *(dict(each) for each in given if each["name"] not in taken), *variables(own)]


def _annotated(name: str, annotation: str) -> dict[str, Any]:
    path = f"metadata.annotations['{annotation}']"
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}


def variables(environment: Mapping[str, str]) -> list[dict[str, Any]]:
    """Write variables, in the order of their names, none of which is expanded."""
    return [{"name": name, "value": escaped(environment[name])} for name in sorted(environment)]


def escaped(text: str) -> str:
    """Return a text that Kubernetes makes this one of: it replaces ``$(NAME)``, and ``$$``.

    Source:
        https://kubernetes.io/docs/tasks/inject-data-application/define-interdependent-environment-variables/
    """
    return text.replace("$", "$$")


def unescaped(text: str) -> str:
    """Return the text of which `escaped` made this one."""
    return text.replace("$$", "$")


def check_size(document: Mapping[str, Any]) -> None:
    """Refuse a document that is too long.

    Raises:
        TaskTooLargeError: It is.
    """
    check_annotations("the Job", document)
    size = len(json.dumps(document, ensure_ascii=False).encode())
    if size > REQUEST_BYTES:
        raise TaskTooLargeError(
            f"the Job would have {size} bytes, Kubernetes allows {REQUEST_BYTES}; {_REMEDY}"
        )


def check_annotations(what: str, document: Mapping[str, Any]) -> None:
    """Refuse a document that has too many annotations, or too long ones.

    Raises:
        TaskTooLargeError: It has.
    """
    found = document["metadata"].get("annotations") or {}
    size = sum(len(part.encode()) for item in found.items() for part in item)
    if size > ANNOTATION_BYTES:
        raise TaskTooLargeError(
            f"the annotations of {what} would have {size} bytes, Kubernetes allows "
            f"{ANNOTATION_BYTES}; shorten tags, pod_overlay and the options of the job"
        )
