"""FilterLogEvents of CloudWatch Logs as AWS has it, on what moto stores.

moto's own passes over streams that are not there, gives one stream after the other, and puts any
number of bytes into a page.

Sources:
    https://docs.aws.amazon.com/AmazonCloudWatchLogs/latest/APIReference/API_FilterLogEvents.html
        By time of the event, time of its taking, and request that brought it. Both ends of the
        range of times count. ``interleaved`` is ignored.
    https://github.com/percona/rds_exporter/issues/81
        One stream that is not there fails the request, in these words.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeAlias

from moto.logs import models
from moto.logs.exceptions import InvalidParameterException, ResourceNotFoundException
from moto.logs.utils import EventMessageFilter

MOST_STREAMS, MOST_EVENTS, MOST_BYTES = 100, 10_000, 2**20

#: What CloudWatch counts for an event besides its message.
EVENT_BYTES = 26

_NO_STREAM = "The specified log stream does not exist."

_Place: TypeAlias = "tuple[int, int, int]"


def filter_log_events(
    group: Any,
    log_group_name: str,
    log_stream_names: list[str],
    start_time: int | None,
    end_time: int | None,
    limit: int | None,
    next_token: str | None,
    filter_pattern: str | None,
    interleaved: bool,
) -> tuple[list[dict[str, Any]], str | None, list[dict[str, Any]]]:
    """Answer a request, in the place of the method of moto's log group.

    Returns:
        The events of a page, the token of the next one, and nothing about the streams: AWS does
        not tell any more which ones were searched.
    """
    if len(log_stream_names) > MOST_STREAMS:
        raise InvalidParameterException(
            constraint=f"Member must have length less than or equal to {MOST_STREAMS}",
            parameter="logStreamNames",
            value=log_stream_names,
        )
    if any(name not in group.streams for name in log_stream_names):
        raise ResourceNotFoundException(_NO_STREAM)
    names = dict.fromkeys(log_stream_names or group.streams)
    after = _place_of(next_token) if next_token else None
    wanted = EventMessageFilter(filter_pattern) if filter_pattern else None
    found = sorted(
        (_place(event), name, event)
        for name in names
        for event in group.streams[name].events
        if (start_time is None or event.timestamp >= start_time)
        and (end_time is None or event.timestamp <= end_time)
        and (after is None or _place(event) > after)
        and (wanted is None or wanted.matches(event.message))
    )
    count = _page_size((event for _, _, event in found), limit or MOST_EVENTS)
    page = [
        {
            **event.to_filter_dict(),
            "eventId": f"{event.event_id:056d}",
            "logStreamName": name,
        }
        for _, name, event in found[:count]
    ]
    token = "/".join(map(str, found[count - 1][0])) if count < len(found) else None
    return page, token, []


def _place(event: Any) -> _Place:
    """Return a place in AWS's order; moto numbers events as they come."""
    return event.timestamp, event.ingestion_time, event.event_id


def _place_of(token: str) -> _Place:
    try:
        timestamp, taken, number = map(int, token.split("/"))
    except ValueError:
        raise InvalidParameterException("The specified nextToken is invalid.") from None
    return timestamp, taken, number


def _page_size(events: Iterable[Any], most: int) -> int:
    """Return how many events a page holds: at least one, where there is any."""
    count = size = 0
    for event in events:
        size += len(event.message.encode()) + EVENT_BYTES
        if count and (count == most or size > MOST_BYTES):
            break
        count += 1
    return count


def install() -> None:
    """Have moto answer so."""
    models.LogGroup.filter_log_events = filter_log_events  # type: ignore[assignment,method-assign]
