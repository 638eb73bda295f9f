"""AWS's FilterLogEvents of CloudWatch Logs, with moto's data.

moto's FilterLogEvents ignores missing streams, returns one stream after the other, and does not
limit the bytes of a page. It sorts all events again for each page, so its time grows with the
square of a log's size.

Sources:
    https://docs.aws.amazon.com/AmazonCloudWatchLogs/latest/APIReference/API_FilterLogEvents.html
        Sorted by event time, ingestion time and request. The time range includes both ends.
        ``interleaved`` is ignored.
    https://github.com/percona/rds_exporter/issues/81
        A missing stream fails the request, with this error message.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, TypeAlias

from moto.logs import models
from moto.logs.exceptions import InvalidParameterException, ResourceNotFoundException
from moto.logs.utils import EventMessageFilter

MOST_STREAMS, MOST_EVENTS, MOST_BYTES = 100, 10_000, 2**20

#: Bytes that CloudWatch counts for an event in addition to its message.
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
    """Handle FilterLogEvents; replaces the method of moto's log group.

    Returns:
        The events of a page, the token of the next page, and an empty list: AWS no longer reports
        the searched streams.
    """
    if len(log_stream_names) > MOST_STREAMS:
        raise InvalidParameterException(
            constraint=f"Member must have length less than or equal to {MOST_STREAMS}",
            parameter="logStreamNames",
            value=log_stream_names,
        )
    if any(name not in group.streams for name in log_stream_names):
        raise ResourceNotFoundException(_NO_STREAM)
    after = _place_of(next_token) if next_token else None
    wanted = EventMessageFilter(filter_pattern) if filter_pattern else None
    streams = (
        _places(name, group.streams[name], start_time, after)
        for name in dict.fromkeys(log_stream_names or group.streams)
    )
    found = (
        (name, event)
        for _, name, event in heapq.merge(*streams)
        if (end_time is None or event.timestamp <= end_time)
        and (wanted is None or wanted.matches(event.message))
    )
    most = limit or MOST_EVENTS
    next_ones = list(islice(found, most + 1))
    count = _page_size((event for _, event in next_ones), most)
    page = [
        {
            **event.to_filter_dict(),
            "eventId": f"{event.event_id:056d}",
            "logStreamName": name,
        }
        for name, event in next_ones[:count]
    ]
    is_last = count == len(next_ones)
    token = None if is_last else "/".join(map(str, _place(next_ones[count - 1][1])))
    return page, token, []


def _events(stream: Any) -> list[Any]:
    """Return a stream's events in AWS's order; they are almost sorted already."""
    events: list[Any] = stream.events
    if getattr(stream, "_sorted", 0) != len(events):
        events.sort(key=_place)
        stream._sorted = len(events)
    return events


def _places(
    name: str, stream: Any, start_time: int | None, after: _Place | None
) -> Iterator[tuple[_Place, str, Any]]:
    """Yield a stream's events since a time and after a position."""
    events = _events(stream)
    first = bisect_left(events, start_time, key=_time) if start_time is not None else 0
    if after is not None:
        first = max(first, bisect_right(events, after, key=_place))
    for number in range(first, len(events)):
        yield _place(events[number]), name, events[number]


def _time(event: Any) -> int:
    return int(event.timestamp)


def _place(event: Any) -> _Place:
    """Return an event's position in AWS's order; moto numbers events as they arrive."""
    return event.timestamp, event.ingestion_time, event.event_id


def _place_of(token: str) -> _Place:
    try:
        timestamp, taken, number = map(int, token.split("/"))
    except ValueError:
        raise InvalidParameterException("The specified nextToken is invalid.") from None
    return timestamp, taken, number


def _page_size(events: Iterable[Any], most: int) -> int:
    """Return the number of events in a page: at least one, if there are any."""
    count = size = 0
    for event in events:
        size += len(event.message.encode()) + EVENT_BYTES
        if count and (count == most or size > MOST_BYTES):
            break
        count += 1
    return count


def install() -> None:
    """Replace moto's method with `filter_log_events`."""
    models.LogGroup.filter_log_events = filter_log_events  # type: ignore[assignment,method-assign]
