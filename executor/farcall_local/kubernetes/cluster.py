"""Controllers, scheduler, kubelets and nodes of the local Kubernetes emulator.

It works on the store alone and never speaks HTTP. Its methods besides `start` and `close` are what
tests do to a cluster: evict, preempt, lose a node. All of it belongs on one event loop.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from farcall_local.kubernetes import nodes, pod_status
from farcall_local.kubernetes.errors import AlreadyExistsError, NotFoundError
from farcall_local.kubernetes.garbage import Garbage
from farcall_local.kubernetes.job_controller import JobController
from farcall_local.kubernetes.kinds import JOB, NODE, POD, RESOURCE_QUOTA, Kind
from farcall_local.kubernetes.log_answers import PodLogs
from farcall_local.kubernetes.pod_run import Images, Kubelet, World
from farcall_local.kubernetes.pod_template import index_of
from farcall_local.kubernetes.recorder import NORMAL, WARNING, Recorder
from farcall_local.kubernetes.scheduler import Scheduler
from farcall_local.kubernetes.store import Store
from farcall_local.kubernetes.timing import Timing
from farcall_local.runners.runner import Runner

#: Memory of the node that is there from the start: of processes nobody limits it.
MEMORY = "1Ti"

UNREACHABLE = "node.kubernetes.io/unreachable"
_LOW_MEMORY = (
    "The node was low on resource: memory. Threshold quantity: 100Mi, available: 52Mi. "
    "Container {name} was using 1Gi, request is 0, has larger consumption of memory. "
)
_SHUTDOWN = "Pod was terminated in response to imminent node shutdown."
_PREEMPTED = "default-scheduler: preempting to accommodate a higher priority pod"
_EVICTED_BY_API = "Eviction API: evicting"
_TAINTED = "Taint manager: deleting due to NoExecute taint"
_FINAL = ("Succeeded", "Failed")


class Cluster:
    """What works on the store.

    Args:
        store: Holds all objects.
        runner: Starts containers; whoever made it closes it.
        cpus: Processors of the node that is there from the start.
        timing: How long things take.

    Attributes:
        logs: Of all pods.
        scheduler: Binds them to nodes.
        timing: How long things take; may be changed at any time.
    """

    def __init__(
        self, store: Store, runner: Runner, *, cpus: float, timing: Timing | None = None
    ) -> None:
        self.timing = timing or Timing()
        self.logs = PodLogs()
        self._store = store
        self._runner = runner
        self._cpus = cpus
        self._folder = tempfile.TemporaryDirectory(prefix="farcall-claims-")
        self._images = Images()
        self._recorder = Recorder(store, "kubelet", nodes.NAME)
        self.scheduler = Scheduler(store, self.timing)
        self._kubelet = Kubelet(
            World(
                store,
                runner,
                self.logs,
                self.timing,
                self._images,
                self._recorder,
                Path(self._folder.name),
            )
        )
        self._jobs = JobController(store, self.timing)
        self._garbage = Garbage(store, self.timing)
        self._unsubscribe = store.subscribe(self._note)

    def start(self) -> None:
        """Add the first node."""
        self.add_node(nodes.NAME, cpu=self._cpus)

    async def close(self) -> None:
        """Kill what runs, and do nothing any more."""
        self._unsubscribe()
        for part in (self._jobs, self.scheduler, self._garbage):
            part.close()
        await self._kubelet.close()
        self._folder.cleanup()

    def _note(
        self, change: str, kind: Kind, document: dict[str, Any], _: dict[str, Any] | None
    ) -> None:
        for part in (self._jobs, self.scheduler, self._garbage):
            part.note(change, kind, document)
        self._kubelet.note(change, kind, document)

    def add_node(
        self,
        name: str,
        *,
        cpu: float | str = 1,
        memory: str = MEMORY,
        gpus: int = 0,
        labels: Mapping[str, str] | None = None,
        taints: Iterable[Mapping[str, str]] = (),
    ) -> None:
        """Add a node, or replace one by another of its name. All nodes are this machine."""
        has: dict[str, Any] = {"cpu": f"{float(cpu):g}" if _is_number(cpu) else cpu}
        has["memory"] = memory
        if gpus:
            has["nvidia.com/gpu"] = gpus
        document = nodes.node(name, has, labels=labels, taints=list(taints))
        self._kubelet.find(name)
        try:
            self._store.create(NODE, document)
        except AlreadyExistsError:
            self._store.update(NODE, document)

    def cordon(self, node: str = nodes.NAME, *, on: bool = True) -> None:
        """Have a node take no new pods, or take them again."""
        document = self._node(node)
        spec = {key: value for key, value in document["spec"].items() if key != "unschedulable"}
        self._store.update(
            NODE, {**document, "spec": {**spec, **({"unschedulable": True} if on else {})}}
        )

    def taint(
        self, key: str, effect: str = "NoSchedule", value: str = "", node: str = nodes.NAME
    ) -> None:
        """Taint a node. With ``NoExecute`` the pods that do not tolerate it are deleted."""
        document = self._node(node)
        taint = {"key": key, "effect": effect, **({"value": value} if value else {})}
        there = [each for each in document["spec"].get("taints") or () if each["key"] != key]
        spec = {**document["spec"], "taints": [*there, taint]}
        self._store.update(NODE, {**document, "spec": spec})
        if effect == "NoExecute":
            for pod in self._pods_of(node):
                if not nodes.tolerates(pod["spec"], taint):
                    self._disrupt(pod, "DeletionByTaintManager", _TAINTED)

    def lose_node(self, name: str = nodes.NAME, *, removed: bool = True) -> None:
        """Have a node answer no more: its processes are killed, and nobody says how they ended.

        After `Timing.lost_s` its pods are deleted (NodeLost, DeletionByTaintManager), and then
        the node itself, with which they have failed.

        Args:
            name: The node.
            removed: Whether the node is removed; else its pods go on terminating until
                `add_node` brings it back.
        """
        document = self._node(name)
        status = dict(document["status"])
        text = "Kubelet stopped posting node status."
        status["conditions"] = pod_status.put(
            status["conditions"], "Ready", "Unknown", "NodeStatusUnknown", text
        )
        taint = {"key": UNREACHABLE, "effect": "NoExecute"}
        spec = {**document["spec"], "taints": [*(document["spec"].get("taints") or ()), taint]}
        self._kubelet.lose(name)
        self._store.update(NODE, {**document, "spec": spec, "status": status})
        self._garbage.after(self.timing.lost_s, lambda: self._give_up(name, removed=removed))

    def _give_up(self, node: str, *, removed: bool) -> None:
        there = self._store.get(NODE, "", node)
        if there is None or pod_status.holds(there, "Ready"):
            return
        for pod in self._pods_of(node):
            text = f"Node {node} which was running pod {pod['metadata']['name']} is unresponsive"
            status = {**pod["status"], "reason": "NodeLost", "message": text}
            pod = self._store.update(POD, {**pod, "status": status})
            self._disrupt(pod, "DeletionByTaintManager", _TAINTED)
        if removed:
            self._store.delete(NODE, "", node)

    def shut_down(self, node: str = nodes.NAME) -> None:
        """Shut a node down in an orderly way: its pods end, and have failed."""
        for pod in self._pods_of(node):
            self._end(pod, "Terminated", _SHUTDOWN, statuses=True)

    def evict(
        self,
        name: str,
        index: int | None = None,
        *,
        namespace: str = "default",
        api: bool = False,
        statuses: bool = False,
    ) -> None:
        """Evict a pod.

        Args:
            name: A pod's, or a Job's.
            index: Of the Job's pod.
            namespace: Where it is.
            api: Whether by the eviction API, as ``kubectl drain`` does, which deletes it; else
                its node is low on memory, and it stays as Failed with the reason Evicted.
            statuses: Whether it keeps containerStatuses then; often there are none.
        """
        pod = self._pod(name, index, namespace)
        if api:
            self._disrupt(pod, "EvictionByEvictionAPI", _EVICTED_BY_API)
            return
        text = _LOW_MEMORY.format(name=pod["spec"]["containers"][0]["name"])
        self._end(pod, "Evicted", text, statuses=statuses)
        self._recorder.tell(pod, WARNING, "Evicted", text)

    def preempt(self, name: str, index: int | None = None, *, namespace: str = "default") -> None:
        """Delete a pod as the scheduler does for one of a higher priority."""
        pod = self._pod(name, index, namespace)
        node = pod["spec"].get("nodeName", "")
        self._recorder.tell(pod, NORMAL, "Preempted", f"Preempted by a pod on node {node}")
        self._disrupt(pod, "PreemptionByScheduler", _PREEMPTED)

    def delete_pod(
        self,
        name: str,
        index: int | None = None,
        *,
        namespace: str = "default",
        grace_s: int | None = None,
    ) -> None:
        """Delete a pod as somebody does who has the right to."""
        meta = self._pod(name, index, namespace)["metadata"]
        self._store.delete(POD, namespace, meta["name"], grace_s=grace_s)

    def oom(self, name: str, index: int | None = None, *, namespace: str = "default") -> None:
        """Kill a pod's container as the kernel does that is out of memory: OOMKilled, 137."""
        pod = self._pod(name, index, namespace)
        run = self._kubelet.run_of(pod["metadata"]["uid"])
        if run is not None:
            run.kill("OOMKilled")

    def withhold_image(self, image: str, heals_after: float | None = None) -> None:
        """Let an image not be pulled, for so many seconds; forever where none are given."""
        self._images.withhold(image, heals_after)

    def quota(
        self, hard: Mapping[str, str] | None, *, namespace: str = "default", name: str = "quota"
    ) -> None:
        """Set a namespace's quota, such as ``{"pods": "2"}``; None takes it away."""
        with contextlib.suppress(NotFoundError):
            self._store.delete(RESOURCE_QUOTA, namespace, name)
        if hard is not None:
            document = {
                "metadata": {"name": name, "namespace": namespace},
                "spec": {"hard": dict(hard)},
            }
            self._store.create(RESOURCE_QUOTA, document)

    def _disrupt(self, pod: dict[str, Any], reason: str, message: str) -> None:
        meta = pod["metadata"]
        self._store.update(POD, {**pod, "status": pod_status.disrupted(pod, reason, message)})
        self._store.delete(POD, meta["namespace"], meta["name"])

    def _end(self, pod: dict[str, Any], reason: str, message: str, *, statuses: bool) -> None:
        def final(pod: dict[str, Any]) -> dict[str, Any]:
            ended = {**pod, "status": pod_status.failed(pod, reason, message)}
            status = pod_status.disrupted(ended, "TerminationByKubelet", message)
            return (
                status
                if statuses
                else {k: v for k, v in status.items() if k != "containerStatuses"}
            )

        self._kubelet.evict(pod["metadata"]["uid"], final)

    def _node(self, name: str) -> dict[str, Any]:
        document = self._store.get(NODE, "", name)
        if document is None:
            raise NotFoundError.of(NODE, name)
        return document

    def _pods_of(self, node: str) -> list[dict[str, Any]]:
        return [
            pod
            for pod in self._store.list(POD)
            if pod["spec"].get("nodeName") == node
            and (pod.get("status") or {}).get("phase") not in _FINAL
        ]

    def _pod(self, name: str, index: int | None, namespace: str) -> dict[str, Any]:
        """Return a pod by its name, or the newest that has not ended of a Job's index."""
        pod = self._store.get(POD, namespace, name)
        if pod is not None and index is None:
            return pod
        found = [
            each
            for each in self._store.list(POD, namespace)
            if _job_of(each) == name
            and (index is None or index_of(each) == index)
            and (each.get("status") or {}).get("phase") not in _FINAL
        ]
        if not found:
            raise NotFoundError.of(JOB if index is not None else POD, name)
        return max(found, key=lambda each: int(each["metadata"]["resourceVersion"]))


def _job_of(pod: dict[str, Any]) -> str:
    owners = pod["metadata"].get("ownerReferences") or ()
    return next((owner["name"] for owner in owners if owner["kind"] == "Job"), "")


def _is_number(value: float | str) -> bool:
    return not isinstance(value, str)
