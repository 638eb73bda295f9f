"""Discovery documents: which API groups, kinds and verbs the local Kubernetes emulator serves.

kubectl and the official client learn from them what ``jobs`` or ``job`` means and where to ask for
it. The older form, a document for each group, is served: whoever prefers the aggregated one takes
it as well.

Source:
    https://kubernetes.io/docs/concepts/overview/kubernetes-api/#discovery-api
"""

from __future__ import annotations

from typing import Any

from farcall_local.kubernetes import kinds
from farcall_local.kubernetes.kinds import KINDS, Kind

#: The release whose API is followed.
VERSION = "1.36.2"

_VERBS = ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")
_OF_STATUS = ("get", "patch", "update")

#: Reviews: kinds that are asked and never stored, by group.
_REVIEWS = {
    "authentication.k8s.io": (("SelfSubjectReview", "selfsubjectreviews"),),
    "authorization.k8s.io": (
        ("SelfSubjectAccessReview", "selfsubjectaccessreviews"),
        ("SelfSubjectRulesReview", "selfsubjectrulesreviews"),
    ),
}

_Document = dict[str, Any]


def answer(path: str) -> _Document | None:
    """Return the document of discovery at a path, None where there is none.

    Args:
        path: Of the request, such as ``/apis/batch/v1``.
    """
    parts = path.strip("/").split("/")
    if parts[:2] == ["openapi", "v3"]:
        return _openapi("/".join(parts[2:]))
    if parts == ["version"]:
        return _version()
    if parts == ["api"]:
        return {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []}
    if parts == ["apis"]:
        groups = [_group(name) for name in _groups()]
        return {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}
    if parts[0] == "api" and len(parts) == 2:
        return _resources("", parts[1])
    if parts[0] == "apis" and len(parts) == 2 and parts[1] in _groups():
        return {"kind": "APIGroup", "apiVersion": "v1", **_group(parts[1])}
    return _resources(*parts[1:]) if parts[0] == "apis" and len(parts) == 3 else None


def _openapi(place: str) -> _Document | None:
    """Return as much of OpenAPI as kubectl needs to leave the checking of fields to the server."""
    of_place: dict[str, _Document] = {}
    for kind in KINDS:
        where = f"apis/{kind.group}/{kind.version}" if kind.group else f"api/{kind.version}"
        within = "namespaces/{namespace}/" if kind.namespaced else ""
        named = {"group": kind.group, "version": kind.version, "kind": kind.kind}
        patch = {
            "x-kubernetes-action": "patch",
            "x-kubernetes-group-version-kind": named,
            "parameters": [
                {"name": name, "in": "query", "schema": {"type": "string", "uniqueItems": True}}
                for name in ("dryRun", "fieldValidation")
            ],
            "responses": {},
        }
        paths = of_place.setdefault(where, {})
        paths[f"/{where}/{within}{kind.plural}/{{name}}"] = {"patch": patch}
    if not place:
        listed = {each: {"serverRelativeURL": f"/openapi/v3/{each}"} for each in of_place}
        return {"paths": listed}
    if place not in of_place:
        return None
    info = {"title": "Kubernetes", "version": "v1"}
    return {
        "openapi": "3.0.0",
        "info": info,
        "paths": of_place[place],
        "components": {"schemas": {}},
    }


def review(path: str) -> str | None:
    """Return the kind of review that is made by a POST to a path, None if it is none.

    Args:
        path: Of the request, such as ``/apis/authorization.k8s.io/v1/selfsubjectaccessreviews``.
    """
    parts = path.strip("/").split("/")
    found = _REVIEWS.get(parts[1], ()) if len(parts) == 4 and parts[2] == "v1" else ()
    return next((kind for kind, plural in found if plural == parts[3]), None)


def _version() -> _Document:
    major, minor, _ = VERSION.split(".")
    return {
        "major": major,
        "minor": minor,
        "gitVersion": f"v{VERSION}+farcall",
        "gitCommit": "",
        "gitTreeState": "clean",
        "buildDate": "1970-01-01T00:00:00Z",
        "goVersion": "",
        "compiler": "",
        "platform": "",
    }


def _groups() -> dict[str, list[str]]:
    """Return the names of the groups except the core's, and their versions."""
    found: dict[str, list[str]] = {}
    for kind in KINDS:
        versions = found.setdefault(kind.group, [])
        if kind.version not in versions:
            versions.append(kind.version)
    found.update({group: ["v1"] for group in _REVIEWS})
    del found[""]
    return found


def _group(name: str) -> _Document:
    versions = [
        {"groupVersion": f"{name}/{version}", "version": version} for version in _groups()[name]
    ]
    return {"name": name, "versions": versions, "preferredVersion": versions[0]}


def _resources(group: str, version: str) -> _Document | None:
    """Return what a group has in one version."""
    found = [
        resource
        for kind in KINDS
        if (kind.group, kind.version) == (group, version)
        for resource in _of_kind(kind)
    ]
    if version == "v1":
        found += [_review(*names) for names in _REVIEWS.get(group, ())]
    if not found:
        return None
    return {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": f"{group}/{version}".lstrip("/"),
        "resources": found,
    }


def _of_kind(kind: Kind) -> list[_Document]:
    """Return a kind's resource and those below it."""
    whole: _Document = {
        "name": kind.plural,
        "singularName": kind.singular,
        "namespaced": kind.namespaced,
        "kind": kind.kind,
        "verbs": list(_VERBS),
    }
    if kind.short:
        whole["shortNames"] = list(kind.short)
    if kind.categories:
        whole["categories"] = list(kind.categories)
    found = [whole]
    if kind.has_status:
        found.append(_below(kind, "status", kind.kind, _OF_STATUS))
    if kind is kinds.POD:
        eviction = _below(kind, "eviction", "Eviction", ("create",))
        found += [
            {**eviction, "group": "policy", "version": "v1"},
            _below(kind, "log", "Pod", ("get",)),
        ]
    return found


def _below(kind: Kind, name: str, answers: str, verbs: tuple[str, ...]) -> _Document:
    return {
        "name": f"{kind.plural}/{name}",
        "singularName": "",
        "namespaced": kind.namespaced,
        "kind": answers,
        "verbs": list(verbs),
    }


def _review(kind: str, plural: str) -> _Document:
    return {
        "name": plural,
        "singularName": kind.lower(),
        "namespaced": False,
        "kind": kind,
        "verbs": ["create"],
    }
