"""Run options of TorchX's schedulers, and the settings they make with those of farcall.

What is given in TorchX comes before ``farcall.toml`` and the environment. What stands there of
functions, such as memory or attempts, says nothing of apps.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar, TypeVar

from torchx.schedulers.api import StructuredOpts
from torchx.specs import CfgVal, runopt, runopts

from farcall.model import terminal
from farcall.model.errors import SettingsError
from farcall.model.settings import Settings

_TAKEN = {
    bool: "use true or false",
    int: "use a whole number",
    dict[str, str]: "use NAME:VALUE, several separated by semicolons",
}


@dataclass
class _Named(runopt):
    """A run option that knows its name.

    Attributes:
        name: Its name.
    """

    name: str

    def cast_to_type(self, value: str) -> CfgVal:
        """Read a value of the command line or ``.torchxconfig``.

        Raises:
            SettingsError: It is of another type.
        """
        try:
            return super().cast_to_type(value)
        except (ValueError, IndexError):
            kind: Any = self.opt_type
            raise wrong_option(self.name, value, _TAKEN.get(kind, "no such text")) from None


@dataclass
class FarcallOptions(StructuredOpts):
    """What ``-cfg`` takes; a class for each scheduler.

    Attributes:
        SPELLED: Which option of farcall each run option is.
        SECRET: Run options whose values errors do not show.
    """

    SPELLED: ClassVar[Mapping[str, str]] = {}
    SECRET: ClassVar[tuple[str, ...]] = ()

    @classmethod
    def as_runopts(cls) -> runopts:
        """Return what TorchX knows of the options."""
        found = runopts()
        for name, option in super().as_runopts():
            given = {each.name: getattr(option, each.name) for each in fields(option)}
            found._opts[name] = _Named(name=name, **given)  # it has no other way in
        return found

    @classmethod
    @contextlib.contextmanager
    def in_words(cls) -> Iterator[None]:
        """Have errors name run options, and not what they are in farcall.toml."""
        try:
            yield
        except SettingsError as error:
            text, option = str(error), error.option
            for theirs, ours in cls.SPELLED.items():
                text = text.replace(ours, theirs) if len(ours) > len(theirs) else text
                option = theirs if option == ours else option
            raise SettingsError(text, option=option) from None

    def settings(self) -> Settings:
        """Return farcall's settings for whatever app.

        Raises:
            SettingsError: An option has a wrong value, in words of TorchX where it is one of its.
        """
        raise NotImplementedError

    def unfetchable(self, settings: Settings) -> str:
        """Say why a job could not fetch its workspace from the bucket; empty where it can."""
        raise NotImplementedError

    def _settings(self, app: Mapping[str, Any], more: dict[str, Any]) -> Settings:
        """Make settings; what is wrong with a run option is said by its name in TorchX.

        Args:
            app: Options that are of the app.
            more: Run options that are no texts in farcall, by their names there.
        """
        wanted = {ours: getattr(self, theirs) for theirs, ours in self.SPELLED.items()} | more
        given = {ours: value for ours, value in wanted.items() if value is not None}
        try:
            return Settings(**{**app, **given})
        except SettingsError as error:
            names = {ours: theirs for theirs, ours in self.SPELLED.items()}
            option = error.option
            if option not in given or option not in names:
                raise
            allowed = str(error).partition(": ")[2].partition(". Set ")[0]
            shown = given[option] if names[option] not in self.SECRET else ...
            raise wrong_option(names[option], shown, allowed) from None


Options = TypeVar("Options", bound=FarcallOptions)


def workflow(settings: Settings, name: str) -> dict[str, Any]:
    """Return the workflow of an app where the settings name none."""
    return {} if settings.workflow else {"workflow": terminal.in_a_line(name)[:128]}


def wrong_option(option: str, found: object, allowed: str) -> SettingsError:
    """Say that a run option has a wrong value.

    Args:
        option: Its name.
        found: The value; ``...`` for one that may be secret.
        allowed: The accepted values, as an instruction.
    """
    shown = "a text" if found is ... else repr(found)
    return SettingsError(
        f"run option {option} is {shown}: {allowed}; `torchx runopts` tells of each",
        option=option,
    )
