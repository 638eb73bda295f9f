"""Function signatures that list each option, by group, for completion and help.

Type checkers read `Options`; notebooks, ``help`` and Python's prompt read these signatures.
"""

from __future__ import annotations

import functools
import inspect
import re
import typing
from collections.abc import Callable
from typing import Any, TypeVar

from farcall.model.settings import Options, Settings
from farcall.model.settings_help import describe

F = TypeVar("F", bound=Callable[..., Any])

GROUPS = {
    "Resources and code": (
        *("vcpu", "memory", "num_gpus", "time_limit", "image", "stock_image_uri"),
        "nodes",
        *("instance_type", "architecture", "packages", "extra_packages", "exclude_packages"),
        *("sources", "exclude_sources"),
    ),
    "Failures and waiting": (
        *("retry_attempts", "retry_on", "stuck_timeout_s", "poll_freq", "linger_s"),
    ),
    "AWS resources": (
        *("backend", "queue", "s3_bucket_name", "prefix", "batch_job_role_name"),
        *("batch_execution_role_name", "batch_job_log_group_name", "batch_job_definition_name"),
        *("s3_encryption", "s3_kms_key_id", "endpoint_url", "cache_dir"),
    ),
    "Credentials": ("profile", "region", "credentials"),
    "Names, tags and records": (
        *("workflow", "tags", "priority", "share_identifier", "ui_url", "keep_artifacts"),
        "store_call_summaries",
        "job_definition_extra",
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
            name, inspect.Parameter.KEYWORD_ONLY, default=_default(name), annotation=types[name]
        )
        for names in GROUPS.values()
        for name in names
    ]


def _default(option: str) -> Any:
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
