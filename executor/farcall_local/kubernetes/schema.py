"""Fields of Kubernetes' objects and their types: what a document may have, and what is dropped.

``schema.json`` holds, for each definition of the official schema that is served here, the type of
each field: ``int32``, ``string``, ``#core.v1.PodSpec``, ``{}string`` for a map, ``[]string`` for a
list.

The server decodes into structures of Go, so an unknown field is dropped, and reported as far as
``fieldValidation`` asks for it, and a value of another type is refused always.

Source: https://kubernetes.io/docs/reference/using-api/api-concepts/#field-validation
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from farcall_local.kubernetes import nodes
from farcall_local.kubernetes.errors import BadRequestError
from farcall_local.kubernetes.kinds import Kind

Fields = dict[str, str]

_RANGES = {"int32": 2**31, "int64": 2**63, "integer": 2**63}


@functools.cache
def definitions() -> dict[str, Fields]:
    """Return the fields of every definition; read when it is first asked for."""
    found: dict[str, Fields] = json.loads(Path(__file__).with_name("schema.json").read_text())
    return found


def definition(kind: Kind) -> str:
    """Return the name of a kind's definition."""
    return f"{kind.group.partition('.')[0] or 'core'}.{kind.version}.{kind.kind}"


class Decoder:
    """Takes a document apart as the server does.

    Args:
        kind: What it is said to be, in refusals.

    Attributes:
        unknown: Paths of fields that there are not, in the order of their coming.
    """

    def __init__(self, kind: str, version: str) -> None:
        self._kind = kind
        self._version = version
        self.unknown: list[str] = []

    def decode(self, name: str, document: Any) -> dict[str, Any]:
        """Return a document without what its definition does not have, and without nulls.

        Raises:
            BadRequestError: A value is not of its field's type.
        """
        found: dict[str, Any] = self._value(f"#{name}", document, "")
        return found

    def _value(self, type_: str, value: Any, path: str) -> Any:
        if type_[0] == "#":
            return self._object(definitions()[type_[1:]], value, path)
        if type_[0] == "[":
            return self._list(type_.partition("]")[2], value, path)
        if type_[0] == "{":
            return self._map(type_[2:], value, path)
        checked = _SIMPLE[type_](value)
        if type_ == "quantity" and checked is not None:
            self._check_quantity(checked)
        if checked is None and type_ != "any":
            raise self._mismatch(value, type_, path)
        return checked

    def _object(self, fields: Fields, value: Any, path: str) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise self._mismatch(value, "object", path)
        made = {}
        for name, each in value.items():
            where = f"{path}.{name}" if path else name
            if name not in fields:
                self.unknown.append(where)
            elif each is not None:
                inner = self._value(fields[name], each, where)
                if not _is_left_out(fields[name], inner):
                    made[name] = inner
        return made

    def _list(self, type_: str, value: Any, path: str) -> list[Any]:
        if not isinstance(value, list):
            raise self._mismatch(value, "array", path)
        return [self._value(type_, each, f"{path}[{at}]") for at, each in enumerate(value)]

    def _map(self, type_: str, value: Any, path: str) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise self._mismatch(value, "map", path)
        return {
            name: "" if each is None else self._value(type_, each, f"{path}.{name}")
            for name, each in value.items()
        }

    def _check_quantity(self, text: str) -> None:
        try:
            nodes.parse(text)
        except ValueError:
            raise BadRequestError(
                f'{self._kind} in version "{self._version}" cannot be handled as a {self._kind}: '
                "quantities must match the regular expression "
                "'^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
            ) from None

    def _mismatch(self, value: Any, type_: str, path: str) -> BadRequestError:
        where = path or self._kind
        return BadRequestError(
            f'{self._kind} in version "{self._version}" cannot be handled as a {self._kind}: '
            f"json: cannot unmarshal {_go_name(value)} into Go struct field {where} of type "
            f"{type_}"
        )


def _is_left_out(type_: str, value: Any) -> bool:
    """Return whether an empty value is as good as none: lists and maps, but not structures."""
    return not value and type_[0] in "[{"


def _whole(limit: int) -> Callable[[Any], int | None]:
    def check(value: Any) -> int | None:
        fits = isinstance(value, int) and not isinstance(value, bool) and -limit <= value < limit
        return value if fits else None

    return check


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _number(value: Any) -> float | None:
    fits = isinstance(value, (int, float)) and not isinstance(value, bool)
    return value if fits and math.isfinite(value) else None


def _quantity(value: Any) -> str | None:
    if isinstance(value, str):
        return value
    return None if _number(value) is None else str(value)


def _flag(value: Any) -> bool | None:
    return value if isinstance(value, bool) else None


def _port(value: Any) -> int | str | None:
    return value if isinstance(value, str) else _whole(2**31)(value)


def _anything(value: Any) -> Any:
    return value


_SIMPLE: dict[str, Callable[[Any], Any]] = {
    **{name: _whole(limit) for name, limit in _RANGES.items()},
    "number": _number,
    "double": _number,
    "boolean": _flag,
    "string": _text,
    "time": _text,
    "quantity": _quantity,
    "int-or-string": _port,
    "any": _anything,
}


def _go_name(value: Any) -> str:
    if isinstance(value, bool):
        return "bool"
    for kind, name in ((str, "string"), (list, "array"), (dict, "object")):
        if isinstance(value, kind):
            return name
    return f"number {value}" if isinstance(value, float) else "number"
