"""Forms in which a client takes objects: as they are, as a table, or their metadata alone.

Source: https://kubernetes.io/docs/reference/using-api/api-concepts/#receiving-resources-as-tables
"""

from __future__ import annotations

from typing import Any, NamedTuple

from farcall_local.kubernetes import tables
from farcall_local.kubernetes.errors import NotAcceptableError
from farcall_local.kubernetes.kinds import Kind
from farcall_local.kubernetes.paths import Target

Document = dict[str, Any]

_META = "meta.k8s.io/v1"


class Form(NamedTuple):
    """A form.

    Attributes:
        name: Empty, ``Table``, ``PartialObjectMetadata`` or ``PartialObjectMetadataList``.
        objects: What each row of a table has of its object.
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
    """Return objects as a table."""
    return tables.table(kind, items, version=version, objects=objects)


def _partial(document: Document) -> Document:
    return {
        "kind": "PartialObjectMetadata",
        "apiVersion": _META,
        "metadata": document["metadata"],
    }
