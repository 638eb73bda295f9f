"""Discovery documents of the Kubernetes emulator: API groups, kinds and verbs.

kubectl and the official client look up ``jobs`` or ``job`` in them and get the path to request.
Each group has its own document, which clients accept although they prefer the aggregated document.

Source:
    https://kubernetes.io/docs/concepts/overview/kubernetes-api/#discovery-api
"""

from __future__ import annotations

from typing import Any

from farcall_local.kubernetes.kinds import KINDS, POD, Kind

#: Emulated Kubernetes release.
VERSION = "1.36.2"

REVIEW_PATH = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"

_VERBS = ["create", "delete", "get", "list", "patch", "watch"]

_Document = dict[str, Any]


def answer(path: str) -> _Document | None:
    """Return the discovery document of a path; None if there is none.

    Args:
        path: Path such as ``/apis/batch/v1``.
    """
    parts = path.strip("/").split("/")
    if parts[:2] == ["openapi", "v3"]:
        return _openapi("/".join(parts[2:]))
    if parts == ["version"]:
        return _version()
    if parts == ["api"]:
        return {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []}
    if parts == ["apis"]:
        groups = dict.fromkeys(kind.group for kind in KINDS if kind.group)
        return {
            "kind": "APIGroupList",
            "apiVersion": "v1",
            "groups": [_group(name) for name in groups],
        }
    if parts == ["api", "v1"]:
        return _resources("")
    return _resources(parts[1]) if len(parts) == 3 and parts[::2] == ["apis", "v1"] else None


def _openapi(place: str) -> _Document | None:
    """Return the OpenAPI document that makes kubectl leave validation to the server."""
    paths: dict[str, _Document] = {}
    for kind in KINDS:
        where = f"apis/{kind.group}/v1" if kind.group else "api/v1"
        patch = {
            "x-kubernetes-action": "patch",
            "x-kubernetes-group-version-kind": {
                "group": kind.group,
                "version": "v1",
                "kind": kind.kind,
            },
            "parameters": [
                {"name": name, "in": "query", "schema": {"type": "string", "uniqueItems": True}}
                for name in ("dryRun", "fieldValidation")
            ],
            "responses": {},
        }
        paths.setdefault(where, {})[f"/{where}/{kind.plural}/{{name}}"] = {"patch": patch}
    if not place:
        return {"paths": {each: {"serverRelativeURL": f"/openapi/v3/{each}"} for each in paths}}
    if place not in paths:
        return None
    return {
        "openapi": "3.0.0",
        "info": {"title": "Kubernetes", "version": "v1"},
        "paths": paths[place],
        "components": {"schemas": {}},
    }


def _version() -> _Document:
    major, minor, _ = VERSION.split(".")
    return {
        "major": major,
        "minor": minor,
        "gitVersion": f"v{VERSION}+farcall",
        **dict.fromkeys(("gitCommit", "goVersion", "compiler", "platform"), ""),
        "gitTreeState": "clean",
        "buildDate": "1970-01-01T00:00:00Z",
    }


def _group(name: str) -> _Document:
    version = {"groupVersion": f"{name}/v1", "version": "v1"}
    return {"name": name, "versions": [version], "preferredVersion": version}


def _resources(group: str) -> _Document | None:
    found = [each for kind in KINDS if kind.group == group for each in _of_kind(kind)]
    if not found:
        return None
    return {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": f"{group}/v1".lstrip("/"),
        "resources": found,
    }


def _of_kind(kind: Kind) -> list[_Document]:
    """Return a kind's resource and its subresource."""
    found: _Document = {
        "name": kind.plural,
        "singularName": kind.kind.lower(),
        "namespaced": kind.namespaced,
        "kind": kind.kind,
        "verbs": _VERBS,
        "shortNames": [kind.short] if kind.short else [],
        "categories": ["all"] if kind.is_workload else [],
    }
    log = {**found, "name": "pods/log", "singularName": "", "shortNames": [], "verbs": ["get"]}
    return [found, log] if kind is POD else [found]
