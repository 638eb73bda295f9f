"""Kubelets of the embedded Kubernetes: they run the pods that were given to their nodes.

All nodes are this machine: one object runs the pods of all.

Source:
    https://kubernetes.io/docs/reference/command-line-tools-reference/kubelet/
"""

from __future__ import annotations

import asyncio
from typing import Any

from farcall_local.kubernetes.kinds import POD, Kind
from farcall_local.kubernetes.pod_run import Change, PodRun, World

_FINAL = ("Succeeded", "Failed")


class Kubelet:
    """Runs pods, and ends them when they are deleted."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._runs: dict[str, PodRun] = {}  # by UID
        self._tasks: set[asyncio.Task[None]] = set()
        self._nodes: dict[str, str] = {}  # UID -> node
        self._lost: set[str] = set()
        self._closed = False

    def note(self, change: str, kind: Kind, document: dict[str, Any]) -> None:
        """Take in a change of the store."""
        if kind is not POD or self._closed:
            return
        meta = document["metadata"]
        uid, run = meta["uid"], self._runs.get(meta["uid"])
        if change == "DELETED":
            if run is not None:
                run.stop(0.0)
            self._world.logs.forget(uid)
        elif run is not None:
            if "deletionTimestamp" in meta:
                run.stop(meta.get("deletionGracePeriodSeconds") or 0.0)
        elif self._is_new(document):
            self._begin(document)

    def run_of(self, uid: str) -> PodRun | None:
        """Return what runs a pod; None where it does not run."""
        return self._runs.get(uid)

    def evict(self, uid: str, final: Change) -> None:
        """End a pod at once, with a status of the node's."""
        run = self._runs.get(uid)
        if run is not None:
            run.stop(0.0, final)

    def lose(self, node: str) -> None:
        """Have a node answer no more: what runs there is gone, and nobody says so."""
        self._lost.add(node)
        for uid, run in self._runs.items():
            if self._nodes[uid] == node:
                run.lose()

    def find(self, node: str) -> None:
        """Have a node answer again."""
        self._lost.discard(node)

    async def close(self) -> None:
        """Kill what runs, and start nothing any more."""
        self._closed = True
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _is_new(self, pod: dict[str, Any]) -> bool:
        node = pod["spec"].get("nodeName")
        ended = (pod.get("status") or {}).get("phase") in _FINAL
        return bool(node) and node not in self._lost and not ended

    def _begin(self, pod: dict[str, Any]) -> None:
        uid = pod["metadata"]["uid"]
        run = self._runs[uid] = PodRun(self._world, pod)
        self._nodes[uid] = pod["spec"]["nodeName"]
        task = asyncio.get_running_loop().create_task(self._run(uid, run))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, uid: str, run: PodRun) -> None:
        try:
            await run.run()
        finally:
            del self._runs[uid], self._nodes[uid]
