"""What a session remembers of the jobs that were submitted in it."""

from __future__ import annotations

import asyncio

import pytest

from farcall import Settings
from farcall.engine import session as module
from farcall.engine.session import Session
from farcall.model.submission import Submission
from farcall_runtime.contract import Location
from tests.support.patience import PATIENCE_S
from tests.unit.fakes import ScriptedBatch, access_in_memory

ROOT = "farcall/v1/run"


@pytest.fixture
async def session():
    made = Session(access_in_memory(), ScriptedBatch(None))
    yield made
    await made.close()


async def submit(session, name, size=1):
    where = Location("bucket", ROOT, name)
    await session.stores.of("bucket").put(where.bundle_key, [b"bundle"])
    submission = Submission(f"job-{name}", name, where, b"key", size)
    session.cleaner.note_submission(submission)
    return submission


async def bundles_left(session):
    store = session.stores.of("bucket")
    await store.flush()
    found = await store.list_keys(f"{ROOT}/bundles/")
    names = (key.removeprefix(f"{ROOT}/bundles/") for key, _ in found)
    return [name for name in names if "/" not in name]  # others are receipts


async def test_a_bundle_is_deleted_after_its_last_task_if_all_went_well(session):
    settings = Settings()
    well, badly = await submit(session, "well", 2), await submit(session, "badly", 2)
    for submission, index, spent in ((well, 0, ["o"]), (badly, 0, []), (badly, 1, ["o"])):
        session.cleaner.discard(settings, submission, index, spent)
    assert await bundles_left(session) == ["badly", "well"]
    session.cleaner.discard(settings, well, 1, ["o"])
    assert await bundles_left(session) == ["badly"]


async def test_closing_does_not_wait_for_deletions_without_an_answer(monkeypatch, caplog):
    monkeypatch.setattr(module, "_LAST_DELETIONS_S", 0.01)
    made = Session(access_in_memory(), ScriptedBatch(None))
    monkeypatch.setattr(made.stores.of("bucket"), "flush", lambda: asyncio.sleep(600))  # cut short
    await asyncio.sleep(0)  # its keeper begins
    await made.close()
    assert "delivered objects stay in s3://bucket" in caplog.text


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
    await submit(session, "one")
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


async def test_the_end_of_the_event_loop_waits_for_blocks_to_be_left(session, monkeypatch):
    """Who is inside may clean up for a while before jobs are ended."""
    monkeypatch.setattr(module, "_LAST_BLOCKS_S", PATIENCE_S)
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


async def test_the_end_of_the_event_loop_waits_for_no_block_for_ever(session, monkeypatch):
    monkeypatch.setattr(module, "_LAST_BLOCKS_S", 0.01)
    session.enter_block()
    await asyncio.sleep(0)
    session._keeper.cancel()
    await asyncio.wait([session._keeper])
    assert session._keeper.done()


async def test_bundles_of_jobs_whose_results_nobody_fetches_are_let_go(session, monkeypatch):
    monkeypatch.setattr(module, "_MOST_UNDELIVERED", 3)
    settings, done = Settings(), ["o"]
    busy = await submit(session, "busy", 4)
    others = []
    for n in range(3):
        session.cleaner.discard(settings, busy, n, done)  # which is not forgotten, then
        others.append(await submit(session, f"{n}"))
    for submission in (*others, busy):
        session.cleaner.discard(settings, submission, submission.size - 1, done)
    assert await bundles_left(session) == ["0"]
    assert session._undelivered == {}
