"""Garbage collection: objects that a Job owned, expired Jobs, pods without a node.

Sources:
    https://kubernetes.io/docs/concepts/architecture/garbage-collection/
    https://kubernetes.io/docs/concepts/workloads/controllers/ttlafterfinished/
    https://kubernetes.io/docs/concepts/workloads/pods/pod-lifecycle/#pod-garbage-collection
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from tests.emulators.kubernetes import pod_status
from tests.emulators.kubernetes.errors import NotFoundError
from tests.emulators.kubernetes.job_controller import has_finished
from tests.emulators.kubernetes.kinds import JOB, KINDS, POD, Kind
from tests.emulators.kubernetes.store import Store, key_of

#: An object: its kind, namespace and name.
Key = tuple[Kind, str, str]


class Garbage:
    """Collector of objects that are no longer needed."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._loop = asyncio.get_running_loop()
        self._timers: dict[str, asyncio.TimerHandle] = {}  # by the UID of an expiring Job

    def close(self) -> None:
        """Stop."""
        for timer in self._timers.values():
            timer.cancel()

    def on_change(self, change: str, kind: Kind, document: dict[str, Any]) -> None:
        """Process a change of the store.

        Objects are deleted when all subscribers have processed the change.
        """
        uid, is_gone = document["metadata"]["uid"], change == "DELETED"
        if kind is JOB and is_gone:
            self._loop.call_soon(self._delete_dependents, uid)
        elif kind is JOB:
            self._record_job(document)
        elif kind is POD and not is_gone and _is_orphaned(document):
            self._loop.call_soon(self._delete_unbound, (POD, *key_of(document)), uid)

    def _record_job(self, job: dict[str, Any]) -> None:
        uid, ttl = job["metadata"]["uid"], job["spec"].get("ttlSecondsAfterFinished")
        if ttl is not None and uid not in self._timers and has_finished(job):
            self._timers[uid] = self._loop.call_later(ttl, self._delete, (JOB, *key_of(job)), uid)

    def _delete_dependents(self, uid: str) -> None:
        for kind in KINDS:
            for each in self._store.list(kind):
                owners = each["metadata"].get("ownerReferences") or ()
                if any(owner["uid"] == uid for owner in owners):
                    self._delete((kind, *key_of(each)), each["metadata"]["uid"])

    def _delete(self, key: Key, uid: str) -> None:
        stored = self._store.get(*key)
        if stored is not None and stored["metadata"]["uid"] == uid:
            with contextlib.suppress(NotFoundError):
                self._store.delete(*key)

    def _delete_unbound(self, key: Key, uid: str) -> None:
        """Fail and delete a pod that has no kubelet."""
        pod = self._store.get(*key)
        if pod is None or pod["metadata"]["uid"] != uid:
            return
        if not pod_status.is_over(pod):
            status = {**(pod.get("status") or {}), "phase": "Failed"}
            self._store.update(POD, {**pod, "status": status})
        with contextlib.suppress(NotFoundError):
            self._store.delete(*key, grace_s=0)


def _is_orphaned(pod: dict[str, Any]) -> bool:
    """Return whether a pod is being deleted, has not finished and has no node."""
    is_deleting = "deletionTimestamp" in pod["metadata"]
    return is_deleting and not pod["spec"].get("nodeName") and not pod_status.is_over(pod)
