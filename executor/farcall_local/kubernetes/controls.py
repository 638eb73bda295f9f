"""Development calls of the local Kubernetes emulator: faults, nodes, evictions.

Each is a call of ``POST /_farcall/kubernetes`` with ``{"call": name, "arguments": {...}}``.
`farcall_local.kubernetes.embedded` carries them out; nothing of it is imported here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any


class KubernetesControls:
    """The development calls of a local Kubernetes emulator: ``aws.kubernetes``.

    Args:
        call: Reaches the server with a call's name and document.
    """

    def __init__(self, call: Callable[[str, dict[str, Any]], Any]) -> None:
        self._reach = call

    def configure(self, **times: float | None) -> None:
        """Set how long things take, by the names of `farcall_local.kubernetes.timing.Timing`."""
        self._call("configure", **times)

    # --- the API ------------------------------------------------------------------------------

    def lose_answer(self, count: int = 1) -> None:
        """Carry the next creations out, and close their connections without an answer."""
        self._call("lose_answer", count=count)

    def throttle(self, count: int = 1, retry_after_s: int = 1) -> None:
        """Answer the next requests with 429."""
        self._call("throttle", count=count, retry_after_s=retry_after_s)

    def cut_watches(self) -> None:
        """Close the connections of all watches."""
        self._call("cut_watches")

    def compact(self) -> None:
        """Forget the history: a watch from any version that somebody knows is refused with 410."""
        self._call("compact")

    def stop_api(self) -> None:
        """Cut all connections and refuse new ones. Objects stay, and controllers work on."""
        self._call("stop_api")

    def start_api(self) -> None:
        """Serve again, on the same port."""
        self._call("start_api")

    def restart(self) -> None:
        """Stop the API server and start it; as of a real one, its history begins again."""
        self.stop_api()
        self.compact()
        self.start_api()

    def requests(self) -> dict[str, int]:
        """Return how many requests there were since the start, such as ``{"create jobs": 2}``.

        ``429`` has those that `throttle` refused, which are counted nowhere else.
        """
        found: dict[str, int] = self._call("requests")
        return found

    # --- the cluster --------------------------------------------------------------------------

    def add_node(
        self,
        name: str,
        *,
        cpu: float = 1,
        memory: str = "1Ti",
        gpus: int = 0,
        labels: Mapping[str, str] | None = None,
    ) -> None:
        """Add a node, or replace the node of that name. All nodes are this machine."""
        arguments = {"cpu": cpu, "memory": memory, "gpus": gpus, "labels": dict(labels or {})}
        self._call("add_node", name=name, **arguments)

    def lose_node(self) -> None:
        """Disconnect the first node; its pods are given up, and then it is removed."""
        self._call("lose_node")

    def evict(
        self,
        name: str,
        index: int | None = None,
        *,
        namespace: str = "default",
        api: bool = False,
    ) -> None:
        """Evict a pod.

        Args:
            name: Name of a pod or a Job.
            index: Index of the Job's pod.
            namespace: Its namespace.
            api: Whether the eviction API deletes the pod; else its node is low on memory, and the
                pod stays as Failed with the reason Evicted.
        """
        self._call("evict", name=name, index=index, namespace=namespace, api=api)

    def preempt(self, name: str, index: int | None = None, *, namespace: str = "default") -> None:
        """Delete a pod as the scheduler does for one of a higher priority."""
        self._call("preempt", name=name, index=index, namespace=namespace)

    def oom(self, name: str, index: int | None = None, *, namespace: str = "default") -> None:
        """Kill a pod's container as the kernel does that is out of memory: OOMKilled, 137."""
        self._call("oom", name=name, index=index, namespace=namespace)

    def withhold_image(self, image: str, heals_after: float | None = None) -> None:
        """Let an image not be pulled, for so many seconds; forever where none are given."""
        self._call("withhold_image", image=image, heals_after=heals_after)

    def quota(self, hard: Mapping[str, str] | None, *, namespace: str = "default") -> None:
        """Set a namespace's quota, such as ``{"pods": "2"}``; None removes it."""
        self._call("quota", hard=dict(hard) if hard else None, namespace=namespace)

    def _call(self, name: str, /, **arguments: Any) -> Any:
        return self._reach("kubernetes", {"call": name, "arguments": arguments})["answer"]
