"""Label and field selectors of the Kubernetes API.

Sources:
    https://kubernetes.io/docs/concepts/overview/working-with-objects/labels/
    https://kubernetes.io/docs/concepts/overview/working-with-objects/field-selectors/
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from tests.emulators.kubernetes.errors import BadRequestError
from tests.emulators.kubernetes.kinds import EVENT, POD, Kind, Target

#: Returns whether a document is selected.
Selector = Callable[[Mapping[str, Any]], bool]

_SET = re.compile(r"^(\S+)\s+(in|notin)\s*\(([^()]*)\)$")
_EQUAL = re.compile(r"^([^\s!=<>()]+)\s*(==|=|!=)\s*([^\s!=<>()]*)$")
_EXISTS = re.compile(r"^(!?)\s*([^\s!=<>(),]+)$")

_OF_EVENT = ("kind", "namespace", "name", "uid", "apiVersion", "resourceVersion", "fieldPath")
#: Fields of a kind that selectors accept, in addition to its name and namespace.
_FIELDS: dict[Kind, tuple[str, ...]] = {
    POD: ("spec.nodeName", "status.phase"),
    EVENT: (*(f"involvedObject.{name}" for name in _OF_EVENT), "reason", "type"),
}


def of(target: Target, query: Mapping[str, str]) -> Selector:
    """Return the selector of a list or watch.

    Raises:
        BadRequestError: A selector cannot be parsed.
    """
    by_label = labels(query.get("labelSelector", ""))
    by_field = fields(target.kind, query.get("fieldSelector", ""))
    namespace = target.namespace

    def selects(document: Mapping[str, Any]) -> bool:
        if namespace and document["metadata"].get("namespace") != namespace:
            return False
        return by_label(document) and by_field(document)

    return selects


def labels(text: str) -> Selector:
    """Return a label selector; an empty text selects everything.

    Raises:
        BadRequestError: The text cannot be parsed.
    """
    parts = re.split(r",(?![^()]*\))", text)  # commas outside parentheses
    rules = [_label_rule(part.strip()) for part in parts if part.strip()]

    def selects(document: Mapping[str, Any]) -> bool:
        has = document["metadata"].get("labels") or {}
        return all(rule(has) for rule in rules)

    return selects


def fields(kind: Kind, text: str) -> Selector:
    """Return a field selector; an empty text selects everything.

    Raises:
        BadRequestError: The text cannot be parsed, or the kind has no such field.
    """
    rules = [_field_rule(kind, part.strip()) for part in text.split(",") if part.strip()]
    return lambda document: all(rule(document) for rule in rules)


def _label_rule(text: str) -> Callable[[Mapping[str, str]], bool]:
    if found := _SET.match(text):
        key, verb, listed = found.groups()
        values = {value.strip() for value in listed.split(",")}
        return lambda has: (has.get(key) in values) == (verb == "in")
    if found := _EQUAL.match(text):
        key, sign, value = found.groups()
        return lambda has: (has.get(key) == value) == (sign != "!=")
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
    if name not in ("metadata.name", "metadata.namespace", *_FIELDS.get(kind, ())):
        raise BadRequestError(f'"{name}" is not a known field selector: field label not supported')
    part, _, field = name.rpartition(".")

    def selects(document: Mapping[str, Any]) -> bool:
        there = (document.get(part) or {}) if part else document
        return bool((there.get(field, "") == value) == (sign != "!="))

    return selects
