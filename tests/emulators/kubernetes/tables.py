"""Tables of objects for kubectl, with name, status and age of each kind.

Source: https://kubernetes.io/docs/reference/using-api/api-concepts/#receiving-resources-as-tables
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from tests.emulators.kubernetes.kinds import JOB, POD, Kind

Document = dict[str, Any]

_META = "meta.k8s.io/v1"
#: Conditions that are a Job's status, the strongest first.
_JOB_STATES = ("Complete", "Failed", "Suspended", "FailureTarget", "SuccessCriteriaMet")
_UNITS = ((86_400, "d"), (3_600, "h"), (60, "m"), (1, "s"))


def is_wanted(accept: str) -> bool:
    """Return whether an ``Accept`` header prefers a table."""
    return "as=Table" in accept.partition(",")[0]


def render(kind: Kind, document: Document) -> Document:
    """Return an object or a list as a table."""
    now = datetime.now(UTC)
    return {
        "kind": "Table",
        "apiVersion": _META,
        "metadata": {
            name: value
            for name, value in document["metadata"].items()
            if name in ("resourceVersion", "continue")
        },
        "columnDefinitions": [
            {
                "name": name,
                "type": "string",
                "format": "name" if name == "Name" else "",
                "description": name,
                "priority": 0,
            }
            for name in ("Name", "Status", "Age")
        ],
        "rows": [
            {
                "cells": [each["metadata"]["name"], _status(kind, each), _age(each, now)],
                "object": {
                    "kind": "PartialObjectMetadata",
                    "apiVersion": _META,
                    "metadata": each["metadata"],
                },
            }
            for each in document.get("items", [document])
        ],
    }


def _status(kind: Kind, document: Document) -> str:
    status = document.get("status") or {}
    if document["metadata"].get("deletionTimestamp"):
        return "Terminating"
    if kind is JOB:
        holds = {each["type"] for each in status.get("conditions", ()) if each["status"] == "True"}
        return next((state for state in _JOB_STATES if state in holds), "Running")
    if kind is POD:
        states = [each.get("state", {}) for each in status.get("containerStatuses", ())]
        reasons = [
            each[name]["reason"]
            for each in states
            for name in ("waiting", "terminated")
            if each.get(name, {}).get("reason")
        ]
        return str(status.get("reason") or next(iter(reasons), "") or status.get("phase", ""))
    return str(status.get("phase", ""))


def _age(document: Document, now: datetime) -> str:
    stamp = document["metadata"]["creationTimestamp"]
    made = datetime.fromisoformat(stamp)
    seconds = max(0, int((now - made).total_seconds()))
    size, unit = next((each for each in _UNITS if seconds >= each[0]), _UNITS[-1])
    return f"{seconds // size}{unit}"
