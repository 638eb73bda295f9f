"""Scheduler of the local Kubernetes emulator: which pod gets which node, and why one gets none.

Pods are taken by priority, and then as they came; one that fits nowhere holds up none behind it.
Pods that ask for the same are judged together, so ten thousand that wait cost no more than one.

Sources:
    https://kubernetes.io/docs/concepts/scheduling-eviction/kube-scheduler/
    https://kubernetes.io/docs/concepts/scheduling-eviction/pod-scheduling-readiness/
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import json
from collections import Counter
from typing import Any

from farcall_local.kubernetes import nodes, pod_status
from farcall_local.kubernetes.kinds import NODE, PERSISTENT_VOLUME_CLAIM, POD, Kind
from farcall_local.kubernetes.recorder import NORMAL, WARNING, Recorder
from farcall_local.kubernetes.store import Store
from farcall_local.kubernetes.timing import Timing

NAME = "default-scheduler"

#: Pods that are told in one go that they fit nowhere, and seconds until the next ones are: a
#: scheduler looks at some hundred a second.
MARKED_AT_ONCE, MARK_PAUSE_S = 50, 0.25

Key = tuple[str, str]
#: What decides where a pod fits.
Shape = str

_FINAL = ("Succeeded", "Failed")


class Scheduler:
    """Binds pods to nodes."""

    def __init__(self, store: Store, timing: Timing) -> None:
        self._store = store
        self._timing = timing
        self._recorder = Recorder(store, NAME)
        self._loop = asyncio.get_running_loop()
        self._numbers = itertools.count()
        self._waiting: dict[Shape, list[tuple[int, int, Key]]] = {}
        self._known: set[str] = set()  # UIDs of pods that wait, or have a node
        self._bound: dict[str, tuple[str, dict[str, int]]] = {}  # UID -> node and its share
        self._used: dict[str, Counter[str]] = {}
        self._unmarked: dict[Key, Shape] = {}
        self._messages: dict[Shape, str] = {}
        self._round: asyncio.Handle | None = None
        self._marking: asyncio.TimerHandle | None = None

    def close(self) -> None:
        """Bind nothing any more."""
        for handle in (self._round, self._marking):
            if handle is not None:
                handle.cancel()

    def wake(self) -> None:
        """Look again at what waits, when the loop next turns."""
        if self._round is None and self._waiting:
            self._round = self._loop.call_soon(self._look)

    def note(self, change: str, kind: Kind, document: dict[str, Any]) -> None:
        """Take in a change of the store."""
        if kind is NODE:
            self.wake()
        elif kind is POD:
            self._note_pod(change, document)
        elif kind is PERSISTENT_VOLUME_CLAIM and change == "ADDED":
            self.wake()

    def _note_pod(self, change: str, pod: dict[str, Any]) -> None:
        uid = pod["metadata"]["uid"]
        if pod["spec"].get("schedulerName", NAME) != NAME:
            return
        if change == "DELETED" or (pod.get("status") or {}).get("phase") in _FINAL:
            self._release(uid)
        elif pod["spec"].get("nodeName"):
            self._hold(pod)
        elif uid not in self._known and not pod["spec"].get("schedulingGates"):
            self._known.add(uid)
            delay = self._timing.delays.get("Schedule", 0.0)
            if delay:
                self._loop.call_later(delay, self._queue, pod)
            else:
                self._queue(pod)
        elif pod["spec"].get("schedulingGates"):
            self._loop.call_soon(self._mark_gated, _key(pod))

    def _queue(self, pod: dict[str, Any]) -> None:
        shape = _shape(pod)
        priority = -(pod["spec"].get("priority") or 0)
        place = (priority, next(self._numbers), _key(pod))
        heapq.heappush(self._waiting.setdefault(shape, []), place)
        self._unmarked[_key(pod)] = shape
        self.wake()

    def _hold(self, pod: dict[str, Any]) -> None:
        uid, name = pod["metadata"]["uid"], pod["spec"]["nodeName"]
        if uid not in self._bound:
            self._known.add(uid)
            share = nodes.requests(pod["spec"])
            self._bound[uid] = (name, share)
            self._used.setdefault(name, Counter()).update(share)

    def _release(self, uid: str) -> None:
        self._known.discard(uid)
        held = self._bound.pop(uid, None)
        if held is not None:
            self._used[held[0]].subtract(held[1])
            self.wake()

    def _look(self) -> None:
        """Give nodes to as many pods as fit now."""
        self._round = None
        free = self._free()
        heads = [(queue[0], shape) for shape, queue in self._waiting.items()]
        heapq.heapify(heads)
        while heads:
            place, shape = heapq.heappop(heads)
            queue = self._waiting[shape]
            pod = self._still_waiting(place[2])
            if pod is not None and not self._place(pod, shape, free):
                continue
            heapq.heappop(queue)
            if queue:
                heapq.heappush(heads, (queue[0], shape))
            else:
                del self._waiting[shape]

    def _still_waiting(self, key: Key) -> dict[str, Any] | None:
        pod = self._store.get(POD, *key)
        if pod is None or pod["spec"].get("nodeName") or pod["metadata"].get("deletionTimestamp"):
            return None
        return pod

    def _free(self) -> dict[str, Counter[str]]:
        """Return what each node has left that answers, by its name."""
        found = {}
        for document in self._store.list(NODE):
            name = document["metadata"]["name"]
            if pod_status.holds(document, "Ready"):
                free = Counter(nodes.amounts(document["status"]["allocatable"]))
                free.subtract(self._used.get(name, {}))
                found[name] = free
        return found

    def _place(self, pod: dict[str, Any], shape: Shape, free: dict[str, Counter[str]]) -> bool:
        """Bind a pod to the first node that takes it; say whether there is one."""
        claim = self._missing_claim(pod)
        why: Counter[str] = Counter({claim: max(1, len(free))} if claim else {})
        would_help = 0
        for name, left in () if claim else free.items():
            document = self._store.get(NODE, "", name)
            assert document is not None  # noqa: S101 - says so to the type checker
            found, helps = nodes.objections(document, pod["spec"], left)
            if not found:
                left.subtract(nodes.requests(pod["spec"]))
                self._bind(pod, name)
                return True
            why.update(found)
            would_help += helps
        self._leave(shape, claim or _message(why, len(free), would_help))
        return False

    def _missing_claim(self, pod: dict[str, Any]) -> str:
        for volume in pod["spec"].get("volumes") or ():
            claim = (volume.get("persistentVolumeClaim") or {}).get("claimName")
            namespace = pod["metadata"]["namespace"]
            if claim and self._store.get(PERSISTENT_VOLUME_CLAIM, namespace, claim) is None:
                return (
                    f"0/{len(self._store.list(NODE))} nodes are available: "
                    f'persistentvolumeclaim "{claim}" not found. not found'
                )
        return ""

    def _bind(self, pod: dict[str, Any], name: str) -> None:
        self._unmarked.pop(_key(pod), None)
        status = pod.get("status") or {}
        changed = pod_status.put(status.get("conditions") or [], "PodScheduled", "True")
        pod = self._store.update(
            POD,
            {
                **pod,
                "spec": {**pod["spec"], "nodeName": name},
                "status": {**status, "conditions": changed},
            },
        )
        text = f"Successfully assigned {'/'.join(_key(pod))} to {name}"
        self._recorder.tell(pod, NORMAL, "Scheduled", text)

    def _leave(self, shape: Shape, message: str) -> None:
        """Have the pods of a shape told that they fit nowhere, where that is news."""
        before, self._messages[shape] = self._messages.get(shape), message
        if before not in (None, message):
            self._unmarked.update({key: shape for _, _, key in self._waiting[shape]})
        if self._unmarked and self._marking is None:
            self._marking = self._loop.call_later(0, self._mark_some)

    def _mark_some(self) -> None:
        self._marking = None
        for key in list(itertools.islice(self._unmarked, MARKED_AT_ONCE)):
            message = self._messages.get(self._unmarked.pop(key))
            if message is not None:
                self._mark(key, message)
        if self._unmarked:
            self._marking = self._loop.call_later(MARK_PAUSE_S, self._mark_some)

    def _mark(self, key: Key, message: str) -> None:
        pod = self._still_waiting(key)
        if pod is not None and self._put(pod, "Unschedulable", message):
            self._recorder.tell(pod, WARNING, "FailedScheduling", message)

    def _mark_gated(self, key: Key) -> None:
        pod = self._still_waiting(key)
        if pod is not None:
            self._put(
                pod, "SchedulingGated", "Scheduling is blocked due to non-empty scheduling gates"
            )

    def _put(self, pod: dict[str, Any], reason: str, message: str) -> bool:
        status = pod.get("status") or {}
        before = status.get("conditions") or []
        changed = pod_status.put(before, "PodScheduled", "False", reason, message)
        if changed is before:
            return False
        self._store.update(POD, {**pod, "status": {**status, "conditions": changed}})
        return True


def _message(why: Counter[str], there: int, would_help: int) -> str:
    """Say why a pod fits on no node, as the scheduler and its preemption do."""
    if not there:
        return "no nodes available to schedule pods"
    reasons = ", ".join(sorted(f"{count} {reason}" for reason, count in why.items()))
    helped = {
        "No preemption victims found for incoming pod": would_help,
        "Preemption is not helpful for scheduling": there - would_help,
    }
    victims = ", ".join(sorted(f"{count} {reason}" for reason, count in helped.items() if count))
    none = f"0/{there} nodes are available"
    return f"{none}: {reasons}. no new claims to deallocate, preemption: {none}: {victims}."


def _shape(pod: dict[str, Any]) -> Shape:
    spec = pod["spec"]
    parts = ("nodeSelector", "affinity", "tolerations", "priority", "schedulerName")
    claims = [
        volume["persistentVolumeClaim"]["claimName"]
        for volume in spec.get("volumes") or ()
        if "persistentVolumeClaim" in volume
    ]
    said = [spec.get(part) for part in parts]
    namespace = pod["metadata"]["namespace"]
    return json.dumps([nodes.requests(spec), said, namespace, claims], sort_keys=True)


def _key(pod: dict[str, Any]) -> Key:
    return pod["metadata"]["namespace"], pod["metadata"]["name"]
