"""The local Kubernetes emulator: objects, API server, controllers, initial objects.

All of it belongs on one event loop, that of the local AWS emulator's jobs.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from farcall_local.kubernetes import defaults
from farcall_local.kubernetes.cluster import Cluster
from farcall_local.kubernetes.errors import StatusError
from farcall_local.kubernetes.kinds import (
    NAMESPACE,
    SECRET,
    SERVICE_ACCOUNT,
)
from farcall_local.kubernetes.place import NAMESPACE as DEFAULT
from farcall_local.kubernetes.place import S3_SECRET, Place
from farcall_local.kubernetes.server import ApiServer
from farcall_local.kubernetes.store import Store
from farcall_local.runners.runner import Runner

#: Namespaces that every cluster has.
NAMESPACES = (DEFAULT, "kube-system", "kube-public", "kube-node-lease")

#: Development calls that are the cluster's methods; the others are the API server's.
_CLUSTER = (*("add_node", "lose_node", "evict", "preempt", "oom", "withhold_image", "quota"),)


class EmbeddedKubernetes:
    """A cluster and its API.

    Args:
        place: Where the API listens; closed by `close`.
        runner: Starts containers; closed by who has made it.
        cpus: Processors of its node.
        secret: What the Secret `S3_SECRET` has, none for an empty one.

    Attributes:
        store: All objects.
        cluster: Controllers and nodes.
        api: The server.
    """

    def __init__(
        self, place: Place, runner: Runner, cpus: float, secret: Mapping[str, str]
    ) -> None:
        self.store = Store()
        self.cluster = Cluster(self.store, runner, cpus=cpus)
        self.api = ApiServer(self.store, place, self.cluster.logs)
        self._place = place
        for name in NAMESPACES:
            self._make_namespace(name)
        if secret:
            document = {"metadata": {"name": S3_SECRET, "namespace": DEFAULT}}
            made = defaults.fill(SECRET, {**document, "stringData": dict(secret)})
            self.store.create(SECRET, made)
        self.store.compact()  # as of a real server, history begins later than the first version
        self._calls = self._collect()

    async def start(self) -> None:
        """Serve."""
        self.cluster.start()
        await self.api.start()

    async def close(self) -> None:
        """Kill what runs, close the port and forget everything."""
        await self.api.stop()
        await self.cluster.close()
        self._place.close()

    async def call(self, name: str, arguments: Mapping[str, Any]) -> Any:
        """Carry out a development call of `farcall_local.kubernetes.controls`.

        Raises:
            ValueError: There is no such call, it does not take that, or it cannot be done.
        """
        if name not in self._calls:
            raise ValueError(f"There is no development call {name!r} of Kubernetes.")
        try:
            found = self._calls[name](**arguments)
            return await found if inspect.isawaitable(found) else found
        except (StatusError, TypeError) as error:
            raise ValueError(f"{name}: {error}") from error

    def _collect(self) -> dict[str, Callable[..., Any]]:
        faults = self.api.faults
        return {
            "lose_answer": faults.lose_answer,
            "throttle": faults.throttle,
            "compact": self.store.compact,
            "cut_watches": faults.cut_watches,
            "stop_api": self.api.stop,
            "start_api": self.api.start,
            "requests": lambda: dict(faults.requests),
            "configure": self._configure,
            **{name: getattr(self.cluster, name) for name in _CLUSTER},
        }

    def _configure(self, **times: Any) -> None:
        """Set times of the cluster's."""
        for name, value in times.items():
            if not hasattr(self.cluster.timing, name):
                raise ValueError(f"There is no time {name!r} in the local Kubernetes emulator.")
            setattr(self.cluster.timing, name, value)

    def _make_namespace(self, name: str) -> None:
        self.store.create(NAMESPACE, defaults.fill(NAMESPACE, {"metadata": {"name": name}}))
        account = {"metadata": {"name": "default", "namespace": name}}
        self.store.create(SERVICE_ACCOUNT, account)
