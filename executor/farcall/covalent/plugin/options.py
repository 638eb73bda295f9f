"""Options of the Covalent integration, as a file section and as attributes."""

from __future__ import annotations

import difflib
import json
import logging
import sys
from collections.abc import Iterable, Mapping
from typing import Any

from covalent._shared_files.config import _config_manager, get_config
from covalent.executor.base import AsyncBaseExecutor

from farcall.config.files import SECTIONS
from farcall.config.settings import (
    FOREIGN_IMAGES,
    OptionSource,
    Settings,
    options_of,
)
from farcall.model.errors import SettingsError
from farcall.model.names import BATCH
from farcall_runtime.contract import RETRY_ON_FAILURE

_log = logging.getLogger("farcall")

CONSTRUCTOR = "AWSBatchExecutor"

_SECTION = ".".join(SECTIONS[BATCH])
_OWN_NAMES = {"batch_queue": "queue", "container_image_uri": "image"}
"""Names of options in the AWS Batch plugin's documentation, and farcall's names."""

_NAMES = {own: name for name, own in _OWN_NAMES.items()}
_OPTIONS = tuple(
    _NAMES.get(name, name) for name in Settings.model_fields if name in options_of(BATCH)
)
"""Names of the AWS Batch options in Covalent."""

_DEFAULTS = {
    "s3_bucket_name": "covalent-batch-job-resources",
    "batch_queue": "covalent-batch-queue",
    "batch_job_definition_name": "covalent-batch-jobs",
    "batch_execution_role_name": "ecsTaskExecutionRole",
    "batch_job_role_name": "CovalentBatchJobRole",
    "batch_job_log_group_name": "covalent-batch-job-logs",
    "retry_on": RETRY_ON_FAILURE,
}
"""Defaults in the plugin's documentation that differ from farcall's."""

_LEFT_TO_AWS = ("profile", "region", "credentials")
"""Options that AWS's configuration determines if they are empty in the section."""

_WRONG = "wrong"
_LOG_OPTIONS = ("log_stdout", "log_stderr")


def plugin_defaults() -> dict[str, Any]:
    """Return the defaults that Covalent writes into the section if it has none."""
    defaults: dict[str, Any] = dict.fromkeys((*_LEFT_TO_AWS, *_LOG_OPTIONS), "")
    for name in _OPTIONS:
        default = _DEFAULTS.get(name, Settings.model_fields[_OWN_NAMES.get(name, name)].default)
        if name not in _LEFT_TO_AWS and default is not None:  # TOML has no null value
            defaults[name] = default
    try:
        section = get_config(_SECTION)
    except KeyError:
        return defaults
    _warn_of_unknown(section, known=defaults)
    # Covalent replaces "" with the default (covalent/_shared_files/config.py), but here "" means
    # no role, or no custom log group.
    return {**defaults, **{name: "" for name, value in section.items() if value == ""}}


def _warn_of_unknown(section: Mapping[str, Any], known: Iterable[str]) -> None:
    """Log a warning for options in the section that have no effect.

    They are not rejected, because a running Covalent server writes all options that it has read
    back to the file, so that the user could not correct a misspelled option without stopping the
    server.
    """
    names = {*known, *_OPTIONS}
    for name in section:
        if name not in names:
            close = difflib.get_close_matches(name, names, 1)
            hint = f"; did you mean {close[0]}?" if close else ""
            _log.warning(
                "%s, section [%s] has an unknown option %r, which has no effect%s",
                _place().file,
                _SECTION,
                name,
                hint,
            )


def register(name: str) -> None:
    """Register the plugin if its module was imported before Covalent.

    The module's import loads Covalent, which loads its plugins while this one is incomplete.
    """
    covalent_executors = sys.modules["covalent.executor"]
    manager = getattr(covalent_executors, "_executor_manager", None)  # unset during import
    if manager is not None and name.rpartition(".")[2] not in manager.executor_plugins_map:
        module = sys.modules[name]
        manager._populate_executor_map_from_module(module)
        setattr(covalent_executors, CONSTRUCTOR, getattr(module, CONSTRUCTOR))


class ConfiguredExecutor(AsyncBaseExecutor):  # type: ignore[misc]  # Covalent has no types
    """Executor whose attributes are the options."""

    def __init__(
        self, *, log_stdout: str | None = None, log_stderr: str | None = None, **options: Any
    ) -> None:
        section = dict(get_config(_SECTION))
        logs = {"log_stdout": log_stdout, "log_stderr": log_stderr}
        by_name = {**options, **logs} == section
        if by_name:  # called by Covalent
            options, logs = {}, {}
        given = {name: value for name, value in options.items() if value is not None}
        for name in _LOG_OPTIONS:
            configured = section.pop(name, "")
            if logs.get(name) is None:
                logs[name] = configured
        left = [name for name in _LEFT_TO_AWS if section.get(name) == ""]
        known = set(_OPTIONS) - set(left)
        section = {name: value for name, value in section.items() if name in known}
        super().__init__(**logs)
        try:
            # The server, which submits the job, has another environment.
            settings = _resolve(section, given).with_environment()
            _refuse_foreign_image(settings)
            _refuse_nodes(settings)
        except SettingsError as error:
            if not by_name:
                raise
            # Covalent creates an executor from the section before it sets a task's own options and
            # to cancel a task. Errors in the section must prevent neither.
            self.__dict__[_WRONG] = str(error)
            return
        # Covalent's UI shows about the first ten.
        first = {"ui_url": settings.ui_url}
        self.__dict__ = {
            **first,
            **self.__dict__,
            **{_NAMES.get(name, name): value for name, value in _dumped(settings).items()},
        }

    @property
    def stored(self) -> str:
        """The executor's JSON as Covalent stores it."""
        kept = {name: value for name, value in self.__dict__.items() if not name.startswith("_")}
        return json.dumps({**self.to_dict(), "attributes": kept})

    @property
    def settings(self) -> Settings:
        """The current options; Covalent fills the attributes from JSON.

        Raises:
            SettingsError: An attribute is missing or has a wrong value.
        """
        if _WRONG in self.__dict__:
            raise SettingsError(self.__dict__[_WRONG])
        values = {name: self.__dict__.get(name) for name in _OPTIONS}
        if any(name not in self.__dict__ for name in values):
            raise SettingsError(
                "the executor of this task does not belong to farcall. Dispatch a task that "
                "was built with covalent-awsbatch-plugin again from its script."
            )
        for name in (*_LEFT_TO_AWS, "endpoint_url"):
            if values[name] == Settings.model_fields[name].get_default(call_default_factory=True):
                del values[name]
        settings = _resolve({}, values)
        _refuse_nodes(settings)
        return settings


def _dumped(settings: Settings) -> dict[str, Any]:
    ladders = {name: list(steps) for name, steps in settings.ladders._asdict().items() if steps}
    return {**settings.model_dump(mode="json", include={*options_of(BATCH)}), **ladders}


def _own(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options under farcall's names."""
    return {_OWN_NAMES.get(name, name): value for name, value in options.items()}


def _resolve(section: Mapping[str, Any], given: Mapping[str, Any]) -> Settings:
    return Settings.within(_own(section), _place(), **_own(given))


def _place() -> OptionSource:
    return OptionSource(CONSTRUCTOR, _config_manager.config_file, _NAMES)


def _refuse_nodes(settings: Settings) -> None:
    if settings.nodes > 1:
        raise SettingsError(
            f"nodes is {settings.nodes}, but a Covalent task runs on one node, because its "
            "result would be a list of results. Remove nodes, or run the function with "
            "BatchExecutor.",
            option="nodes",
        )


def _refuse_foreign_image(settings: Settings) -> None:
    image = settings.image
    if image.startswith(FOREIGN_IMAGES):
        raise SettingsError(
            f"container_image_uri is {image!r}, the image of covalent-awsbatch-plugin, which "
            "cannot run farcall's jobs. Remove the option, leave it empty for an image that "
            "does not need farcall, or set it to an image built from farcall's Dockerfile, in "
            f"[{_SECTION}] of {_place().file}.",
            option="container_image_uri",
        )
