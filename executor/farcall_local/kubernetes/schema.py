"""Fields of Kubernetes objects and their types.

``schema.json`` holds, for each definition of the official schema that the emulator serves, the
type of each field: ``int32``, ``string``, ``#core.v1.PodSpec``, ``{}string`` for a map,
``[]string`` for a list.

Unknown fields are dropped and reported as ``fieldValidation`` requests. A value of another type is
always refused.

Source: https://kubernetes.io/docs/reference/using-api/api-concepts/#field-validation
"""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

from farcall_local.kubernetes import nodes
from farcall_local.kubernetes.errors import BadRequestError
from farcall_local.kubernetes.kinds import Kind

_TYPES: dict[str, type | tuple[type, ...]] = {
    **dict.fromkeys(("int32", "int64", "integer"), int),
    **dict.fromkeys(("number", "double"), (int, float)),
    **dict.fromkeys(("string", "time"), str),
    "boolean": bool,
    "quantity": (str, int, float),
    "int-or-string": (str, int),
    "any": object,
}


@functools.cache
def definitions() -> dict[str, dict[str, str]]:
    """Return the fields of each definition."""
    found: dict[str, dict[str, str]] = json.loads(
        Path(__file__).with_name("schema.json").read_text()
    )
    return found


def decode(kind: Kind, document: Any) -> tuple[dict[str, Any], list[str]]:
    """Return a document without unknown fields and nulls, and the paths of unknown fields.

    Raises:
        BadRequestError: A value has another type than its field.
    """
    unknown: list[str] = []
    group = kind.group.partition(".")[0] or "core"
    try:
        found: dict[str, Any] = _value(f"#{group}.v1.{kind.kind}", document, "", unknown)
    except ValueError as error:
        raise BadRequestError(
            f'{kind.kind} in version "v1" cannot be handled as a {kind.kind}: {error}'
        ) from None
    return found, sorted(unknown)


def _value(type_: str, value: Any, path: str, unknown: list[str]) -> Any:
    if type_[0] == "[":
        _expect(list, value, "array", path)
        return [_value(type_[2:], each, f"{path}[{at}]", unknown) for at, each in enumerate(value)]
    if type_[0] not in "#{":
        return _simple(type_, value, path)
    _expect(dict, value, "object", path)
    fields = definitions()[type_[1:]] if type_[0] == "#" else dict.fromkeys(value, type_[2:])
    made = {}
    for name, each in value.items():
        where = f"{path}.{name}" if path else name
        if name not in fields:
            unknown.append(where)
        elif each is not None:
            inner = _value(fields[name], each, where, unknown)
            if inner or fields[name][0] not in "[{":  # an empty list or map is like none
                made[name] = inner
    return made


def _simple(type_: str, value: Any, path: str) -> Any:
    _expect(_TYPES[type_], value, type_, path)
    if isinstance(value, bool) and type_ not in ("boolean", "any"):
        raise _mismatch(value, type_, path)
    if type_ == "quantity":
        nodes.parse(value)
        return str(value)
    return value


def _expect(types: type | tuple[type, ...], value: Any, wanted: str, path: str) -> None:
    if not isinstance(value, types):
        raise _mismatch(value, wanted, path)


def _mismatch(value: Any, wanted: str, path: str) -> ValueError:
    shown = type(value).__name__
    return ValueError(
        f"json: cannot unmarshal {shown} into Go struct field {path} of type {wanted}"
    )
