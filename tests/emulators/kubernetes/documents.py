"""Documents of objects: types of fields, defaults, and rules.

``schema.json`` holds, for each definition of the official schema that the emulator serves, the
type of each field: ``int32``, ``string``, ``#core.v1.PodSpec``, ``{}string`` for a map,
``[]string`` for a list. Unknown fields are always refused, as with ``fieldValidation=Strict``.
Defaults are limited to fields that clients read, and rules to those that a client of Jobs can
break.

Sources:
    https://kubernetes.io/docs/reference/using-api/api-concepts/#field-validation
    https://kubernetes.io/docs/reference/kubernetes-api/workload-resources/
    https://kubernetes.io/docs/concepts/overview/working-with-objects/names/
    https://github.com/kubernetes/kubernetes, pkg/apis/batch/validation/validation.go
"""

from __future__ import annotations

import base64
import functools
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.emulators.kubernetes import nodes
from tests.emulators.kubernetes.errors import BadRequestError, Cause
from tests.emulators.kubernetes.kinds import JOB, NAMESPACE, POD, SECRET, Kind

Document = dict[str, Any]

# --- Types of fields ----------------------------------------------------------------------------

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


def check_types(kind: Kind, document: Any) -> None:
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


# --- Defaults -----------------------------------------------------------------------------------

#: backoffLimit of a Job in which each index has its own limit.
NO_LIMIT = 2**31 - 1


def fill(kind: Kind, document: Document) -> Document:
    """Return an object with its defaults.

    Args:
        kind: Its kind.
        document: The object; its metadata has name and uid.
    """
    if kind is JOB:
        return _job_with_defaults(document)
    if kind is SECRET:
        return _encoded_secret(document)
    if kind is POD:
        return {"status": {"phase": "Pending"}, **document}
    if kind is NAMESPACE:
        return {"status": {"phase": "Active"}, **document}
    return document


def _job_with_defaults(document: Document) -> Document:
    given = document.get("spec") or {}
    spec = {
        "parallelism": 1,
        "backoffLimit": NO_LIMIT if "backoffLimitPerIndex" in given else 6,
        "completionMode": "NonIndexed",
        "suspend": False,
        "podReplacementPolicy": "Failed",
        **given,
    }
    if spec["completionMode"] == "NonIndexed":  # the emulator has no work queues
        spec.setdefault("completions", spec["parallelism"])
    name, uid = document["metadata"]["name"], document["metadata"]["uid"]
    template = dict(spec.get("template") or {})
    metadata = template.get("metadata") or {}
    labels = {
        **metadata.get("labels", {}),
        "batch.kubernetes.io/controller-uid": uid,
        "batch.kubernetes.io/job-name": name,
        "controller-uid": uid,
        "job-name": name,
    }
    spec["template"] = {"spec": {}, **template, "metadata": {**metadata, "labels": labels}}
    spec["selector"] = {"matchLabels": {"batch.kubernetes.io/controller-uid": uid}}
    return {**document, "spec": spec, "status": document.get("status", {})}


def _encoded_secret(document: Document) -> Document:
    made = {"type": "Opaque", **document}
    texts = made.pop("stringData", {})
    encoded = {name: base64.b64encode(text.encode()).decode() for name, text in texts.items()}
    if data := {**made.get("data", {}), **encoded}:
        made["data"] = data
    return made


# --- Rules --------------------------------------------------------------------------------------

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_SUBDOMAIN = re.compile(r"(?=.{1,253}$)[a-z0-9]([-.a-z0-9]*[a-z0-9])?")
_VALUE = re.compile(r"([A-Za-z0-9]([-_.A-Za-z0-9]{0,61}[A-Za-z0-9])?)?")
_NUMBERS = ("parallelism", "completions", "activeDeadlineSeconds", "backoffLimit")
_IMMUTABLE = (
    *("selector", "completionMode", "completions", "template"),
    *("podFailurePolicy", "successPolicy", "backoffLimitPerIndex"),
)


def check(kind: Kind, document: Document, before: Document | None = None) -> list[Cause]:
    """Return the errors of an object, whose defaults are filled in.

    Args:
        kind: Kind of the object.
        document: The object.
        before: The stored object that it replaces.
    """
    found = list(_metadata_errors(document["metadata"]))
    if kind is POD:
        found += _pod_errors(document.get("spec") or {}, "spec")
    elif kind is JOB:
        found += _job_errors(document)
        spec, old = document["spec"], before["spec"] if before else {}
        found += [
            invalid(f"spec.{name}", spec.get(name), "field is immutable")
            for name in _IMMUTABLE
            if before and spec.get(name) != old.get(name)
        ]
    return found


def required(field: str, why: str = "") -> Cause:
    """Return the cause of a missing value."""
    return Cause("FieldValueRequired", f"Required value: {why}".rstrip(": "), field)


def invalid(field: str, value: Any, why: str) -> Cause:
    """Return the cause of a value that breaks a rule."""
    shown = json.dumps(value, ensure_ascii=False)
    return Cause("FieldValueInvalid", f"Invalid value: {shown}: {why}", field)


def _metadata_errors(metadata: Document) -> Iterator[Cause]:
    name = metadata.get("name")
    if not name:
        yield required("metadata.name", "name or generateName is required")
    elif not _SUBDOMAIN.fullmatch(name):
        why = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters"
        yield invalid("metadata.name", name, why)
    yield from _label_errors(metadata, "metadata.labels")


def _label_errors(metadata: Document, path: str) -> Iterator[Cause]:
    for value in (metadata.get("labels") or {}).values():
        if not _VALUE.fullmatch(value):
            why = "a valid label must be an empty string or consist of alphanumeric characters"
            yield invalid(path, value, why)


def _job_errors(job: Document) -> Iterator[Cause]:
    spec, name = job["spec"], job["metadata"].get("name", "")
    template = spec["template"]
    for each in _NUMBERS:
        if spec.get(each, 0) < 0:
            yield invalid(f"spec.{each}", spec[each], "must be greater than or equal to 0")
    if spec["completionMode"] == "Indexed":
        if "completions" not in spec:
            yield required("spec.completions", "when completion mode is Indexed")
        last = f"{name}-{spec.get('completions', 1) - 1}"
        if not _LABEL.fullmatch(last):
            why = f"will not able to create pod with invalid DNS label: {last}"
            yield invalid("metadata.name", name, why)
    elif "backoffLimitPerIndex" in spec:
        why = "requires indexed completion mode"
        yield invalid("spec.backoffLimitPerIndex", spec["backoffLimitPerIndex"], why)
    yield from _label_errors(template["metadata"], "spec.template.metadata.labels")
    yield from _pod_errors(template["spec"], "spec.template.spec")
    if template["spec"].get("restartPolicy") not in ("Never", "OnFailure"):
        field = "spec.template.spec.restartPolicy"
        yield required(field, 'valid values: "OnFailure", "Never"')


def _pod_errors(spec: Document, path: str) -> Iterator[Cause]:
    containers = spec.get("containers") or []
    if not containers:
        yield required(f"{path}.containers")
    added = spec.get("initContainers") or ()
    if len(containers) > 1 or any(each.get("restartPolicy") != "Always" for each in added):
        why = "farcall's local Kubernetes emulator runs pods of one container"
        yield invalid(f"{path}.containers", [each.get("name") for each in containers], why)
    for at, each in enumerate(containers):
        for name in ("name", "image"):
            if not each.get(name):
                yield required(f"{path}.containers[{at}].{name}")
