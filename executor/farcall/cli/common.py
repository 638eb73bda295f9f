"""Helpers that several commands share: parameter types, prompts, the session."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import re
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import click

from farcall.cli.printing import echo
from farcall.config.settings import Settings
from farcall.engine.session import Session, session_for
from farcall.model import quantities
from farcall.model.errors import FarcallError

_SILENT_S = 5.0
"""Seconds after which a command says what it waits for."""


def moment(text: str) -> datetime:
    """Parse a time for click: an age (``90s``, ``1h30m``, ``2d``, ``1w``) or a date.

    A date without a zone is local.

    Returns:
        The time in UTC.

    Raises:
        click.BadParameter: The text is neither an age nor a date.
    """
    with contextlib.suppress(ValueError, OverflowError):
        return datetime.now(UTC) - timedelta(seconds=quantities.span_s(text))
    with contextlib.suppress(ValueError, OverflowError):
        return datetime.fromisoformat(text).astimezone(UTC)
    raise click.BadParameter(
        f"{text!r} is not an age, such as 90s, 1h30m, 2d or 1w, or a date, such as 2026-11-20 "
        "or 2026-11-20T08:30"
    )


def seconds(text: str) -> float:
    """Parse a duration for click: ``90s``, ``1h30m``, or a number of seconds.

    Raises:
        click.BadParameter: The text is not a duration.
    """
    try:
        return float(text) if text.isdigit() else quantities.span_s(text)
    except ValueError as error:
        raise click.BadParameter(f"{text!r} is not a valid duration: {error}") from None


def pattern(text: str) -> re.Pattern[str]:
    """Compile a regular expression for click.

    Raises:
        click.BadParameter: The text is not a regular expression.
    """
    try:
        return re.compile(text)
    except re.error as error:
        raise click.BadParameter(f"{text!r} is not a valid regular expression: {error}") from None


def confirm(question: str, *, refused: str) -> None:
    """Prompt for a confirmation, outside of an event loop, which would intercept Ctrl-C.

    Args:
        question: The prompt.
        refused: Message without a confirmation, such as ``"nothing was created"``.

    Raises:
        click.UsageError: stdin is not a terminal.
        FarcallError: The user declined.
    """
    if not sys.stdin.isatty():
        raise click.UsageError(
            f"{refused}: stdin is not a terminal. Use --yes to skip the prompt."
        )
    if not click.confirm(question, err=True):
        raise FarcallError(refused)


async def opened() -> tuple[Settings, Session]:
    """Return the options, and the running event loop's session for them.

    Raises:
        SettingsError: An option is wrong.
        ServiceError: There are no credentials.
    """
    settings = Settings()
    return settings, await session_for(settings)


@contextlib.contextmanager
def reporting_wait(platform: str, after_s: float = _SILENT_S) -> Iterator[None]:
    """Write to stderr that a platform has not responded, if the block takes long."""
    text = f"farcall: still waiting for {platform} to respond"
    timer = asyncio.get_running_loop().call_later(after_s, functools.partial(echo, text, err=True))
    try:
        yield
    finally:
        timer.cancel()


def print_json(value: Any) -> None:
    """Print a value as JSON."""
    echo(json.dumps(value, indent=2))
