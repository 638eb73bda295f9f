"""Verbs of the Kubernetes API on its objects: create, get, list, update, patch, delete.

Source: https://kubernetes.io/docs/reference/using-api/api-concepts/
"""

from __future__ import annotations

import json
import uuid
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml

from farcall_local.kubernetes import defaults, pod_status, schema, selectors, validation
from farcall_local.kubernetes.errors import (
    AlreadyExistsError,
    BadRequestError,
    Cause,
    ConflictError,
    ExpiredError,
    ForbiddenError,
    InvalidError,
    NotFoundError,
    TooLargeVersionError,
    UnsupportedMediaTypeError,
)
from farcall_local.kubernetes.kinds import JOB, NAMESPACE, POD, Kind
from farcall_local.kubernetes.paths import EVICTION, Target
from farcall_local.kubernetes.store import Store, generated_name, timestamp

Document = dict[str, Any]

#: Lists whose further pages are remembered; whoever asks later has to begin again.
PAGES = 256

_PATCH = "application/merge-patch+json"
_SERVER_SET = (
    "uid",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "generation",
    "resourceVersion",
    "selfLink",
    "managedFields",
)
#: Kinds of which a delete answers the object, and not a Status, once it is gone.
_TOLD_WHOLE = (
    "pods",
    "services",
    "serviceaccounts",
    "resourcequotas",
    "persistentvolumeclaims",
    "namespaces",
)
_ORPHANS = (
    "child pods are preserved by default when jobs are deleted; set propagationPolicy=Background "
    "to remove them or set propagationPolicy=Orphan to suppress this warning"
)


@dataclass
class Asked:
    """A request for objects.

    Attributes:
        target: What it is about.
        query: Its parameters.
        content_type: Of the body, without parameters.
        body: As it came.
    """

    target: Target
    query: Mapping[str, str]
    content_type: str
    body: bytes

    @property
    def is_dry(self) -> bool:
        """Whether nothing is to be stored."""
        return self.query.get("dryRun") == "All"


@dataclass
class Answer:
    """What is answered.

    Attributes:
        status: Of HTTP.
        document: The object, list or Status.
        warnings: For the headers ``Warning``.
    """

    status: int
    document: Document
    warnings: list[str] = field(default_factory=list)


class Resources:
    """The objects of a store, as requests see and change them.

    Args:
        store: Keeps them.
        admit: Returns a new Pod as it is admitted, or raises ForbiddenError.
    """

    def __init__(self, store: Store, admit: Callable[[Store, Document], Document]) -> None:
        self._store = store
        self._admit = admit
        self._pages: OrderedDict[str, tuple[int, list[Document]]] = OrderedDict()
        self._verbs: dict[str, Callable[[Asked], Answer]] = {
            "create": self._create,
            "get": self._get,
            "list": self._list,
            "update": self._update,
            "patch": self._patch,
            "delete": self._delete,
            "deletecollection": self._delete_all,
        }

    def answer(self, asked: Asked) -> Answer:
        """Carry a request out.

        Raises:
            StatusError: It is refused.
        """
        if asked.query.get("dryRun") not in (None, "", "All"):
            raise BadRequestError(
                f'dryRun: Invalid value: "{asked.query["dryRun"]}": supported values: "All"'
            )
        if asked.target.subresource == EVICTION:
            return self._evict(asked)
        return self._verbs[asked.target.verb](asked)

    def selected(self, target: Target, query: Mapping[str, str]) -> selectors.Selector:
        """Return what selects the objects of a list or a watch.

        Raises:
            BadRequestError: A selector cannot be understood.
        """
        rules = [
            selectors.labels(query.get("labelSelector", "")),
            selectors.fields(target.kind, query.get("fieldSelector", "")),
        ]
        wanted = [rule for rule in rules if rule]
        namespace = target.namespace

        def selects(document: Mapping[str, Any]) -> bool:
            if namespace and document["metadata"].get("namespace") != namespace:
                return False
            return all(rule(document) for rule in wanted)

        return selects

    def _get(self, asked: Asked) -> Answer:
        return Answer(200, self._found(asked.target))

    def _found(self, target: Target) -> Document:
        found = self._store.get(target.kind, target.namespace, target.name)
        if found is None:
            raise NotFoundError.of(target.kind, target.name)
        return found

    # --- lists ------------------------------------------------------------------------------

    def _list(self, asked: Asked) -> Answer:
        limit = _number(asked.query, "limit")
        token = asked.query.get("continue")
        version, left = self._page(token) if token else self._first_page(asked)
        metadata: Document = {"resourceVersion": str(version)}
        shown = left[:limit] if limit else left
        if len(shown) < len(left):
            metadata["continue"] = self._keep(version, left[len(shown) :])
            if not (asked.query.get("labelSelector") or asked.query.get("fieldSelector")):
                metadata["remainingItemCount"] = len(left) - len(shown)
        return Answer(200, listed(asked.target.kind, shown, metadata))

    def _first_page(self, asked: Asked) -> tuple[int, list[Document]]:
        target, wanted = asked.target, asked.query.get("resourceVersion", "")
        if wanted and not wanted.isdigit():
            raise BadRequestError(f'Invalid value: "{wanted}": resourceVersion is not a number')
        if asked.query.get("resourceVersionMatch") == "Exact" and int(wanted or 0) != (
            self._store.version
        ):
            raise ExpiredError(f"The provided resource version is too old: {wanted}")
        if wanted and int(wanted) > self._store.version:
            raise TooLargeVersionError(wanted, self._store.version)
        selects = self.selected(target, asked.query)
        documents = self._store.list(target.kind, target.namespace)
        return self._store.version, [each for each in documents if selects(each)]

    def _keep(self, version: int, rest: list[Document]) -> str:
        token = uuid.uuid4().hex
        self._pages[token] = version, rest
        if len(self._pages) > PAGES:
            self._pages.popitem(last=False)
        return token

    def _page(self, token: str) -> tuple[int, list[Document]]:
        if token not in self._pages or self._pages[token][0] < self._store.compacted:
            raise ExpiredError(
                "The provided continue parameter is too old to display a consistent list result. "
                "You can start a new list without the continue parameter."
            )
        return self._pages[token]

    # --- changes ----------------------------------------------------------------------------

    def _create(self, asked: Asked) -> Answer:
        target = asked.target
        document, warnings = self._read(asked, asked.body)
        metadata = _placed(target, document)
        for name in _SERVER_SET:
            metadata.pop(name, None)
        if not metadata.get("name") and metadata.get("generateName"):
            metadata["name"] = generated_name(metadata["generateName"])
        if not metadata.get("name"):
            required = validation.required("metadata.name", "name or generateName is required")
            _refuse(target.kind, {"metadata": metadata}, [required])
        metadata["uid"] = str(uuid.uuid4())
        if target.kind.has_status:
            document.pop("status", None)
        self._check_namespace(target, metadata)
        document = defaults.fill(target.kind, {**document, "metadata": metadata})
        _refuse(target.kind, document, validation.check(target.kind, document))
        if target.kind == POD:
            document = self._admit(self._store, document)
        if asked.is_dry:
            self._check_new(target, metadata["name"])
            return Answer(201, _dry(target.kind, document), warnings)
        return Answer(201, self._store.create(target.kind, document), warnings)

    def _check_new(self, target: Target, name: str) -> None:
        """Refuse a name that is there, as the store does."""
        if self._store.get(target.kind, target.namespace, name):
            raise AlreadyExistsError.of(target.kind, name)

    def _check_namespace(self, target: Target, metadata: Document) -> None:
        if not target.kind.namespaced:
            return
        namespace = self._store.get(NAMESPACE, "", target.namespace)
        if namespace is None:
            raise NotFoundError.of(NAMESPACE, target.namespace)
        if namespace["metadata"].get("deletionTimestamp"):
            raise ForbiddenError(
                f'{target.kind.resource} "{metadata["name"]}" is forbidden: unable to create new '
                f"content in namespace {target.namespace} because it is being terminated"
            )

    def _update(self, asked: Asked) -> Answer:
        document, warnings = self._read(asked, asked.body)
        metadata = _placed(asked.target, document)
        if metadata.get("name") != asked.target.name:
            raise BadRequestError(
                f"the name of the object ({metadata.get('name')}) does not match the name on the "
                f"URL ({asked.target.name})"
            )
        there = self._found(asked.target)
        return self._replace(asked, {**document, "metadata": metadata}, there, warnings)

    def _patch(self, asked: Asked) -> Answer:
        if asked.content_type != _PATCH:
            raise UnsupportedMediaTypeError(
                "the body of the request was in an unknown format - accepted media types "
                f"include: {_PATCH}"
            )
        patch = parsed(asked.body, "application/json")
        if not isinstance(patch, dict):
            raise BadRequestError("error decoding patch: it is not an object")
        there = self._found(asked.target)
        made = _merged(there, patch)
        document, warnings = self._decoded(asked, made)
        return self._replace(asked, document, there, warnings)

    def _replace(
        self, asked: Asked, document: Document, there: Document, warnings: list[str]
    ) -> Answer:
        kind = asked.target.kind
        metadata = {**document["metadata"]}
        for name in ("uid", "resourceVersion"):
            metadata[name] = metadata.get(name) or there["metadata"][name]
        for name in ("name", "namespace", "generation", "creationTimestamp", "managedFields"):
            metadata.pop(name, None)
            if name in there["metadata"]:
                metadata[name] = there["metadata"][name]
        document = {**document, "metadata": metadata}
        if asked.target.subresource == "status":
            kept = {**there["metadata"], "resourceVersion": metadata["resourceVersion"]}
            document = {**there, "metadata": kept, "status": document.get("status", {})}
        else:
            if kind.has_status:
                document["status"] = there.get("status", {})
            document = defaults.fill(kind, document)
            found = validation.check(kind, document) + validation.changed(kind, document, there)
            _refuse(kind, document, found)
        if asked.is_dry:
            if metadata["resourceVersion"] != there["metadata"]["resourceVersion"]:
                raise ConflictError.of(kind, asked.target.name)
            return Answer(200, document, warnings)
        return Answer(200, self._store.update(kind, document), warnings)

    # --- deletions --------------------------------------------------------------------------

    def _delete(self, asked: Asked) -> Answer:
        options = _delete_options(asked)
        there = self._found(asked.target)
        _check_preconditions(asked.target.kind, there, options.get("preconditions") or {})
        last, warnings = self._end(asked.target.kind, there, options)
        gone = (
            self._store.get(asked.target.kind, asked.target.namespace, asked.target.name) is None
        )
        if gone and asked.target.kind.plural not in _TOLD_WHOLE:
            return Answer(200, _success(asked.target.kind, last), warnings)
        return Answer(200, last, warnings)

    def _delete_all(self, asked: Asked) -> Answer:
        options = _delete_options(asked)
        selects = self.selected(asked.target, asked.query)
        found = [
            each
            for each in self._store.list(asked.target.kind, asked.target.namespace)
            if selects(each)
        ]
        ended = [self._end(asked.target.kind, each, options) for each in found]
        warnings = [warning for _, told in ended[:1] for warning in told]
        metadata = {"resourceVersion": str(self._store.version)}
        return Answer(
            200, listed(asked.target.kind, [last for last, _ in ended], metadata), warnings
        )

    def _end(self, kind: Kind, there: Document, options: Document) -> tuple[Document, list[str]]:
        policy = options.get("propagationPolicy")
        warnings = []
        if policy is None:
            policy = "Background"
            if kind == JOB:
                policy, warnings = "Orphan", [_ORPHANS]
        metadata = there["metadata"]
        if options.get("dryRun"):
            return there, warnings
        last = self._store.delete(
            kind,
            metadata.get("namespace", ""),
            metadata["name"],
            propagation=policy,
            grace_s=options.get("gracePeriodSeconds"),
        )
        return last, warnings

    def _evict(self, asked: Asked) -> Answer:
        """Delete a pod as `kubectl drain` has it; there are no disruption budgets here."""
        document = parsed(asked.body, asked.content_type)
        options = (document.get("deleteOptions") if isinstance(document, dict) else None) or {}
        there = self._found(asked.target)
        if not asked.is_dry:
            reason, text = "EvictionByEvictionAPI", "Eviction API: evicting"
            status = pod_status.disrupted(there, reason, text)
            self._end(POD, self._store.update(POD, {**there, "status": status}), options)
        return Answer(201, {"kind": "Status", "apiVersion": "v1", "status": "Success"})

    # --- documents --------------------------------------------------------------------------

    def _read(self, asked: Asked, body: bytes) -> tuple[Document, list[str]]:
        found = parsed(body, asked.content_type)
        kind = asked.target.kind
        is_json = asked.content_type in ("", "application/json")
        if is_json and asked.query.get("fieldValidation") == "Strict":
            json.loads(body, object_pairs_hook=_no_duplicates)
        if isinstance(found, dict):  # what it is can be seen by where it is sent
            found = {"kind": kind.kind, "apiVersion": kind.api_version, **found}
        if not isinstance(found, dict) or not found["kind"]:
            raise BadRequestError(
                f"the object provided is unrecognized (must be of type {kind.kind}): couldn't get "
                "version/kind"
            )
        if (found["kind"], found.get("apiVersion")) != (kind.kind, kind.api_version):
            raise BadRequestError(
                f"{found['kind']} in version {json.dumps(found.get('apiVersion'))} cannot be "
                f"handled as a {kind.kind}: the API version in the data "
                f"({found.get('apiVersion')}, {found['kind']}) does not match the expected API "
                f"version ({kind.api_version}, {kind.kind})"
            )
        return self._decoded(asked, found)

    def _decoded(self, asked: Asked, given: Document) -> tuple[Document, list[str]]:
        """Return a document of known fields alone, and what is to be told of the others."""
        kind, level = asked.target.kind, asked.query.get("fieldValidation") or "Warn"
        if level not in ("Strict", "Warn", "Ignore"):
            raise BadRequestError(
                f'fieldValidation: Unsupported value: "{level}": supported values: "Ignore", '
                '"Strict", "Warn"'
            )
        decoder = schema.Decoder(kind.kind, kind.version)
        document = decoder.decode(schema.definition(kind), given)
        document.setdefault("metadata", {})
        unknown = [f'unknown field "{path}"' for path in sorted(decoder.unknown)]
        if unknown and level == "Strict":
            raise BadRequestError(
                f'{kind.kind} in version "{kind.version}" cannot be handled as a {kind.kind}: '
                f"strict decoding error: {', '.join(unknown)}"
            )
        return document, unknown if level == "Warn" else []


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


def listed(kind: Kind, documents: list[Document], metadata: Document) -> Document:
    """Return a list of objects, which says for all of them what they are."""
    items = [
        {name: value for name, value in each.items() if name not in ("kind", "apiVersion")}
        for each in documents
    ]
    return {
        "kind": f"{kind.kind}List",
        "apiVersion": kind.api_version,
        "metadata": metadata,
        "items": items,
    }


def _placed(target: Target, document: Document) -> Document:
    """Return a document's metadata, with the namespace of the path."""
    metadata = dict(document.get("metadata") or {})
    if not target.kind.namespaced:
        metadata.pop("namespace", None)
        return metadata
    if metadata.get("namespace") not in (None, "", target.namespace):
        raise BadRequestError(
            "the namespace of the provided object does not match the namespace sent on the request"
        )
    if not target.namespace:
        raise BadRequestError("an empty namespace may not be set during creation")
    return {**metadata, "namespace": target.namespace}


def _refuse(kind: Kind, document: Document, causes: list[Cause]) -> None:
    if causes:
        raise InvalidError.of(kind, document["metadata"].get("name", ""), causes)


def _dry(kind: Kind, document: Document) -> Document:
    metadata = {**document["metadata"], "creationTimestamp": timestamp()}
    if kind.has_generation:
        metadata["generation"] = 1
    named = {"apiVersion": kind.api_version, "kind": kind.kind}
    return {**named, **document, "metadata": metadata}


def _success(kind: Kind, last: Document) -> Document:
    details = {"name": last["metadata"]["name"], "group": kind.group, "kind": kind.plural}
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Success",
        "details": {name: value for name, value in details.items() if value}
        | {"uid": last["metadata"]["uid"]},
    }


def _delete_options(asked: Asked) -> Document:
    """Return the options of a deletion, of the body or, where it says nothing, of the query."""
    options: Document = {}
    if asked.body.strip():
        found = parsed(asked.body, asked.content_type)
        options = schema.Decoder("DeleteOptions", "v1").decode("meta.v1.DeleteOptions", found)
    if "propagationPolicy" in asked.query:
        options.setdefault("propagationPolicy", asked.query["propagationPolicy"])
    if "gracePeriodSeconds" in asked.query:
        options.setdefault("gracePeriodSeconds", _number(asked.query, "gracePeriodSeconds"))
    if asked.is_dry:
        options["dryRun"] = ["All"]
    if options.get("propagationPolicy") not in (None, "Background", "Foreground", "Orphan"):
        raise BadRequestError(f"propagationPolicy: {options['propagationPolicy']!r} is unknown")
    return options


def _check_preconditions(kind: Kind, there: Document, wanted: Document) -> None:
    names = {"uid": "UID", "resourceVersion": "ResourceVersion"}
    for name, shown in names.items():
        has = there["metadata"][name]
        if wanted.get(name) not in (None, has):
            raise ConflictError.of(
                kind,
                there["metadata"]["name"],
                f"Precondition failed: {shown} in precondition: {wanted[name]}, {shown} in object "
                f"meta: {has}",
            )


def parsed(body: bytes, content_type: str) -> Any:
    """Return a body's document.

    Raises:
        UnsupportedMediaTypeError: It is of no type that is read here.
        BadRequestError: It is broken.
    """
    if content_type not in ("", "application/json", "application/yaml"):
        raise UnsupportedMediaTypeError(
            "the body of the request was in an unknown format - accepted media types include: "
            "application/json, application/yaml"
        )
    try:
        if content_type == "application/yaml":
            return yaml.safe_load(body)
        return json.loads(body)
    except (ValueError, yaml.YAMLError, RecursionError) as error:
        raise BadRequestError(
            f"the object provided is unrecognized: couldn't get version/kind; json parse error: "
            f"{type(error).__name__}"
        ) from None


def _no_duplicates(pairs: list[tuple[str, Any]]) -> Document:
    """Make an object of its members, each of which has to be there once."""
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise BadRequestError(f'strict decoding error: duplicate field "{twice}"')
    return found


def _number(query: Mapping[str, str], name: str) -> int:
    text = query.get(name) or "0"
    if not text.lstrip("-").isdigit():
        raise BadRequestError(f'{name}: Invalid value: "{text}": it is not a number')
    return int(text)
