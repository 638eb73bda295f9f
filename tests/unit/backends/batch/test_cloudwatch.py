from datetime import UTC, datetime, timedelta

import pytest

from farcall.backends.batch.cloudwatch import CloudWatchLog
from farcall.model.errors import ServiceError
from tests.unit.fakes import refusal
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


async def test_read_continues_after_last_lines():
    newest = {**page("c", token="f1"), "nextBackwardToken": "b1"}
    opened, client = access([newest, page("d", token="f2"), page(token="f2")])
    log = CloudWatchLog(opened, "g", "s")
    assert await log.last(0) == []
    assert await read(log) == ["d"]
    assert [call.get("nextToken") for call in client.asked("get_log_events")] == [None, "f1", "f2"]


@pytest.mark.parametrize(
    ("since", "start"),
    [
        (NOW + timedelta(microseconds=1999), int(NOW.timestamp() * 1000) + 1),
        (datetime(1969, 1, 1, tzinfo=UTC), 0),
    ],
)
async def test_first_time_is_sent_in_milliseconds(since, start):
    opened, client = access([page("a", token="1"), page(token="1")])
    assert await read(CloudWatchLog(opened, "g", "s", since)) == ["a"]
    assert [call["startTime"] for call in client.asked("get_log_events")] == [start, start]
