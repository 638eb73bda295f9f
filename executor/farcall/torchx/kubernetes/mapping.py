"""App mapping: converts a TorchX app into node groups, settings and pods. No I/O.

Each role becomes a group, each replica a node. farcall's groups have no field for ports, devices
and a role's overlay. The module `farcall.torchx.kubernetes.documents` writes these into the
documents that the groups produce.

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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import torchx
from torchx.specs import AppDef, Role, macros
from torchx.specs.named_resources_aws import EFA_DEVICE, K8S_ITYPE

from farcall.config.settings import Settings
from farcall.model.commands import ClaimMount, Nodes
from farcall.torchx import roles
from farcall.torchx.kubernetes.options import DEFAULT, VOLCANO, KubernetesOptions
from farcall.torchx.roles import Planned, Warnings

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
LABEL_PREFIX = "torchx.pytorch.org"


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
    resolved = [_resolved(role, name) for role in app.roles]
    return Planned(
        name,
        tuple(_group(role, index, options) for index, role in enumerate(resolved)),
        settings,
        options,
        tuple(
            _pods(role, first, _labels(app, name, role, index), options)
            for index, (role, first) in enumerate(zip(resolved, firsts, strict=False))
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
        f"{LABEL_PREFIX}/version": _label(torchx.__version__),
        f"{LABEL_PREFIX}/app-name": _label(app.name),
        f"{LABEL_PREFIX}/role-index": str(index),
        f"{LABEL_PREFIX}/role-name": _label(role.name),
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
    requests = {}
    if 0 < options.reserved_millicpu < cpu / 2:
        requests["cpu"] = f"{cpu - options.reserved_millicpu}m"
    if 0 < options.reserved_memmb < memory / 2:
        requests["memory"] = f"{memory - options.reserved_memmb}Mi"
    return requests


def _node_selector(role: Role) -> dict[str, str]:
    types_by_role = roles.instance_types([role])
    return {K8S_ITYPE: types_by_role[role.name]} if types_by_role else {}


def _label(text: str) -> str:
    return _NO_LABEL.sub(".", text)[:63].strip("-_.")
