"""Verbs of the Kubernetes API on its objects: create, get, list, patch, delete.

Source: https://kubernetes.io/docs/reference/using-api/api-concepts/
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tests.emulators.kubernetes import admission, documents, selectors
from tests.emulators.kubernetes.errors import (
    AlreadyExistsError,
    BadRequestError,
    Cause,
    ExpiredError,
    InvalidError,
    NotFoundError,
    UnsupportedMediaTypeError,
)
from tests.emulators.kubernetes.kinds import JOB, NAMESPACE, POD, Kind, Target
from tests.emulators.kubernetes.nodes import admit_pod
from tests.emulators.kubernetes.store import Store, generated_name, key_of, timestamp

Document = dict[str, Any]

JSON = "application/json"
_PATCH = "application/merge-patch+json"
_SERVER_SET = (
    *("uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds"),
    *("generation", "resourceVersion", "managedFields"),
)


@dataclass
class ApiRequest:
    """Request for objects.

    Attributes:
        target: Target of the request.
        query: Query parameters.
        content_type: Content type of the body, without parameters.
        body: Body of the request.
    """

    target: Target
    query: Mapping[str, str]
    content_type: str = JSON
    body: bytes = b""

    @property
    def is_dry(self) -> bool:
        """Whether the request is a dry run, which stores nothing."""
        return self.query.get("dryRun") == "All"


class Resources:
    """Request handler for the objects of a store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._verbs = {
            "create": self._create,
            "get": lambda request: self.get(request.target),
            "list": self._list,
            "patch": self._patch,
            "delete": self._delete,
        }

    def handle(self, request: ApiRequest) -> tuple[int, Document]:
        """Handle a request; return the HTTP status and the object, list or Status.

        Raises:
            StatusError: The request is rejected.
        """
        status = 201 if request.target.verb == "create" else 200
        return status, self._verbs[request.target.verb](request)

    def get(self, target: Target) -> Document:
        """Return an object.

        Raises:
            NotFoundError: The object does not exist.
        """
        found = self._store.get(target.kind, target.namespace, target.name)
        if found is None:
            raise NotFoundError.of(target.kind, target.name)
        return found

    # --- lists ------------------------------------------------------------------------------

    def _list(self, request: ApiRequest) -> Document:
        target, limit = request.target, _number(request.query, "limit")
        version, after = self._start(request.query.get("continue"))
        selects = selectors.of(target, request.query)
        left = [
            each
            for each in self._store.list(target.kind, target.namespace)
            if selects(each) and key_of(each) > after
        ]
        metadata: Document = {"resourceVersion": str(version)}
        shown = left[:limit] if limit else left
        if len(shown) < len(left):
            metadata["continue"] = json.dumps([version, *key_of(shown[-1])])
        # The list has the kind of its items.
        items = [
            {name: value for name, value in each.items() if name not in ("kind", "apiVersion")}
            for each in shown
        ]
        return {
            "kind": f"{target.kind.kind}List",
            "apiVersion": target.kind.api_version,
            "metadata": metadata,
            "items": items,
        }

    def _start(self, token: str | None) -> tuple[int, tuple[str, ...]]:
        """Return a list's version, and the position of the previous page's last object."""
        if not token:
            return self._store.version, ("", "")
        version, *after = json.loads(token)
        if version < self._store.compacted:
            raise ExpiredError(
                "The provided continue parameter is too old to display a consistent list result. "
                "You can start a new list without the continue parameter."
            )
        return version, tuple(after)

    # --- changes ----------------------------------------------------------------------------

    def _create(self, request: ApiRequest) -> Document:
        target, kind = request.target, request.target.kind
        document = _parsed(request)
        metadata = _new_metadata(target, document)
        document.pop("status", None)
        if kind.namespaced and not self._store.get(NAMESPACE, "", target.namespace):
            raise NotFoundError.of(NAMESPACE, target.namespace)
        document = documents.fill(kind, {**document, "metadata": metadata})
        _refuse(kind, metadata, documents.check(kind, document))
        if kind is POD:
            document = admit_pod(self._store, document)
        if kind is JOB:
            admission.check_job(document)
        if not request.is_dry:
            return self._store.create(kind, document)
        if self._store.get(kind, target.namespace, metadata["name"]):
            raise AlreadyExistsError.of(kind, metadata["name"])
        return {**document, "metadata": {**metadata, "creationTimestamp": timestamp()}}

    def _patch(self, request: ApiRequest) -> Document:
        kind = request.target.kind
        if request.content_type != _PATCH:
            raise UnsupportedMediaTypeError(_PATCH)
        stored = self.get(request.target)
        document = _merged(stored, _json(request.body))
        documents.check_types(kind, document)
        metadata = {**document["metadata"]}
        for name in ("uid", "name", "namespace", "creationTimestamp"):
            metadata.pop(name, None)
            if name in stored["metadata"]:
                metadata[name] = stored["metadata"][name]
        document = {**document, "metadata": metadata}
        if "status" in stored:
            document["status"] = stored["status"]
        document = documents.fill(kind, document)
        _refuse(kind, metadata, documents.check(kind, document, stored))
        return self._store.update(kind, document)

    def _delete(self, request: ApiRequest) -> Document:
        target, options = request.target, _json(request.body) if request.body.strip() else {}
        policy, grace = (
            options.get(name, request.query.get(name))
            for name in ("propagationPolicy", "gracePeriodSeconds")
        )
        if policy not in (None, "Background"):
            raise BadRequestError(
                f"propagationPolicy: Invalid value: {policy!r}: farcall's local Kubernetes "
                "emulator deletes in the background only"
            )
        if request.is_dry or options.get("dryRun"):
            return self.get(target)
        return self._store.delete(
            target.kind,
            target.namespace,
            target.name,
            grace_s=None if grace is None else int(grace),
        )


def _parsed(request: ApiRequest) -> Document:
    """Parse a request's body, and check that it has the path's kind."""
    # aiohttp reports application/octet-stream for a request without the header.
    if request.content_type not in (JSON, "application/octet-stream"):
        raise UnsupportedMediaTypeError(JSON)
    kind = request.target.kind
    found = {"kind": kind.kind, "apiVersion": kind.api_version, **_json(request.body)}
    if (found["kind"], found["apiVersion"]) != (kind.kind, kind.api_version):
        raise BadRequestError(
            f"the API version in the data ({found['apiVersion']}, {found['kind']}) does not match "
            f"the expected API version ({kind.api_version}, {kind.kind})"
        )
    documents.check_types(kind, found)
    return {**found, "metadata": found.get("metadata") or {}}


def _merged(document: Any, patch: Any) -> Any:
    """Return a document changed by a JSON merge patch (RFC 7386)."""
    if not isinstance(patch, dict):
        return patch
    made = dict(document) if isinstance(document, dict) else {}
    for name, value in patch.items():
        if value is None:
            made.pop(name, None)
        else:
            made[name] = _merged(made.get(name), value)
    return made


def _new_metadata(target: Target, document: Document) -> Document:
    """Return a new object's metadata with name, UID and the path's namespace."""
    metadata = {
        name: value for name, value in document["metadata"].items() if name not in _SERVER_SET
    }
    if not metadata.get("name") and metadata.get("generateName"):
        metadata["name"] = generated_name(metadata["generateName"])
    if not metadata.get("name"):
        why = "name or generateName is required"
        _refuse(target.kind, metadata, [documents.required("metadata.name", why)])
    metadata["uid"] = str(uuid.uuid4())
    namespace = metadata.pop("namespace", "")
    if not target.kind.namespaced:
        return metadata
    if namespace not in ("", target.namespace):
        raise BadRequestError(
            "the namespace of the provided object does not match the namespace sent on the request"
        )
    return {**metadata, "namespace": target.namespace}


def _refuse(kind: Kind, metadata: Document, causes: list[Cause]) -> None:
    if causes:
        raise InvalidError.of(kind, metadata.get("name", ""), causes)


def _json(body: bytes) -> Document:
    try:
        found = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise BadRequestError(f"json parse error: {error}") from None
    if not isinstance(found, dict):
        raise BadRequestError("json parse error: the body is not an object")
    return found


def _number(query: Mapping[str, str], name: str) -> int:
    text = query.get(name) or "0"
    if not text.isdigit():
        raise BadRequestError(f'{name}: Invalid value: "{text}": it is not a number')
    return int(text)
