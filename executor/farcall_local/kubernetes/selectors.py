"""Label and field selectors of the Kubernetes API, parsed once and asked of each object.

Source: https://kubernetes.io/docs/concepts/overview/working-with-objects/labels/ and
.../field-selectors/.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from farcall_local.kubernetes.errors import BadRequestError
from farcall_local.kubernetes.kinds import EVENT, JOB, NAMESPACE, NODE, POD, SECRET, Kind

#: Says of a document whether it is selected.
Selector = Callable[[Mapping[str, Any]], bool]

_SET = re.compile(r"^(\S+)\s+(in|notin)\s*\(([^()]*)\)$")
_EQUAL = re.compile(r"^([^\s!=<>()]+)\s*(==|=|!=)\s*([^\s!=<>()]*)$")
_EXISTS = re.compile(r"^(!?)\s*([^\s!=<>(),]+)$")

#: Fields by which a kind can be selected, besides name and namespace, and what stands for one
#: that an object does not have.
_FIELDS: dict[Kind, dict[str, str]] = {
    POD: {
        "spec.nodeName": "",
        "spec.restartPolicy": "",
        "spec.schedulerName": "",
        "spec.serviceAccountName": "",
        "spec.hostNetwork": "false",
        "status.phase": "",
        "status.podIP": "",
        "status.nominatedNodeName": "",
    },
    EVENT: {
        **{
            f"involvedObject.{name}": ""
            for name in (
                "kind",
                "namespace",
                "name",
                "uid",
                "apiVersion",
                "resourceVersion",
                "fieldPath",
            )
        },
        "reason": "",
        "reportingComponent": "",
        "source": "",
        "type": "",
    },
    JOB: {"status.successful": "0"},
    NAMESPACE: {"status.phase": ""},
    NODE: {"spec.unschedulable": "false"},
    SECRET: {"type": ""},
}
#: Fields that are elsewhere in the document than their name says.
_PLACES = {"status.successful": "status.succeeded", "source": "source.component"}


def labels(text: str) -> Selector | None:
    """Return a label selector, None for an empty one, which selects everything.

    Raises:
        BadRequestError: It cannot be parsed.
    """
    rules = [_label_rule(part.strip()) for part in _split(text) if part.strip()]
    if not rules:
        return None

    def selects(document: Mapping[str, Any]) -> bool:
        has = document["metadata"].get("labels") or {}
        return all(rule(has) for rule in rules)

    return selects


def fields(kind: Kind, text: str) -> Selector | None:
    """Return a field selector, None for an empty one.

    Raises:
        BadRequestError: It cannot be parsed, or the kind has no such field to select by.
    """
    rules = [_field_rule(kind, part.strip()) for part in text.split(",") if part.strip()]
    if not rules:
        return None
    return lambda document: all(rule(document) for rule in rules)


def matching(labels: Mapping[str, str]) -> Selector:
    """Return a selector of objects that have these labels."""
    wanted = labels.items()
    return lambda document: wanted <= (document["metadata"].get("labels") or {}).items()


def _split(text: str) -> list[str]:
    """Split at commas that are not between parentheses."""
    return re.split(r",(?![^()]*\))", text)


def _label_rule(text: str) -> Callable[[Mapping[str, str]], bool]:
    if found := _SET.match(text):
        key, verb, listed = found.groups()
        values = {value.strip() for value in listed.split(",")}
        if verb == "in":
            return lambda has: has.get(key) in values
        return lambda has: has.get(key) not in values
    if found := _EQUAL.match(text):
        key, sign, value = found.groups()
        if sign == "!=":
            return lambda has: has.get(key) != value
        return lambda has: has.get(key) == value
    if found := _EXISTS.match(text):
        absent, key = found.groups()
        return lambda has: (key in has) != bool(absent)
    raise BadRequestError(
        f'unable to parse requirement: found {text!r}, expected: a key, "key=value", '
        '"key!=value", "key in (a,b)", "key notin (a,b)" or "!key"'
    )


def _field_rule(kind: Kind, text: str) -> Selector:
    found = re.match(r"^([^=!]+)(==|=|!=)(.*)$", text)
    if not found:
        raise BadRequestError(f"invalid selector: {text!r}; can't understand {text!r}")
    name, sign, value = found.groups()
    known = {"metadata.name": "", "metadata.namespace": "", **_FIELDS.get(kind, {})}
    if name not in known:
        raise BadRequestError(f'"{name}" is not a known field selector: field label not supported')
    path, absent = _PLACES.get(name, name).split("."), known[name]

    def selects(document: Mapping[str, Any]) -> bool:
        return (_at(document, path, absent) == value) != (sign == "!=")

    return selects


def _at(document: Mapping[str, Any], path: list[str], absent: str) -> str:
    here: Any = document
    for step in path:
        here = here.get(step) if isinstance(here, Mapping) else None
    if here is None:
        return absent
    return str(here).lower() if isinstance(here, bool) else str(here)
