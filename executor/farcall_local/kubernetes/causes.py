"""Causes of a refusal by Kubernetes, 422: what is wrong with one field, in the server's words.

Source: https://github.com/kubernetes/apimachinery, pkg/util/validation/field/errors.go
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from farcall_local.kubernetes.errors import Cause


def invalid(field: str, value: Any, why: str) -> Cause:
    """Return the cause of a value that breaks a rule."""
    return Cause("FieldValueInvalid", f"Invalid value: {shown(value)}: {why}", field)


def immutable(field: str, value: Any) -> Cause:
    """Return the cause of a value that may not be changed."""
    return invalid(field, value, "field is immutable")


def required(field: str, why: str = "") -> Cause:
    """Return the cause of a value that is not there."""
    told = f"Required value: {why}" if why else "Required value"
    return Cause("FieldValueRequired", told, field)


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


def at_least_zero(document: dict[str, Any], path: str, *names: str) -> list[Cause]:
    """Check that numbers, where they are given, are not negative."""
    return [
        invalid(f"{path}.{name}", document[name], "must be greater than or equal to 0")
        for name in names
        if document.get(name, 0) < 0
    ]


def one_of(document: dict[str, Any], path: str, name: str, known: Iterable[str]) -> list[Cause]:
    """Check that a value, where it is given, is one of those there are."""
    value, known = document.get(name), list(known)
    return [] if value is None or value in known else [unsupported(f"{path}.{name}", value, known)]


def shown(value: Any) -> str:
    """Return a value as refusals show it."""
    return json.dumps(value, ensure_ascii=False)
