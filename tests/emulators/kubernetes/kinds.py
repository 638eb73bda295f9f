"""Kinds of objects in the Kubernetes emulator, their request paths and discovery documents.

kubectl and the official client look up ``jobs`` or ``job`` in the documents and get the path to
request. Each group has its own document, which clients accept although they prefer the aggregated
document.

Sources:
    https://kubernetes.io/docs/concepts/overview/kubernetes-api/#discovery-api
    https://kubernetes.io/docs/reference/kubernetes-api/
    https://kubernetes.io/docs/reference/using-api/api-concepts/#resource-uris
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple


class Kind(NamedTuple):
    """Kind of objects; all kinds have version ``v1``.

    Attributes:
        group: API group, empty for the core group.
        kind: Name in documents, such as ``Job``.
        plural: Name in paths, such as ``jobs``.
        namespaced: Whether its objects belong to namespaces.
        short: Other name for kubectl, empty for none.
        is_workload: Whether ``kubectl get all`` shows it.
    """

    group: str
    kind: str
    plural: str
    namespaced: bool = True
    short: str = ""
    is_workload: bool = False

    @property
    def api_version(self) -> str:
        """Group and version, as in documents."""
        return f"{self.group}/v1" if self.group else "v1"

    @property
    def resource(self) -> str:
        """Plural and group, as in messages: ``jobs.batch``."""
        return f"{self.plural}.{self.group}" if self.group else self.plural


_RBAC = "rbac.authorization.k8s.io"

NAMESPACE = Kind("", "Namespace", "namespaces", False, "ns")
NODE = Kind("", "Node", "nodes", False, "no")
POD = Kind("", "Pod", "pods", True, "po", is_workload=True)
EVENT = Kind("", "Event", "events", True, "ev")
SERVICE = Kind("", "Service", "services", True, "svc", is_workload=True)
SECRET = Kind("", "Secret", "secrets")
SERVICE_ACCOUNT = Kind("", "ServiceAccount", "serviceaccounts", True, "sa")
RESOURCE_QUOTA = Kind("", "ResourceQuota", "resourcequotas", True, "quota")
PERSISTENT_VOLUME_CLAIM = Kind("", "PersistentVolumeClaim", "persistentvolumeclaims", True, "pvc")
JOB = Kind("batch", "Job", "jobs", is_workload=True)
PRIORITY_CLASS = Kind("scheduling.k8s.io", "PriorityClass", "priorityclasses", False, "pc")
ROLE = Kind(_RBAC, "Role", "roles")
ROLE_BINDING = Kind(_RBAC, "RoleBinding", "rolebindings")

#: All kinds, in the order of their groups.
KINDS: tuple[Kind, ...] = (
    NAMESPACE,
    NODE,
    POD,
    EVENT,
    SERVICE,
    SECRET,
    SERVICE_ACCOUNT,
    RESOURCE_QUOTA,
    PERSISTENT_VOLUME_CLAIM,
    JOB,
    PRIORITY_CLASS,
    ROLE,
    ROLE_BINDING,
)

_BY_PATH = {(kind.group, kind.plural): kind for kind in KINDS}
_ONE = {"GET": "get", "PATCH": "patch", "DELETE": "delete"}
_ALL = {"GET": "list", "POST": "create"}


class Target(NamedTuple):
    """Target of a request.

    Attributes:
        verb: One of get, list, watch, create, patch and delete, as in Roles.
        kind: Kind of the objects.
        namespace: Empty for all namespaces, or for objects of the cluster.
        name: Empty for all objects.
        subresource: ``log`` or empty.
    """

    verb: str
    kind: Kind
    namespace: str = ""
    name: str = ""
    subresource: str = ""

    @property
    def resource(self) -> str:
        """Resource and subresource, as in Roles: ``pods/log``."""
        return "/".join(filter(None, (self.kind.plural, self.subresource)))


def parse(method: str, path: str, query: Mapping[str, str]) -> Target | None:
    """Return the target of a request; None if the emulator does not serve it."""
    root, *steps = path.strip("/").split("/")
    group = steps.pop(0) if root == "apis" and steps else ""
    if root not in ("api", "apis") or steps[:1] != ["v1"]:
        return None
    rest, namespace = steps[1:], ""
    if len(rest) > 2 and rest[0] == "namespaces":
        namespace, rest = rest[1], rest[2:]
    plural, name, subresource, *more = (*rest, "", "", "")
    kind = _BY_PATH.get((group, plural))
    verb = (_ONE if name else _ALL).get(method)
    if kind is None or verb is None or any(more) or (namespace and not kind.namespaced):
        return None
    if subresource and (kind, verb, subresource) != (POD, "get", "log"):
        return None
    if verb == "list" and query.get("watch") in ("true", "1"):
        verb = "watch"
    return Target(verb, kind, namespace, name, subresource)


# --- Discovery documents ------------------------------------------------------------------------

#: Emulated Kubernetes release.
VERSION = "1.36.2"

REVIEW_PATH = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"

_VERBS = ["create", "delete", "get", "list", "patch", "watch"]

_Document = dict[str, Any]


def discover(path: str) -> _Document | None:
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
