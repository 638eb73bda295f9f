"""Local Kubernetes emulator: objects, API server, controllers, kubelet and node.

All of it runs on one event loop, together with the local AWS emulator's jobs.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from farcall_local.runners.runner import Runner
from tests.emulators.kubernetes import documents, nodes, pod_status
from tests.emulators.kubernetes.endpoint import NAMESPACE as DEFAULT
from tests.emulators.kubernetes.endpoint import S3_SECRET, ClusterEndpoint
from tests.emulators.kubernetes.errors import NotFoundError, StatusError
from tests.emulators.kubernetes.garbage import Garbage
from tests.emulators.kubernetes.job_controller import JobController
from tests.emulators.kubernetes.kinds import (
    NAMESPACE,
    NODE,
    POD,
    SECRET,
    SERVICE_ACCOUNT,
    Kind,
)
from tests.emulators.kubernetes.pod_run import Kubelet
from tests.emulators.kubernetes.recorder import NORMAL, WARNING
from tests.emulators.kubernetes.scheduler import Scheduler
from tests.emulators.kubernetes.server import ApiServer
from tests.emulators.kubernetes.store import Store
from tests.emulators.kubernetes.timing import Timing

_LOW_MEMORY = (
    "The node was low on resource: memory. Threshold quantity: 100Mi, available: 52Mi. "
    "Container {name} was using 1Gi, request is 0, has larger consumption of memory. "
)
_PREEMPTED = "default-scheduler: preempting to accommodate a higher priority pod"


class Cluster:
    """Controllers and the node of one store, without the API.

    The methods other than `close` are a test's actions on a cluster, such as an eviction.

    Args:
        store: Holds all objects.
        runner: Starts containers; its creator closes it.
        cpus: Processors of the node.
        timing: Durations.

    Attributes:
        kubelet: Runs the pods.
        timing: Durations; may be changed at any time.
    """

    def __init__(
        self, store: Store, runner: Runner, *, cpus: float, timing: Timing | None = None
    ) -> None:
        self.timing = timing or Timing()
        self._store = store
        self._scheduler = Scheduler(store, store.create(NODE, nodes.node(cpus)))
        self.kubelet = Kubelet(store, runner, self.timing)
        self._jobs = JobController(store, self.timing)
        self._garbage = Garbage(store)
        self._unsubscribe = store.subscribe(self._on_change)

    async def close(self) -> None:
        """Kill all containers and stop."""
        self._unsubscribe()
        for part in (self._jobs, self._scheduler, self._garbage):
            part.close()
        await self.kubelet.close()

    def _on_change(self, change: str, kind: Kind, document: dict[str, Any]) -> None:
        for part in (self._jobs, self._scheduler, self._garbage, self.kubelet):
            part.on_change(change, kind, document)

    def evict(self, name: str) -> None:
        """Evict a pod as the kubelet does when memory is low; it stays, as Failed.

        Args:
            name: Name of a pod or a Job, as in the other methods.
        """
        pod = self._pod(name)
        text = _LOW_MEMORY.format(name=pod["spec"]["containers"][0]["name"])

        def final(pod: dict[str, Any]) -> dict[str, Any]:
            failed = {**pod, "status": pod_status.failed(pod, "Evicted", text)}
            status = pod_status.disrupted(failed, "TerminationByKubelet", text)
            return {key: value for key, value in status.items() if key != "containerStatuses"}

        if run := self.kubelet.run_of(pod):
            run.stop(0.0, final)
        self.kubelet.recorder.record(pod, WARNING, "Evicted", text)

    def preempt(self, name: str) -> None:
        """Delete a pod as the scheduler does for a pod of a higher priority."""
        pod = self._pod(name)
        node = pod["spec"].get("nodeName", "")
        text = f"Preempted by a pod on node {node}"
        self.kubelet.recorder.record(pod, NORMAL, "Preempted", text)
        status = pod_status.disrupted(pod, "PreemptionByScheduler", _PREEMPTED)
        self._store.update(POD, {**pod, "status": status})
        self._store.delete(POD, DEFAULT, pod["metadata"]["name"])

    def oom(self, name: str) -> None:
        """Kill a pod's container as the kernel does when memory runs out (OOMKilled, 137)."""
        if run := self.kubelet.run_of(self._pod(name)):
            run.oom()

    def _pod(self, name: str) -> dict[str, Any]:
        """Return a pod by its name, or the newest running pod of a Job."""
        pods = [
            pod
            for pod in self._store.list(POD, DEFAULT)
            if pod["metadata"]["name"] == name
            or (pod["metadata"].get("labels") or {}).get("job-name") == name
        ]
        found = [pod for pod in pods if not pod_status.is_over(pod)]
        if not found:
            raise NotFoundError.of(POD, name)
        return max(found, key=lambda pod: int(pod["metadata"]["resourceVersion"]))


#: Namespaces that every cluster has.
NAMESPACES = (DEFAULT, "kube-system", "kube-public", "kube-node-lease")


class EmbeddedKubernetes:
    """Cluster and its API.

    Args:
        endpoint: Endpoint of the API; closed by `close`.
        runner: Starts containers; closed by its creator.
        cpus: Number of processors of the node.
        secret: Content of the Secret `S3_SECRET`, possibly empty.

    Attributes:
        store: All objects.
        cluster: Controllers and the node.
        api: The server.
    """

    def __init__(
        self, endpoint: ClusterEndpoint, runner: Runner, cpus: float, secret: Mapping[str, str]
    ) -> None:
        self.store = Store()
        self.cluster = Cluster(self.store, runner, cpus=cpus)
        self.api = ApiServer(self.store, endpoint, self.cluster.kubelet.logs)
        self._endpoint = endpoint
        cluster, kubelet, faults = self.cluster, self.cluster.kubelet, self.api.faults
        calls: tuple[Callable[..., Any], ...] = (
            *(self.configure, self.restart, self.store.compact, self.api.cut_connections),
            *(cluster.evict, cluster.oom, cluster.preempt),
            *(kubelet.withhold_image, kubelet.release_image),
            *(faults.lose_response, faults.requests, faults.throttle),
        )
        self._calls = {each.__name__: each for each in calls}
        for name in NAMESPACES:
            namespace = documents.fill(NAMESPACE, {"metadata": {"name": name}})
            self.store.create(NAMESPACE, namespace)
            account = {"metadata": {"name": "default", "namespace": name}}
            self.store.create(SERVICE_ACCOUNT, account)
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
        self._endpoint.close()

    async def call(self, call: str, arguments: Sequence[Any], options: Mapping[str, Any]) -> Any:
        """Carry out a development call of `tests.emulators.KubernetesControls`.

        Raises:
            ValueError: The call is unknown, has wrong arguments, or cannot be carried out.
        """
        if call not in self._calls:
            raise ValueError(f"There is no development call {call!r} of Kubernetes.")
        try:
            found = self._calls[call](*arguments, **options)
            return await found if inspect.isawaitable(found) else found
        except (StatusError, TypeError) as error:
            raise ValueError(f"{call}: {error}") from error

    async def restart(self) -> None:
        """Restart the API server; as with a real one, its history starts again."""
        self.store.compact()
        await self.api.restart()

    def configure(self, **times: float) -> None:
        """Set times by the names of `tests.emulators.kubernetes.timing.Timing`."""
        for name, value in times.items():
            if not hasattr(self.cluster.timing, name):
                raise ValueError(f"There is no time {name!r} in the local Kubernetes emulator.")
            setattr(self.cluster.timing, name, value)
