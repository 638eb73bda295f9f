"""Scheduler of the Kubernetes emulator: binds pods to the node, or records reasons.

Pods are bound in the order in which they were created. Pods with the same requirements share a
queue, so a round costs no more if ten thousand of them wait.

Source:
    https://kubernetes.io/docs/concepts/scheduling-eviction/kube-scheduler/
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections import Counter, deque
from typing import Any

from tests.emulators.kubernetes import nodes, pod_status
from tests.emulators.kubernetes.kinds import PERSISTENT_VOLUME_CLAIM, POD, Kind
from tests.emulators.kubernetes.recorder import NORMAL, WARNING, Recorder
from tests.emulators.kubernetes.store import Store, key_of

NAME = "default-scheduler"

#: Maximum number of pods of a queue that are marked as unschedulable at a time.
MARKED = 50

Key = tuple[str, str]
#: Requirements of a pod, as JSON.
Shape = str


class Scheduler:
    """Scheduler that binds pods to the node."""

    def __init__(self, store: Store, node: dict[str, Any]) -> None:
        self._store = store
        self._node = node
        self._recorder = Recorder(store, NAME)
        self._loop = asyncio.get_running_loop()
        self._numbers = itertools.count()
        self._waiting: dict[Shape, deque[tuple[int, Key]]] = {}
        self._known: set[str] = set()  # UIDs of pods that wait or have a node
        self._bound: dict[str, dict[str, int]] = {}  # requests by UID
        self._free = Counter(nodes.amounts(node["status"]["allocatable"]))
        self._round: asyncio.Handle | None = None

    def close(self) -> None:
        """Stop."""
        if self._round is not None:
            self._round.cancel()

    def on_change(self, change: str, kind: Kind, document: dict[str, Any]) -> None:
        """Process a change of the store."""
        if kind is POD:
            self._record_pod(change, document)
        elif kind is PERSISTENT_VOLUME_CLAIM and change == "ADDED":
            self._wake()

    def _wake(self) -> None:
        """Schedule a round."""
        if self._round is None and self._waiting:
            self._round = self._loop.call_soon(self._run_round)

    def _record_pod(self, change: str, pod: dict[str, Any]) -> None:
        uid = pod["metadata"]["uid"]
        if change == "DELETED" or pod_status.is_over(pod):
            self._known.discard(uid)
            if (share := self._bound.pop(uid, None)) is not None:
                self._free.update(share)
                self._wake()
        elif pod["spec"].get("nodeName") and uid not in self._bound:
            self._known.add(uid)
            share = self._bound[uid] = nodes.requests(pod["spec"])
            self._free.subtract(share)
        elif uid not in self._known:
            self._known.add(uid)
            queue = self._waiting.setdefault(_shape(pod), deque())
            queue.append((next(self._numbers), key_of(pod)))
            self._wake()

    def _run_round(self) -> None:
        """Bind as many pods as fit now."""
        self._round = None
        blocked: set[Shape] = set()
        while open_ := [shape for shape in self._waiting if shape not in blocked]:
            shape = min(open_, key=lambda each: self._waiting[each][0])
            queue = self._waiting[shape]
            pod = self._still_waiting(queue[0][1])
            if pod is not None and (why := self._place(pod)):
                self._mark(queue, why)
                blocked.add(shape)
                continue
            queue.popleft()
            if not queue:
                del self._waiting[shape]

    def _still_waiting(self, key: Key) -> dict[str, Any] | None:
        pod = self._store.get(POD, *key)
        if pod is None or pod["spec"].get("nodeName") or pod["metadata"].get("deletionTimestamp"):
            return None
        return pod

    def _place(self, pod: dict[str, Any]) -> str:
        """Bind a pod if the node accepts it; else return the real scheduler's message."""
        none = "0/1 nodes are available"
        if claim := self._missing_claim(pod):
            return f'{none}: persistentvolumeclaim "{claim}" not found.'
        found = nodes.objections(self._node, pod["spec"], self._free)
        if not found:
            self._bind(pod)
            return ""
        reasons = ", ".join(sorted(f"1 {reason}" for reason in found))
        return f"{none}: {reasons}."

    def _missing_claim(self, pod: dict[str, Any]) -> str:
        namespace = pod["metadata"]["namespace"]
        for claim in _claims(pod):
            if self._store.get(PERSISTENT_VOLUME_CLAIM, namespace, claim) is None:
                return claim
        return ""

    def _bind(self, pod: dict[str, Any]) -> None:
        status = pod.get("status") or {}
        changed = pod_status.put(status.get("conditions") or [], "PodScheduled", "True")
        spec = {**pod["spec"], "nodeName": nodes.NAME}
        pod = self._store.update(
            POD, {**pod, "spec": spec, "status": {**status, "conditions": changed}}
        )
        text = f"Successfully assigned {'/'.join(key_of(pod))} to {nodes.NAME}"
        self._recorder.record(pod, NORMAL, "Scheduled", text)

    def _mark(self, queue: deque[tuple[int, Key]], message: str) -> None:
        """Record the reason in the first pods of a queue that do not fit."""
        for _, key in list(itertools.islice(queue, MARKED)):
            pod = self._still_waiting(key)
            if pod is None:
                continue
            status = pod.get("status") or {}
            before = status.get("conditions") or []
            changed = pod_status.put(before, "PodScheduled", "False", "Unschedulable", message)
            if changed is not before:
                self._store.update(POD, {**pod, "status": {**status, "conditions": changed}})
                self._recorder.record(pod, WARNING, "FailedScheduling", message)


def _shape(pod: dict[str, Any]) -> Shape:
    spec = pod["spec"]
    parts = [nodes.requests(spec), spec.get("nodeSelector"), _claims(pod)]
    return json.dumps([pod["metadata"]["namespace"], *parts], sort_keys=True)


def _claims(pod: dict[str, Any]) -> list[str]:
    return [
        volume["persistentVolumeClaim"]["claimName"]
        for volume in pod["spec"].get("volumes") or ()
        if "persistentVolumeClaim" in volume
    ]
