"""Syntax of names, labels and annotations in Kubernetes.

Sources:
    https://kubernetes.io/docs/concepts/overview/working-with-objects/names/
    https://kubernetes.io/docs/concepts/overview/working-with-objects/labels/#syntax-and-character-set
"""

from __future__ import annotations

import re
from typing import Any

from farcall_local.kubernetes import causes
from farcall_local.kubernetes.errors import Cause

Document = dict[str, Any]

_LABEL = re.compile(r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")
_SUBDOMAIN = re.compile(r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$")
_WORD = re.compile(r"^[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$")

LABEL_RULE = (
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and "
    "must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used "
    "for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')"
)
SUBDOMAIN_RULE = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or "
    "'.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used "
    "for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
)
_VALUE_RULE = (
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or "
    "'.', and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  "
    "or '12345', regex used for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')"
)
_KEY_RULE = (
    "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end "
    "with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for "
    "validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"
)
_ANNOTATIONS = 256 * 1024


def label_name(text: str, field: str) -> list[Cause]:
    """Check a name that is to be one part of a domain's."""
    return _checked(text, field, _LABEL, 63, LABEL_RULE)


def subdomain(text: str, field: str) -> list[Cause]:
    """Check a name that is to be a domain's."""
    return _checked(text, field, _SUBDOMAIN, 253, SUBDOMAIN_RULE)


def _checked(text: str, field: str, pattern: re.Pattern[str], most: int, rule: str) -> list[Cause]:
    found = []
    if len(text) > most:
        found.append(causes.invalid(field, text, f"must be no more than {most} bytes"))
    if not pattern.match(text):
        found.append(causes.invalid(field, text, rule))
    return found


def labels(has: Document, field: str) -> list[Cause]:
    """Check labels."""
    found: list[Cause] = []
    for key, value in has.items():
        found += qualified(key, field)
        if len(value) > 63:
            found.append(causes.invalid(field, value, "must be no more than 63 bytes"))
        if value and not _WORD.match(value):
            found.append(causes.invalid(field, value, _VALUE_RULE))
    return found


def annotation_names(has: Document, field: str) -> list[Cause]:
    """Check annotations."""
    found = [cause for key in has for cause in qualified(key.lower(), field)]
    if sum(len(key.encode()) + len(value.encode()) for key, value in has.items()) > _ANNOTATIONS:
        found.append(causes.too_long(field, _ANNOTATIONS))
    return found


def qualified(key: str, field: str) -> list[Cause]:
    """Check the name of a label or an annotation, which may have a domain before it."""
    prefix, slash, last = key.rpartition("/")
    found = []
    if slash and not (prefix and _SUBDOMAIN.match(prefix) and len(prefix) <= 253):
        found.append(causes.invalid(field, key, f"prefix part {SUBDOMAIN_RULE}"))
    if not last:
        found.append(causes.invalid(field, key, "name part must be non-empty"))
    elif not _WORD.match(last):
        found.append(causes.invalid(field, key, _KEY_RULE))
    if len(last) > 63:
        found.append(causes.invalid(field, key, "name part must be no more than 63 bytes"))
    return found
