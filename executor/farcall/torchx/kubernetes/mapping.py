"""App mapping: converts a TorchX app into node groups, settings and pods. No I/O.

Each role becomes a group, each replica a node. farcall's groups have no field for ports, devices
and a role's overlay. `amend` writes these into the documents that the groups produce.

==================================  ==========================================================
TorchX                              Kubernetes
==================================  ==========================================================
``type=bind,src=/a,dst=/b``         folder of the node
``type=volume,src=data,dst=/b``     PersistentVolumeClaim
``type=device,src=/dev/a``          device of the node; it makes the container privileged
resource.devices                    resources with that name, such as ``vpc.amazonaws.com/efa``
capability                          ``node.kubernetes.io/instance-type`` of the role's nodes
port_map                            ports of the container
``[FIELD_PATH]`` in ``env``         field of the pod
``${app_id}``                       job name, without the namespace
``${replica_id}``                   replica's number in its role, as text; no shell is needed
``${rank0_env}``                    ``TORCHX_RANK0_HOST``, which every replica has
metadata["kubernetes"]              merged into the role's pods, as in TorchX's ``kubernetes``
==================================  ==========================================================
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import torchx
from torchx.specs import AppDef, Role, macros
from torchx.specs.named_resources_aws import EFA_DEVICE, K8S_ITYPE

from farcall.config.settings import Settings
from farcall.model.commands import ClaimMount, Nodes
from farcall.model.errors import SettingsError
from farcall.torchx import roles
from farcall.torchx.kubernetes.options import DEFAULT, VOLCANO, KubernetesOptions
from farcall.torchx.roles import ENV_ROLE_INDEX, Planned, Warnings
from farcall_runtime.contract import ENV_OWN_MAIN_ADDRESS, ENV_OWN_NODE_INDEX

NAMESPACE = "kubernetes"
"""Metadata key of a role's pod overlay, as in TorchX's own scheduler."""

OVERLAY = "V1Pod"
RANK0 = "TORCHX_RANK0_HOST"
FIELD = "[FIELD_PATH]"
CONTAINER = "task"
"""Name of the container that runs the role, in the documents of every backend."""

_WHOLE = "nodes that belong together are restarted together"

REPLICA = "@replica-id-of-torchx@"
"""Placeholder for the replica's number in a role's texts."""

_LONGEST_PLAIN = 35
"""With a hyphen and 16 digits, a name reaches a Job's maximum of 52 characters."""

_NO_NAME = re.compile(r"[^a-z0-9]+")
_NO_LABEL = re.compile(r"[^A-Za-z0-9_.-]")
_LABEL_PREFIX = "torchx.pytorch.org"
_MARKED = re.compile(rf"\$\$|\$\({ENV_OWN_NODE_INDEX}\)")


@dataclass(frozen=True)
class Pods:
    """Fields of a role's pods that a node group does not have.

    Attributes:
        first: Index of the role's first node.
        minimum: Minimum number of replicas of a Volcano job.
        labels: Labels, without the replica's number.
        node_selector: Labels that nodes must have.
        ports: Port numbers by name.
        devices: Device counts by resource name.
        requests: Requested quantities that differ from the limits.
        overlay: Fields that are merged last.
    """

    first: int
    minimum: int
    labels: Mapping[str, str]
    node_selector: Mapping[str, str]
    ports: Mapping[str, int]
    devices: Mapping[str, int]
    requests: Mapping[str, str]
    overlay: Mapping[str, Any] = field(repr=False)


def name_of(app: AppDef) -> str:
    """Return a unique name for an app's job."""
    plain = _NO_NAME.sub("-", app.name.lower()).strip("-")
    if not plain[:1].isalpha():
        plain = f"app-{plain}"  # Volcano requires a name that begins with a letter
    return f"{plain[:_LONGEST_PLAIN].strip('-')}-{secrets.token_hex(8)}"


def job_of(app: AppDef, options: KubernetesOptions, *, name: str) -> Planned[KubernetesOptions]:
    """Map an app to a job without changing the app.

    The job's details are the `Pods` of the roles.

    Raises:
        SettingsError: An option is wrong, or Kubernetes would reject the job; it names role and
            field.
    """
    roles.check_replicas(app.roles, "a farcall job")
    warnings = Warnings()
    whole = _WHOLE if sum(role.num_replicas for role in app.roles) > 1 else ""
    attempts = roles.attempts(app.roles, warnings, whole)
    settings = options.settings(attempts=attempts, name=app.name)
    settings = settings.replace(tags=roles.tags(app, options.user, settings.tags))
    _warn(app.roles, settings, warnings)
    firsts = [0, *accumulate(role.num_replicas for role in app.roles)]
    found = [_resolved(role, name) for role in app.roles]
    return Planned(
        name,
        tuple(_group(role, index, options) for index, role in enumerate(found)),
        settings,
        options,
        tuple(
            _pods(role, first, _labels(app, name, role, index), options)
            for index, (role, first) in enumerate(zip(found, firsts, strict=False))
        ),
        tuple(warnings.texts),
    )


def _warn(of: Sequence[Role], settings: Settings, warnings: Warnings) -> None:
    """Record warnings for requests of roles that cannot be fulfilled."""
    is_volcano = settings.scheduler == VOLCANO
    is_several = sum(role.num_replicas for role in of) > 1
    if settings.scheduler == DEFAULT and settings.queue:
        warnings.texts.append(
            f"queue is {settings.queue!r}, but the cluster's own scheduler has no queues. Set "
            "scheduler=volcano or scheduler=kueue."
        )
    for role in of:
        if is_several and role.max_retries and not is_volcano:
            warnings(
                role,
                f"max_retries is {role.max_retries}, but only scheduler=volcano restarts nodes "
                "that belong together",
            )
        if not is_volcano and (role.min_replicas or role.num_replicas) < role.num_replicas:
            warnings(
                role,
                f"min_replicas is {role.min_replicas}, but all {role.num_replicas} replicas "
                "are required; scheduler=volcano can run with fewer",
            )


def _resolved(role: Role, name: str) -> Role:
    values = macros.Values(
        img_root="",
        app_id=name,
        replica_id="0" if role.num_replicas == 1 else REPLICA,
        rank0_env=RANK0,
    )
    return values.apply(role)


def _group(role: Role, index: int, options: KubernetesOptions) -> Nodes:
    mounts, devices = roles.mounts(
        role, lambda each: ClaimMount(each.src, each.dst_path, each.read_only)
    )
    return roles.nodes(role, index, options.shm_size, mounts=mounts, devices=devices)


def _pods(role: Role, first: int, labels: Mapping[str, str], options: KubernetesOptions) -> Pods:
    least = role.num_replicas if role.min_replicas is None else role.min_replicas
    return Pods(
        first=first,
        minimum=min(max(least, 0), role.num_replicas),
        labels=labels,
        node_selector=_node_selector(role),
        ports=role.port_map,
        devices=_devices(role, options.efa_device_count),
        requests=_requests(role, options),
        overlay=roles.overlay(role, NAMESPACE, OVERLAY, ()),
    )


def _labels(app: AppDef, name: str, role: Role, index: int) -> dict[str, str]:
    """Return the labels that TorchX's own scheduler sets, except the pods' manager."""
    return {
        f"{_LABEL_PREFIX}/version": _label(torchx.__version__),
        f"{_LABEL_PREFIX}/app-name": _label(app.name),
        f"{_LABEL_PREFIX}/role-index": str(index),
        f"{_LABEL_PREFIX}/role-name": _label(role.name),
        "app.kubernetes.io/name": _label(app.name),
        "app.kubernetes.io/instance": name,
    }


def _devices(role: Role, efa_devices: int | None) -> dict[str, int]:
    devices = dict(role.resource.devices)
    if efa_devices is not None:
        devices[EFA_DEVICE] = efa_devices
    return {name: number for name, number in devices.items() if number}


def _requests(role: Role, options: KubernetesOptions) -> dict[str, str]:
    """Return a pod's resource requests that are smaller than its limits.

    TorchX assumes that a role fills a whole node, which needs part of its resources itself. A role
    of at most twice the reserved amount does not fill a node, so it requests its full limits.
    """
    cpu = round(role.resource.cpu * 1000) if role.resource.cpu > 0 else 1000
    memory = int(role.resource.memMB)
    found = {}
    if 0 < options.reserved_millicpu < cpu / 2:
        found["cpu"] = f"{cpu - options.reserved_millicpu}m"
    if 0 < options.reserved_memmb < memory / 2:
        found["memory"] = f"{memory - options.reserved_memmb}Mi"
    return found


def _node_selector(role: Role) -> dict[str, str]:
    found = roles.instance_types([role])
    return {K8S_ITYPE: found[role.name]} if found else {}


def _label(text: str) -> str:
    return _NO_LABEL.sub(".", text)[:63].strip("-_.")


# --- documents --------------------------------------------------------------------------------


def amend(documents: Sequence[dict[str, Any]], planned: Planned[KubernetesOptions]) -> None:
    """Add the fields that node groups do not have to an app's documents.

    Raises:
        SettingsError: An overlay cannot be merged.
    """
    for document in documents:
        for template, task in _templates(document):
            of_role = _environment(container_of(template)).get(ENV_ROLE_INDEX, {})
            pods = planned.details[int(of_role.get("value", 0))]
            _amend(template, pods, has_limit=planned.options.timeout_s is not None)
            if task is not None:
                _need(document, task, template, pods)


def _templates(
    document: Mapping[str, Any],
) -> Iterator[tuple[dict[str, Any], dict[str, Any] | None]]:
    """Yield a document's pod templates, with the task if it is a Volcano job."""
    spec = document.get("spec", {})
    if "template" in spec:
        yield spec["template"], None
    for task in spec.get("tasks", ()):
        yield task["template"], task


def containers(document: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield a document's containers that run roles."""
    for template, _ in _templates(document):
        yield container_of(template)


def container_of(template: Mapping[str, Any]) -> dict[str, Any]:
    """Return the container of a template that runs a role.

    Raises:
        SettingsError: An overlay has removed the container.
    """
    for each in template["spec"].get("containers", ()):
        if each.get("name") == CONTAINER:
            found: dict[str, Any] = each
            return found
    raise SettingsError(
        f'metadata["{NAMESPACE}"] leaves no container {CONTAINER!r}, which runs the role. Add '
        "to containers instead of replacing them.",
        option="metadata",
    )


def _environment(container: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    return {each["name"]: each for each in container.get("env", ())}


def _amend(template: dict[str, Any], pods: Pods, *, has_limit: bool) -> None:
    container, spec = container_of(template), template["spec"]
    replica = _replica(container, pods)
    _amend_container(container, pods, replica)
    metadata = template.setdefault("metadata", {})
    number = {} if replica.startswith("$") else {f"{_LABEL_PREFIX}/replica-id": replica}
    metadata["labels"] = {**metadata.get("labels", {}), **pods.labels, **number}
    # An Istio sidecar would keep the pod running after the role has finished.
    inject = {"sidecar.istio.io/inject": "false"}
    metadata["annotations"] = {**metadata.get("annotations", {}), **inject}
    if pods.node_selector:
        spec["nodeSelector"] = {**spec.get("nodeSelector", {}), **pods.node_selector}
    if not has_limit:
        spec.pop("activeDeadlineSeconds", None)
    roles.merge(template, pods.overlay, NAMESPACE, "pod")
    container_of(template)


def _replica(container: Mapping[str, Any], pods: Pods) -> str:
    """Return a template's replica number, or the expression that Kubernetes expands."""
    index = _environment(container).get(ENV_OWN_NODE_INDEX)
    if index is None:
        return "0"
    if "value" in index:
        return str(int(index["value"]) - pods.first)
    return f"$({ENV_OWN_NODE_INDEX})"  # only for the first role, whose node indexes begin at 0


def _amend_container(container: dict[str, Any], pods: Pods, replica: str) -> None:
    # TorchX's own scheduler replaces the image's entrypoint, too.
    container["command"] = [*container.get("command", ()), *container.pop("args", ())]
    if not container["command"]:
        del container["command"]
    given = _environment(container)
    main = given.get(ENV_OWN_MAIN_ADDRESS, {"value": "localhost"})
    variables = {RANK0: {**main, "name": RANK0}, **given}
    # Kubernetes expands a variable from the variables before it.
    order = sorted(variables.values(), key=lambda each: each["name"] != ENV_OWN_NODE_INDEX)
    container["env"] = [_field(each, replica) for each in order]
    if "command" in container:
        container["command"] = [part.replace(REPLICA, replica) for part in container["command"]]
    limits = container["resources"]["limits"] | {k: str(v) for k, v in pods.devices.items()}
    container["resources"] = {"limits": limits, "requests": {**limits, **pods.requests}}
    if pods.ports:
        container["ports"] = [{"name": n, "containerPort": p} for n, p in pods.ports.items()]


def _field(variable: dict[str, Any], replica: str) -> dict[str, Any]:
    """Insert the replica's number, or convert a variable to a pod field reference."""
    value = variable.get("value")
    if not isinstance(value, str):
        return variable
    if value.startswith(FIELD):
        path = value.removeprefix(FIELD)
        return {"name": variable["name"], "valueFrom": {"fieldRef": {"fieldPath": path}}}
    return {**variable, "value": value.replace(REPLICA, replica)}


def _need(
    document: dict[str, Any], task: dict[str, Any], template: Mapping[str, Any], pods: Pods
) -> None:
    """Make a Volcano task optional if its role does not require the replica."""
    if int(_replica(container_of(template), pods)) >= pods.minimum:
        task["minAvailable"] = 0
        document["spec"]["minAvailable"] -= 1


def plain(text: str) -> str:
    """Restore a text from a document: dollar signs and the replica's placeholder."""
    return _MARKED.sub(lambda found: REPLICA if found[0] != "$$" else "$", text)


def marked(text: str) -> str:
    """Escape dollar signs and the placeholder for a document; the inverse of `plain`."""
    return text.replace("$", "$$").replace(REPLICA, f"$({ENV_OWN_NODE_INDEX})")
