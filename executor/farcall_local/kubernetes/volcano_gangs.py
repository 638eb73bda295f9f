"""PodGroups of Volcano: pods of which all are placed, or none.

A group is let in when its queue is open and its members fit into what the nodes have left. Pods of
a plain Job that name Volcano's scheduler get a group by their owner.

Sources:
    https://volcano.sh/en/docs/podgroup/
    https://github.com/volcano-sh/volcano/blob/master/pkg/controllers/podgroup/pg_controller_handler.go
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from farcall_local.kubernetes import conditions, quantities
from farcall_local.kubernetes.kinds import (
    JOB,
    NODE,
    POD,
    POD_GROUP,
    VOLCANO_QUEUE,
    Kind,
)
from farcall_local.kubernetes.store import Store, timestamp
from farcall_local.kubernetes.volcano_admission import QUEUE, SCHEDULER

GROUP = "scheduling.k8s.io/group-name"
_QUEUE_NAME = "scheduling.volcano.sh/queue-name"
_LEAST = "scheduling.volcano.sh/group-min-member"

_FINAL = ("Succeeded", "Failed")
_LET_IN = ("Inqueue", "Running")
_Key = tuple[str, str]


class Gangs:
    """Knows which pods of Volcano's scheduler may have a node.

    Args:
        store: Holds groups, pods and nodes.
        wake: Has the scheduler look again.
    """

    def __init__(self, store: Store, wake: Callable[[], None]) -> None:
        self._store = store
        self._wake = wake
        self._loop = asyncio.get_running_loop()
        self._members: dict[_Key, set[str]] = {}
        self._round: asyncio.Handle | None = None
        self._new: dict[_Key, None] = {}
        if store.get(VOLCANO_QUEUE, "", QUEUE) is None:
            store.create(
                VOLCANO_QUEUE,
                {
                    "metadata": {"name": QUEUE},
                    "spec": {"weight": 1, "reclaimable": True},
                    "status": {"state": "Open"},
                },
            )

    def close(self) -> None:
        """Let nobody in any more."""
        if self._round is not None:
            self._round.cancel()

    def may_start(self, pod: dict[str, Any]) -> bool:
        """Say whether a pod may have a node: its group is let in, and all of it is there."""
        key = _group_of(pod)
        group = self._store.get(POD_GROUP, *key) if key else None
        if key is None or group is None or _phase(group) not in _LET_IN:
            return False
        return len(self._members.get(key, ())) >= _least(group)

    def note(self, change: str, kind: Kind, document: dict[str, Any]) -> None:
        """Take in a change of the store."""
        if kind == POD:
            self._note_pod(change, document)
        elif kind in (POD_GROUP, VOLCANO_QUEUE, NODE):
            self._soon()

    def _note_pod(self, change: str, pod: dict[str, Any]) -> None:
        meta = pod["metadata"]
        key = _group_of(pod)
        ended = change == "DELETED" or (pod.get("status") or {}).get("phase") in _FINAL
        if ended:
            self._soon()  # there is room again
        if pod["spec"].get("schedulerName") != SCHEDULER:
            return
        if key is not None:
            members = self._members.setdefault(key, set())
            (members.discard if change == "DELETED" else members.add)(meta["name"])
        elif not ended:
            self._new[meta["namespace"], meta["name"]] = None
        self._soon()

    def _soon(self) -> None:
        if self._round is None:
            self._round = self._loop.call_soon(self._look)

    def _look(self) -> None:
        self._round = None
        new, self._new = self._new, {}
        for key in new:
            self._adopt(key)
        for group in self._store.list(POD_GROUP):
            self._move(group)
        self._wake()

    def _adopt(self, key: _Key) -> None:
        """Put a pod that Volcano's own controller did not make into the group of its owner."""
        pod = self._store.get(POD, *key)
        if pod is None or _group_of(pod) is not None:
            return
        meta = pod["metadata"]
        refs = meta.get("ownerReferences") or ()
        owner = next((ref for ref in refs if ref.get("controller")), None)
        name = f"podgroup-{owner['uid'] if owner else meta['uid']}"
        if self._store.get(POD_GROUP, meta["namespace"], name) is None:
            self._store.create(POD_GROUP, self._group(pod, name, owner))
        annotations = {**(meta.get("annotations") or {}), GROUP: name}
        self._store.update(POD, {**pod, "metadata": {**meta, "annotations": annotations}})

    def _group(
        self, pod: dict[str, Any], name: str, owner: dict[str, Any] | None
    ) -> dict[str, Any]:
        meta, spec = pod["metadata"], pod["spec"]
        job = self._store.get(JOB, meta["namespace"], owner["name"]) if owner else None
        least = (job["metadata"].get("annotations") or {}).get(_LEAST, "1") if job else "1"
        wanted: dict[str, Any] = {
            "minMember": max(1, int(least) if least.isdecimal() else 1),
            "queue": (meta.get("annotations") or {}).get(_QUEUE_NAME, QUEUE),
        }
        wanted["minResources"] = resources_of([spec] * wanted["minMember"])
        if spec.get("priorityClassName"):
            wanted["priorityClassName"] = spec["priorityClassName"]
        found: dict[str, Any] = {"name": name, "namespace": meta["namespace"]}
        if owner:
            found["ownerReferences"] = [owner]
        return {"metadata": found, "spec": wanted, "status": {"phase": "Pending"}}

    def _move(self, group: dict[str, Any]) -> None:
        """Let a group in that waits, or say why it is not; note that it runs."""
        phase = _phase(group)
        if phase in ("", "Pending"):
            why = self._objection(group)
            self._tell(group, "Pending" if why else "Inqueue", why)
        elif phase == "Inqueue":
            meta = group["metadata"]
            names = self._members.get((meta["namespace"], meta["name"]), ())
            pods = [self._store.get(POD, meta["namespace"], name) for name in names]
            placed = sum(bool(pod and pod["spec"].get("nodeName")) for pod in pods)
            if placed >= _least(group):
                self._tell(group, "Running", "")

    def _objection(self, group: dict[str, Any]) -> str:
        name = group["spec"].get("queue") or QUEUE
        queue = self._store.get(VOLCANO_QUEUE, "", name)
        if queue is None:
            return f"queue {name} is not found"
        if (queue.get("status") or {}).get("state") != "Open":
            return f"queue {name} is not open"
        free = self._free()
        wanted = quantities.amounts(group["spec"].get("minResources"))
        short = [name for name, amount in wanted.items() if amount > free[name]]
        if not short:
            return ""
        return f"{_least(group)} tasks cannot be placed together: insufficient {', '.join(short)}"

    def _free(self) -> Counter[str]:
        """Return what all nodes that answer have left."""
        free: Counter[str] = Counter()
        for node in self._store.list(NODE):
            if conditions.holds(node, "Ready"):
                free.update(quantities.amounts(node["status"]["allocatable"]))
        for pod in self._store.list(POD):
            if pod["spec"].get("nodeName") and pod.get("status", {}).get("phase") not in _FINAL:
                free.subtract(quantities.requests(pod["spec"]))
        return free

    def _tell(self, group: dict[str, Any], phase: str, why: str) -> None:
        status = group.get("status") or {}
        before = status.get("conditions") or ()
        if status.get("phase") == phase and (before[-1].get("message") if before else "") == why:
            return
        told = {**status, "phase": phase}
        told["conditions"] = [
            {
                "type": "Unschedulable" if why else "Scheduled",
                "status": "True",
                "reason": "NotEnoughResources"
                if why
                else "tasks in gang are ready to be scheduled",
                "message": why,
                "lastTransitionTime": timestamp(),
                "transitionID": group["metadata"]["uid"],
            }
        ]
        self._store.update(POD_GROUP, {**group, "status": told})


def resources_of(specs: Iterable[dict[str, Any]]) -> dict[str, str]:
    """Return what pods ask for together, as documents say it."""
    total: Counter[str] = Counter()
    for spec in specs:
        total.update(quantities.requests(spec))
    del total["pods"]
    return {name: f"{value}m" if name == "cpu" else str(value) for name, value in total.items()}


def _group_of(pod: dict[str, Any]) -> _Key | None:
    name = (pod["metadata"].get("annotations") or {}).get(GROUP)
    return (pod["metadata"]["namespace"], name) if name else None


def _least(group: dict[str, Any]) -> int:
    return int(group["spec"].get("minMember") or 1)


def _phase(group: dict[str, Any]) -> str:
    return str((group.get("status") or {}).get("phase") or "")
