"""What several commands need: moments on the command line, texts of others, the session."""

from __future__ import annotations

import json
import re
from datetime import datetime, timedelta, timezone
from typing import Any

import click

from farcall.cli.printing import say
from farcall.engine.session import Session, session_for
from farcall.model.settings import Settings

_AGO = re.compile(r"(\d+(?:\.\d+)?)([smhdw])")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


def moment(text: str) -> datetime:
    """Read a moment for click: so long ago (``90s``, ``30m``, ``12h``, ``2d``, ``1w``), or a date.

    A date without a zone is one of this machine's.

    Returns:
        The moment in UTC.

    Raises:
        click.BadParameter: It is neither.
    """
    ago = _AGO.fullmatch(text)
    try:
        if ago is not None:
            return datetime.now(timezone.utc) - timedelta(**{_UNITS[ago[2]]: float(ago[1])})
        return datetime.fromisoformat(text).astimezone(timezone.utc)
    except (ValueError, OverflowError):
        raise click.BadParameter(
            f"{text!r} is neither so long ago, such as 90s, 30m, 12h, 2d or 1w, nor a date, such "
            "as 2026-11-20 or 2026-11-20T08:30"
        ) from None


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
