from __future__ import annotations

import pytest

from farcall.backends.batch.cloudwatch import CloudWatchLog
from farcall.model.errors import ServiceError
from tests.unit.fakes import refusal
from tests.unit.transcripts import access, page, texts


async def read(log):
    return [event.text async for events in log.read() for event in events]


async def test_an_empty_page_is_not_the_end_of_a_log():
    pages = [page("a", token="1"), page(token="2"), page("b", token="3"), page(token="3")]
    opened, client = access(pages)
    log = CloudWatchLog(opened, "a-group", "a-stream")

    assert (log.exists, await read(log), log.exists) == (None, ["a", "b"], True)
    asked = client.asked("get_log_events")
    assert [call.get("nextToken") for call in asked] == [None, "1", "2", "3"]
    assert {(call["logGroupName"], call["logStreamName"]) for call in asked} == {
        ("a-group", "a-stream")
    }


async def test_a_second_reading_begins_where_the_first_one_ended():
    opened, _ = access(
        [page("a", token="1"), page(token="1"), page("b", token="2"), page(token="2")]
    )
    log = CloudWatchLog(opened, "g", "s")
    assert [await read(log), await read(log)] == [["a"], ["b"]]


async def test_the_last_lines_are_found_from_the_end():
    backward = [page("c", "d", token="1"), page(token="2"), page("a", "b", token="3")]
    opened, client = access([{**p, "nextBackwardToken": p["nextForwardToken"]} for p in backward])

    assert texts(await CloudWatchLog(opened, "g", "s").last(3)) == ["b", "c", "d"]
    asked = client.asked("get_log_events")
    assert [(call["limit"], call["startFromHead"]) for call in asked] == [(3, False)] * 3


async def test_a_log_that_is_not_there_has_no_lines():
    opened, client = access([refusal("ResourceNotFoundException", 400)] * 2)
    log = CloudWatchLog(opened, "g", "s")
    assert (await read(log), log.exists) == ([], False)
    assert await log.last(5) == []

    never = CloudWatchLog(opened, "g", "")
    assert (await read(never), await never.last(5), never.exists) == ([], [], False)
    assert len(client.calls) == 2


async def test_a_refusal_is_told():
    opened, _ = access([refusal("AccessDeniedException", 400)])
    with pytest.raises(ServiceError, match="GetLogEvents"):
        await read(CloudWatchLog(opened, "g", "s"))
