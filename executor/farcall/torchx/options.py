"""Run options of TorchX's schedulers, and their conversion to farcall's settings.

TorchX's options take precedence over ``farcall.toml`` and the environment. Options for functions
in ``farcall.toml``, such as memory or attempts, do not apply to apps.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar, TypeVar

from torchx.schedulers.api import StructuredOpts
from torchx.specs import CfgVal, runopt, runopts

from farcall.config.settings import Settings
from farcall.model import terminal
from farcall.model.errors import SettingsError

_TAKEN = {
    bool: "use true or false",
    int: "use a whole number",
    dict[str, str]: "use NAME:VALUE, separated by semicolons",
}


@dataclass
class _Named(runopt):
    """Run option with its name, for error messages."""

    name: str

    def cast_to_type(self, value: str) -> CfgVal:
        """Convert a value from the command line or ``.torchxconfig``.

        Raises:
            SettingsError: The value has another type.
        """
        try:
            return super().cast_to_type(value)
        except (ValueError, IndexError):
            kind: Any = self.opt_type
            raise wrong_option(self.name, value, _TAKEN.get(kind, "no such text")) from None


@dataclass
class FarcallOptions(StructuredOpts):
    """Options for ``-cfg``; one subclass per scheduler.

    Attributes:
        SPELLED: Run option to farcall's name of the same option.
        SECRET: Run options whose values are not shown in errors.
    """

    SPELLED: ClassVar[Mapping[str, str]] = {}
    SECRET: ClassVar[tuple[str, ...]] = ()

    @classmethod
    def as_runopts(cls) -> runopts:
        """Return the options in TorchX's format."""
        found = runopts()
        for name, option in super().as_runopts():
            given = {each.name: getattr(option, each.name) for each in fields(option)}
            found._opts[name] = _Named(name=name, **given)  # TorchX has no public method for it
        return found

    @classmethod
    @contextlib.contextmanager
    def in_words(cls) -> Iterator[None]:
        """Use the names of run options in errors, instead of those in farcall.toml."""
        try:
            yield
        except SettingsError as error:
            text, option = str(error), error.option
            for theirs, ours in cls.SPELLED.items():
                text = text.replace(ours, theirs) if len(ours) > len(theirs) else text
                option = theirs if option == ours else option
            raise SettingsError(text, option=option) from None

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
        wanted = {ours: getattr(self, theirs) for theirs, ours in self.SPELLED.items()} | more
        given = {ours: value for ours, value in wanted.items() if value is not None}
        try:
            found = Settings(**{**app, **given})
        except SettingsError as error:
            names = {ours: theirs for theirs, ours in self.SPELLED.items()}
            option = error.option
            if option not in given or option not in names:
                raise
            allowed = str(error).partition(": ")[2].partition(". Set ")[0]
            shown = given[option] if names[option] not in self.SECRET else ...
            raise wrong_option(names[option], shown, allowed) from None
        if found.workflow:
            return found
        return found.replace(workflow=terminal.in_a_line(name)[:128])


Options = TypeVar("Options", bound=FarcallOptions)


def wrong_option(option: str, found: object, allowed: str) -> SettingsError:
    """Return the error for a run option with a wrong value.

    Args:
        option: The option's name.
        found: The value; ``...`` if it may be secret.
        allowed: The accepted values, as an instruction.
    """
    shown = "a text" if found is ... else repr(found)
    return SettingsError(
        f"run option {option} is {shown}: {allowed}; run `torchx runopts` for a description",
        option=option,
    )
