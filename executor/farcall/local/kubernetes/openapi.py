"""OpenAPI of the embedded Kubernetes: as much as kubectl asks before it sends a document.

Source: https://kubernetes.io/docs/concepts/overview/kubernetes-api/#openapi-interface-definition
"""

from __future__ import annotations

from typing import Any

from farcall.local.kubernetes.kinds import KINDS, Kind

Document = dict[str, Any]

_PARAMETERS = ("dryRun", "fieldManager", "fieldValidation", "force")


def answer(path: str) -> Document | None:
    """Return what a path of OpenAPI answers, None if it is none."""
    if not path.startswith("/openapi/v3"):
        return None
    groups = {_place(kind): kind for kind in KINDS}
    rest = path.removeprefix("/openapi/v3").strip("/")
    if not rest:
        return {"paths": {each: {"serverRelativeURL": f"/openapi/v3/{each}"} for each in groups}}
    if rest not in groups:
        return None
    kinds = [kind for kind in KINDS if _place(kind) == rest]
    return {
        "openapi": "3.0.0",
        "info": {"title": "Kubernetes", "version": "v1"},
        "paths": {_path(kind): _operations(kind) for kind in kinds},
        "components": {"schemas": {}},
    }


def _place(kind: Kind) -> str:
    return f"apis/{kind.group}/{kind.version}" if kind.group else f"api/{kind.version}"


def _path(kind: Kind) -> str:
    within = "namespaces/{namespace}/" if kind.namespaced else ""
    return f"/{_place(kind)}/{within}{kind.plural}/{{name}}"


def _operations(kind: Kind) -> Document:
    named = {"group": kind.group, "version": kind.version, "kind": kind.kind}
    parameters = [
        {"name": name, "in": "query", "schema": {"type": "string", "uniqueItems": True}}
        for name in _PARAMETERS
    ]
    return {
        "patch": {
            "x-kubernetes-action": "patch",
            "x-kubernetes-group-version-kind": named,
            "parameters": parameters,
            "responses": {},
        }
    }
