"""Controllers, scheduler, kubelet and node of the local Kubernetes emulator.

They use only the store and no HTTP. The methods other than `close` are a test's actions on a
cluster, such as an eviction. Everything runs on one event loop.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

from farcall_local.kubernetes import nodes, pod_status
from farcall_local.kubernetes.errors import NotFoundError
from farcall_local.kubernetes.garbage import Garbage
from farcall_local.kubernetes.job_controller import JobController
from farcall_local.kubernetes.kinds import NODE, POD, RESOURCE_QUOTA, Kind
from farcall_local.kubernetes.pod_run import Kubelet
from farcall_local.kubernetes.recorder import NORMAL, WARNING
from farcall_local.kubernetes.scheduler import Scheduler
from farcall_local.kubernetes.store import Store
from farcall_local.kubernetes.timing import Timing
from farcall_local.runners.runner import Runner

#: Namespace of the pods that tests act on.
NAMESPACE = "default"

_LOW_MEMORY = (
    "The node was low on resource: memory. Threshold quantity: 100Mi, available: 52Mi. "
    "Container {name} was using 1Gi, request is 0, has larger consumption of memory. "
)
_PREEMPTED = "default-scheduler: preempting to accommodate a higher priority pod"
_EVICTED_BY_API = "Eviction API: evicting"


class Cluster:
    """Controllers and the node of one store.

    Args:
        store: Holds all objects.
        runner: Starts containers; its creator closes it.
        cpus: Processors of the node.
        timing: Durations.

    Attributes:
        logs: Output of all pods.
        timing: Durations; may be changed at any time.
        withhold_image: See `Kubelet.withhold_image`.
    """

    def __init__(
        self, store: Store, runner: Runner, *, cpus: float, timing: Timing | None = None
    ) -> None:
        self.timing = timing or Timing()
        self._store = store
        self._scheduler = Scheduler(store, store.create(NODE, nodes.node(cpus)))
        self._kubelet = Kubelet(store, runner, self.timing)
        self._jobs = JobController(store, self.timing)
        self._garbage = Garbage(store, self.timing)
        self._unsubscribe = store.subscribe(self._note)
        self.logs = self._kubelet.logs
        self.withhold_image = self._kubelet.withhold_image

    async def close(self) -> None:
        """Kill all containers and stop."""
        self._unsubscribe()
        for part in (self._jobs, self._scheduler, self._garbage):
            part.close()
        await self._kubelet.close()

    def _note(
        self, change: str, kind: Kind, document: dict[str, Any], _: dict[str, Any] | None
    ) -> None:
        for part in (self._jobs, self._scheduler, self._garbage, self._kubelet):
            part.note(change, kind, document)

    def evict(self, name: str, *, api: bool = False) -> None:
        """Evict a pod.

        Args:
            name: Name of a pod or a Job, as in the other methods.
            api: Whether the eviction API deletes the pod, as in ``kubectl drain``; else its node
                is low on memory, and the pod stays as Failed with the reason Evicted.
        """
        pod = self._pod(name)
        if api:
            self._disrupt(pod, "EvictionByEvictionAPI", _EVICTED_BY_API)
            return
        text = _LOW_MEMORY.format(name=pod["spec"]["containers"][0]["name"])

        def final(pod: dict[str, Any]) -> dict[str, Any]:
            failed = {**pod, "status": pod_status.failed(pod, "Evicted", text)}
            status = pod_status.disrupted(failed, "TerminationByKubelet", text)
            return {key: value for key, value in status.items() if key != "containerStatuses"}

        if run := self._kubelet.run_of(pod):
            run.stop(0.0, final)
        self._kubelet.recorder.tell(pod, WARNING, "Evicted", text)

    def preempt(self, name: str) -> None:
        """Delete a pod as the scheduler does for a pod of a higher priority."""
        pod = self._pod(name)
        node = pod["spec"].get("nodeName", "")
        self._kubelet.recorder.tell(pod, NORMAL, "Preempted", f"Preempted by a pod on node {node}")
        self._disrupt(pod, "PreemptionByScheduler", _PREEMPTED)

    def oom(self, name: str) -> None:
        """Kill a pod's container as the kernel does when memory runs out (OOMKilled, 137)."""
        if run := self._kubelet.run_of(self._pod(name)):
            run.oom()

    def quota(self, hard: Mapping[str, str] | None) -> None:
        """Set the namespace's quota, such as ``{"pods": "2"}``; None removes it."""
        with contextlib.suppress(NotFoundError):
            self._store.delete(RESOURCE_QUOTA, NAMESPACE, "quota")
        if hard is not None:
            metadata = {"name": "quota", "namespace": NAMESPACE}
            self._store.create(RESOURCE_QUOTA, {"metadata": metadata, "spec": {"hard": hard}})

    def _disrupt(self, pod: dict[str, Any], reason: str, message: str) -> None:
        meta = pod["metadata"]
        self._store.update(POD, {**pod, "status": pod_status.disrupted(pod, reason, message)})
        self._store.delete(POD, meta["namespace"], meta["name"])

    def _pod(self, name: str) -> dict[str, Any]:
        """Return a pod by its name, or the newest running pod of a Job."""
        pods = [
            pod
            for pod in self._store.list(POD, NAMESPACE)
            if pod["metadata"]["name"] == name
            or (pod["metadata"].get("labels") or {}).get("job-name") == name
        ]
        found = [pod for pod in pods if not pod_status.is_over(pod)]
        if not found:
            raise NotFoundError.of(POD, name)
        return max(found, key=lambda pod: int(pod["metadata"]["resourceVersion"]))
