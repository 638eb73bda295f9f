"""Forms in which a client takes objects: as they are, as a table, or their metadata alone.

A real API server has columns for each kind. Here each kind has a name, a status and an age.

Source: https://kubernetes.io/docs/reference/using-api/api-concepts/#receiving-resources-as-tables
"""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any, NamedTuple

from farcall_local.kubernetes.errors import NotAcceptableError
from farcall_local.kubernetes.kinds import JOB, POD, Kind
from farcall_local.kubernetes.paths import Target

Document = dict[str, Any]

_META = "meta.k8s.io/v1"
_COLUMNS = ("Name", "Status", "Age")
#: Conditions of a Job that say more than that it runs, the strongest first.
_JOB_STATES = ("Complete", "Failed", "Suspended", "FailureTarget", "SuccessCriteriaMet")
_UNITS = ((86_400, "d"), (3_600, "h"), (60, "m"), (1, "s"))


class Form(NamedTuple):
    """A form.

    Attributes:
        name: Empty, ``Table``, ``PartialObjectMetadata`` or ``PartialObjectMetadataList``.
        objects: What each row of a table has of its object: ``None``, ``Metadata`` or ``Object``.
    """

    name: str = ""
    objects: str = "Metadata"

    @property
    def is_table(self) -> bool:
        """Whether it is a table."""
        return self.name == "Table"


def wanted(accept: str, objects: str = "") -> Form:
    """Return the first form of a header ``Accept`` that is served.

    Args:
        accept: The header; empty for whatever there is.
        objects: The parameter ``includeObject``.

    Raises:
        NotAcceptableError: It has none of them.
    """
    for each in accept.split(",") if accept else ["application/json"]:
        kind, *parameters = [part.strip() for part in each.split(";")]
        given = dict(part.split("=", 1) for part in parameters if "=" in part)
        if kind not in ("application/json", "application/*", "*/*"):
            continue
        if given.get("v", "v1") == "v1" or not given.get("as"):
            return Form(given.get("as", ""), objects or "Metadata")
    raise NotAcceptableError(
        "only the following media types are accepted: application/json, "
        "application/json;as=Table;g=meta.k8s.io;v=v1, "
        "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
    )


def render(form: Form, target: Target, document: Document) -> Document:
    """Return an object or a list in a form; a Status stays as it is."""
    if not form.name or document.get("kind") == "Status":
        return document
    items = document.get("items", [document])
    if form.is_table:
        made = table(target.kind, items, document["metadata"]["resourceVersion"], form.objects)
        made["metadata"] = {**document["metadata"]} if "items" in document else made["metadata"]
        return made
    if "items" not in document:
        return _partial(document)
    return {
        "kind": "PartialObjectMetadataList",
        "apiVersion": _META,
        "metadata": document["metadata"],
        "items": [_partial(each) for each in items],
    }


def table(kind: Kind, items: list[Document], version: str, objects: str = "Metadata") -> Document:
    """Return objects as a Table."""
    now = datetime.now(timezone.utc)
    return {
        "kind": "Table",
        "apiVersion": _META,
        "metadata": {"resourceVersion": version},
        "columnDefinitions": [
            {
                "name": name,
                "type": "string",
                "format": "name" if name == "Name" else "",
                "description": name,
                "priority": 0,
            }
            for name in _COLUMNS
        ],
        "rows": [
            {
                "cells": [each["metadata"]["name"], _status(kind, each), _age(each, now)],
                **_object(kind, each, objects),
            }
            for each in items
        ],
    }


def _status(kind: Kind, document: Document) -> str:
    status = document.get("status") or {}
    if document["metadata"].get("deletionTimestamp"):
        return "Terminating"
    if kind == JOB:
        holds = {each["type"] for each in status.get("conditions", ()) if each["status"] == "True"}
        return next((state for state in _JOB_STATES if state in holds), "Running")
    if kind == POD:
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
    stamp = document["metadata"].get("creationTimestamp")
    if not stamp:
        return "<unknown>"
    made = datetime.fromisoformat(stamp.replace("Z", "+00:00"))  # Python 3.10 knows no Z
    seconds = max(0, int((now - made).total_seconds()))
    size, unit = next((each for each in _UNITS if seconds >= each[0]), _UNITS[-1])
    return f"{seconds // size}{unit}"


def _object(kind: Kind, document: Document, objects: str) -> Document:
    """Return what a row has of its object."""
    if objects == "None":
        return {}
    if objects == "Object":
        return {"object": {"kind": kind.kind, "apiVersion": kind.api_version, **document}}
    return {"object": _partial(document)}


def _partial(document: Document) -> Document:
    return {
        "kind": "PartialObjectMetadata",
        "apiVersion": _META,
        "metadata": document["metadata"],
    }
