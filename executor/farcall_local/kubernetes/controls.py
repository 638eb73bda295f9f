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

    def cut_watches(self, *, clean: bool = False) -> None:
        """End all watches that are open.

        Args:
            clean: Whether their answers come to an end, as after their time; else their
                connections are cut within them.
        """
        self._call("cut_watches", clean=clean)

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

    def token(self, user: str) -> str:
        """Return a token of somebody, who may do what Roles bound to that name allow.

        Args:
            user: Such as ``jane``; ``system:serviceaccount:<namespace>:<name>`` is a service
                account.
        """
        return str(self._call("token", name=user))

    # --- the cluster --------------------------------------------------------------------------

    def add_node(
        self,
        name: str,
        *,
        cpu: float | str = 1,
        memory: str = "1Ti",
        gpus: int = 0,
        labels: Mapping[str, str] | None = None,
        taints: list[dict[str, str]] | None = None,
    ) -> None:
        """Add a node, or replace one by another of its name. All nodes are this machine."""
        self._call(
            "add_node",
            name=name,
            cpu=cpu,
            memory=memory,
            gpus=gpus,
            labels=dict(labels or {}),
            taints=taints or [],
        )

    def cordon(self, node: str | None = None, *, on: bool = True) -> None:
        """Have a node take no new pods, or take them again; the first one by default."""
        self._call("cordon", on=on, **_given(node=node))

    def taint(
        self,
        key: str,
        effect: str = "NoSchedule",
        value: str = "",
        *,
        node: str | None = None,
    ) -> None:
        """Taint a node. With ``NoExecute`` the pods that do not tolerate it are deleted."""
        self._call("taint", key=key, effect=effect, value=value, **_given(node=node))

    def lose_node(self, name: str | None = None, *, removed: bool = True) -> None:
        """Have a node answer no more; its pods are given up, and then the node, if `removed`."""
        self._call("lose_node", removed=removed, **_given(name=name))

    def shut_down(self, node: str | None = None) -> None:
        """Shut a node down in an orderly way: its pods end, and have failed."""
        self._call("shut_down", **_given(node=node))

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
            api: Whether by the eviction API, which deletes it; else its node is low on memory,
                and it stays as Failed with the reason Evicted.
            statuses: Whether it keeps containerStatuses then; often there are none.
        """
        self._call(
            "evict", name=name, index=index, namespace=namespace, api=api, statuses=statuses
        )

    def preempt(self, name: str, index: int | None = None, *, namespace: str = "default") -> None:
        """Delete a pod as the scheduler does for one of a higher priority."""
        self._call("preempt", name=name, index=index, namespace=namespace)

    def delete_pod(
        self,
        name: str,
        index: int | None = None,
        *,
        namespace: str = "default",
        grace_s: int | None = None,
    ) -> None:
        """Delete a pod as somebody does who has the right to."""
        self._call("delete_pod", name=name, index=index, namespace=namespace, grace_s=grace_s)

    def oom(self, name: str, index: int | None = None, *, namespace: str = "default") -> None:
        """Kill a pod's container as the kernel does that is out of memory: OOMKilled, 137."""
        self._call("oom", name=name, index=index, namespace=namespace)

    def withhold_image(self, image: str, heals_after: float | None = None) -> None:
        """Let an image not be pulled, for so many seconds; forever where none are given."""
        self._call("withhold_image", image=image, heals_after=heals_after)

    def quota(
        self, hard: Mapping[str, str] | None, *, namespace: str = "default", name: str = "quota"
    ) -> None:
        """Set a namespace's quota, such as ``{"pods": "2"}``; None takes it away."""
        self._call("quota", hard=dict(hard) if hard else None, namespace=namespace, name=name)

    def _call(self, name: str, /, **arguments: Any) -> Any:
        return self._reach("kubernetes", {"call": name, "arguments": arguments})["answer"]


def _given(**arguments: Any) -> dict[str, Any]:
    return {name: value for name, value in arguments.items() if value is not None}
