"""Job documents: the Indexed Job for settings, and its pod template. No I/O.

All tasks of an array are the indexes of one Job, and a single task is a Job with one index, so
that
each has its own number of attempts. Names are in `farcall.backends.kubernetes.names`; the module
``nodes`` builds multi-node jobs from these parts.

Sources:
    https://kubernetes.io/docs/reference/kubernetes-api/workload-resources/job-v1/
    https://kubernetes.io/docs/reference/kubernetes-api/workload-resources/pod-v1/
    https://kubernetes.io/docs/concepts/workloads/controllers/job/
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

from farcall.backends import bootstrap, groups
from farcall.backends.base import STOCK_ENVIRONMENT, STOCK_USER, JobSpec, Runtime
from farcall.backends.groups import wrong
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
from farcall.backends.kubernetes.overlay import overlaid
from farcall.config.settings import Settings
from farcall.model.commands import ENV_RUN, BindMount, ClaimMount, EfsMount, Mount, Nodes
from farcall.model.errors import SettingsError, TaskTooLargeError
from farcall_runtime import contract
from farcall_runtime.contract import ExitCode

# --- Pods for the options: resources, placement, volumes, security. No I/O ----------------------
#
# Sources:
#     https://kubernetes.io/docs/reference/kubernetes-api/workload-resources/pod-v1/
#     https://kubernetes.io/docs/reference/labels-annotations-taints/
#     https://kubernetes.io/docs/concepts/storage/volumes/


_SHARED_MEMORY = "/dev/shm"  # noqa: S108  # a place in the container
_ARCHITECTURE, _INSTANCE_TYPE = "kubernetes.io/arch", "node.kubernetes.io/instance-type"
_ARCHITECTURES = {"x86_64": "amd64", "arm64": "arm64"}
_GPU = "nvidia.com/gpu"
_SCHEDULER = "volcano"


def pod_spec(settings: Settings, *, is_command: bool = False) -> dict[str, Any]:
    """Return a pod's fields other than its container and its volumes.

    Args:
        settings: The options.
        is_command: Whether its image is the user's, for any processor.

    Raises:
        SettingsError: The options contradict each other.
    """
    _check_queue(settings)
    found: dict[str, Any] = {
        "restartPolicy": "Never",
        "activeDeadlineSeconds": settings.time_limit,
        "enableServiceLinks": False,
        "serviceAccountName": settings.service_account,
        "priorityClassName": settings.priority_class,
        "schedulerName": _SCHEDULER if settings.scheduler == "volcano" else "",
        "nodeSelector": _selector(settings, is_command=is_command),
        "tolerations": settings.tolerations,
        "imagePullSecrets": [{"name": name} for name in settings.image_pull_secrets],
    }
    found = {key: value for key, value in found.items() if value not in ("", [], {})}
    # A task gets a service account's token only if the user named the account.
    return found if settings.service_account else {**found, "automountServiceAccountToken": False}


def pod_resources(settings: Settings) -> dict[str, str]:
    """Return the limits of a container, which are also its requests."""
    # Rounded, because a float error must not add a thousandth.
    milli = math.ceil(round(settings.vcpu * 1000, 6))
    cpu = f"{milli}m" if milli % 1000 else str(milli // 1000)
    found = {"cpu": cpu, "memory": f"{math.ceil(settings.memory * 1024)}Mi"}
    return {**found, _GPU: str(settings.num_gpus)} if settings.num_gpus else found


def pod_security(settings: Settings, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the security context of a container."""
    if not any(mount["type"] == "device" for mount in settings.mounts):
        return dict(given)
    # Kubernetes does not pass devices to containers: only a privileged container can use the
    # node's devices, and the API rejects that together with a ban on privilege escalation.
    return {
        **{key: value for key, value in given.items() if key != "allowPrivilegeEscalation"},
        "privileged": True,
    }


def pod_volumes(
    settings: Settings, given: Iterable[Mapping[str, Any]]
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the volumes of the options, and their mounts in the container.

    Args:
        settings: The options.
        given: Other mounts of the container, which take precedence.

    Raises:
        SettingsError: Two mounts have the same path, or shared memory exceeds the memory.
    """
    found = [(f"volume-{n}", *_mount(each)) for n, each in enumerate(settings.mounts)]
    if settings.shm_size is not None:
        found.append(("shared-memory", *_shared_memory(settings)))
    places = [mounted["mountPath"].rstrip("/") for _, _, mounted in found]
    twice = next((place for place in places if places.count(place) > 1), "")
    if twice:
        raise SettingsError(
            f"mounts has {twice!r} more than once; choose another dst",
            option="mounts",
        )
    taken = {each["mountPath"] for each in given}
    found = [each for each in found if each[2]["mountPath"] not in taken]
    return (
        [{"name": name, **volume} for name, volume, _ in found],
        [{"name": name, **mounted} for name, _, mounted in found],
    )


def _mount(mount: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the volume and the mount of a member of the option ``mounts``."""
    read_only, mounted = mount["readonly"], {"mountPath": mount["dst"]}
    if mount["type"] == "volume":
        volume: dict[str, Any] = {"persistentVolumeClaim": {"claimName": mount["src"]}}
    else:
        # The kind of device is unknown. Without a kind, a missing device prevents the container's
        # creation; with a wrong kind, the pod would wait for it forever.
        volume = {"hostPath": {"path": mount["src"]}}
    if mount["type"] == "device":
        read_only = "w" not in mount["perm"]
    return volume, {**mounted, "readOnly": True} if read_only else mounted


def _shared_memory(settings: Settings) -> tuple[dict[str, Any], dict[str, Any]]:
    assert settings.shm_size is not None  # noqa: S101  # for the type checker
    if settings.shm_size > settings.memory:
        raise SettingsError(
            f"shm_size is {settings.shm_size:g} GiB, but memory is {settings.memory:g} GiB: "
            "files in /dev/shm count as memory; raise memory, or reduce shm_size",
            option="shm_size",
        )
    size = f"{math.ceil(settings.shm_size * 1024)}Mi"
    return {"emptyDir": {"medium": "Memory", "sizeLimit": size}}, {"mountPath": _SHARED_MEMORY}


def _selector(settings: Settings, *, is_command: bool) -> dict[str, str]:
    wanted = {_INSTANCE_TYPE: ("instance_type", settings.instance_type)}
    if not is_command:  # a command's image supports any processor
        wanted[_ARCHITECTURE] = ("architecture", _ARCHITECTURES[settings.architecture])
    found = dict(settings.node_selector)
    for label, (option, value) in wanted.items():
        if value and found.setdefault(label, value) != value:
            raise SettingsError(
                f"node_selector has {label} = {found[label]!r}, but {option} requires "
                f"{value!r}; remove it from node_selector, or set {option} to the same value",
                option="node_selector",
            )
    return found


def _check_queue(settings: Settings) -> None:
    if settings.scheduler == "kueue" and not settings.queue:
        raise SettingsError(
            "scheduler is 'kueue', but queue is empty: Kueue only admits jobs in a "
            "LocalQueue; set queue to the name of one (kubectl get localqueues)",
            option="queue",
        )
    if settings.scheduler == "default" and settings.queue:
        raise SettingsError(
            f"queue is {settings.queue!r}, but the cluster's own scheduler has no queues; set "
            "scheduler to 'kueue' or 'volcano', or leave queue empty",
            option="queue",
        )


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

KUEUE_QUEUE = "kueue.x-k8s.io/queue-name"
_KUEUE_LEAST = "kueue.x-k8s.io/job-min-parallelism"
"""https://kueue.sigs.k8s.io/docs/tasks/run/jobs/"""

_VOLCANO_QUEUE = "scheduling.volcano.sh/queue-name"
VOLCANO_GROUP_SIZE = "scheduling.volcano.sh/group-min-member"
"""https://github.com/volcano-sh/volcano/blob/master/pkg/controllers/podgroup/pg_controller_handler.go"""

FAILURES = "batch.kubernetes.io/job-index-failure-count"
IGNORED_FAILURES = "batch.kubernetes.io/job-index-ignored-failure-count"

KILLED = 137
FINAL = (*range(59, 70), KILLED)
"""Exit codes after which another attempt would fail the same way.

They are the container's own final codes, and SIGKILL, which is usually from the kernel.
"""

_RETRIED = (
    *("vcpu", "memory", "num_gpus", "nodes", "instance_type", "architecture", "time_limit"),
    *("retry_attempts", "retry_on", "service_account", "queue"),
    *("scheduler", "priority_class", "image_pull_secrets", "node_selector", "tolerations"),
    *("mounts", "shm_size", "s3_secret", "max_parallel", "ttl", "pod_overlay", "tags"),
    *("environment", "secrets"),
)
"""Options, other than the image, that a retry must reproduce."""

_REMEDY = "shorten commands, env, tags and pod_overlay: move long texts to the image or to S3"


def job(spec: JobSpec, image: str) -> dict[str, Any]:
    """Return the Job of tasks that run on one node each.

    Raises:
        SettingsError: The options do not result in a valid Job.
        TaskTooLargeError: The Job exceeds a limit of Kubernetes.
    """
    name, settings = object_name(spec.name), spec.settings
    metadata_ = metadata(spec, name)
    parallelism = min(settings.max_parallel or spec.size, spec.size)
    metadata_["annotations"] |= {**options(spec, image), **_several(settings, parallelism)}
    document = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": metadata_,
        "spec": {
            **job_spec(spec),
            "completionMode": "Indexed",
            "completions": spec.size,
            "parallelism": parallelism,
            **retrying(settings),
            "template": template(spec, settings, container(spec, image)),
        },
    }
    check_size(document)
    return document


def metadata(spec: JobSpec, name: str) -> dict[str, Any]:
    """Return name, labels and annotations of a job's object."""
    settings = spec.settings
    labels = _labels(spec)
    if settings.queue and settings.scheduler == "kueue":
        labels[KUEUE_QUEUE] = settings.queue
    annotations = {NAME_ANNOTATION: spec.name}
    if settings.tags:
        annotations[TAGS_ANNOTATION] = json.dumps(settings.tags, sort_keys=True)
    return {"name": name, "labels": labels, "annotations": annotations}


def job_spec(spec: JobSpec) -> dict[str, Any]:
    """Return each Job's fields other than its pods, their number and their attempts."""
    settings = spec.settings
    found: dict[str, Any] = {"podReplacementPolicy": "Failed"}
    if settings.ttl is not None:
        found["ttlSecondsAfterFinished"] = settings.ttl
    if settings.scheduler == "kueue":
        found["suspend"] = True  # until Kueue admits it
    return found


def retrying(settings: Settings, *, is_command: bool = False) -> dict[str, Any]:
    """Return the attempts of each index, and the failures that end it at once.

    Args:
        settings: The options.
        is_command: Whether exit codes are a command's own; the task runner's are more specific.

    Source:
        https://kubernetes.io/docs/tasks/job/pod-failure-policy/
    """
    found: dict[str, Any] = {"backoffLimitPerIndex": settings.retry_attempts - 1}
    if settings.retry_attempts == 1:
        return found
    # Evicted or preempted pods, and pods lost with their node, run again and do not count.
    disrupted = {
        "action": "Ignore",
        "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}],
    }
    rules = [disrupted]
    if settings.retry_on != contract.RETRY_ON_FAILURE:
        # A container with this code was stopped from outside. A container that never existed has
        # no exit code, and matches no rule on exit codes.
        rules.append(_final("NotIn", [ExitCode.TERMINATED]))
    else:
        rules.append(_final("In", [KILLED] if is_command else list(FINAL)))
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
) -> dict[str, Any]:
    """Return the pod template of a job.

    Args:
        spec: The job.
        settings: The options, with the resources of these pods.
        given: Image, arguments, variables and other fields of the container.
        volumes: Volumes that are mounted into it.
        labels: Labels in addition to the common ones.

    Raises:
        SettingsError: The options do not result in a valid pod.
        TaskTooLargeError: The annotations exceed the limit.
    """
    extra, mounted = pod_volumes(settings, given.get("volumeMounts", ()))
    resources = pod_resources(settings)
    own = {
        **given,
        "name": CONTAINER,
        "env": _variables(spec, given.get("env", ())),
        "resources": {"limits": resources, "requests": resources},
        "volumeMounts": [*given.get("volumeMounts", ()), *mounted],
        "securityContext": pod_security(settings, given.get("securityContext", {})),
    }
    if settings.s3_secret:
        own["envFrom"] = [{"secretRef": {"name": settings.s3_secret}}]
    found = {
        **pod_spec(settings, is_command=spec.is_command),
        "containers": [{key: value for key, value in own.items() if value}],
        "volumes": [*volumes, *extra],
    }
    marks = {}
    if settings.queue and settings.scheduler == "volcano":
        marks[_VOLCANO_QUEUE] = settings.queue
    document = {
        "metadata": {"labels": {**_labels(spec), **(labels or {})}, "annotations": marks},
        "spec": {key: value for key, value in found.items() if value != []},
    }
    if not marks:
        del document["metadata"]["annotations"]
    made = overlaid(document, settings, has_command=spec.runtime is not None)
    check_annotations("the pods", made)
    return made


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


def _several(settings: Settings, parallelism: int) -> dict[str, str]:
    """Return annotations that allow a queue to run tasks at different times."""
    if settings.scheduler == "kueue":
        # Kueue's webhook rejects a value that is not below the Job's parallelism.
        return {_KUEUE_LEAST: "1"} if parallelism > 1 else {}
    return {VOLCANO_GROUP_SIZE: "1"} if settings.scheduler == "volcano" else {}


def options(spec: JobSpec, image: str) -> dict[str, str]:
    """Return the annotation with the options of a job, for resubmission."""
    found = {name: getattr(spec.settings, name) for name in _RETRIED}
    found |= {"image": "", "stock_image_uri": image} if spec.runtime else {"image": image}
    return {OPTIONS_ANNOTATION: json.dumps(found, sort_keys=True)}


def container(spec: JobSpec, image: str) -> dict[str, Any]:
    """Return image and command of a task's container."""
    return {"image": image, **(_bootstrapped(spec.runtime) if spec.runtime else {})}


def _bootstrapped(runtime: Runtime) -> dict[str, Any]:
    user, _, group = STOCK_USER.partition(":")
    return {
        # Replaces the image's entry point.
        "command": [escaped(part) for part in bootstrap.command(runtime)],
        "env": variables(STOCK_ENVIRONMENT),
        "securityContext": {
            "runAsUser": int(user),
            "runAsGroup": int(group),
            "runAsNonRoot": True,
            # Required in restricted namespaces:
            # https://kubernetes.io/docs/concepts/security/pod-security-standards/
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "seccompProfile": {"type": "RuntimeDefault"},
        },
    }


def _variables(spec: JobSpec, given: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the variables of a container: its pod's, the given ones, and the job's."""
    own = {**spec.environment, contract.ENV_OWN_JOB_ID: object_name(spec.name)}
    settings, injected = spec.settings, []
    if spec.size > 1:
        injected.append(_annotated(contract.ENV_OWN_INDEX, INDEX_LABEL))
        # Kueue may run fewer tasks at a time than requested.
        if settings.scheduler == "kueue" or (settings.max_parallel or spec.size) < spec.size:
            own[contract.ENV_CANCELLABLE] = "1"
    injected.append(_annotated(contract.ENV_FAILED_ATTEMPTS, FAILURES))
    injected.append(_annotated(contract.ENV_IGNORED_ATTEMPTS, IGNORED_FAILURES))
    named = {each["name"]: dict(each) for each in (*given, *_of_options(settings))}
    taken = {each["name"] for each in injected} | own.keys()
    return [
        *injected,
        *(each for name, each in named.items() if name not in taken),
        *variables(own),
    ]


def _of_options(settings: Settings) -> list[dict[str, Any]]:
    return [*variables(settings.variables), *map(_secret, sorted(settings.secrets.items()))]


def _annotated(name: str, annotation: str) -> dict[str, Any]:
    path = f"metadata.annotations['{annotation}']"
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}


def variables(environment: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return variables, sorted by name, with expansion disabled."""
    return [{"name": name, "value": escaped(environment[name])} for name in sorted(environment)]


def escaped(text: str) -> str:
    """Escape a text, because Kubernetes replaces ``$(NAME)`` and ``$$``.

    Source:
        https://kubernetes.io/docs/tasks/inject-data-application/define-interdependent-environment-variables/
    """
    return text.replace("$", "$$")


def unescaped(text: str) -> str:
    """Return the text from which `escaped` made this one."""
    return text.replace("$$", "$")


def check_size(document: Mapping[str, Any]) -> None:
    """Reject a document that is too long.

    Raises:
        TaskTooLargeError: The document is too long.
    """
    check_annotations("the Job", document)
    size = len(json.dumps(document, ensure_ascii=False).encode())
    if size > REQUEST_BYTES:
        raise TaskTooLargeError(
            f"the Job would have {size} bytes, but Kubernetes accepts at most {REQUEST_BYTES}; "
            f"{_REMEDY}"
        )


def check_annotations(what: str, document: Mapping[str, Any]) -> None:
    """Reject a document whose annotations exceed the limit.

    Raises:
        TaskTooLargeError: The annotations exceed the limit.
    """
    found = document["metadata"].get("annotations") or {}
    size = sum(len(part.encode()) for item in found.items() for part in item)
    if size > ANNOTATION_BYTES:
        raise TaskTooLargeError(
            f"the annotations of {what} would have {size} bytes, but Kubernetes accepts at "
            f"most {ANNOTATION_BYTES}; shorten tags, pod_overlay and the options of the job"
        )


# --- Containers of command jobs on Kubernetes: mounts, devices, secrets, users. No I/O
#
# Features that Kubernetes does not support are rejected here; the error names an alternative.
#
# Sources:
#     https://kubernetes.io/docs/reference/kubernetes-api/workload-resources/pod-v1/
#     https://kubernetes.io/docs/concepts/storage/volumes/


_USER = re.compile(r"[0-9]{1,10}(:[0-9]{1,10})?")
_VARIABLE = re.compile(r"[-._a-zA-Z][-._a-zA-Z0-9]*")
"""Newer clusters: https://github.com/kubernetes/enhancements/issues/4369"""

_OBJECT = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_KEY = re.compile(r"[-._a-zA-Z0-9]{1,253}")


def check_group(group: Nodes) -> None:
    """Check that Kubernetes accepts a group.

    Raises:
        SettingsError: The group is invalid.
    """
    groups.check(group)
    _check_names("env", group.env)
    _check_names("secrets", group.secrets)
    groups.check_each(_check_mount, group.mounts)
    for limit in group.ulimits:
        raise wrong(
            "ulimits",
            limit.name,
            "Kubernetes does not support limits for a container's processes. Set them in the "
            "command (ulimit -n 65536), or for the node's container runtime.",
        )
    for name, place in group.secrets.items():
        secret, slash, key = place.partition("/")
        if not (slash and _OBJECT.fullmatch(secret) and _KEY.fullmatch(key)):
            raise SettingsError(
                f"secrets[{name!r}] is {place!r}: name a Secret in the namespace and one of its "
                'keys, for example "db/password". Use the External Secrets operator for secrets '
                "in AWS.",
                option="secrets",
            )
    if group.user and not _USER.fullmatch(group.user):
        allowed = 'use numbers, for example "1000" or "1000:1000"'
        raise wrong("user", group.user, allowed)


def _check_names(what: str, given: Mapping[str, str]) -> None:
    for name in given:
        if not _VARIABLE.fullmatch(name):
            raise wrong(what, name, "use letters, digits, - . _ and no digit at the beginning")


def _check_mount(mount: Mount) -> None:
    if isinstance(mount, EfsMount):
        raise wrong(
            "mounts",
            mount.file_system,
            "Kubernetes mounts claims. Create a PersistentVolumeClaim of the EFS CSI driver, "
            "and name it in a ClaimMount.",
        )
    if isinstance(mount, ClaimMount):
        if not _OBJECT.fullmatch(mount.claim):
            raise wrong("mounts", mount.claim, "use the name of a PersistentVolumeClaim")
    elif not mount.source.startswith("/"):
        raise wrong("mounts", mount.source, "use an absolute path on the node, beginning with /")


def container_of(group: Nodes) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return a group's container, without resources and shared memory, and its volumes."""
    pairs = [(f"mount-{number}", mount) for number, mount in enumerate(group.mounts)]
    volumes = [_volume(name, mount) for name, mount in pairs]
    mounts = [_mounted(name, mount.path, read_only=mount.read_only) for name, mount in pairs]
    for number, device in enumerate(group.devices):
        volumes.append({"name": f"device-{number}", "hostPath": {"path": device.source}})
        mounts.append(_mounted(f"device-{number}", device.path or device.source, read_only=False))
    found: dict[str, Any] = {
        "image": group.image,
        # Arguments of the image's entry point, as with Batch's command.
        "args": list(map(escaped, group.command)),
        "env": [*variables(group.env), *map(_secret, sorted(group.secrets.items()))],
        "volumeMounts": mounts,
        "securityContext": _security(
            group.user, privileged=group.privileged, devices=group.devices
        ),
    }
    return {key: value for key, value in found.items() if value}, volumes


def _security(user: str, *, privileged: bool, devices: object) -> dict[str, Any]:
    # Kubernetes does not pass devices to containers: only a privileged container can use them.
    found: dict[str, Any] = {"privileged": True} if privileged or devices else {}
    number, _, group = user.partition(":")
    if number:
        found["runAsUser"] = int(number)
    if group:
        found["runAsGroup"] = int(group)
    return found


def _secret(item: tuple[str, str]) -> dict[str, Any]:
    name, place = item
    secret, _, key = place.partition("/")
    return {"name": name, "valueFrom": {"secretKeyRef": {"name": secret, "key": key}}}


def _mounted(name: str, path: str, *, read_only: bool) -> dict[str, Any]:
    found: dict[str, Any] = {"name": name, "mountPath": path}
    return {**found, "readOnly": True} if read_only else found


def _volume(name: str, mount: BindMount | ClaimMount | EfsMount) -> dict[str, Any]:
    if isinstance(mount, ClaimMount):
        return {"name": name, "persistentVolumeClaim": {"claimName": mount.claim}}
    assert isinstance(mount, BindMount)  # noqa: S101  # for the type checker; it was checked
    return {"name": name, "hostPath": {"path": mount.source}}
