"""One task's handle: who is told of its end, and how often what came of it is fetched."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace

import pytest

from farcall import Settings
from farcall.engine import job_handle as module
from farcall.engine.delivered import Delivered
from farcall.engine.task_handle import TaskHandle
from farcall.engine.watch import UnseenError
from farcall.model.errors import FarcallError, ServiceError
from farcall.model.submission import Submission
from farcall.payload.results import Result
from farcall.storage.store import Arrived
from farcall_runtime.contract import Location
from tests.support.patience import PATIENCE_S
from tests.unit.tracking import ROOT, World

WHERE = Location("bucket", ROOT, "bundle-of-6f1c")
PLACE = Submission("6f1c", "n", WHERE, b"key", 1), 0
ARRIVED = Arrived("bundle-of-6f1c", 0, 10)


@pytest.fixture
def worlds(world, monkeypatch):
    """By whom a task is looked for: the first of these."""
    left = [world]

    async def find(settings):
        return SimpleNamespace(tracker=left[0].tracker)

    monkeypatch.setattr(module, "session_for", find)
    return left


@pytest.fixture
def ended():
    """Are told of the end."""
    return []


@pytest.fixture
def handle(worlds, ended):
    return TaskHandle("6f1c", Settings(), PLACE, ended.append)


# --- the end ----------------------------------------------------------------------------------


async def test_everybody_who_waits_is_told_of_the_end(world, handle, ended):
    waits = [asyncio.ensure_future(handle.wait()) for _ in range(3)]
    await asyncio.sleep(1)
    waits[0].cancel()
    assert not handle.has_ended
    world.store("6f1c")
    await asyncio.gather(*waits[1:])
    assert handle.has_ended
    await handle.wait()  # once more asks nobody
    assert ended == ["6f1c"]


async def test_an_outcome_that_was_seen_elsewhere_is_the_end(handle, ended):
    handle.note_outcome(ARRIVED)
    assert handle.has_ended
    await handle.wait()
    assert ended == ["6f1c"]


async def test_a_task_that_cannot_be_looked_for_goes_on_and_is_followed_anew(world, handle, ended):
    world.jobs.set("6f1c", "RUNNING")
    world.inbox.failures[ROOT] = ServiceError("No", code="AccessDenied", status=403)
    for _ in range(2):
        with pytest.raises(UnseenError, match="job 6f1c .n. goes on"):
            await handle.wait()
    assert not handle.has_ended
    world.inbox.failures.clear()
    world.store("6f1c")
    await handle.wait()
    assert ended == ["6f1c"]


async def test_where_a_session_closes_the_next_one_follows(world, worlds, handle, clock):
    other = World(clock)
    waiting = asyncio.ensure_future(handle.wait())
    await asyncio.sleep(1)
    worlds[:] = [other]
    await world.tracker.close()
    other.store("6f1c")
    await waiting
    assert handle.has_ended
    await other.tracker.close()


async def test_one_event_loop_at_a_time_waits_by_a_handle(world, handle):
    waiting = asyncio.ensure_future(handle.wait())
    await asyncio.sleep(1)
    told = []

    def elsewhere():
        try:
            asyncio.run(handle.wait())
        except FarcallError as error:
            told.append(str(error))

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join(PATIENCE_S)
    assert told == [
        "job 6f1c is waited for on another event loop; attach('6f1c') gives a handle for this one"
    ]
    world.store("6f1c")
    await waiting


# --- what came of it --------------------------------------------------------------------------


class Fetching:
    """Fetches what came of a task, once it is let go; ``failures`` are raised first."""

    def __init__(self, *failures, spent=()):
        self.count = 0
        self.go = asyncio.Event()
        self.delivered = Delivered([Result(42)], spent=list(spent))
        self._failures = list(failures)

    async def __call__(self, session, submission, index, arrival):
        assert (submission, index, arrival) == (*PLACE, ARRIVED)
        self.count += 1
        await self.go.wait()
        if self._failures:
            raise self._failures.pop(0)
        return self.delivered


async def test_all_who_wait_share_a_fetch_and_one_who_leaves_does_not_end_it(handle):
    handle.note_outcome(ARRIVED)
    fetch = Fetching()
    waits = [asyncio.ensure_future(handle.delivered(fetch)) for _ in range(3)]
    await asyncio.sleep(1)
    waits[0].cancel()
    fetch.go.set()
    assert await asyncio.gather(*waits[1:]) == [fetch.delivered] * 2
    assert await handle.delivered(Fetching()) is fetch.delivered
    assert fetch.count == 1


async def test_a_fetch_that_failed_is_made_again(handle):
    handle.note_outcome(ARRIVED)
    fetch = Fetching(ServiceError("GetObject failed"))
    fetch.go.set()
    with pytest.raises(ServiceError, match="GetObject"):
        await handle.delivered(fetch)
    assert handle.kept() is None
    assert await handle.delivered(fetch) is fetch.delivered
    assert fetch.count == 2


@pytest.mark.parametrize("spent", [[], ["outcome"]])
async def test_what_may_be_gone_from_the_bucket_is_kept_here(handle, spent):
    handle.note_outcome(ARRIVED)
    fetch = Fetching(spent=spent)
    assert handle.kept() is None
    fetch.go.set()
    await handle.delivered(fetch)
    assert handle.kept() is (fetch.delivered if spent else None)
