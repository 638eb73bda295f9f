"""CloudWatch log reader: merged stdout and stderr of an attempt."""

from __future__ import annotations

import functools
from collections.abc import AsyncGenerator
from datetime import UTC, datetime, timedelta
from typing import Any

from farcall.aws import clients
from farcall.aws.clients import Aws
from farcall.backends.base import LogEvent
from farcall.model.errors import ServiceError

LARGEST_EVENT_BYTES = 256 * 1024 - 26
"""Maximum bytes of a line; docker's driver splits longer ones.

https://docs.docker.com/engine/logging/drivers/awslogs/
"""

READS_PER_S = 8.0
"""Reads per second of one client. An account and region has 25 GetLogEvents requests per second.

https://docs.aws.amazon.com/AmazonCloudWatch/latest/logs/cloudwatch_limits_cwl.html
"""

_MISSING = "ResourceNotFoundException"
_PAGE = 10_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)


class CloudWatchLog:
    """The log of one attempt. Each event is read once.

    Args:
        access: The open clients.
        group: Name of the log group.
        stream: Name of the log stream; empty for none.
        since: The first time, to the millisecond.

    Attributes:
        exists: Whether the log exists; None before the first request.

    Source:
        https://docs.aws.amazon.com/AmazonCloudWatchLogs/latest/APIReference/API_GetLogEvents.html
    """

    def __init__(
        self, access: Aws, group: str, stream: str, since: datetime | None = None
    ) -> None:
        self._access = access
        self._request: dict[str, Any] = {"logGroupName": group, "logStreamName": stream}
        if since is not None:  # the service accepts no time before 1970
            self._request["startTime"] = max(0, (since - _EPOCH) // _MILLISECOND)
        self._token = ""
        self.exists: bool | None = None if stream else False

    async def read(self, *, follow: bool = False) -> AsyncGenerator[list[LogEvent], None]:
        """Yield new events, the oldest first.

        Raises:
            ServiceError: CloudWatch Logs refused, other than because the log does not exist.
        """
        async for reply in self._pages("nextForwardToken", self._token, startFromHead=True):
            self._token = reply["nextForwardToken"]
            if reply.get("events"):
                yield _lines(reply)

    async def last(self, number: int) -> list[LogEvent]:
        """Return the last lines, the oldest first; `read` continues after them.

        Raises:
            ServiceError: CloudWatch Logs refused, other than because the log does not exist.
        """
        pages: list[list[LogEvent]] = []
        self._token = ""
        limit = max(1, min(number, _PAGE))
        async for reply in self._pages("nextBackwardToken", "", startFromHead=False, limit=limit):
            self._token = self._token or reply["nextForwardToken"]
            pages.insert(0, _lines(reply))
            if sum(map(len, pages)) >= number:
                break
        return [line for page in pages for line in page][-number:] if number else []

    async def close(self) -> None:
        """Do nothing: the log holds no resources."""

    async def _pages(
        self, direction: str, token: str, **how: bool | int
    ) -> AsyncGenerator[dict[str, Any], None]:
        if not self._request["logStreamName"]:
            return
        client = await self._access.client("logs")
        while True:
            more = {"nextToken": token} if token else {}
            try:
                reply = await clients.call(
                    client, "get_log_events", **self._request, **how, **more
                )
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


def _lines(reply: dict[str, Any]) -> list[LogEvent]:
    events = reply.get("events", ())
    return [LogEvent(_moment(event["timestamp"]), event["message"]) for event in events]


@functools.lru_cache(maxsize=1024)  # a page has many events of one millisecond
def _moment(milliseconds: float) -> datetime:
    return datetime.fromtimestamp(milliseconds / 1000, tz=UTC)
