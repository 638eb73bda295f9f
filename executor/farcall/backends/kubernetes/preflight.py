"""First look at a cluster: that it answers, and that what the options name is there.

Who may not look is not stopped: what is missing then shows when a job starts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from farcall.backends.kubernetes.client import Kube
from farcall.backends.kubernetes.refusals import KubeError
from farcall.model.errors import SettingsError
from farcall.model.settings import Settings

_FORBIDDEN = 403


async def check(kube: Kube, settings: Settings) -> None:
    """See that the namespace, and all that options name in it, are there.

    Raises:
        SettingsError: Something is not.
        KubeError: Jobs cannot be listed, or the server does not answer.
    """
    # The right to list jobs is needed anyway, so an answer to this is told as it is.
    path = kube.path("jobs", group="batch")
    await kube.request("GET", path, params={"limit": 1})
    await asyncio.gather(*(_look(kube, *each) for each in _named(kube, settings)))


def _named(kube: Kube, settings: Settings) -> Iterator[tuple[str, str, str, str]]:
    """Yield what is looked for: option, value, path, and what kubectl calls such things."""
    yield "namespace", kube.namespace, f"/api/v1/namespaces/{kube.namespace}", "namespaces"
    if name := settings.service_account:
        yield "service_account", name, kube.path("serviceaccounts", name), "serviceaccounts"
    if name := settings.priority_class:
        path = f"/apis/scheduling.k8s.io/v1/priorityclasses/{name}"
        yield "priority_class", name, path, "priorityclasses"
    if (name := settings.queue) and settings.scheduler == "kueue":
        path = kube.path("localqueues", name, group="kueue.x-k8s.io", version="v1beta1")
        yield "queue", name, path, "localqueues"
    if settings.scheduler == "volcano":
        name = settings.queue or "default"
        path = f"/apis/scheduling.volcano.sh/v1beta1/queues/{name}"
        yield "queue", name, path, "queues.scheduling.volcano.sh"


async def _look(kube: Kube, option: str, name: str, path: str, kind: str) -> None:
    try:
        await kube.request("GET", path)
    except KubeError as error:
        if error.status == _FORBIDDEN:
            return
        if not error.is_missing:
            raise
        where = "" if option in ("namespace", "priority_class") else f" -n {kube.namespace}"
        raise SettingsError(
            f"{option} is {name!r}, and {kube.place} has no such thing; set {option} to one that "
            f"`kubectl get {kind}{where}` shows",
            option=option,
        ) from error
