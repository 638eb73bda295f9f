"""Generates the Kubernetes emulator's table of fields from the official schemas.

``python -m tests.contract.make_kubernetes_schema`` writes it, and `test_kubernetes_schema.py`
compares it. The package kubernetes-validate contains Kubernetes' own schemas (22 MB); the table
keeps the names and types of the fields of the resources that the emulator serves.
"""

from __future__ import annotations

import importlib.resources
import json
from pathlib import Path
from typing import Any

from tests.emulators.kubernetes.kinds import KINDS

VERSION = "1.37.0"
TABLE = Path(__file__).parents[2] / "tests/emulators/kubernetes/schema.json"

_SIMPLE = {
    "io.k8s.apimachinery.pkg.api.resource.Quantity": "quantity",
    "io.k8s.apimachinery.pkg.util.intstr.IntOrString": "int-or-string",
    "io.k8s.apimachinery.pkg.apis.meta.v1.Time": "time",
    "io.k8s.apimachinery.pkg.apis.meta.v1.MicroTime": "time",
    "io.k8s.apimachinery.pkg.apis.meta.v1.FieldsV1": "any",
    "io.k8s.apimachinery.pkg.runtime.RawExtension": "any",
}


def table() -> dict[str, dict[str, str]]:
    """Return the fields of each definition: ``[]#Container`` is a list, ``{}string`` a map."""
    folder = f"kubernetes-json-schema/v{VERSION}-local/_definitions.json"
    text = importlib.resources.files("kubernetes_validate").joinpath(folder).read_text()
    definitions = json.loads(text)["$defs"]
    made: dict[str, dict[str, str]] = {}
    todo = [name for name in sorted(definitions) if _served(definitions[name])]
    while todo:
        name = todo.pop()
        if _short(name) in made:
            continue
        fields = definitions[name].get("properties", {})
        made[_short(name)] = {field: _type(each, todo) for field, each in sorted(fields.items())}
    return dict(sorted(made.items()))


def _served(definition: dict[str, Any]) -> bool:
    named = definition.get("x-kubernetes-group-version-kind", [])
    wanted = {(kind.group, "v1", kind.kind) for kind in KINDS}
    return any((each["group"], each["version"], each["kind"]) in wanted for each in named)


def _short(name: str) -> str:
    return name.removeprefix("io.k8s.").removeprefix("api.").removeprefix("apimachinery.pkg.apis.")


def _type(field: dict[str, Any], todo: list[str]) -> str:
    if "$ref" in field:
        name = field["$ref"].rpartition("/")[2]
        if name in _SIMPLE:
            return _SIMPLE[name]
        todo.append(name)
        return f"#{_short(name)}"
    kind = field["type"] if isinstance(field["type"], str) else field["type"][0]
    if kind == "array":
        return f"[]{_type(field['items'], todo)}"
    if kind == "object":
        inner = field.get("additionalProperties")
        return "{}" + (_type(inner, todo) if inner else "any")
    return field.get("format", kind) if kind in ("integer", "number") else kind


def main() -> None:
    """Write the table."""
    TABLE.write_text(text_of(table()))


def text_of(made: dict[str, dict[str, str]]) -> str:
    """Format the table as in its file: one definition per line."""
    lines = (f"{json.dumps(name)}: {json.dumps(made[name], sort_keys=True)}" for name in made)
    return "{\n" + ",\n".join(lines) + "\n}\n"


if __name__ == "__main__":
    main()
