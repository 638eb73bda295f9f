"""OpenAPI of the embedded Kubernetes: what kubectl asks before it sends or explains a document.

It is made of the table of `farcall_local.kubernetes.schema`, which has no descriptions.

Source: https://kubernetes.io/docs/concepts/overview/kubernetes-api/#openapi-interface-definition
"""

from __future__ import annotations

from typing import Any

from farcall_local.kubernetes import schema
from farcall_local.kubernetes.kinds import KINDS, Kind

Document = dict[str, Any]

_PARAMETERS = ("dryRun", "fieldManager", "fieldValidation", "force")
_TYPES: dict[str, Document] = {
    "int32": {"type": "integer", "format": "int32"},
    "int64": {"type": "integer", "format": "int64"},
    "integer": {"type": "integer"},
    "number": {"type": "number"},
    "double": {"type": "number", "format": "double"},
    "boolean": {"type": "boolean"},
    "string": {"type": "string"},
    "time": {"type": "string", "format": "date-time"},
    "quantity": {"type": "string"},
    "int-or-string": {"format": "int-or-string"},
    "any": {"type": "object"},
}


def answer(path: str) -> Document | None:
    """Return what a path of OpenAPI answers, None if it is none."""
    if not path.startswith("/openapi/v3"):
        return None
    rest = path.removeprefix("/openapi/v3").strip("/")
    places = {_place(kind) for kind in KINDS}
    if not rest:
        listed = {each: {"serverRelativeURL": f"/openapi/v3/{each}"} for each in sorted(places)}
        return {"paths": listed}
    if rest not in places:
        return None
    kinds = [kind for kind in KINDS if _place(kind) == rest]
    return {
        "openapi": "3.0.0",
        "info": {"title": "Kubernetes", "version": "v1"},
        "paths": {_path(kind): _operations(kind) for kind in kinds},
        "components": {"schemas": _schemas(kinds)},
    }


def _place(kind: Kind) -> str:
    return f"apis/{kind.group}/{kind.version}" if kind.group else f"api/{kind.version}"


def _path(kind: Kind) -> str:
    within = "namespaces/{namespace}/" if kind.namespaced else ""
    return f"/{_place(kind)}/{within}{kind.plural}/{{name}}"


def _named(kind: Kind) -> Document:
    return {"group": kind.group, "version": kind.version, "kind": kind.kind}


def _operations(kind: Kind) -> Document:
    parameters = [
        {"name": name, "in": "query", "schema": {"type": "string", "uniqueItems": True}}
        for name in _PARAMETERS
    ]
    return {
        "patch": {
            "x-kubernetes-action": "patch",
            "x-kubernetes-group-version-kind": _named(kind),
            "parameters": parameters,
            "responses": {},
        }
    }


def _schemas(kinds: list[Kind]) -> Document:
    """Return the schemas of kinds, and all that they are made of."""
    made: Document = {}
    for kind in kinds:
        name = schema.definition(kind)
        if name is None:
            made[f"{kind.group}.{kind.kind}"] = {"type": "object"}
            continue
        _add(name, made)
    for kind in kinds:
        key = schema.definition(kind) or f"{kind.group}.{kind.kind}"
        made[key]["x-kubernetes-group-version-kind"] = [_named(kind)]
    return made


def _add(name: str, made: Document) -> None:
    if name in made:
        return
    made[name] = {"type": "object", "description": name.rpartition(".")[2]}
    fields = schema.definitions()[name]
    for type_ in fields.values():
        _, marked, inner = type_.rpartition("#")
        if marked:
            _add(inner, made)
    made[name]["properties"] = {field: _field(type_) for field, type_ in fields.items()}


def _field(type_: str) -> Document:
    if type_[0] == "[":
        return {"type": "array", "items": _field(type_.partition("]")[2])}
    if type_[0] == "{":
        return {"type": "object", "additionalProperties": _field(type_[2:])}
    if type_[0] == "#":
        return {"allOf": [{"$ref": f"#/components/schemas/{type_[1:]}"}], "default": {}}
    return _TYPES[type_]
