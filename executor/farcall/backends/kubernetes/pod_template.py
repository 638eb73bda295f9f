"""Pod templates: container, resources, placement, security and volumes. No I/O.

Tasks and commands have the same template: a task is a container without a group of its own.

Sources:
    https://kubernetes.io/docs/reference/kubernetes-api/workload-resources/pod-v1/
    https://kubernetes.io/docs/reference/labels-annotations-taints/
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from farcall.backends import bootstrap
from farcall.backends.base import STOCK_ENVIRONMENT, STOCK_USER, JobSpec
from farcall.backends.kubernetes.names import (
    CONTAINER,
    FAILURES_ANNOTATION,
    IGNORED_FAILURES_ANNOTATION,
    INDEX_LABEL,
    JOB_LABEL,
)
from farcall.backends.kubernetes.overlay import overlaid
from farcall.backends.kubernetes.volumes import volumes
from farcall.config.settings import Settings
from farcall.model.commands import Nodes
from farcall.model.errors import SettingsError
from farcall_runtime import contract

_ARCHITECTURE, _INSTANCE_TYPE = "kubernetes.io/arch", "node.kubernetes.io/instance-type"
_ARCHITECTURES = {"x86_64": "amd64", "arm64": "arm64"}
_GPU = "nvidia.com/gpu"
_SCHEDULER = "volcano"
_VOLCANO_QUEUE = "scheduling.volcano.sh/queue-name"


@dataclass(frozen=True)
class PodTemplate:
    """Template of the pods of equal nodes.

    Attributes:
        spec: The job.
        labels: The labels of all of the job's objects.
        settings: The options, with the resources of these nodes.
        image: Image of tasks.
        group: The group of a command; None for tasks.
        first: Index of the first node.
    """

    spec: JobSpec
    labels: Mapping[str, str]
    settings: Settings
    image: str
    group: Nodes | None = None
    first: int = 0

    @property
    def nodes(self) -> range:
        """Indexes of the nodes."""
        size = self.group.count if self.group else self.spec.nodes
        return range(self.first, self.first + size)

    def document(
        self,
        index: Mapping[str, Any] | None = None,
        main: str = "",
        labels: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        """Return the template.

        Args:
            index: Value, or its source, of the variable with the node's index; None on one node.
            main: Host name of the main node.
            labels: Labels in addition to the common ones.

        Raises:
            SettingsError: The options do not result in a valid pod.
        """
        mounted = volumes(self.settings, self.group)
        variables = self._of_node(index, main) if index else []
        pod = {
            **_pod_spec(self.settings, is_command=self.spec.is_command),
            "containers": [self._container(variables, [volume.mount for volume in mounted])],
            "volumes": [volume.document for volume in mounted],
        }
        metadata: dict[str, Any] = {"labels": {**self.labels, **(labels or {})}}
        if self.settings.queue and self.settings.scheduler == "volcano":
            metadata["annotations"] = {_VOLCANO_QUEUE: self.settings.queue}
        template = {
            "metadata": metadata,
            "spec": {key: value for key, value in pod.items() if value != []},
        }
        return overlaid(template, self.settings, has_command=self.spec.runtime is not None)

    def _container(
        self, variables: Iterable[Mapping[str, Any]], mounts: list[dict[str, Any]]
    ) -> dict[str, Any]:
        limits = resources(self.settings)
        container = {
            **self._program(),
            "name": CONTAINER,
            "env": self._environment(variables),
            "resources": {"limits": limits, "requests": limits},
            "volumeMounts": mounts,
            "securityContext": self._security(),
        }
        if self.settings.s3_secret:
            container["envFrom"] = [{"secretRef": {"name": self.settings.s3_secret}}]
        return {key: value for key, value in container.items() if value}

    def _of_node(self, index: Mapping[str, Any], main: str) -> list[dict[str, Any]]:
        """Return a node's variables about itself and the main node."""
        return [
            {"name": contract.ENV_OWN_NODES, "value": str(self.spec.nodes)},
            {"name": contract.ENV_OWN_MAIN_ADDRESS, "value": main},
            {"name": contract.ENV_OWN_NODE_INDEX, **index},
        ]

    def _program(self) -> dict[str, Any]:
        """Return the image, and what replaces its entry point or its arguments."""
        if self.group:  # arguments of the entry point, as with Batch's command
            return {"image": self.group.image, "args": list(map(escaped, self.group.command))}
        if self.spec.runtime:
            command = map(escaped, bootstrap.command(self.spec.runtime))
            return {"image": self.image, "command": list(command)}
        return {"image": self.image}

    def _security(self) -> dict[str, Any]:
        """Return the security context of the container."""
        group, context = self.group, {}
        if group:
            context = _run_as(group.user)
        elif self.spec.runtime:
            context = {
                **_run_as(STOCK_USER),
                "runAsNonRoot": True,
                # Required in restricted namespaces:
                # https://kubernetes.io/docs/concepts/security/pod-security-standards/
                "allowPrivilegeEscalation": False,
                "capabilities": {"drop": ["ALL"]},
                "seccompProfile": {"type": "RuntimeDefault"},
            }
        has_devices = any(mount["type"] == "device" for mount in self.settings.mounts)
        if has_devices or (group and (group.privileged or group.devices)):
            # Kubernetes does not pass devices to containers: only a privileged container can use
            # the node's devices, and the API rejects that with a ban on privilege escalation.
            context.pop("allowPrivilegeEscalation", None)
            context["privileged"] = True
        return context

    def _environment(self, given: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Return the variables: of the pod, the image or group, the options, and the job."""
        spec, settings = self.spec, self.settings
        own = {**spec.environment, contract.ENV_OWN_JOB_ID: self.labels[JOB_LABEL]}
        injected = []
        if spec.size > 1:
            injected.append(_annotated(contract.ENV_OWN_INDEX, INDEX_LABEL))
            # Kueue may run fewer tasks at a time than requested.
            if settings.scheduler == "kueue" or (settings.max_parallel or spec.size) < spec.size:
                own[contract.ENV_CANCELLABLE] = "1"
        injected.append(_annotated(contract.ENV_FAILED_ATTEMPTS, FAILURES_ANNOTATION))
        injected.append(_annotated(contract.ENV_IGNORED_ATTEMPTS, IGNORED_FAILURES_ANNOTATION))
        taken = {each["name"] for each in injected} | own.keys()
        requested = (
            *self._of_container(),
            *given,
            *_variables(settings.variables, settings.secrets),
        )
        others = {each["name"]: dict(each) for each in requested if each["name"] not in taken}
        return [*injected, *others.values(), *_variables(own)]

    def _of_container(self) -> Iterator[dict[str, Any]]:
        if self.group:
            yield from _variables(self.group.env, self.group.secrets)
        elif self.spec.runtime:
            yield from _variables(STOCK_ENVIRONMENT)


def _pod_spec(settings: Settings, *, is_command: bool) -> dict[str, Any]:
    """Return a pod's fields other than its container and its volumes.

    Args:
        settings: The options.
        is_command: Whether its image is the user's, for any processor.

    Raises:
        SettingsError: The options contradict each other.
    """
    _check_queue(settings)
    fields: dict[str, Any] = {
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
    fields = {key: value for key, value in fields.items() if value not in ("", [], {})}
    # A task gets a service account's token only if the user named the account.
    return (
        fields if settings.service_account else {**fields, "automountServiceAccountToken": False}
    )


def resources(settings: Settings) -> dict[str, str]:
    """Return the limits of a container, which are also its requests."""
    # Rounded, because a float error must not add a thousandth.
    milli = math.ceil(round(settings.vcpu * 1000, 6))
    cpu = f"{milli}m" if milli % 1000 else str(milli // 1000)
    limits = {"cpu": cpu, "memory": f"{math.ceil(settings.memory * 1024)}Mi"}
    return {**limits, _GPU: str(settings.num_gpus)} if settings.num_gpus else limits


def _selector(settings: Settings, *, is_command: bool) -> dict[str, str]:
    wanted = {_INSTANCE_TYPE: ("instance_type", settings.instance_type)}
    if not is_command:  # a command's image supports any processor
        wanted[_ARCHITECTURE] = ("architecture", _ARCHITECTURES[settings.architecture])
    selector = dict(settings.node_selector)
    for label, (option, value) in wanted.items():
        if value and selector.setdefault(label, value) != value:
            raise SettingsError(
                f"node_selector has {label} = {selector[label]!r}, but {option} requires "
                f"{value!r}; remove it from node_selector, or set {option} to the same value",
                option="node_selector",
            )
    return selector


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


def _run_as(user: str) -> dict[str, Any]:
    number, _, group = user.partition(":")
    ids = {"runAsUser": number, "runAsGroup": group}
    return {key: int(value) for key, value in ids.items() if value}


def _annotated(name: str, annotation: str) -> dict[str, Any]:
    path = f"metadata.annotations['{annotation}']"
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}


def _variables(
    environment: Mapping[str, str], secrets: Mapping[str, str] | None = None
) -> Iterator[dict[str, Any]]:
    """Yield variables and secrets, each sorted by name, with expansion disabled."""
    for name in sorted(environment):
        yield {"name": name, "value": escaped(environment[name])}
    for name, place in sorted((secrets or {}).items()):
        secret, _, key = place.partition("/")
        yield {"name": name, "valueFrom": {"secretKeyRef": {"name": secret, "key": key}}}


def escaped(text: str) -> str:
    """Escape a text, because Kubernetes replaces ``$(NAME)`` and ``$$``.

    Source:
        https://kubernetes.io/docs/tasks/inject-data-application/define-interdependent-environment-variables/
    """
    return text.replace("$", "$$")


def unescaped(text: str) -> str:
    """Return the text from which `escaped` made this one."""
    return text.replace("$$", "$")
