"""Run options of TorchX's schedulers, and their conversion to farcall's settings.

TorchX's options take precedence over ``farcall.toml`` and the environment. Options for functions
in ``farcall.toml``, such as memory or attempts, do not apply to apps.
"""

from __future__ import annotations

import configparser
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from torchx.runner.config import CONFIG_FILE, find_configs
from torchx.schedulers.api import StructuredOpts
from torchx.settings import ENV_TORCHXCONFIG

from farcall.config.files import refuse_found
from farcall.config.settings import Settings
from farcall.model import terminal
from farcall.model.errors import SettingsError


@dataclass
class FarcallOptions(StructuredOpts):
    """Options for ``-cfg``; one subclass per scheduler.

    Attributes:
        SPELLED: Run option to farcall's name of the same option.
        SECRET: Run options whose values are not shown in errors.
    """

    SPELLED: ClassVar[Mapping[str, str]] = {}
    SECRET: ClassVar[tuple[str, ...]] = ()

    def settings(self) -> Settings:
        """Return farcall's settings that do not depend on the app.

        Raises:
            SettingsError: An option has a wrong value; run options are named as in TorchX.
        """
        raise NotImplementedError

    def unfetchable(self, settings: Settings) -> str:
        """Return why a job cannot download its workspace from the bucket; empty if it can."""
        raise NotImplementedError

    def _settings(self, app: Mapping[str, Any], more: dict[str, Any], name: str) -> Settings:
        """Build settings; errors name run options as in TorchX.

        Args:
            app: Options that the app determines.
            more: Run options that are not strings in farcall, by farcall's names.
            name: Name of the app: its workflow if the settings name none.
        """
        refuse_found_config()
        wanted = {ours: getattr(self, theirs) for theirs, ours in self.SPELLED.items()} | more
        given = {ours: value for ours, value in wanted.items() if value is not None}
        try:
            settings = Settings(**{**app, **given})
        except SettingsError as error:
            names = {ours: theirs for theirs, ours in self.SPELLED.items()}
            option = error.option
            if option not in given or option not in names:
                raise
            allowed = str(error).partition(": ")[2].partition(". Set ")[0]
            shown = given[option] if names[option] not in self.SECRET else ...
            raise wrong_option(names[option], shown, allowed) from None
        if settings.workflow:
            return settings
        return settings.replace(workflow=terminal.in_a_line(name)[:128])


Options = TypeVar("Options", bound=FarcallOptions)


def wrong_option(option: str, value: object, allowed: str) -> SettingsError:
    """Return the error for a run option with a wrong value.

    Args:
        option: The option's name.
        value: The value; ``...`` if it may be secret.
        allowed: The accepted values, as an instruction.
    """
    shown = "a text" if value is ... else repr(value)
    return SettingsError(
        f"run option {option} is {shown}: {allowed}; run `torchx runopts` for a description",
        option=option,
    )


_SECTIONS = ("aws_batch", "kubernetes_job")


def refuse_found_config() -> None:
    """Reject a .torchxconfig of the working directory that sets what it must not set.

    Raises:
        SettingsError: The file chooses credentials, or is another user's.
    """
    if ENV_TORCHXCONFIG in os.environ:
        return
    instead = f"~/{CONFIG_FILE}, or name this file in {ENV_TORCHXCONFIG}"
    for path in map(Path, find_configs()):
        if path.parent != Path.home():
            refuse_found(path, _options_in(path), instead)


def _options_in(path: Path) -> list[str]:
    """Return the options that a file sets for farcall's schedulers."""
    config = configparser.RawConfigParser(strict=False, allow_no_value=True)
    try:
        config.read(path, encoding="utf-8")
    except (configparser.Error, UnicodeDecodeError):  # TorchX reports it when it reads the file
        return []
    return [name for each in _SECTIONS if config.has_section(each) for name in config[each]]
