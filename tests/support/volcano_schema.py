"""Validation of Volcano's resources, like a strict API server.

``volcano_schema.json`` has the structure of Volcano's own CustomResourceDefinitions without
descriptions and bounds. There, an object is a table of its fields, ``!`` lists required fields,
``*`` is the type of all values of a map, a list contains the type of its items, and ``=a|b`` is an
enumeration of texts.

Source:
    https://github.com/volcano-sh/volcano/tree/ed72c7c815a9fd547a787134676f73d42e9d049c/config/crd/volcano/bases
    (Apache License 2.0)
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

_REQUIRED, _ANY_NAME = "!", "*"

_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "boolean": (bool,),
    "integer": (int,),
    "number": (int, float),
    "int-or-string": (int, str),
}
_NAMES = {dict: "object", list: "array", str: "string", bool: "boolean", int: "integer"}


class Fault(NamedTuple):
    """An error in a document.

    Attributes:
        path: Path of the field, such as ``spec.tasks[0].replicas``.
        message: Error of the value; empty if the field is unknown.
    """

    path: str
    message: str = ""


@functools.cache
def _schemas() -> dict[str, Any]:
    text = Path(__file__).with_suffix(".json").read_text("utf-8")
    found: dict[str, Any] = json.loads(text)["kinds"]
    return found


def faults(document: dict[str, Any]) -> list[Fault]:
    """Return the errors in a Volcano document, including unknown fields."""
    schema = _schemas()[f"{document['apiVersion']} {document['kind']}"]
    # The schema does not contain metadata, which is the same for every kind.
    rest = {name: value for name, value in document.items() if name != "metadata"}
    return list(_check(schema, rest, ""))


def _check(schema: Any, value: Any, path: str) -> Iterator[Fault]:
    if schema == "any" or value is None:
        return
    if isinstance(schema, dict):
        yield from _check_object(schema, value, path)
    elif isinstance(schema, list):
        if not isinstance(value, list):
            yield _wrong(path, value, "array")
            return
        for number, item in enumerate(value):
            yield from _check(schema[0], item, f"{path}[{number}]")
    else:
        yield from _check_leaf(schema, value, path)


def _check_object(schema: dict[str, Any], value: Any, path: str) -> Iterator[Fault]:
    if not isinstance(value, dict):
        yield _wrong(path, value, "object")
        return
    for name in schema.get(_REQUIRED, ()):
        if name not in value:
            yield Fault(_below(path, name), "Required value")
    for name, item in value.items():
        each = schema.get(_ANY_NAME, schema.get(name))
        if each is None:
            yield Fault(_below(path, name))
        else:
            yield from _check(each, item, _below(path, name))


def _check_leaf(schema: str, value: Any, path: str) -> Iterator[Fault]:
    if schema.startswith("="):
        allowed = schema[1:].split("|")
        if value not in allowed:
            said = ", ".join(f'"{each}"' for each in allowed)
            yield Fault(path, f'Unsupported value: "{value}": supported values: {said}')
        return
    types = _TYPES[schema]
    if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
        yield _wrong(path, value, schema)


def _wrong(path: str, value: Any, wanted: str) -> Fault:
    found = _NAMES.get(type(value), "number")
    said = f'Invalid value: "{found}": {path} in body must be of type {wanted}: "{found}"'
    return Fault(path, said)


def _below(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
