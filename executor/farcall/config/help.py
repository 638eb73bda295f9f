"""Help on options: descriptions, sources of values, and signatures that list each option."""

from __future__ import annotations

import contextlib
import functools
import inspect
import re
import typing
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, TypeVar, get_args, get_origin

from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from farcall.config.files import chosen, files, tables
from farcall.config.settings import (
    ENVIRONMENT_PREFIX,
    PATTERNS,
    Options,
    Settings,
    from_environment,
)
from farcall.model.errors import SettingsError
from farcall.model.names import BATCH

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


# --- Signatures: type checkers read `Options`; notebooks and ``help`` read these ----------------


F = TypeVar("F", bound=Callable[..., Any])

GROUPS = {
    "Resources and code": (
        *("vcpu", "memory", "num_gpus", "time_limit", "image", "stock_image_uri"),
        "nodes",
        *("instance_type", "architecture", "packages", "extra_packages", "exclude_packages"),
        *("sources", "exclude_sources", "environment", "secrets"),
    ),
    "Failures and waiting": (
        *("retry_attempts", "retry_on", "stuck_timeout_s", "queue_patience", "poll_freq"),
        *("linger_s", "cache", "cache_key", "workers", "workers_idle"),
    ),
    "AWS resources": (
        *("backend", "queue", "s3_bucket_name", "prefix", "batch_job_role_name"),
        *("batch_execution_role_name", "batch_job_log_group_name", "batch_job_definition_name"),
        *("s3_encryption", "s3_kms_key_id", "endpoint_url", "cache_dir"),
    ),
    "Credentials": ("profile", "region", "credentials"),
    "Names, tags and records": (
        *("workflow", "tags", "priority", "share_identifier", "ui_url", "keep_artifacts"),
        *("store_call_summaries", "vcpu_hour_price", "gb_hour_price", "job_definition_extra"),
    ),
    "Output": ("log_level", "output"),
    "Kubernetes": (
        *("kubeconfig", "context", "namespace", "service_account", "image_pull_secrets"),
        *("scheduler", "priority_class", "node_selector", "tolerations", "mounts"),
        *("shm_size", "s3_secret", "max_parallel", "ttl", "pod_overlay"),
    ),
}
"""Options by topic, the most used first."""


def shows_options(function: F) -> F:
    """Replace ``**options`` in a function's signature with the options.

    A constructor's docstring becomes the list of options, with one sentence for each.
    """
    signature = inspect.signature(function)
    own = [each for each in signature.parameters.values() if each.kind is not each.VAR_KEYWORD]
    taken = {each.name for each in own}
    options = [each for each in _parameters() if each.name not in taken]
    function.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=[*own, *options]
    )
    if function.__name__ == "__init__":
        function.__doc__ = _listed()
    return function


@functools.cache
def _parameters() -> list[inspect.Parameter]:
    types = typing.get_type_hints(Options)
    return [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=_shown_default(name),
            annotation=types[name],
        )
        for names in GROUPS.values()
        for name in names
    ]


def _shown_default(option: str) -> Any:
    field = Settings.model_fields[option]
    return ... if field.default_factory else field.default


@functools.cache
def _listed() -> str:
    texts = {each.name: _first_sentence(each.text) for each in describe()}
    lines = ["Accept options by keyword; help(farcall.Settings) describes each in full."]
    for group, names in GROUPS.items():
        lines += ["", f"{group}:", *(f"    {name}: {texts[name]}".rstrip(": ") for name in names)]
    return "\n".join(lines)


def _first_sentence(text: str) -> str:
    return re.split(r"(?<=\.) (?=[A-Z])", text, maxsplit=1)[0]
