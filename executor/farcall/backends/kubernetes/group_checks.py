"""Checks of node groups: fields that Kubernetes does not support are rejected. No I/O.

Each error names an alternative.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from farcall.backends import groups
from farcall.backends.base import JobSpec
from farcall.backends.groups import wrong
from farcall.model.commands import ClaimMount, EfsMount, Mount, Nodes
from farcall.model.errors import SettingsError

_MOST_NODES = 1000
_USER = re.compile(r"[0-9]{1,10}(:[0-9]{1,10})?")
_VARIABLE = re.compile(r"[-._a-zA-Z][-._a-zA-Z0-9]*")
"""Newer clusters: https://github.com/kubernetes/enhancements/issues/4369"""

_OBJECT = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_KEY = re.compile(r"[-._a-zA-Z0-9]{1,253}")


def check(job: JobSpec) -> None:
    """Check that Kubernetes accepts a job's groups.

    Raises:
        SettingsError: A group is invalid.
    """
    for place, group in enumerate(job.groups):
        with groups.naming(job, place):
            _check_group(group)
    if job.nodes > _MOST_NODES:
        raise SettingsError(
            f"the job has {job.nodes} nodes, but the limit is {_MOST_NODES}",
            option="nodes",
        )


def _check_group(group: Nodes) -> None:
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
