from __future__ import annotations

from datetime import datetime, timedelta, timezone
from types import SimpleNamespace

import pytest

from farcall.backends.base import LogEvent, LogMissingError
from farcall.backends.batch.cloudwatch import CloudWatchLog, events
from farcall.model.errors import ServiceError
from tests.unit.fakes import Client, refusal
from tests.unit.transcripts import NOW, access, page, texts


async def read(log):
    return [event.text async for events in log.read() for event in events]


async def test_empty_page_does_not_end_log():
    pages = [page("a", token="1"), page(token="2"), page("b", token="3"), page(token="3")]
    opened, client = access(pages)
    log = CloudWatchLog(opened, "a-group", "a-stream")

    assert (log.exists, await read(log), log.exists) == (None, ["a", "b"], True)
    asked = client.asked("get_log_events")
    assert [call.get("nextToken") for call in asked] == [None, "1", "2", "3"]
    assert {(call["logGroupName"], call["logStreamName"]) for call in asked} == {
        ("a-group", "a-stream")
    }


async def test_second_read_continues_after_first():
    opened, _ = access(
        [page("a", token="1"), page(token="1"), page("b", token="2"), page(token="2")]
    )
    log = CloudWatchLog(opened, "g", "s")
    assert [await read(log), await read(log)] == [["a"], ["b"]]


async def test_last_lines_are_read_backwards():
    backward = [page("c", "d", token="1"), page(token="2"), page("a", "b", token="3")]
    opened, client = access([{**p, "nextBackwardToken": p["nextForwardToken"]} for p in backward])

    assert texts(await CloudWatchLog(opened, "g", "s").last(3)) == ["b", "c", "d"]
    asked = client.asked("get_log_events")
    assert [(call["limit"], call["startFromHead"]) for call in asked] == [(3, False)] * 3


async def test_missing_log_has_no_lines():
    opened, client = access([refusal("ResourceNotFoundException", 400)] * 2)
    log = CloudWatchLog(opened, "g", "s")
    assert (await read(log), log.exists) == ([], False)
    assert await log.last(5) == []

    never = CloudWatchLog(opened, "g", "")
    assert (await read(never), await never.last(5), never.exists) == ([], [], False)
    assert len(client.calls) == 2


async def test_refusal_raises():
    opened, _ = access([refusal("AccessDeniedException", 400)])
    with pytest.raises(ServiceError, match="GetLogEvents"):
        await read(CloudWatchLog(opened, "g", "s"))


# --- several streams --------------------------------------------------------------------------


def filtered(*lines, token=None):
    """Return a FilterLogEvents response: lines of streams, one millisecond apart."""
    first = int(NOW.timestamp() * 1000)
    found = [
        {
            "eventId": f"{stream}/{text}",
            "logStreamName": stream,
            "timestamp": first + number,
            "ingestionTime": first + 1000 + number,
            "message": text,
        }
        for number, (stream, text) in enumerate(lines)
    ]
    return {"events": found, "searchedLogStreams": [], **({"nextToken": token} if token else {})}


def filtering(*replies):
    """Return clients and a CloudWatch Logs client with these responses."""
    client = Client(filter_log_events=list(replies))

    async def lend(service):
        assert service == "logs"
        return client

    return SimpleNamespace(client=lend), client


async def test_events_are_paged_until_token_ends():
    opened, client = filtering(
        filtered(("s", "a"), ("t", "b"), token="1"), filtered(token="2"), filtered(("s", "c"))
    )
    found = [page async for page in events(opened, "g", ["s", "t"])]
    at = NOW + timedelta(milliseconds=1)
    assert [[event.text for event in page] for page in found] == [["a", "b"], [], ["c"]]
    assert found[0][1] == LogEvent(at, "b", "t/b", "t", at + timedelta(seconds=1))
    asked = client.asked("filter_log_events")
    assert [call.pop("nextToken", None) for call in asked] == [None, "1", "2"]
    assert asked == [{"logGroupName": "g", "logStreamNames": ["s", "t"]}] * 3


async def test_time_range_is_sent_in_milliseconds():
    opened, client = filtering(filtered())
    since = NOW + timedelta(microseconds=1999)
    assert [page async for page in events(opened, "g", ["s"], since, since)] == [[]]
    assert [
        (call["startTime"], call["endTime"]) for call in client.asked("filter_log_events")
    ] == [(int(NOW.timestamp() * 1000) + 1,) * 2]


async def test_start_time_is_never_negative():
    opened, client = filtering(filtered())
    long_ago = datetime(1969, 1, 1, tzinfo=timezone.utc)
    assert [page async for page in events(opened, "g", ["s"], long_ago)] == [[]]
    assert client.asked("filter_log_events")[0]["startTime"] == 0


async def test_missing_stream_differs_from_refusal():
    opened, _ = filtering(
        refusal("ResourceNotFoundException", 400), refusal("AccessDeniedException", 400)
    )
    with pytest.raises(LogMissingError, match="one of 2 log streams"):
        await anext(events(opened, "g", ["s", "t"]))
    with pytest.raises(ServiceError, match="FilterLogEvents"):
        await anext(events(opened, "g", ["s", "t"]))
