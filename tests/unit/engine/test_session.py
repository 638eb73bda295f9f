"""How a session comes to its end."""

from __future__ import annotations

import asyncio

import pytest

from farcall.engine import session as module
from farcall.engine.session import Session
from tests.support.patience import PATIENCE_S
from tests.unit.fakes import ScriptedBatch, access_in_memory

ROOT = "farcall/v1/run"


@pytest.fixture
async def session(timing):
    made = Session(access_in_memory(timing), ScriptedBatch(None))
    yield made
    await made.close()


@pytest.mark.timing(last_deletions_s=0.01)
async def test_closing_does_not_wait_for_deletions_without_an_answer(session, monkeypatch, caplog):
    store = session.stores.of("bucket")
    monkeypatch.setattr(store, "flush", lambda: asyncio.sleep(600))  # cut short
    await asyncio.sleep(0)  # its keeper begins
    await session.close()
    assert "delivered objects remain in s3://bucket" in caplog.text


@pytest.fixture
def slept(monkeypatch):
    """What was slept for, by whom it may concern."""
    found, sleep = [], asyncio.sleep

    async def note(seconds):
        if seconds:
            found.append(seconds)
        await sleep(seconds)

    monkeypatch.setattr(asyncio, "sleep", note)
    return found


async def test_closing_takes_no_time_where_nothing_is_under_way(session, slept):
    session.stores.of("bucket")
    await asyncio.sleep(0)  # its keeper begins
    await session.close()
    assert slept == []


async def test_closing_leaves_the_loop_to_requests_that_were_given_up(session, slept):
    hanging = asyncio.Event()
    asking = asyncio.ensure_future(
        session.stores.of("bucket")._requests.ask("GetObject", "key", lambda _: hanging.wait())
    )
    await asyncio.sleep(0)
    asking.cancel()
    await asyncio.wait([asking])
    await session.close()
    assert len(slept) == 1
    assert 0 < slept[0] <= module._LAST_REPORT_S


@pytest.mark.timing(last_blocks_s=PATIENCE_S)
async def test_the_end_of_the_event_loop_waits_for_blocks_to_be_left(session):
    """Who is inside may clean up for a while before jobs are ended."""
    session.enter_block()
    cleaned_up = asyncio.Event()

    async def inside():
        try:
            await asyncio.Event().wait()
        finally:
            await cleaned_up.wait()
            assert not session._keeper.done()
            await session.leave_block()

    block = asyncio.ensure_future(inside())
    await asyncio.sleep(0)
    for each in (session._keeper, block):  # as the end of the event loop does
        each.cancel()
    for _ in range(3 * module._LAST_TURNS):
        await asyncio.sleep(0)
    assert not session._keeper.done()
    cleaned_up.set()
    await asyncio.wait([session._keeper, block])
    assert session._keeper.done()
    assert block.cancelled()


@pytest.mark.timing(last_blocks_s=0.01)
async def test_the_end_of_the_event_loop_waits_for_no_block_for_ever(session):
    session.enter_block()
    await asyncio.sleep(0)
    session._keeper.cancel()
    await asyncio.wait([session._keeper])
    assert session._keeper.done()
