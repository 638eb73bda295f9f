"""Role parsing that all platforms share. No I/O."""

from __future__ import annotations

import copy
import getpass
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic

import torchx
from torchx.specs import (
    MISSING,
    NULL_RESOURCE,
    AppDef,
    DeviceMount,
    RetryPolicy,
    Role,
    VolumeMount,
)
from torchx.specs import BindMount as FolderMount
from torchx.specs.named_resources_aws import K8S_ITYPE
from torchx.specs.overlays import apply_overlay, get_overlay, validate_overlay

from farcall.config.option_values import MAX_TAG_KEY, MAX_TAG_VALUE, MAX_TAGS, NO_TAG
from farcall.config.settings import Settings
from farcall.model.commands import BindMount, Device, Mount, Nodes
from farcall.model.errors import SettingsError
from farcall.torchx.options import Options, wrong_option

TAG_VERSION = "torchx.pytorch.org/version"
TAG_APP = "torchx.pytorch.org/app-name"
TAG_USER = "torchx.pytorch.org/user"

ENV_ROLE_INDEX = "TORCHX_ROLE_IDX"
ENV_ROLE_NAME = "TORCHX_ROLE_NAME"
ENV_IMAGE = "TORCHX_IMAGE"

_MOST_NODES, _MOST_ATTEMPTS = 1000, 10
_LEAST_MEMORY_MB = 4

_NESTED = "__torchx_overlays__"
"""Marker that `set_overlay` adds to its overlays."""


@dataclass(frozen=True)
class Planned(Generic[Options]):
    """App as a command job, before its request is built.

    Attributes:
        name: The job's unique name.
        groups: Commands of the job's nodes, one group for each role.
        settings: Queue or namespace, attempts, tags and the like.
        options: The scheduler's options.
        details: Fields of each role that a node group does not have.
        warnings: Requests of the app that the platform cannot fulfill.
    """

    name: str
    groups: tuple[Nodes, ...]
    settings: Settings
    options: Options
    details: tuple[Any, ...] = field(repr=False)
    warnings: tuple[str, ...]


class Warnings:
    """Requests of an app that the platform cannot fulfill.

    Attributes:
        texts: The warnings, one sentence each.
    """

    def __init__(self) -> None:
        self.texts: list[str] = []

    def __call__(self, role: Role, text: str) -> None:
        """Record a warning for a role."""
        self.texts.append(f"role {role.name}: {text}")


def wrong(role: Role, what: str, value: object, allowed: str) -> SettingsError:
    """Return the error for a role's field with a wrong value."""
    return SettingsError(f"role {role.name}: {what} is {value!r}: {allowed}", option=what)


def check_replicas(roles: Sequence[Role], platform: str) -> None:
    """Reject roles without replicas, and more replicas than a job's maximum of nodes.

    Raises:
        SettingsError: A replica count is out of range.
    """
    for role in roles:
        if role.num_replicas < 1:
            raise wrong(role, "num_replicas", role.num_replicas, "use 1 or more")
    replicas = sum(role.num_replicas for role in roles)
    if replicas > _MOST_NODES:
        each = ", ".join(f"role {role.name}: {role.num_replicas}" for role in roles)
        raise SettingsError(
            f"num_replicas is {replicas} in total ({each}), but {platform} supports at most "
            f"{_MOST_NODES} nodes. Request fewer replicas.",
            option="num_replicas",
        )


def _check_resource(role: Role) -> None:
    """Reject a missing resource, and values that are silently changed otherwise."""
    resource = role.resource
    if resource == NULL_RESOURCE:
        raise SettingsError(
            f"role {role.name} has no resource. Specify one, for example "
            "torchx.specs.Resource(cpu=1, gpu=0, memMB=1024), or a named resource with -h.",
            option="resource",
        )
    if resource.memMB < _LEAST_MEMORY_MB:
        allowed = f"use {_LEAST_MEMORY_MB} or more"
        raise wrong(role, "resource.memMB", resource.memMB, allowed)
    if resource.gpu > 0 and resource.gpu != int(resource.gpu):
        raise wrong(role, "resource.gpu", resource.gpu, "use a whole number")


def attempts(roles: Sequence[Role], warnings: Warnings, whole: str) -> int:
    """Return a job's attempts; warn about retries that only some replicas request.

    Args:
        roles: The app's roles.
        warnings: Records the warnings.
        whole: Why replicas are not retried separately; empty for an app of one node.

    Raises:
        SettingsError: A role's retries are not a whole number.
    """
    for role in roles:
        if not isinstance(role.max_retries, int) or role.max_retries < 0:
            raise wrong(role, "max_retries", role.max_retries, "use a whole number")
    most = max((role.max_retries for role in roles), default=0)
    for role in roles:
        retries = f"max_retries is {role.max_retries}, but"
        if role.max_retries < most:
            warnings(role, f"{retries} {most} applies to all roles: {whole}")
        elif most >= _MOST_ATTEMPTS:
            warnings(role, f"{retries} farcall makes at most {_MOST_ATTEMPTS} attempts")
        if most and whole and role.retry_policy != RetryPolicy.APPLICATION:
            warnings(role, f"retry_policy is {role.retry_policy.value}, but {whole}")
    return min(most + 1, _MOST_ATTEMPTS)


def instance_types(roles: Sequence[Role]) -> dict[str, str]:
    """Return the requested instance types by role name."""
    return {
        role.name: str(role.resource.capabilities[K8S_ITYPE])
        for role in roles
        if role.resource.capabilities.get(K8S_ITYPE)
    }


def nodes(role: Role, index: int, shm_size: int | None, **more: Any) -> Nodes:
    """Return a role's node group, with a node for each replica.

    Args:
        role: The role, with its macros replaced.
        index: The role's position in the app.
        shm_size: Run option of this name in MiB; 0 for the platform's default.
        **more: Fields that depend on the platform.

    Raises:
        SettingsError: The resource, the image or the run option is wrong.
    """
    _check_resource(role)
    if not role.image or role.image == MISSING:
        raise wrong(role, "image", role.image, "name an image")
    own = {ENV_ROLE_INDEX: str(index), ENV_ROLE_NAME: role.name, ENV_IMAGE: role.image}
    return Nodes(
        count=role.num_replicas,
        image=role.image,
        command=[*([] if role.entrypoint == MISSING else [role.entrypoint]), *role.args],
        env={**role.env, **own},
        vcpu=role.resource.cpu if role.resource.cpu > 0 else 1,
        memory=role.resource.memMB / 1024,
        num_gpus=max(int(role.resource.gpu), 0),
        shm_size=_shm_size(role, shm_size),
        name=f"role {role.name}",
        **more,
    )


def _shm_size(role: Role, wanted: int | None) -> float | None:
    """Return the size of /dev/shm in GiB; PyTorch's loaders need more than 64 MiB."""
    if wanted == 0:
        return None
    if wanted is None:
        return role.resource.memMB / 1024
    if not 0 < wanted <= role.resource.memMB:
        most = f"the {role.resource.memMB} MiB of memory of role {role.name}"
        raise wrong_option("shm_size", wanted, f"use 0 to {most}")
    return wanted / 1024


def mounts(role: Role, volume: Callable[[VolumeMount], Mount]) -> tuple[list[Mount], list[Device]]:
    """Return the folders, volumes and devices that a role mounts.

    Args:
        role: The role.
        volume: Converts a volume.
    """
    mounted: list[Mount] = []
    devices: list[Device] = []
    for mount in role.mounts:
        if isinstance(mount, DeviceMount):
            devices.append(device(mount))
        elif isinstance(mount, FolderMount):
            mounted.append(BindMount(mount.src_path, mount.dst_path, mount.read_only))
        else:
            mounted.append(volume(mount))
    return mounted, devices


def tags(app: AppDef, user: str | None, common: Mapping[str, str]) -> dict[str, str]:
    """Return a job's tags: from farcall's settings, TorchX and the app.

    Characters that are not valid in a tag become ``_``, and long values are truncated.

    Args:
        app: The app.
        user: User who submits the app; None for the login.
        common: Tags from the settings.

    Raises:
        SettingsError: The app has too many tags, or a key that AWS reserves.
    """
    given = {
        **common,
        TAG_VERSION: torchx.__version__,
        TAG_APP: app.name,
        TAG_USER: user or login(),
        **{key: value for key, value in app.metadata.items() if not isinstance(value, dict)},
    }
    labels: dict[str, str] = {}
    for key, value in given.items():
        label = NO_TAG.sub("_", str(key))[:MAX_TAG_KEY]
        if label.lower().startswith("aws:"):
            raise SettingsError(
                f"metadata key {key!r} cannot be a tag: AWS reserves keys that begin with aws:. "
                "Use another key.",
                option="metadata",
            )
        if label:
            labels[label] = NO_TAG.sub("_", str(value))[:MAX_TAG_VALUE]
    if len(labels) > MAX_TAGS:
        raise SettingsError(
            f"the app has {len(labels)} tags, more than {MAX_TAGS}. Remove some from its "
            "metadata, or from the option tags.",
            option="metadata",
        )
    return labels


def login() -> str:
    """Return the login name."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container may have a uid without a user
        return "user"


def device(mount: DeviceMount) -> Device:
    """Return a device that a role mounts."""
    return Device(mount.src_path, mount.dst_path, mount.permissions)


def overlay(role: Role, namespace: str, kind: str, of_role: Sequence[str]) -> dict[str, Any]:
    """Return a role's overlay, from its metadata or a file named there.

    Args:
        role: The role.
        namespace: Key in the role's metadata.
        kind: Overlay kind for `torchx.specs.overlays.set_overlay`.
        of_role: Fields that the role sets itself; they are rejected.

    Raises:
        SettingsError: The overlay cannot be used.
    """
    given: Any = role.metadata.get(namespace)
    if not given:
        return {}
    is_flat = isinstance(given, dict) and not {kind, _NESTED} & given.keys()
    try:
        document = given if is_flat else get_overlay(role, namespace, kind)
        if not document:
            raise ValueError(f"it contains nothing for {kind}")  # noqa: TRY301
        validate_overlay(document, blocklist=list(of_role), overlay_name=kind)
    except (TypeError, ValueError, OSError) as error:
        text = f'role {role.name}: metadata["{namespace}"] cannot be used: {error}'
        raise SettingsError(text, option="metadata") from None
    return document


def merge(document: dict[str, Any], overlay: Mapping[str, Any], namespace: str, into: str) -> None:
    """Merge an overlay into a document, as TorchX does.

    Raises:
        SettingsError: The overlay cannot be merged.
    """
    try:
        apply_overlay(document, copy.deepcopy(dict(overlay)))
    except (TypeError, ValueError) as error:
        raise SettingsError(
            f'metadata["{namespace}"] cannot be merged into the {into}: {error}',
            option="metadata",
        ) from None
