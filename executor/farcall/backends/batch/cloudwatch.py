"""CloudWatch log reader: what jobs write, both streams in one, told apart by nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import datetime, timezone
from typing import Any, NamedTuple

from farcall.aws import clients
from farcall.aws.clients import Aws
from farcall.model.errors import FarcallError, ServiceError
from farcall.model.jobs import JobDetail

LARGEST_EVENT_BYTES = 256 * 1024 - 26
"""docker's driver cuts a longer line, https://docs.docker.com/engine/logging/drivers/awslogs/"""

_MISSING = "ResourceNotFoundException"
_PAGE = 10_000
_LAST_LINES = 200


class Event(NamedTuple):
    """A line, or a piece of a very long one.

    Attributes:
        at: When it was written.
        text: The line without its end.
    """

    at: datetime
    text: str


class Log:
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

    async def read(self) -> AsyncIterator[list[Event]]:
        """Yield what is new, the oldest first.

        Raises:
            ServiceError: CloudWatch Logs refused, other than because there is no such log.
        """
        async for reply in self._pages("nextForwardToken", self._token, startFromHead=True):
            self._token = reply["nextForwardToken"]
            if reply.get("events"):
                yield _events(reply)

    async def last(self, number: int) -> list[Event]:
        """Return the last lines, the oldest first.

        Args:
            number: How many; there may be fewer.

        Raises:
            ServiceError: CloudWatch Logs refused, other than because there is no such log.
        """
        found: list[list[Event]] = []
        limit = max(1, min(number, _PAGE))
        async for reply in self._pages("nextBackwardToken", "", startFromHead=False, limit=limit):
            found.insert(0, _events(reply))
            if sum(map(len, found)) >= number:
                break
        return [event for page in found for event in page][-number:] if number else []

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


async def last_lines(access: Aws, detail: JobDetail) -> str:
    """Return the end of a job's log; empty where there is none to be read."""
    log = Log(access, detail.log_group, detail.log_stream)
    try:
        found = await log.last(_LAST_LINES)
    except FarcallError:
        return ""  # a missing log must not hide why the job failed
    return "".join(f"{event.text}\n" for event in found)


def _events(reply: dict[str, Any]) -> list[Event]:
    return [
        Event(datetime.fromtimestamp(event["timestamp"] / 1000, tz=timezone.utc), event["message"])
        for event in reply.get("events", ())
    ]
