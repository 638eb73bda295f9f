"""Protobuf bodies of the Kubernetes API: the few that kubectl sends where all else is JSON.

``kubectl create`` of a job, namespace, secret or configmap, and ``auth can-i`` send their
documents so. What they can say is read here, by the numbers of fields; a document with anything
else is refused with 415, as a server does that has no protobuf for a kind.

Sources:
    https://kubernetes.io/docs/reference/using-api/api-concepts/#protobuf-encoding
    https://protobuf.dev/programming-guides/encoding/
    https://github.com/kubernetes/api, generated.proto of each group
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

from farcall_local.kubernetes.errors import UnsupportedMediaTypeError

Document = dict[str, Any]

CONTENT_TYPE = "application/vnd.kubernetes.protobuf"

_MAGIC = b"k8s\x00"
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5

#: Messages: the name and type of each field by its number. ``[]`` marks a list,
#: ``{}`` a map of texts to that.
_MESSAGES: dict[str, dict[int, tuple[str, str]]] = {
    "Unknown": {1: ("type", "TypeMeta"), 2: ("raw", "raw")},
    "TypeMeta": {1: ("apiVersion", "string"), 2: ("kind", "string")},
    "ObjectMeta": {
        1: ("name", "string"),
        2: ("generateName", "string"),
        3: ("namespace", "string"),
        5: ("uid", "string"),
        6: ("resourceVersion", "string"),
        11: ("labels", "{}string"),
        12: ("annotations", "{}string"),
    },
    "Namespace": {
        1: ("metadata", "ObjectMeta"),
        2: ("spec", "NamespaceSpec"),
        3: ("status", "NamespaceStatus"),
    },
    "NamespaceSpec": {1: ("finalizers", "[]string")},
    "NamespaceStatus": {1: ("phase", "string")},
    "Job": {1: ("metadata", "ObjectMeta"), 2: ("spec", "JobSpec")},
    "JobSpec": {
        1: ("parallelism", "int"),
        2: ("completions", "int"),
        3: ("activeDeadlineSeconds", "int"),
        6: ("template", "PodTemplateSpec"),
        7: ("backoffLimit", "int"),
        8: ("ttlSecondsAfterFinished", "int"),
        9: ("completionMode", "string"),
        10: ("suspend", "bool"),
    },
    "PodTemplateSpec": {1: ("metadata", "ObjectMeta"), 2: ("spec", "PodSpec")},
    "PodSpec": {2: ("containers", "[]Container"), 3: ("restartPolicy", "string")},
    "Container": {
        1: ("name", "string"),
        2: ("image", "string"),
        3: ("command", "[]string"),
        4: ("args", "[]string"),
        5: ("workingDir", "string"),
        14: ("imagePullPolicy", "string"),
    },
    "Secret": {
        1: ("metadata", "ObjectMeta"),
        2: ("data", "{}base64"),
        3: ("type", "string"),
        4: ("stringData", "{}string"),
        5: ("immutable", "bool"),
    },
    "ConfigMap": {
        1: ("metadata", "ObjectMeta"),
        2: ("data", "{}string"),
        3: ("binaryData", "{}base64"),
        4: ("immutable", "bool"),
    },
    "SelfSubjectReview": {1: ("metadata", "ObjectMeta")},
    "SelfSubjectAccessReview": {1: ("metadata", "ObjectMeta"), 2: ("spec", "AccessSpec")},
    "AccessSpec": {
        1: ("resourceAttributes", "ResourceAttributes"),
        2: ("nonResourceAttributes", "NonResourceAttributes"),
    },
    "ResourceAttributes": {
        1: ("namespace", "string"),
        2: ("verb", "string"),
        3: ("group", "string"),
        4: ("version", "string"),
        5: ("resource", "string"),
        6: ("subresource", "string"),
        7: ("name", "string"),
    },
    "NonResourceAttributes": {1: ("path", "string"), 2: ("verb", "string")},
    "SelfSubjectRulesReview": {1: ("metadata", "ObjectMeta"), 2: ("spec", "RulesSpec")},
    "RulesSpec": {1: ("namespace", "string")},
}


def parsed(body: bytes) -> Document:
    """Return the document of a body.

    Raises:
        UnsupportedMediaTypeError: It is not one of the few that are read, or broken.
    """
    try:
        whole = _message("Unknown", body[body.index(_MAGIC) + len(_MAGIC) :])
        kind = whole["type"]["kind"]
        return {**whole["type"], **_message(kind, whole["raw"])}
    except (KeyError, ValueError, IndexError):
        raise UnsupportedMediaTypeError(
            "the body of the request was in an unknown format - accepted media types include: "
            "application/json, application/yaml"
        ) from None


def _message(name: str, data: bytes) -> Document:
    fields, made = _MESSAGES[name], Document()
    for number, value in _fields(data):
        if number not in fields:
            if value not in (0, b"") and _says_something(value):
                raise ValueError(f"{name} has field {number}")
            continue
        field, type_ = fields[number]
        if type_.startswith("[]"):
            made.setdefault(field, []).append(_value(type_[2:], value))
        elif type_.startswith("{}"):
            pair = dict(_fields(value))
            key = bytes(pair.get(1, b"")).decode()
            made.setdefault(field, {})[key] = _value(type_[2:], pair.get(2, b""))
        elif value != b"" or type_ in _MESSAGES:
            made[field] = _value(type_, value)
    return made


def _value(type_: str, value: Any) -> Any:
    if type_ in _MESSAGES:
        return _message(type_, value)
    if type_ == "string":
        return bytes(value).decode()
    if type_ == "base64":
        return base64.b64encode(value).decode()
    if type_ == "raw":
        return value
    number = int(value)
    if type_ == "bool":
        return bool(number)
    return number - 2**64 if number >= 2**63 else number


def _says_something(value: Any) -> bool:
    """Say whether a field that is not read is more than an empty message of empty fields."""
    if isinstance(value, int):
        return bool(value)
    try:
        return any(_says_something(each) for _, each in _fields(value)) if value else False
    except (ValueError, IndexError):
        return True


def _fields(data: bytes) -> Iterator[tuple[int, Any]]:
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        kind = tag & 7
        if kind == _VARINT:
            value, at = _varint(data, at)
            yield tag >> 3, value
            continue
        if kind == _BYTES:
            size, at = _varint(data, at)
        elif kind in (_FIXED64, _FIXED32):
            size = 8 if kind == _FIXED64 else 4
        else:
            raise ValueError(f"wire type {kind}")
        if at + size > len(data):
            raise ValueError("the body breaks off")
        yield tag >> 3, data[at : at + size]
        at += size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte = data[at]
        number |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return number, at
        if shift > 63:
            raise ValueError("a number is too long")
