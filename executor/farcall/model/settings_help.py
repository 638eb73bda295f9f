"""Help on options: their descriptions, accepted values, defaults and sources."""

from __future__ import annotations

import contextlib
import inspect
import re
from typing import Any, Literal, NamedTuple, get_args, get_origin

from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from farcall.model.errors import SettingsError
from farcall.model.names import BATCH
from farcall.model.settings import (
    ENVIRONMENT_PREFIX,
    PATTERNS,
    Settings,
    chosen,
    files,
    from_environment,
    tables,
)

_ENTRY = re.compile(r"^    (\w+): (.*(?:\n      .*)*)", re.MULTILINE)


DEFAULTS = "the defaults"
"""Result of `origin` for an option that is not set anywhere."""


class Description(NamedTuple):
    """Description of an option.

    Attributes:
        name: Name of the option.
        text: Purpose of the option; empty under ``python -OO``.
        allowed: Accepted values; empty if the type is sufficient.
        default: Default; None if there is none or if it depends on the environment.
    """

    name: str
    text: str
    allowed: str
    default: Any


def describe() -> list[Description]:
    """Return the descriptions of all options, in the order of `Settings`.

    Under ``python -OO``, which strips docstrings, the texts are empty.
    """
    doc = inspect.cleandoc(Settings.__doc__ or "").partition("Attributes:\n")[2]
    texts = {name: " ".join(t.replace("``", "").split()) for name, t in _ENTRY.findall(doc)}
    return [
        Description(name, text, _allowed(name, field, text), _default(field))
        for name, field in Settings.model_fields.items()
        for text in [texts.get(name, "")]
    ]


def origin(option: str) -> str:
    """Return the source of an option's value."""
    if option in from_environment():
        return f"{ENVIRONMENT_PREFIX}{option.upper()}"
    with contextlib.suppress(SettingsError):
        for path in files()[:1]:
            sections = tables(path)
            backend = chosen(from_environment(), sections)
            is_by_heading = option == "backend" and [*sections] == [backend] != [BATCH]
            if is_by_heading or option in sections.get(backend, {}):
                return str(path)
    return DEFAULTS


def origins() -> str:
    """Return the sources of options in one line."""
    there = files()
    parts = [str(path) for path in there[:1]]
    variables = sorted(f"{ENVIRONMENT_PREFIX}{name.upper()}" for name in from_environment())
    if variables:
        parts.append(f"the environment ({', '.join(variables)})")
    text = " and ".join(parts) or f"{DEFAULTS} only: no farcall.toml exists"
    return text + "".join(f"; {path} is not read" for path in there[1:])


def _default(field: FieldInfo) -> Any:
    return None if field.default is PydanticUndefined else field.default


def _allowed(name: str, field: FieldInfo, text: str) -> str:
    if name in PATTERNS:
        return PATTERNS[name].removeprefix("use ")
    if get_origin(field.annotation) is Literal:
        return " or ".join(f'"{value}"' for value in get_args(field.annotation))
    bounds = {key: getattr(m, key) for m in field.metadata for key in _BOUNDS if hasattr(m, key)}
    if "at least" in text or " to " in text:  # the description already names the range
        return ""
    if {"ge", "le"} <= set(bounds):
        return f"{bounds['ge']} to {bounds['le']}"
    return "".join(f"{_BOUNDS[key]} {bound}" for key, bound in bounds.items())


_BOUNDS = {"gt": "more than", "ge": "at least", "le": "at most"}
