"""Garbage collection: objects without an owner, expired Jobs, pods without a node.

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
from farcall_local.kubernetes.job_controller import has_finished
from farcall_local.kubernetes.kinds import EVENT, JOB, POD, Kind
from farcall_local.kubernetes.store import Store
from farcall_local.kubernetes.timing import Timing

#: An object: its kind, namespace and name.
Place = tuple[Kind, str, str]


class Garbage:
    """Collector of objects that are no longer needed."""

    def __init__(self, store: Store, timing: Timing) -> None:
        self._store = store
        self._timing = timing
        self._loop = asyncio.get_running_loop()
        self._there: set[str] = set()  # UIDs
        self._owned: dict[str, dict[str, Place]] = {}  # owner's UID -> UID -> dependent
        self._expiring: set[str] = set()  # UIDs of Jobs
        self._timers: set[asyncio.TimerHandle] = set()

    def close(self) -> None:
        """Stop."""
        for timer in self._timers:
            timer.cancel()

    def note(self, change: str, kind: Kind, document: dict[str, Any]) -> None:
        """Process a change of the store."""
        if kind is EVENT:
            return
        if change == "DELETED":
            self._record_end(document["metadata"])
            return
        uid, place = document["metadata"]["uid"], _place(kind, document)
        if change == "ADDED":
            self._record_owners(document["metadata"], place)
        if kind is JOB:
            self._record_job(document)
        elif kind is POD and _is_deleted(document) and not _is_bound(document):
            self._soon(self._bury, place, uid)

    def _record_end(self, metadata: dict[str, Any]) -> None:
        self._there.discard(metadata["uid"])
        for uid, owned in self._owned.pop(metadata["uid"], {}).items():
            self._soon(self._delete, owned, uid)

    def _record_owners(self, metadata: dict[str, Any], place: Place) -> None:
        uid = metadata["uid"]
        self._there.add(uid)
        for owner in metadata.get("ownerReferences") or ():
            self._owned.setdefault(owner["uid"], {})[uid] = place
            if owner["uid"] not in self._there:
                self._soon(self._delete, place, uid)

    def _record_job(self, job: dict[str, Any]) -> None:
        uid, ttl = job["metadata"]["uid"], job["spec"].get("ttlSecondsAfterFinished")
        if ttl is not None and uid not in self._expiring and has_finished(job):
            self._expiring.add(uid)
            place = _place(JOB, job)
            self._timers.add(self._loop.call_later(ttl, self._delete, place, uid))

    def _soon(self, do: Callable[..., None], *arguments: Any) -> None:
        """Call a function when all subscribers have processed the current change."""
        self._loop.call_soon(do, *arguments)

    def _delete(self, place: Place, uid: str) -> None:
        there = self._store.get(*place)
        if there is not None and there["metadata"]["uid"] == uid:
            with contextlib.suppress(NotFoundError):
                self._store.delete(*place)

    def _bury(self, place: Place, uid: str) -> None:
        """Fail and delete a pod that has no kubelet."""
        pod = self._store.get(*place)
        if pod is None or pod["metadata"]["uid"] != uid:
            return
        if not pod_status.is_over(pod):
            status = {**(pod.get("status") or {}), "phase": "Failed"}
            self._store.update(POD, {**pod, "status": status})
        with contextlib.suppress(NotFoundError):
            self._store.delete(*place, grace_s=0)


def _is_deleted(document: dict[str, Any]) -> bool:
    return "deletionTimestamp" in document["metadata"]


def _is_bound(pod: dict[str, Any]) -> bool:
    """Return whether a pod has a node, or needs none because it has finished."""
    return bool(pod["spec"].get("nodeName")) or pod_status.is_over(pod)


def _place(kind: Kind, document: dict[str, Any]) -> Place:
    meta = document["metadata"]
    return kind, meta.get("namespace") or "", meta["name"]
