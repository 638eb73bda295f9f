"""Garbage collection: objects without an owner, expired Jobs, dead pods.

Sources:
    https://kubernetes.io/docs/concepts/architecture/garbage-collection/
    https://kubernetes.io/docs/concepts/workloads/controllers/ttlafterfinished/
    https://kubernetes.io/docs/concepts/workloads/pods/pod-lifecycle/#pod-garbage-collection
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

from farcall_local.kubernetes import pod_status
from farcall_local.kubernetes.errors import NotFoundError
from farcall_local.kubernetes.job_pods import has_finished
from farcall_local.kubernetes.kinds import EVENT, JOB, KINDS, NODE, POD, Kind
from farcall_local.kubernetes.store import FOREGROUND, ORPHAN, Store
from farcall_local.kubernetes.timing import Timing

#: An object: its kind, namespace and name.
Place = tuple[Kind, str, str]

_FINAL = ("Succeeded", "Failed")


class Garbage:
    """Deletes what nobody needs any more."""

    def __init__(self, store: Store, timing: Timing) -> None:
        self._store = store
        self._timing = timing
        self._loop = asyncio.get_running_loop()
        self._there: set[str] = set()  # UIDs
        self._owned: dict[str, dict[str, Place]] = {}  # owner's UID -> UID -> what it owns
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._later: set[asyncio.TimerHandle] = set()

    def close(self) -> None:
        """Delete nothing any more."""
        for timer in (*self._timers.values(), *self._later):
            timer.cancel()

    def after(self, delay_s: float, do: Callable[[], None]) -> None:
        """Do something later, unless all is over by then."""
        self._later.add(self._loop.call_later(delay_s, do))

    def note(self, change: str, kind: Kind, document: dict[str, Any]) -> None:
        """Take in a change of the store."""
        if kind is EVENT:
            return
        if change == "DELETED":
            self._note_end(kind, document)
        else:
            self._note_being(kind, document, new=change == "ADDED")
        if kind is POD:
            self._note_pod(change, document)
        elif kind is JOB and change != "DELETED":
            self._note_job(document)

    def _note_being(self, kind: Kind, document: dict[str, Any], *, new: bool) -> None:
        meta = document["metadata"]
        uid = meta["uid"]
        if new:
            self._there.add(uid)
            for owner in meta.get("ownerReferences") or ():
                self._owned.setdefault(owner["uid"], {})[uid] = _place(kind, document)
                if owner["uid"] not in self._there:
                    self._soon(self._delete, _place(kind, document), uid)
        finalizers = meta.get("finalizers") or ()
        if "deletionTimestamp" in meta and (FOREGROUND in finalizers or ORPHAN in finalizers):
            self._soon(self._collect, _place(kind, document), uid)

    def _note_end(self, kind: Kind, document: dict[str, Any]) -> None:
        meta = document["metadata"]
        uid = meta["uid"]
        self._there.discard(uid)
        for each, place in self._owned.pop(uid, {}).items():
            self._soon(self._delete, place, each)
        for owner in meta.get("ownerReferences") or ():
            self._owned.get(owner["uid"], {}).pop(uid, None)
            self._soon(self._look_at_owner, meta.get("namespace") or "", owner)
        timer = self._timers.pop(uid, None)
        if timer is not None:
            timer.cancel()
        if kind is NODE:
            self._soon(self._bury_all, meta["name"])

    def _note_pod(self, change: str, pod: dict[str, Any]) -> None:
        phase = (pod.get("status") or {}).get("phase")
        if change == "DELETED" or phase in _FINAL or pod["spec"].get("nodeName"):
            return
        if "deletionTimestamp" in pod["metadata"]:
            self._soon(self._bury, _place(POD, pod), pod["metadata"]["uid"])

    def _note_job(self, job: dict[str, Any]) -> None:
        uid, ttl = job["metadata"]["uid"], job["spec"].get("ttlSecondsAfterFinished")
        if ttl is None or uid in self._timers or not has_finished(job):
            return
        self._timers[uid] = self._loop.call_later(
            ttl * self._timing.ttl_scale, self._expire, _place(JOB, job), uid
        )

    def _expire(self, place: Place, uid: str) -> None:
        self._timers.pop(uid, None)
        job = self._store.get(*place)
        if job is None or job["metadata"]["uid"] != uid:
            return
        if job["spec"].get("ttlSecondsAfterFinished") is not None:
            self._store.delete(*place, propagation="Foreground")

    def _soon(self, do: Callable[..., None], *words: Any) -> None:
        """Do something when the change that is being told of has been told to all."""
        self._loop.call_soon(do, *words)

    def _delete(self, place: Place, uid: str) -> None:
        there = self._store.get(*place)
        if there is not None and there["metadata"]["uid"] == uid:
            with contextlib.suppress(NotFoundError):
                self._store.delete(*place)

    def _look_at_owner(self, namespace: str, owner: dict[str, Any]) -> None:
        """Let an owner go that is being deleted, if this was the last that it owned."""
        group, _, version = owner["apiVersion"].rpartition("/")
        for kind in KINDS:
            if (kind.group, kind.version, kind.kind) == (group, version, owner["kind"]):
                there = self._store.get(kind, namespace, owner["name"])
                if there and FOREGROUND in (there["metadata"].get("finalizers") or ()):
                    self._collect(_place(kind, there), owner["uid"])

    def _collect(self, place: Place, uid: str) -> None:
        """Delete, or let go of, what an object owns that is being deleted; then let it go."""
        there = self._store.get(*place)
        if there is None or there["metadata"]["uid"] != uid:
            return
        finalizers = there["metadata"].get("finalizers") or ()
        owned = self._owned.get(uid, {})
        if ORPHAN in finalizers:
            for at in list(owned.values()):
                self._release(at, uid)
            owned.clear()
        for each, at in list(owned.items()):
            self._delete(at, each)
        if not self._owned.get(uid):
            left = [each for each in finalizers if each not in (FOREGROUND, ORPHAN)]
            there = self._store.get(*place)
            if there is not None:
                self._store.update(
                    place[0], {**there, "metadata": {**there["metadata"], "finalizers": left}}
                )

    def _release(self, place: Place, owner: str) -> None:
        there = self._store.get(*place)
        if there is None:
            return
        meta = there["metadata"]
        left = [each for each in meta.get("ownerReferences") or () if each["uid"] != owner]
        changed = {**meta, "ownerReferences": left}
        if not left:
            del changed["ownerReferences"]
        self._store.update(place[0], {**there, "metadata": changed})

    def _bury_all(self, node: str) -> None:
        """End the pods of a node that is no more."""
        for pod in self._store.list(POD):
            if pod["spec"].get("nodeName") == node:
                self._bury(_place(POD, pod), pod["metadata"]["uid"])

    def _bury(self, place: Place, uid: str) -> None:
        """End a pod that has no kubelet: it has failed, and goes."""
        pod = self._store.get(*place)
        if pod is None or pod["metadata"]["uid"] != uid:
            return
        if (pod.get("status") or {}).get("phase") not in _FINAL:
            if pod["spec"].get("nodeName") and not _is_disrupted(pod):
                text = "PodGC: node no longer exists"
                pod = {**pod, "status": pod_status.disrupted(pod, "DeletionByPodGC", text)}
            status = {**(pod.get("status") or {}), "phase": "Failed"}
            self._store.update(POD, {**pod, "status": status})
        with contextlib.suppress(NotFoundError):
            self._store.delete(*place, grace_s=0)


def _is_disrupted(pod: dict[str, Any]) -> bool:
    found = (pod.get("status") or {}).get("conditions") or ()
    return any(each["type"] == pod_status.DISRUPTED for each in found)


def _place(kind: Kind, document: dict[str, Any]) -> Place:
    meta = document["metadata"]
    return kind, meta.get("namespace") or "", meta["name"]
