"""Shutdown of sessions."""

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
async def test_close_does_not_wait_for_deletions(session, monkeypatch, caplog):
    store = session.stores.of("bucket")
    monkeypatch.setattr(store, "flush", lambda: asyncio.sleep(600))  # cancelled by close()
    await asyncio.sleep(0)  # lets its keeper start
    await session.close()
    assert "delivered objects remain in s3://bucket" in caplog.text


@pytest.fixture
def slept(monkeypatch):
    """Recorded sleeps, in seconds, none of which takes time."""
    found, sleep = [], asyncio.sleep

    async def note(seconds):
        if seconds:
            found.append(seconds)
        await sleep(0)

    monkeypatch.setattr(asyncio, "sleep", note)
    return found


async def test_idle_session_closes_at_once(session, slept):
    session.stores.of("bucket")
    await asyncio.sleep(0)  # lets its keeper start
    await session.close()
    assert slept == []


async def test_close_yields_to_cancelled_requests(session, slept, monkeypatch):
    monkeypatch.setattr(module, "_LAST_REPORT_S", PATIENCE_S)
    hanging = asyncio.Event()
    asking = asyncio.ensure_future(
        session.stores.of("bucket")._requests.send("GetObject", "key", lambda _: hanging.wait())
    )
    await asyncio.sleep(0)
    asking.cancel()
    await asyncio.wait([asking])
    await session.close()
    assert len(slept) == 1
    assert 0 < slept[0] <= module._LAST_REPORT_S


@pytest.mark.timing(last_blocks_s=PATIENCE_S)
async def test_loop_end_waits_for_blocks(session):
    """Code inside a block may clean up for a while before jobs are cancelled."""
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
    for each in (session._keeper, block):  # the end of the event loop cancels them, too
        each.cancel()
    for _ in range(3 * module._LAST_TURNS):
        await asyncio.sleep(0)
    assert not session._keeper.done()
    cleaned_up.set()
    await asyncio.wait([session._keeper, block])
    assert session._keeper.done()
    assert block.cancelled()


@pytest.mark.timing(last_blocks_s=0.01)
async def test_loop_end_wait_is_limited(session):
    session.enter_block()
    await asyncio.sleep(0)
    session._keeper.cancel()
    await asyncio.wait([session._keeper])
    assert session._keeper.done()
