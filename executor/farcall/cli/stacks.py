"""Access, progress and prompts of ``farcall deploy`` and ``farcall destroy``."""

from __future__ import annotations

import contextlib
import importlib.util
import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import click
from tomlkit.exceptions import TOMLKitError

from farcall.aws.clients import Aws
from farcall.cli import options_file
from farcall.cli.printing import echo
from farcall.config.help import DEFAULTS, origin
from farcall.config.settings import Settings
from farcall.covalent.api import configuration_file
from farcall.deploy.stack import Event
from farcall.model.errors import FarcallError, SettingsError
from farcall.model.names import BATCH
from farcall.model.terminal import in_a_line

_NAME = re.compile(r"[a-z][a-z0-9-]{0,29}")
_UNDER_WAY, _INITIATED = "_IN_PROGRESS", "Initiated"


def _stack_name(context: click.Context, parameter: click.Parameter, name: str) -> str:
    if not _NAME.fullmatch(name):
        raise click.BadParameter(
            f"{name!r} is not valid: use a letter followed by up to 29 lowercase letters, "
            "digits and hyphens",
            context,
            parameter,
        )
    return name


stack_name = click.option(
    "--name",
    metavar="NAME",
    default="farcall",
    show_default=True,
    callback=_stack_name,
    help="Name of the stack, and prefix of its resources.",
)
stack_region = click.option(
    "--region", metavar="REGION", help="AWS region; by default the region of your jobs."
)
options_path = click.option(
    "--file",
    "path",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="PATH",
    help="Options file; by default the one in use, or ~/.config/farcall/farcall.toml.",
)


def batch_settings(region: str | None, command: str) -> Settings:
    """Return the options for features that only Batch has.

    Args:
        region: The given region, if any.
        command: The command, for the error.

    Raises:
        SettingsError: The jobs run on another platform.
    """
    settings = Settings(region=region) if region else Settings()
    if settings.backend != BATCH:
        raise SettingsError(
            f"backend is {settings.backend!r} (from {origin('backend')}), but {command} "
            "manages stacks for AWS Batch. Set up a cluster with `farcall policy kubernetes`, "
            f"or run `FARCALL_BACKEND=batch {command}` to use Batch.",
            option="backend",
        )
    return settings


@contextlib.asynccontextmanager
async def opened(settings: Settings) -> AsyncIterator[Aws]:
    """Open the clients.

    Raises:
        SettingsError: No region is configured.
        ServiceError: There are no credentials.
    """
    access = await Aws.open(settings)
    try:
        if access.region_origin == DEFAULTS:
            raise SettingsError(
                "no region is set. Use --region, or set AWS_REGION, or set the profile's "
                "region with `aws configure`.",
                option="region",
            )
        yield access
    finally:
        await access.close()


def options_of(path: Path, text: str) -> dict[str, Any]:
    """Return the options in a file's text.

    Raises:
        FarcallError: The text is not valid TOML.
    """
    try:
        return options_file.section(text)
    except (TOMLKitError, AttributeError) as error:
        raise FarcallError(
            f"{path} is not valid TOML ({error}). The file is unchanged."
        ) from error


def report(happened: Event | str) -> None:
    """Print a stack's progress to stderr."""
    if isinstance(happened, str):
        echo(in_a_line(happened), err=True)
        return
    if not happened.is_of_stack and happened.reason.endswith(_INITIATED):
        return  # the start was printed before
    text = f"{happened.at.astimezone():%H:%M:%S}  {happened.status:<36}{happened.resource}"
    if not happened.is_of_stack:
        text += f" ({happened.kind})"
    if happened.reason and not happened.status.endswith(_UNDER_WAY):
        text += f": {happened.reason}"
    echo(in_a_line(text), fg="red" if happened.status.endswith("_FAILED") else None, err=True)


@contextlib.contextmanager
def explained(name: str, command: str) -> Iterator[None]:
    """Print on Ctrl-C that AWS continues."""
    try:
        yield
    except KeyboardInterrupt:
        echo(f"AWS continues with stack {name}. Run `{command}` to follow it again.", err=True)
        raise


def covalent_file() -> Path | None:
    """Return Covalent's configuration file; None without Covalent on this machine.

    The file may be missing, because Covalent reads one that it finds later.
    """
    path = configuration_file()
    is_installed = importlib.util.find_spec("covalent") is not None
    return path if path is not None and (is_installed or path.is_file()) else None
