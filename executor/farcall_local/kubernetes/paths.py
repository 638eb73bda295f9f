"""Paths of the Kubernetes API: which verb, of which kind, namespace, name and subresource.

Source: https://kubernetes.io/docs/reference/using-api/api-concepts/#resource-uris
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from farcall_local.kubernetes import kinds
from farcall_local.kubernetes.errors import MethodNotAllowedError, NotFoundError
from farcall_local.kubernetes.kinds import Kind

_ONE = {"GET": "get", "HEAD": "get", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
_ALL = {"GET": "list", "HEAD": "list", "POST": "create", "DELETE": "deletecollection"}
EVICTION = "eviction"
_SUBRESOURCES = {"get": ("status", "log"), "update": ("status",), "patch": ("status",)}


class Target(NamedTuple):
    """What a request is about.

    Attributes:
        verb: As rights name it: get, list, watch, create, update, patch, delete,
            deletecollection.
        kind: The kind of object.
        namespace: Empty for all, or for what is the cluster's.
        name: Empty for all of them.
        subresource: ``status``, ``log``, ``eviction``, or empty.
    """

    verb: str
    kind: Kind
    namespace: str = ""
    name: str = ""
    subresource: str = ""

    @property
    def resource(self) -> str:
        """Resource and subresource, as rights name them: ``pods/log``."""
        return "/".join(filter(None, (self.kind.plural, self.subresource)))


def parse(method: str, path: str, query: Mapping[str, str]) -> Target:
    """Return what a request is about.

    Raises:
        NotFoundError: There is no such path.
        MethodNotAllowedError: It does not know that method.
    """
    steps = [step for step in path.split("/") if step]
    if steps[:1] == ["api"]:
        group, version, rest = "", steps[1] if len(steps) > 1 else "", steps[2:]
    elif steps[:1] == ["apis"] and len(steps) > 2:
        group, version, rest = steps[1], steps[2], steps[3:]
    else:
        raise no_such_path()
    namespace = ""
    if len(rest) > 2 and rest[0] == "namespaces" and rest[2] not in ("status", "finalize"):
        namespace, rest = rest[1], rest[2:]
    kind = kinds.find(group, version, rest[0]) if rest else None
    if kind is None or (namespace and not kind.namespaced) or len(rest) > 3:
        raise no_such_path()
    name, subresource = (*rest[1:], "", "")[:2]
    return Target(
        _verb(method, kind, query, name, subresource), kind, namespace, name, subresource
    )


def _verb(method: str, kind: Kind, query: Mapping[str, str], name: str, subresource: str) -> str:
    verb = (_ONE if name else _ALL).get(method)
    if subresource == EVICTION and method == "POST" and kind is kinds.POD:
        return "create"
    if verb is None:
        raise MethodNotAllowedError
    if subresource and not _has(kind, subresource, verb):
        raise no_such_path()
    if verb == "list" and query.get("watch") in ("true", "1"):
        return "watch"
    return verb


def _has(kind: Kind, subresource: str, verb: str) -> bool:
    if subresource == "log":
        return kind.plural == "pods" and verb == "get"
    return kind.has_status and subresource in _SUBRESOURCES.get(verb, ())


def no_such_path() -> NotFoundError:
    """Return the refusal of a path that there is not."""
    return NotFoundError("the server could not find the requested resource")
