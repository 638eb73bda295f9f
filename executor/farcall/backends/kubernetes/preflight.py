"""Preflight checks of a cluster: it responds, and the named objects exist.

Missing permissions are ignored: missing objects are then reported when a job starts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any, NamedTuple

from farcall.backends.kubernetes.client import Kube
from farcall.backends.kubernetes.error_translation import KubeError
from farcall.config.settings import Settings
from farcall.model.errors import SettingsError

FORBIDDEN = 403


async def check(kube: Kube, settings: Settings) -> None:
    """Check that the namespace exists, and the objects in it that the options name.

    Raises:
        SettingsError: An object does not exist.
        KubeError: Jobs cannot be listed, or the server does not respond.
    """
    # The permission to list jobs is always needed, so a refusal is reported unchanged.
    path = kube.path("jobs", group="batch")
    await kube.request("GET", path, params={"limit": 1})
    path = f"/api/v1/namespaces/{kube.namespace}"
    namespace = NamedObject("namespace", kube.namespace, path, "namespaces")
    wanted = [namespace, *named_objects(kube, settings)]
    await asyncio.gather(*(get_object(kube, each) for each in wanted))


class NamedObject(NamedTuple):
    """An object of the cluster that an option names.

    Attributes:
        option: The option.
        name: Its name.
        path: Its path in the API; empty for Kueue's, whose version depends on the cluster.
        kind: Its resource name in kubectl.
    """

    option: str
    name: str
    path: str
    kind: str


def named_objects(kube: Kube, settings: Settings) -> Iterator[NamedObject]:
    """Yield the objects in the namespace that the options name."""
    if name := settings.service_account:
        path = kube.path("serviceaccounts", name)
        yield NamedObject("service_account", name, path, "serviceaccounts")
    if name := settings.priority_class:
        path = f"/apis/scheduling.k8s.io/v1/priorityclasses/{name}"
        yield NamedObject("priority_class", name, path, "priorityclasses")
    if (name := settings.queue) and settings.scheduler == "kueue":
        yield NamedObject("queue", name, "", "localqueues")
    if settings.scheduler == "volcano":
        name = settings.queue or "default"
        path = f"/apis/scheduling.volcano.sh/v1beta1/queues/{name}"
        yield NamedObject("queue", name, path, "queues.scheduling.volcano.sh")


async def get_object(kube: Kube, wanted: NamedObject) -> dict[str, Any] | None:
    """Return an object; None without the permission to get it.

    Raises:
        SettingsError: It does not exist.
        KubeError: The server refused for another reason.
    """
    option, name, path, kind = wanted
    path = path or await kube.kueue_path(kind, name)
    try:
        return await kube.request("GET", path)
    except KubeError as error:
        if error.status == FORBIDDEN:
            return None
        if not error.is_missing:
            raise
        where = f" -n {kube.namespace}" if f"/{kube.namespace}/" in path else ""
        raise SettingsError(
            f"{option} is {name!r}, which does not exist in {kube.place}; set {option} to one "
            f"that `kubectl get {kind}{where}` lists",
            option=option,
        ) from error
