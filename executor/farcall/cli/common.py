"""Helpers that several commands share: times, foreign texts, the session."""

from __future__ import annotations

import contextlib
import json
from datetime import datetime, timedelta, timezone
from typing import Any

import click

from farcall.cli.printing import say
from farcall.engine.session import Session, session_for
from farcall.model import quantities
from farcall.model.settings import Settings


def moment(text: str) -> datetime:
    """Parse a time for click: an age (``90s``, ``1h30m``, ``2d``, ``1w``) or a date.

    A date without a zone is local.

    Returns:
        The time in UTC.

    Raises:
        click.BadParameter: The text is neither an age nor a date.
    """
    with contextlib.suppress(ValueError, OverflowError):
        return datetime.now(timezone.utc) - timedelta(seconds=quantities.span_s(text))
    with contextlib.suppress(ValueError, OverflowError):
        return datetime.fromisoformat(text).astimezone(timezone.utc)
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


async def opened() -> tuple[Settings, Session]:
    """Return the options, and the running event loop's session for them.

    Raises:
        SettingsError: An option is wrong.
        ServiceError: There are no credentials.
    """
    settings = Settings()
    return settings, await session_for(settings)


def print_json(value: Any) -> None:
    """Print a value as JSON."""
    say(json.dumps(value, indent=2))
