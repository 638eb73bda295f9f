"""Validation rules for objects that the Kubernetes emulator stores.

`farcall_local.kubernetes.schema` checks the types of fields. These are the other rules that a
client of Jobs can break.

Sources:
    https://kubernetes.io/docs/concepts/overview/working-with-objects/names/
    https://github.com/kubernetes/kubernetes, pkg/apis/batch/validation/validation.go
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from farcall_local.kubernetes.errors import Cause
from farcall_local.kubernetes.kinds import JOB, POD, Kind

Document = dict[str, Any]

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
    found = [*_metadata(document["metadata"])]
    if kind is POD:
        found += _pod(document.get("spec") or {}, "spec")
    elif kind is JOB:
        found += _job(document)
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


def _metadata(metadata: Document) -> Iterator[Cause]:
    name = metadata.get("name")
    if not name:
        yield required("metadata.name", "name or generateName is required")
    elif not _SUBDOMAIN.fullmatch(name):
        why = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters"
        yield invalid("metadata.name", name, why)
    yield from _labels(metadata, "metadata.labels")


def _labels(metadata: Document, path: str) -> Iterator[Cause]:
    for value in (metadata.get("labels") or {}).values():
        if not _VALUE.fullmatch(value):
            why = "a valid label must be an empty string or consist of alphanumeric characters"
            yield invalid(path, value, why)


def _job(job: Document) -> Iterator[Cause]:
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
    yield from _labels(template["metadata"], "spec.template.metadata.labels")
    yield from _pod(template["spec"], "spec.template.spec")
    if template["spec"].get("restartPolicy") not in ("Never", "OnFailure"):
        field = "spec.template.spec.restartPolicy"
        yield required(field, 'valid values: "OnFailure", "Never"')


def _pod(spec: Document, path: str) -> Iterator[Cause]:
    containers = spec.get("containers") or []
    if not containers:
        yield required(f"{path}.containers")
    if len(containers) > 1 or spec.get("initContainers"):
        why = "farcall's local Kubernetes emulator runs pods of one container"
        yield invalid(f"{path}.containers", [each.get("name") for each in containers], why)
    for at, each in enumerate(containers):
        for name in ("name", "image"):
            if not each.get(name):
                yield required(f"{path}.containers[{at}].{name}")
