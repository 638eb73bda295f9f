"""CloudWatch log reader: what jobs write, both streams in one, told apart by nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import datetime, timezone
from typing import Any

from farcall.aws import clients
from farcall.aws.clients import Aws
from farcall.backends.base import LogLine
from farcall.model.errors import ServiceError

LARGEST_EVENT_BYTES = 256 * 1024 - 26
"""docker's driver cuts a longer line, https://docs.docker.com/engine/logging/drivers/awslogs/"""

_MISSING = "ResourceNotFoundException"
_PAGE = 10_000


class CloudWatchLog:
    """The log of one attempt. What was read of it is not read again.

    Args:
        access: The open clients.
        group: Name of the log group.
        stream: Name of the log stream.

    Attributes:
        exists: Whether there is such a log; None as long as nobody looked.

    Source:
        https://docs.aws.amazon.com/AmazonCloudWatchLogs/latest/APIReference/API_GetLogEvents.html
    """

    def __init__(self, access: Aws, group: str, stream: str) -> None:
        self._access = access
        self._place = {"logGroupName": group, "logStreamName": stream}
        self._token = ""
        self.exists: bool | None = None if stream else False

    async def read(self) -> AsyncIterator[list[LogLine]]:
        """Yield what is new, the oldest first.

        Raises:
            ServiceError: CloudWatch Logs refused, other than because there is no such log.
        """
        async for reply in self._pages("nextForwardToken", self._token, startFromHead=True):
            self._token = reply["nextForwardToken"]
            if reply.get("events"):
                yield _lines(reply)

    async def last(self, number: int) -> list[LogLine]:
        """Return the last lines, the oldest first.

        Args:
            number: How many; there may be fewer.

        Raises:
            ServiceError: CloudWatch Logs refused, other than because there is no such log.
        """
        found: list[list[LogLine]] = []
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


def _lines(reply: dict[str, Any]) -> list[LogLine]:
    events = reply.get("events", ())
    return [LogLine(_moment(event["timestamp"]), event["message"]) for event in events]


def _moment(milliseconds: float) -> datetime:
    return datetime.fromtimestamp(milliseconds / 1000, tz=timezone.utc)
