"""Local Kubernetes emulator: objects, API server, controllers, initial objects.

All of it runs on one event loop, together with the local AWS emulator's jobs.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from farcall_local.kubernetes import documents
from farcall_local.kubernetes.cluster import Cluster
from farcall_local.kubernetes.endpoint import NAMESPACE as DEFAULT
from farcall_local.kubernetes.endpoint import S3_SECRET, ClusterEndpoint
from farcall_local.kubernetes.errors import StatusError
from farcall_local.kubernetes.kinds import (
    NAMESPACE,
    SECRET,
    SERVICE_ACCOUNT,
)
from farcall_local.kubernetes.server import ApiServer
from farcall_local.kubernetes.store import Store
from farcall_local.runners.runner import Runner

#: Namespaces that every cluster has.
NAMESPACES = (DEFAULT, "kube-system", "kube-public", "kube-node-lease")

_CALLS = (
    *("configure", "requests", "restart", "cut_watches", "lose_answer", "throttle"),
    *("evict", "oom", "preempt", "quota", "withhold_image"),
)


class EmbeddedKubernetes:
    """Cluster and its API.

    Args:
        place: Endpoint of the API; closed by `close`.
        runner: Starts containers; closed by its creator.
        cpus: Number of processors of the node.
        secret: Content of the Secret `S3_SECRET`, possibly empty.

    Attributes:
        store: All objects.
        cluster: Controllers and the node.
        api: The server.
    """

    def __init__(
        self, place: ClusterEndpoint, runner: Runner, cpus: float, secret: Mapping[str, str]
    ) -> None:
        self.store = Store()
        self.cluster = Cluster(self.store, runner, cpus=cpus)
        self.api = ApiServer(self.store, place, self.cluster.logs)
        self._place = place
        for name in NAMESPACES:
            self._make_namespace(name)
        if secret:
            document = {"metadata": {"name": S3_SECRET, "namespace": DEFAULT}}
            made = documents.fill(SECRET, {**document, "stringData": dict(secret)})
            self.store.create(SECRET, made)
        self.store.compact()  # as on a real server, history begins after the first version

    async def start(self) -> None:
        """Start serving."""
        await self.api.start()

    async def close(self) -> None:
        """Kill all containers, close the port and drop all state."""
        await self.api.stop()
        await self.cluster.close()
        self._place.close()

    async def call(self, call: str, arguments: Sequence[Any], options: Mapping[str, Any]) -> Any:
        """Carry out a development call of `farcall_local.launch.KubernetesControls`.

        Raises:
            ValueError: The call is unknown, has wrong arguments, or cannot be carried out.
        """
        if call not in _CALLS:
            raise ValueError(f"There is no development call {call!r} of Kubernetes.")
        owners = (self, self.cluster, self.api.faults)
        method = next(getattr(owner, call) for owner in owners if hasattr(owner, call))
        try:
            found = method(*arguments, **options)
            return await found if inspect.isawaitable(found) else found
        except (StatusError, TypeError) as error:
            raise ValueError(f"{call}: {error}") from error

    async def restart(self) -> None:
        """Restart the API server; as with a real one, its history starts again."""
        await self.api.stop()
        self.store.compact()
        await self.api.start()

    def requests(self) -> dict[str, int]:
        """Return the number of requests since the start, such as ``{"create jobs": 2}``.

        ``429`` counts the requests that `throttle` rejected, which no other entry includes.
        """
        return dict(self.api.faults.requests)

    def configure(self, **times: float) -> None:
        """Set times by the names of `farcall_local.kubernetes.timing.Timing`."""
        for name, value in times.items():
            if not hasattr(self.cluster.timing, name):
                raise ValueError(f"There is no time {name!r} in the local Kubernetes emulator.")
            setattr(self.cluster.timing, name, value)

    def _make_namespace(self, name: str) -> None:
        self.store.create(NAMESPACE, documents.fill(NAMESPACE, {"metadata": {"name": name}}))
        account = {"metadata": {"name": "default", "namespace": name}}
        self.store.create(SERVICE_ACCOUNT, account)
