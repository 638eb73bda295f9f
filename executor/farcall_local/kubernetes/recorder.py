"""Events of Kubernetes: what controllers, scheduler and kubelet tell of an object.

An event that repeats itself is counted. Of one object a component tells 25 at once, and then one
in five minutes, as client-go's correlator has it: a Job of 10,000 pods has 25 SuccessfulCreate.
Events are kept for an hour.

Sources:
    https://kubernetes.io/docs/reference/kubernetes-api/cluster-resources/event-v1/
    https://pkg.go.dev/k8s.io/client-go/tools/record#EventCorrelator
"""

from __future__ import annotations

import secrets
import time
from collections import deque
from typing import Any

from farcall_local.kubernetes.kinds import EVENT
from farcall_local.kubernetes.store import Store, timestamp

NORMAL, WARNING = "Normal", "Warning"

#: Events of one component on one object that are told at once, and seconds until one more is.
BURST, REFILL_S = 25, 300.0
#: Seconds for which events are kept.
KEPT_S = 3600.0


class Recorder:
    """Writes events."""

    def __init__(self, store: Store, component: str, host: str = "") -> None:
        self._store = store
        self._source = {"component": component, **({"host": host} if host else {})}
        self._told: dict[tuple[str, ...], str] = {}
        self._budgets: dict[str, tuple[float, float]] = {}
        self._kept: deque[tuple[float, str, str, tuple[str, ...]]] = deque()

    def tell(
        self, involved: dict[str, Any], kind: str, reason: str, message: str, field: str = ""
    ) -> None:
        """Tell of an object.

        Args:
            involved: The object, with its kind.
            kind: ``Normal`` or ``Warning``.
            reason: A word.
            message: A sentence.
            field: Path of the part of the object that it is about.
        """
        meta = involved["metadata"]
        self._drop_old()
        same = (meta["uid"], kind, reason, message)
        name = self._told.get(same)
        before = name and self._store.get(EVENT, meta.get("namespace") or "default", name)
        if not self._may_tell(meta["uid"]):
            return
        if before:
            again = {"count": before["count"] + 1, "lastTimestamp": timestamp()}
            self._store.update(EVENT, {**before, **again})
            return
        self._told[same] = self._write(involved, kind, reason, message, field)
        self._kept.append(
            (time.monotonic(), meta.get("namespace") or "default", self._told[same], same)
        )

    def _write(
        self, involved: dict[str, Any], kind: str, reason: str, message: str, field: str
    ) -> str:
        meta, moment = involved["metadata"], timestamp()
        about = {
            "kind": involved["kind"],
            "namespace": meta.get("namespace", ""),
            "name": meta["name"],
            "uid": meta["uid"],
            "apiVersion": involved["apiVersion"],
            "resourceVersion": meta.get("resourceVersion", ""),
        }
        if field:
            about["fieldPath"] = field
        name = f"{meta['name']}.{secrets.token_hex(8)}"
        self._store.create(
            EVENT,
            {
                "apiVersion": "v1",
                "kind": "Event",
                "metadata": {"name": name, "namespace": meta.get("namespace") or "default"},
                "involvedObject": about,
                "reason": reason,
                "message": message,
                "source": self._source,
                "firstTimestamp": moment,
                "lastTimestamp": moment,
                "count": 1,
                "type": kind,
                "eventTime": None,
                "reportingComponent": self._source["component"],
                "reportingInstance": self._source.get("host", ""),
            },
        )
        return name

    def _may_tell(self, uid: str) -> bool:
        moment = time.monotonic()
        left, last = self._budgets.get(uid, (float(BURST), moment))
        left = min(BURST, left + (moment - last) / REFILL_S)
        allowed = left >= 1
        self._budgets[uid] = (left - allowed, moment)
        return allowed

    def _drop_old(self) -> None:
        while self._kept and self._kept[0][0] < time.monotonic() - KEPT_S:
            _, namespace, name, same = self._kept.popleft()
            self._told.pop(same, None)
            self._budgets.pop(same[0], None)
            if self._store.get(EVENT, namespace, name) is not None:
                self._store.delete(EVENT, namespace, name)
