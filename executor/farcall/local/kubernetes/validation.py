"""Rules that the Kubernetes API server checks of every object: names, labels, annotations.

Sources:
    https://kubernetes.io/docs/concepts/overview/working-with-objects/names/
    https://kubernetes.io/docs/concepts/overview/working-with-objects/labels/#syntax-and-character-set
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

from farcall.local.kubernetes.errors import Cause
from farcall.local.kubernetes.kinds import NAMESPACE, SERVICE, Kind

Document = dict[str, Any]

_LABEL = re.compile(r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")
_SUBDOMAIN = re.compile(r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$")
_WORD = re.compile(r"^[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$")

LABEL_RULE = (
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and "
    "must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used "
    "for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')"
)
SUBDOMAIN_RULE = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or "
    "'.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used "
    "for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
)
_VALUE_RULE = (
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or "
    "'.', and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  "
    "or '12345', regex used for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')"
)
_KEY_RULE = (
    "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end "
    "with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for "
    "validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"
)
_ANNOTATIONS = 256 * 1024


def invalid(field: str, value: Any, why: str) -> Cause:
    """Return the cause of a value that breaks a rule."""
    return Cause("FieldValueInvalid", f"Invalid value: {shown(value)}: {why}", field)


def required(field: str, why: str = "") -> Cause:
    """Return the cause of a value that is not there."""
    return Cause(
        "FieldValueRequired", f"Required value: {why}" if why else "Required value", field
    )


def unsupported(field: str, value: Any, known: Iterable[str]) -> Cause:
    """Return the cause of a value that is not one of those there are."""
    listed = ", ".join(f'"{each}"' for each in sorted(known))
    told = f"Unsupported value: {shown(value)}: supported values: {listed}"
    return Cause("FieldValueNotSupported", told, field)


def too_long(field: str, most: int) -> Cause:
    """Return the cause of a value that is too long."""
    return Cause("FieldValueTooLong", f"Too long: may not be more than {most} bytes", field)


def too_many(field: str, found: int, most: int) -> Cause:
    """Return the cause of a list that is too long."""
    told = f"Too many: {found}: must have at most {most} items"
    return Cause("FieldValueTooMany", told, field)


def forbidden(field: str, why: str) -> Cause:
    """Return the cause of a field that may not be set."""
    return Cause("FieldValueForbidden", f"Forbidden: {why}", field)


def not_found(field: str, value: Any) -> Cause:
    """Return the cause of a name that nothing has."""
    return Cause("FieldValueNotFound", f"Not found: {shown(value)}", field)


def duplicate(field: str, value: Any) -> Cause:
    """Return the cause of a value that is there twice."""
    return Cause("FieldValueDuplicate", f"Duplicate value: {shown(value)}", field)


def shown(value: Any) -> str:
    """Return a value as refusals show it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f'"{value}"'
    return "{}" if isinstance(value, dict) else str(value)


def name(kind: Kind, text: str, field: str) -> list[Cause]:
    """Check an object's name."""
    if kind in (NAMESPACE, SERVICE):
        return label_name(text, field)
    return subdomain(text, field)


def label_name(text: str, field: str) -> list[Cause]:
    """Check a name that is to be one part of a domain's."""
    found = [] if len(text) <= 63 else [invalid(field, text, "must be no more than 63 bytes")]
    return found if _LABEL.match(text) else [*found, invalid(field, text, LABEL_RULE)]


def subdomain(text: str, field: str) -> list[Cause]:
    """Check a name that is to be a domain's."""
    found = [] if len(text) <= 253 else [invalid(field, text, "must be no more than 253 bytes")]
    return found if _SUBDOMAIN.match(text) else [*found, invalid(field, text, SUBDOMAIN_RULE)]


def metadata(kind: Kind, document: Document, path: str = "metadata") -> list[Cause]:
    """Check an object's metadata."""
    has = document.get("metadata") or {}
    if not has.get("name"):
        return [required(f"{path}.name", "name or generateName is required")]
    return [
        *name(kind, has["name"], f"{path}.name"),
        *labels(has.get("labels") or {}, f"{path}.labels"),
        *annotation_names(has.get("annotations") or {}, f"{path}.annotations"),
    ]


def labels(has: Document, field: str) -> list[Cause]:
    """Check labels."""
    found: list[Cause] = []
    for key, value in has.items():
        found += qualified(key, field)
        if len(value) > 63:
            found.append(invalid(field, value, "must be no more than 63 bytes"))
        if value and not _WORD.match(value):
            found.append(invalid(field, value, _VALUE_RULE))
    return found


def annotation_names(has: Document, field: str) -> list[Cause]:
    """Check annotations."""
    found = [cause for key in has for cause in qualified(key.lower(), field)]
    if sum(len(key.encode()) + len(value.encode()) for key, value in has.items()) > _ANNOTATIONS:
        found.append(too_long(field, _ANNOTATIONS))
    return found


def qualified(key: str, field: str) -> list[Cause]:
    """Check the name of a label or an annotation, which may have a domain before it."""
    prefix, slash, last = key.rpartition("/")
    found = []
    if slash and not (prefix and _SUBDOMAIN.match(prefix) and len(prefix) <= 253):
        found.append(invalid(field, key, f"prefix part {SUBDOMAIN_RULE}"))
    if not last:
        found.append(invalid(field, key, "name part must be non-empty"))
    elif not _WORD.match(last):
        found.append(invalid(field, key, _KEY_RULE))
    if len(last) > 63:
        found.append(invalid(field, key, "name part must be no more than 63 bytes"))
    return found


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


_CHECKS: dict[Kind, Callable[[Document], list[Cause]]] = {}
_CHANGES: dict[Kind, Callable[[Document, Document], list[Cause]]] = {}
