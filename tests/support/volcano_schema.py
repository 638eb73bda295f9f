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
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator


@functools.cache
def _validator(kind: str) -> Draft202012Validator:
    text = Path(__file__).with_suffix(".json").read_text("utf-8")
    return Draft202012Validator(_schema(json.loads(text)["kinds"][kind]))


def _schema(short: Any) -> dict[str, Any]:
    """Return the JSON schema of a type, whose values may be null."""
    if short == "any":
        return {}
    if isinstance(short, list):
        return {"type": ["array", "null"], "items": _schema(short[0])}
    if isinstance(short, dict):
        fields = {name: _schema(each) for name, each in short.items() if name not in ("!", "*")}
        others = _schema(short["*"]) if "*" in short else False
        required = short.get("!", [])
        whole = {"properties": fields, "required": required, "additionalProperties": others}
        return {"type": ["object", "null"], **whole}
    if short.startswith("="):
        return {"enum": [*short[1:].split("|"), None]}
    return {"type": [*({"int-or-string": ["integer", "string"]}.get(short, [short])), "null"]}


def faults(document: dict[str, Any]) -> list[str]:
    """Return the errors in a Volcano document, including unknown fields."""
    found = _validator(f"{document['apiVersion']} {document['kind']}").iter_errors(document)
    return [f"{each.json_path}: {each.message}" for each in found]
