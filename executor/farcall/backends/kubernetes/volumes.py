"""Volumes of a pod: its claims, folders, devices and shared memory. No I/O.

Source:
    https://kubernetes.io/docs/concepts/storage/volumes/
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from farcall.config.settings import Settings
from farcall.model.commands import BindMount, ClaimMount, EfsMount, Nodes
from farcall.model.errors import SettingsError

_SHARED_MEMORY = "/dev/shm"  # noqa: S108  # a place in the container


class Volume(NamedTuple):
    """A volume of a pod, and its place in the container.

    Attributes:
        name: Name, unique in the pod.
        source: The volume's fields other than its name.
        path: Path in the container.
        read_only: Whether the container may not write to it.
    """

    name: str
    source: dict[str, Any]
    path: str
    read_only: bool = False

    @property
    def document(self) -> dict[str, Any]:
        """The volume of the pod."""
        return {"name": self.name, **self.source}

    @property
    def mount(self) -> dict[str, Any]:
        """The mount of the container."""
        mount: dict[str, Any] = {"name": self.name, "mountPath": self.path}
        return {**mount, "readOnly": True} if self.read_only else mount


def volumes(settings: Settings, group: Nodes | None) -> list[Volume]:
    """Return the volumes of a group and of the options; the group's paths take precedence.

    Raises:
        SettingsError: Two mounts have the same path, or shared memory exceeds the memory.
    """
    own = list(_of_group(group)) if group else []
    others = list(_of_options(settings))
    paths = [volume.path.rstrip("/") for volume in others]
    twice = next((path for path in paths if paths.count(path) > 1), "")
    if twice:
        raise SettingsError(
            f"mounts has {twice!r} more than once; choose another dst",
            option="mounts",
        )
    taken = {volume.path for volume in own}
    return [*own, *(volume for volume in others if volume.path not in taken)]


def _of_group(group: Nodes) -> Iterator[Volume]:
    for number, mount in enumerate(group.mounts):
        yield Volume(f"mount-{number}", _source(mount), mount.path, mount.read_only)
    for number, device in enumerate(group.devices):
        yield Volume(f"device-{number}", _host(device.source), device.path or device.source)


def _source(mount: BindMount | ClaimMount | EfsMount) -> dict[str, Any]:
    if isinstance(mount, ClaimMount):
        return _claim(mount.claim)
    assert isinstance(mount, BindMount)  # noqa: S101  # for the type checker; it was checked
    return _host(mount.source)


def _of_options(settings: Settings) -> Iterator[Volume]:
    for number, mount in enumerate(settings.mounts):
        source = _claim(mount["src"]) if mount["type"] == "volume" else _host(mount["src"])
        yield Volume(f"volume-{number}", source, mount["dst"], _is_read_only(mount))
    if settings.shm_size is not None:
        yield _shared_memory(settings.shm_size, settings.memory)


def _is_read_only(mount: Mapping[str, Any]) -> bool:
    return "w" not in mount["perm"] if mount["type"] == "device" else bool(mount["readonly"])


def _claim(name: str) -> dict[str, Any]:
    return {"persistentVolumeClaim": {"claimName": name}}


def _host(path: str) -> dict[str, Any]:
    # The kind of a device is unknown. Without a kind, a missing device prevents the container's
    # creation; with a wrong kind, the pod would wait for it forever.
    return {"hostPath": {"path": path}}


def _shared_memory(size: float, memory: float) -> Volume:
    if size > memory:
        raise SettingsError(
            f"shm_size is {size:g} GiB, but memory is {memory:g} GiB: "
            "files in /dev/shm count as memory; raise memory, or reduce shm_size",
            option="shm_size",
        )
    limit = f"{math.ceil(size * 1024)}Mi"
    source = {"emptyDir": {"medium": "Memory", "sizeLimit": limit}}
    return Volume("shared-memory", source, _SHARED_MEMORY)
