"""Containers of command jobs in Kubernetes's words: mounts, devices, secrets, users. No I/O.

What Kubernetes has no word for is refused here, with what to use in its place.

Sources:
    https://kubernetes.io/docs/reference/kubernetes-api/workload-resources/pod-v1/
    https://kubernetes.io/docs/concepts/storage/volumes/
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from farcall.backends import groups
from farcall.backends.groups import wrong
from farcall.backends.kubernetes.documents import escaped, variables
from farcall.model.commands import BindMount, ClaimMount, EfsMount, Mount, Nodes
from farcall.model.errors import SettingsError

_USER = re.compile(r"[0-9]{1,10}(:[0-9]{1,10})?")
_VARIABLE = re.compile(r"[-._a-zA-Z][-._a-zA-Z0-9]*")
"""Newer clusters take more, https://github.com/kubernetes/enhancements/issues/4369"""

_OBJECT = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_KEY = re.compile(r"[-._a-zA-Z0-9]{1,253}")


class Container(NamedTuple):
    """What a group of nodes asks of its pods.

    Attributes:
        container: Fields of the container.
        volumes: Volumes of the pod.
    """

    container: dict[str, Any]
    volumes: list[dict[str, Any]]


def check(group: Nodes) -> None:
    """See that a group is what Kubernetes takes.

    Raises:
        SettingsError: It is not.
    """
    groups.check(group)
    _check_names("env", group.env)
    _check_names("secrets", group.secrets)
    groups.check_each(_check_mount, group.mounts)
    for limit in group.ulimits:
        raise wrong(
            "ulimits",
            limit.name,
            "Kubernetes has no limits of a container's processes; set them in the command (ulimit "
            "-n 65536), or for the node's container runtime",
        )
    for name, place in group.secrets.items():
        secret, slash, key = place.partition("/")
        if not (slash and _OBJECT.fullmatch(secret) and _KEY.fullmatch(key)):
            raise SettingsError(
                f"secrets[{name!r}] is {place!r}: name a Secret of the namespace and a key in it, "
                'such as "db/password"; what is in AWS comes by the External Secrets operator',
                option="secrets",
            )
    if group.user and not _USER.fullmatch(group.user):
        allowed = 'Kubernetes takes numbers alone, such as "1000" or "1000:1000"'
        raise wrong("user", group.user, allowed)


def _check_names(what: str, given: Mapping[str, str]) -> None:
    for name in given:
        if not _VARIABLE.fullmatch(name):
            raise wrong(what, name, "Kubernetes takes letters, digits, - . _ and no digit first")


def _check_mount(mount: Mount) -> None:
    if isinstance(mount, EfsMount):
        raise wrong(
            "mounts",
            mount.file_system,
            "Kubernetes mounts claims; make a PersistentVolumeClaim of the EFS CSI driver, and "
            "name it in a ClaimMount",
        )
    if isinstance(mount, ClaimMount):
        if not _OBJECT.fullmatch(mount.claim):
            raise wrong("mounts", mount.claim, "the name of a PersistentVolumeClaim is allowed")
    elif not mount.source.startswith("/"):
        raise wrong("mounts", mount.source, "a path on the node begins with /")


def of(group: Nodes) -> Container:
    """Write what a group's containers have beside resources and shared memory."""
    pairs = [(f"mount-{number}", mount) for number, mount in enumerate(group.mounts)]
    volumes = [_volume(name, mount) for name, mount in pairs]
    mounts = [_mounted(name, mount.path, read_only=mount.read_only) for name, mount in pairs]
    for number, device in enumerate(group.devices):
        volumes.append({"name": f"device-{number}", "hostPath": {"path": device.source}})
        mounts.append(_mounted(f"device-{number}", device.path or device.source, read_only=False))
    found: dict[str, Any] = {
        "image": group.image,
        # Not the image's entrypoint but what comes behind it, as Batch's command does.
        "args": list(map(escaped, group.command)),
        "env": [*variables(group.env), *map(_secret, sorted(group.secrets.items()))],
        "volumeMounts": mounts,
        "securityContext": _security(
            group.user, privileged=group.privileged, devices=group.devices
        ),
    }
    return Container({key: value for key, value in found.items() if value}, volumes)


def _security(user: str, *, privileged: bool, devices: object) -> dict[str, Any]:
    # Kubernetes hands no device over by itself: a container that sees the node's is privileged.
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
    assert isinstance(mount, BindMount)  # noqa: S101  # says so to the type checker; it was checked
    return {"name": name, "hostPath": {"path": mount.source}}
