"""CloudWatch log readers: merged stdout and stderr of one or more attempts."""

from __future__ import annotations

import functools
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from datetime import datetime, timedelta, timezone
from typing import Any

from farcall.aws import clients
from farcall.aws.clients import Aws
from farcall.backends.base import LogEvent, LogMissingError
from farcall.model.errors import ServiceError

LARGEST_EVENT_BYTES = 256 * 1024 - 26
"""Maximum bytes of a line; docker's driver splits longer ones.

https://docs.docker.com/engine/logging/drivers/awslogs/
"""

READ_TOGETHER = 100
"""Maximum number of log streams in one FilterLogEvents request."""

_MISSING = "ResourceNotFoundException"
_PAGE = 10_000
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_MILLISECOND = timedelta(milliseconds=1)


class CloudWatchLog:
    """The log of one attempt. Each event is read once.

    Attributes:
        exists: Whether the log exists; None before the first request.

    Source:
        https://docs.aws.amazon.com/AmazonCloudWatchLogs/latest/APIReference/API_GetLogEvents.html
    """

    def __init__(self, access: Aws, group: str, stream: str) -> None:
        self._access = access
        self._place = {"logGroupName": group, "logStreamName": stream}
        self._token = ""
        self.exists: bool | None = None if stream else False

    async def read(self) -> AsyncIterator[list[LogEvent]]:
        """Yield new events, the oldest first.

        Raises:
            ServiceError: CloudWatch Logs refused, other than because the log does not exist.
        """
        async for reply in self._pages("nextForwardToken", self._token, startFromHead=True):
            self._token = reply["nextForwardToken"]
            if reply.get("events"):
                yield _lines(reply)

    async def last(self, number: int) -> list[LogEvent]:
        """Return the last lines, the oldest first.

        Raises:
            ServiceError: CloudWatch Logs refused, other than because the log does not exist.
        """
        found: list[list[LogEvent]] = []
        limit = max(1, min(number, _PAGE))
        async for reply in self._pages("nextBackwardToken", "", startFromHead=False, limit=limit):
            found.insert(0, _lines(reply))
            if sum(map(len, found)) >= number:
                break
        return [line for page in found for line in page][-number:] if number else []

    async def _pages(
        self, direction: str, token: str, **how: bool | int
    ) -> AsyncIterator[dict[str, Any]]:
        if not self._place["logStreamName"]:
            return
        client = await self._access.client("logs")
        while True:
            more = {"nextToken": token} if token else {}
            try:
                reply = await clients.call(client, "get_log_events", **self._place, **how, **more)
            except ServiceError as error:
                if error.code != _MISSING:
                    raise
                self.exists = False
                return
            self.exists = True
            yield reply
            # An empty page is not the end; the same token twice is.
            if token == reply[direction]:
                return
            token = reply[direction]


async def events(
    access: Aws,
    group: str,
    streams: Sequence[str],
    since: datetime | None = None,
    until: datetime | None = None,
) -> AsyncGenerator[list[LogEvent], None]:
    """Yield the events of several streams in the order of time, in pages.

    A page has up to 10,000 events or 1 MB. Only the page without a token is the last one; earlier
    pages may be empty.

    Args:
        access: The open clients.
        group: Name of the log group.
        streams: Names of up to `READ_TOGETHER` log streams.
        since: The first time, to the millisecond.
        until: The last time, to the millisecond; inclusive, unlike with GetLogEvents.

    Raises:
        LogMissingError: The group or one of the streams does not exist.
        ServiceError: CloudWatch Logs refused for another reason.

    Source:
        https://docs.aws.amazon.com/AmazonCloudWatchLogs/latest/APIReference/API_FilterLogEvents.html
    """
    client = await access.client("logs")
    request: dict[str, Any] = {"logGroupName": group, "logStreamNames": list(streams)}
    if since is not None:
        request["startTime"] = _milliseconds(since)
    if until is not None:
        request["endTime"] = _milliseconds(until)
    while True:
        try:
            reply = await clients.call(client, "filter_log_events", **request)
        except ServiceError as error:
            if error.code != _MISSING:
                raise
            raise LogMissingError(f"{error}: one of {len(streams)} log streams") from error
        yield [
            LogEvent(
                _moment(event["timestamp"]),
                event["message"],
                event["eventId"],
                event["logStreamName"],
                _moment(event.get("ingestionTime", event["timestamp"])),
            )
            for event in reply.get("events", ())
        ]
        if not reply.get("nextToken"):
            return
        request["nextToken"] = reply["nextToken"]


def _lines(reply: dict[str, Any]) -> list[LogEvent]:
    events = reply.get("events", ())
    return [LogEvent(_moment(event["timestamp"]), event["message"]) for event in events]


@functools.lru_cache(maxsize=1024)  # a page has many events of one millisecond
def _moment(milliseconds: float) -> datetime:
    return datetime.fromtimestamp(milliseconds / 1000, tz=timezone.utc)


def _milliseconds(moment: datetime) -> int:
    """Convert a time to milliseconds; the service accepts none before 1970."""
    return max(0, (moment - _EPOCH) // _MILLISECOND)
