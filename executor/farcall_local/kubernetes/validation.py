"""Rules that the Kubernetes API server checks of each object before it stores it.

The types of fields are checked by `farcall_local.kubernetes.schema`. Of the other rules these are
the ones that a client of jobs can run into.

Sources:
    https://kubernetes.io/docs/concepts/overview/working-with-objects/names/
    https://github.com/kubernetes/kubernetes, pkg/apis/batch/validation/validation.go
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from typing import Any

from farcall_local.kubernetes.errors import BadRequestError, Cause
from farcall_local.kubernetes.kinds import JOB, NAMESPACE, POD, SECRET, SERVICE, Kind

Document = dict[str, Any]

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_SUBDOMAIN = re.compile(r"(?=.{1,253}$)[a-z0-9]([-.a-z0-9]*[a-z0-9])?")
_VALUE = re.compile(r"([A-Za-z0-9]([-_.A-Za-z0-9]{0,61}[A-Za-z0-9])?)?")
_SECRET_BYTES = 1024 * 1024
_FIXED = (
    *("selector", "completionMode", "podFailurePolicy", "backoffLimitPerIndex", "managedBy"),
    "successPolicy",
)
_NUMBERS = ("parallelism", "completions", "activeDeadlineSeconds", "backoffLimit")
_SCHEDULING = ("nodeSelector", "affinity", "tolerations", "schedulingGates")


def check(kind: Kind, document: Document) -> list[Cause]:
    """Return what is wrong with an object, which has its defaults."""
    return [*_metadata(kind, document), *_check(kind, document)]


def changed(kind: Kind, document: Document, there: Document) -> list[Cause]:
    """Return what is wrong with the changes that are to be made to an object."""
    if kind == SECRET and document.get("type") != there.get("type"):
        return [_immutable("type", document.get("type"))]
    return list(_job_change(document, there)) if kind == JOB else []


def required(field: str, why: str = "") -> Cause:
    """Return the cause of a value that is missing."""
    told = f"Required value: {why}" if why else "Required value"
    return Cause("FieldValueRequired", told, field)


def invalid(field: str, value: Any, why: str) -> Cause:
    """Return the cause of a value that breaks a rule."""
    shown = json.dumps(value, ensure_ascii=False)
    return Cause("FieldValueInvalid", f"Invalid value: {shown}: {why}", field)


def _immutable(field: str, value: Any) -> Cause:
    return invalid(field, value, "field is immutable")


def _metadata(kind: Kind, document: Document) -> Iterator[Cause]:
    has = document.get("metadata") or {}
    name = has.get("name")
    if not name:
        yield required("metadata.name", "name or generateName is required")
    elif kind in (NAMESPACE, SERVICE) and not _LABEL.fullmatch(name):
        why = "a DNS-1123 label must consist of lower case alphanumeric characters or '-'"
        yield invalid("metadata.name", name, why)
    elif not _SUBDOMAIN.fullmatch(name):
        why = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters"
        yield invalid("metadata.name", name, why)
    yield from _labels(has.get("labels") or {}, "metadata.labels")


def _labels(labels: Document, path: str) -> Iterator[Cause]:
    for value in labels.values():
        if not _VALUE.fullmatch(value):
            why = "a valid label must be an empty string or consist of alphanumeric characters"
            yield invalid(path, value, why)


def _check(kind: Kind, document: Document) -> Iterator[Cause]:
    if kind == SECRET:
        yield from _secret(document)
    elif kind == JOB:
        yield from _job(document)
    elif kind == POD:
        yield from _pod(document["spec"], "spec")


def _secret(document: Document) -> Iterator[Cause]:
    data = document.get("data") or {}
    try:
        size = sum(len(base64.b64decode(value, validate=True)) for value in data.values())
    except ValueError:
        raise BadRequestError(
            'Secret in version "v1" cannot be handled as a Secret: illegal base64 data at input'
        ) from None
    if size > _SECRET_BYTES:
        told = f"Too long: may not be more than {_SECRET_BYTES} bytes"
        yield Cause("FieldValueTooLong", told, "data")


def _job(job: Document) -> Iterator[Cause]:
    spec, name = job["spec"], job["metadata"].get("name", "")
    template = spec["template"]
    for each in _NUMBERS:
        if spec.get(each, 0) < 0:
            yield invalid(f"spec.{each}", spec[each], "must be greater than or equal to 0")
    if spec.get("completionMode") == "Indexed":
        if "completions" not in spec:
            yield required("spec.completions", "when completion mode is Indexed")
        last = f"{name}-{spec.get('completions', 1) - 1}"
        if not _LABEL.fullmatch(last):
            why = f"will not able to create pod with invalid DNS label: {last}"
            yield invalid("metadata.name", name, why)
    elif "backoffLimitPerIndex" in spec:
        why = "requires indexed completion mode"
        yield invalid("spec.backoffLimitPerIndex", spec["backoffLimitPerIndex"], why)
    yield from _labels(
        template.get("metadata", {}).get("labels", {}), "spec.template.metadata.labels"
    )
    yield from _pod(template["spec"], "spec.template.spec")
    if template["spec"].get("restartPolicy") not in ("Never", "OnFailure"):
        field = "spec.template.spec.restartPolicy"
        yield required(field, 'valid values: "OnFailure", "Never"')


def _pod(spec: Document, path: str) -> Iterator[Cause]:
    if not spec.get("containers"):
        yield required(f"{path}.containers")
    for at, each in enumerate(spec.get("containers", ())):
        where = f"{path}.containers[{at}]"
        if not each.get("name"):
            yield required(f"{where}.name")
        if not each.get("image"):
            yield required(f"{where}.image")


def _job_change(job: Document, there: Document) -> Iterator[Cause]:
    spec, old = job["spec"], there["spec"]
    for name in _FIXED:
        if spec.get(name) != old.get(name):
            yield _immutable(f"spec.{name}", spec.get(name))
    if spec.get("completions") != old.get("completions"):
        elastic = spec.get("completions") == spec.get("parallelism")
        if old.get("completionMode") != "Indexed" or not elastic:
            yield _immutable("spec.completions", spec.get("completions"))
    waits = old.get("suspend") and not (there.get("status") or {}).get("startTime")
    if spec["template"] != old["template"] and not (
        waits and _unscheduled(spec["template"]) == _unscheduled(old["template"])
    ):
        yield _immutable("spec.template", spec["template"])


def _unscheduled(template: Document) -> Document:
    """Return what of a template may not be changed either while its Job is suspended."""
    spec = {name: value for name, value in template["spec"].items() if name not in _SCHEDULING}
    spec["containers"] = [{**each, "resources": {}} for each in spec.get("containers", ())]
    return spec
