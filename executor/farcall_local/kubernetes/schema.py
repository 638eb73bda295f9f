"""Fields of Kubernetes objects and their types.

``schema.json`` holds, for each definition of the official schema that the emulator serves, the
type of each field: ``int32``, ``string``, ``#core.v1.PodSpec``, ``{}string`` for a map,
``[]string`` for a list.

Unknown fields are always refused, as with ``fieldValidation=Strict``.

Source: https://kubernetes.io/docs/reference/using-api/api-concepts/#field-validation
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
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


def check(kind: Kind, document: Any) -> None:
    """Check that a document has only its kind's fields, with values of their types.

    Raises:
        BadRequestError: A field is unknown or has another type.
    """
    group = kind.group.partition(".")[0] or "core"
    wrong = ", ".join(_wrong(f"#{group}.v1.{kind.kind}", document, ""))
    if wrong:
        raise BadRequestError(
            f'{kind.kind} in version "v1" cannot be handled as a {kind.kind}: '
            f"strict decoding error: {wrong}"
        )


def _wrong(type_: str, value: Any, path: str) -> Iterator[str]:
    """Yield the errors of a value."""
    if not _fits(type_, value):
        shown = type(value).__name__
        yield f"json: cannot unmarshal {shown} into Go struct field {path} of type {type_}"
    elif type_ == "quantity" and not nodes.is_quantity(value):
        yield f"{value!r} is no quantity such as 500m, 2 or 2Gi"
    elif type_[0] == "[":
        for at, each in enumerate(value):
            yield from _wrong(type_[2:], each, f"{path}[{at}]")
    elif type_[0] == "{":
        yield from _wrong_fields(dict.fromkeys(value, type_[2:]), value, path)
    elif type_[0] == "#":
        yield from _wrong_fields(definitions()[type_[1:]], value, path)


def _fits(type_: str, value: object) -> bool:
    if isinstance(value, bool):
        return type_ in ("boolean", "any")
    return isinstance(value, _TYPES.get(type_) or (list if type_[0] == "[" else dict))


def _wrong_fields(fields: dict[str, str], value: dict[str, Any], path: str) -> Iterator[str]:
    for name, each in value.items():
        where = f"{path}.{name}".lstrip(".")
        if name not in fields:
            yield f'unknown field "{where}"'
        elif each is not None:
            yield from _wrong(fields[name], each, where)
