"""Searches for jobs of unanswered requests on a scripted Batch, and the jobs they terminate."""

from __future__ import annotations

import asyncio

import pytest

from farcall.engine.sender import InFlight
from farcall.model.errors import ServiceError
from farcall.model.timing import Timing
from tests.unit.fakes import Client, ScriptedBatch, not_sent, refusal

NAME, QUEUE = "hello-1", "queue"
LOST = ServiceError("no answer")


class World:
    """Jobs, and the searches for them.

    Attributes:
        there: Job IDs that Batch lists.
    """

    def __init__(self, timing):
        self.there = []
        self.client = Client(list_jobs=self._list, terminate_job=lambda **_: {})
        self.in_flight = InFlight(ScriptedBatch(self.client, timing=timing), timing)

    def _list(self, **_):
        found = [{"jobId": i, "jobName": NAME, "status": "RUNNING"} for i in self.there]
        return {"jobSummaryList": found}

    def ended(self):
        return [call["jobId"] for call in self.client.asked("terminate_job")]


@pytest.fixture
async def world(clock, timing):
    made = World(timing)
    yield made
    await made.in_flight.close()


async def test_search_ends_with_first_job(world):
    looking = asyncio.ensure_future(world.in_flight.find_jobs(NAME, QUEUE, LOST))
    await asyncio.sleep(1)
    world.there.append("j")
    assert await looking == ["j"]


async def test_search_without_result_takes_configured_time(world, clock):
    begun = clock.now()
    assert await world.in_flight.find_jobs(NAME, QUEUE, LOST) == []
    assert clock.now() - begun == pytest.approx(sum(Timing().submit_polls_s), abs=1)
    assert await world.in_flight.await_listed(NAME, QUEUE) == []
    assert clock.now() - begun >= Timing().listed_within_s


async def test_longer_search_ends_when_cancelled(world, clock):
    begun = clock.now()
    assert await world.in_flight.await_listed(NAME, QUEUE, lambda: clock.now() > begun + 60) == []
    assert clock.now() - begun < 70


async def test_duplicates_are_terminated_except_kept_job(world, clock):
    world.there += ["kept", "second"]
    world.in_flight.follow(NAME, QUEUE, "twice", most=2, kept="kept", waits_s=[0, 10, 10, 10])
    await asyncio.sleep(5)
    assert world.ended() == ["second"]
    world.there.append("third")
    await asyncio.sleep(10)
    assert world.ended() == ["second", "third"]
    looks = len(world.client.asked("list_jobs"))
    await asyncio.sleep(100)
    assert len(world.client.asked("list_jobs")) == looks


async def test_failed_search_is_repeated(world):
    replies = iter([refusal("AccessDeniedException", 403), None])
    listing = world.client.list_jobs

    async def find_jobs(**wanted):
        reply = next(replies, None)
        if reply is not None:
            raise reply
        return await listing(**wanted)

    world.client.list_jobs = find_jobs
    world.there.append("late")
    world.in_flight.follow(NAME, QUEUE, "late", waits_s=[1, 1])
    await asyncio.sleep(10)
    assert world.ended() == ["late"]


async def test_close_returns_open_searches(world):
    world.in_flight.follow(NAME, QUEUE, "late")
    assert await world.in_flight.close() == [NAME]
    assert await world.in_flight.close() == []


async def test_network_outage_does_not_end_search(world, clock):
    back = clock.now() + 100
    listing = world.client.list_jobs

    async def find_jobs(**wanted):
        if clock.now() < back:
            raise not_sent()
        return await listing(**wanted)

    world.client.list_jobs = find_jobs
    world.there.append("j")
    assert await world.in_flight.find_jobs(NAME, QUEUE, LOST) == ["j"]
