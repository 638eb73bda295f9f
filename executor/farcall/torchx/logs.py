"""App logs: the lines of a replica, as TorchX asks for them.

Of all that follow logs in a process, the platform is asked by one poller; see
`farcall.engine.logs.nodes`.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from datetime import datetime
from typing import NamedTuple

from torchx.schedulers.api import Stream

from farcall.model import terminal
from farcall.model.errors import SettingsError
from farcall.torchx.apps import App


class Selection(NamedTuple):
    """Which lines.

    Attributes:
        pattern: What they hold; None for all.
        since: Written at this moment or later.
        until: Written before this moment.
        follow: Whether those are waited for that are yet to be written.
    """

    pattern: re.Pattern[str] | None
    since: datetime | None
    until: datetime | None
    follow: bool


def selection(
    regex: str | None,
    since: datetime | None,
    until: datetime | None,
    streams: Stream | None,
    *,
    follow: bool,
) -> Selection:
    """Check what TorchX says of the lines it wants. Moments without a zone are local ones.

    Raises:
        SettingsError: The expression is none, or one of both streams is asked for.
    """
    if streams not in (None, Stream.COMBINED):
        raise SettingsError(
            f"streams is {Stream(streams).value}: both streams are one log; combined is allowed",
            option="streams",
        )
    try:
        pattern = re.compile(regex) if regex else None
    except re.error as error:
        raise SettingsError(
            f"regex is {regex!r}, which is no regular expression: {error}", option="regex"
        ) from None
    return Selection(pattern, _aware(since), _aware(until), follow)


async def lines(app: App, node: int, wanted: Selection) -> AsyncIterator[str]:
    """Yield the lines of a node, each with its end.

    Control characters are shown, as TorchX prints what it gets; colours stay.

    Raises:
        ServiceError: A service refused a call.
    """
    read = app.session.node_logs.lines(
        app.detail.job_id,
        [node],
        follow=wanted.follow,
        since=wanted.since,
        until=wanted.until,
    )
    async for line in read:
        if wanted.pattern is None or wanted.pattern.search(line.text):
            yield f"{terminal.output(line.text)}\n"


def _aware(moment: datetime | None) -> datetime | None:
    return None if moment is None else moment.astimezone()
