"""Kubernetes events that controllers, scheduler and kubelet record.

A repeated event is counted. A component records up to 25 events about one object, the initial
burst of client-go's correlator: a Job of 10,000 pods has 25 SuccessfulCreate events.

Sources:
    https://kubernetes.io/docs/reference/kubernetes-api/cluster-resources/event-v1/
    https://pkg.go.dev/k8s.io/client-go/tools/record#EventCorrelator
"""

from __future__ import annotations

import secrets
from collections import Counter
from typing import Any

from tests.emulators.kubernetes.kinds import EVENT
from tests.emulators.kubernetes.store import Store, timestamp

NORMAL, WARNING = "Normal", "Warning"

_NAMED = ("namespace", "name", "uid", "resourceVersion")

#: Maximum number of different events of one component about one object.
BURST = 25


class Recorder:
    """Event recorder of one component."""

    def __init__(self, store: Store, component: str, host: str = "") -> None:
        self._store = store
        self._source = {"component": component, **({"host": host} if host else {})}
        self._names: dict[tuple[str, ...], str] = {}
        self._counts: Counter[str] = Counter()

    def record(
        self, involved: dict[str, Any], kind: str, reason: str, message: str, field: str = ""
    ) -> None:
        """Record an event.

        Args:
            involved: The object, with its kind.
            kind: ``Normal`` or ``Warning``.
            reason: Reason in one word.
            message: Message in one sentence.
            field: Path of the affected part of the object.
        """
        meta = involved["metadata"]
        namespace = meta.get("namespace") or "default"
        same = (meta["uid"], kind, reason, message)
        before = self._store.get(EVENT, namespace, self._names.get(same, ""))
        if before:
            again = {"count": before["count"] + 1, "lastTimestamp": timestamp()}
            self._store.update(EVENT, {**before, **again})
        elif self._counts[meta["uid"]] < BURST:
            self._counts[meta["uid"]] += 1
            name = self._names[same] = f"{meta['name']}.{secrets.token_hex(8)}"
            about = {
                "kind": involved["kind"],
                "apiVersion": involved["apiVersion"],
                **{each: meta.get(each, "") for each in _NAMED},
                **({"fieldPath": field} if field else {}),
            }
            moment = timestamp()
            event = {
                "metadata": {"name": name, "namespace": namespace},
                "involvedObject": about,
                "source": self._source,
                "type": kind,
                "reason": reason,
                "message": message,
                "count": 1,
                "firstTimestamp": moment,
                "lastTimestamp": moment,
                "eventTime": None,
                "reportingComponent": self._source["component"],
                "reportingInstance": self._source.get("host", ""),
            }
            self._store.create(EVENT, event)
