"""Rules that the Kubernetes API server checks of each object before it stores it.

Source: https://kubernetes.io/docs/concepts/overview/working-with-objects/names/
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable
from typing import Any

from farcall_local.kubernetes import causes, job_validation, pod_validation
from farcall_local.kubernetes.errors import BadRequestError, Cause
from farcall_local.kubernetes.kinds import JOB, NAMESPACE, POD, SECRET, SERVICE, Kind
from farcall_local.kubernetes.syntax import annotation_names, label_name, labels, subdomain

Document = dict[str, Any]


def name(kind: Kind, text: str, field: str) -> list[Cause]:
    """Check an object's name."""
    if kind in (NAMESPACE, SERVICE):
        return label_name(text, field)
    return subdomain(text, field)


def metadata(kind: Kind, document: Document, path: str = "metadata") -> list[Cause]:
    """Check an object's metadata."""
    has = document.get("metadata") or {}
    if not has.get("name"):
        return [causes.required(f"{path}.name", "name or generateName is required")]
    return [
        *name(kind, has["name"], f"{path}.name"),
        *labels(has.get("labels") or {}, f"{path}.labels"),
        *annotation_names(has.get("annotations") or {}, f"{path}.annotations"),
    ]


def check(kind: Kind, document: Document) -> list[Cause]:
    """Return what is wrong with an object, which has its defaults."""
    return [*metadata(kind, document), *_CHECKS.get(kind, _nothing)(document)]


def changed(kind: Kind, document: Document, there: Document) -> list[Cause]:
    """Return what is wrong with the changes that are to be made to an object."""
    return _CHANGES.get(kind, _no_change)(document, there)


def _nothing(document: Document) -> list[Cause]:
    return []


def _no_change(document: Document, there: Document) -> list[Cause]:
    return []


def _secret(document: Document) -> list[Cause]:
    data = document.get("data") or {}
    found = [
        causes.invalid(f"data[{key}]", key, _KEY_RULE) for key in data if not _KEY.fullmatch(key)
    ]
    try:
        size = sum(len(base64.b64decode(value, validate=True)) for value in data.values())
    except ValueError:
        raise BadRequestError(
            'Secret in version "v1" cannot be handled as a Secret: illegal base64 data at input'
        ) from None
    return [*found, causes.too_long("data", _SECRET)] if size > _SECRET else found


def _secret_change(document: Document, there: Document) -> list[Cause]:
    if document.get("type") == there.get("type"):
        return []
    return [causes.immutable("type", document.get("type"))]


_KEY = re.compile(r"[-._a-zA-Z0-9]+")
_KEY_RULE = (
    "a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. "
    "'key.name',  or 'KEY_NAME',  or 'key-name', regex used for validation is '[-._a-zA-Z0-9]+')"
)
_SECRET = 1024 * 1024

_CHECKS: dict[Kind, Callable[[Document], list[Cause]]] = {
    JOB: job_validation.check,
    POD: pod_validation.check,
    SECRET: _secret,
}
_CHANGES: dict[Kind, Callable[[Document, Document], list[Cause]]] = {
    JOB: job_validation.changed,
    POD: pod_validation.changed,
    SECRET: _secret_change,
}
