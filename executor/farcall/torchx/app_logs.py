"""App logs: the lines of a replica, with TorchX's filters.

Replicas whose logs one process follows share requests; see `farcall.engine.logs.reader`.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import AsyncGenerator
from datetime import datetime

from torchx.schedulers.api import Stream

from farcall.model import terminal
from farcall.model.errors import SettingsError
from farcall.model.output import LogLine


def compiled(regex: str | None, streams: Stream | None) -> re.Pattern[str]:
    """Check TorchX's filters; return the expression that lines must match.

    Raises:
        SettingsError: The expression is invalid, or only one of both streams is requested.
    """
    if streams not in (None, Stream.COMBINED):
        raise SettingsError(
            f"streams is {Stream(streams).value}: both streams share one log; use combined",
            option="streams",
        )
    try:
        return re.compile(regex or "")
    except re.error as error:
        raise SettingsError(
            f"regex is {regex!r}, which is not a valid regular expression: {error}", option="regex"
        ) from None


async def matching(
    batches: AsyncGenerator[list[LogLine], None], pattern: re.Pattern[str]
) -> AsyncGenerator[list[str], None]:
    """Yield batches of log lines that match, including line ends.

    Control characters are escaped, because TorchX prints the lines as they are; colors stay.
    """
    async with contextlib.aclosing(batches):
        async for batch in batches:
            lines = [line.text for line in batch if pattern.search(line.text)]
            yield [f"{terminal.output(text)}\n" for text in lines]


def aware(moment: datetime | None) -> datetime | None:
    """Return a moment with its time zone: the local one if it has none."""
    return None if moment is None else moment.astimezone()
