"""Runs: notifications of the end, and number of fetches of the outcome."""

import asyncio
import threading
from types import SimpleNamespace

import pytest

from farcall import Settings
from farcall.engine import run as module
from farcall.engine.delivered import Delivered
from farcall.engine.run import TaskRun
from farcall.engine.second_chances import SecondChances
from farcall.engine.tracked_job import UnseenError
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
    """Worlds whose tracker looks for a task: the first one is used."""
    left = [world]

    async def find(settings):
        tracker = left[0].tracker
        session = SimpleNamespace(tracker=tracker, services=SimpleNamespace(tracker=tracker))
        session.chances = SecondChances(session)
        return session

    monkeypatch.setattr(module, "session_for", find)
    return left


@pytest.fixture
def ended():
    """Subscribers of the end."""
    return []


@pytest.fixture
def run(worlds, ended):
    return TaskRun("6f1c", Settings(), PLACE, on_end=lambda run: ended.append(run.id))


# --- the end ----------------------------------------------------------------------------------


async def test_end_is_reported_to_every_waiter(world, run, ended):
    waits = [asyncio.ensure_future(run.wait()) for _ in range(3)]
    await asyncio.sleep(1)
    waits[0].cancel()
    assert not run.is_completed
    world.store("6f1c")
    await asyncio.gather(*waits[1:])
    assert run.is_completed
    await run.wait()  # returns without a request
    assert ended == ["6f1c"]


async def test_outcome_seen_elsewhere_ends_run(run, ended):
    run.record_outcome(ARRIVED)
    assert run.is_completed
    await run.wait()
    assert ended == ["6f1c"]


async def test_unseen_task_is_watched_again(world, run, ended):
    world.jobs.set("6f1c", "RUNNING")
    world.inbox.failures[ROOT] = ServiceError("No", code="AccessDenied", status=403)
    for _ in range(2):
        with pytest.raises(UnseenError, match="job 6f1c .n. continues"):
            await run.wait()
    assert not run.is_completed
    world.inbox.failures.clear()
    world.store("6f1c")
    await run.wait()
    assert ended == ["6f1c"]


async def test_next_session_takes_over_waiting(world, worlds, run, clock):
    other = World(clock)
    waiting = asyncio.ensure_future(run.wait())
    await asyncio.sleep(1)
    worlds[:] = [other]
    await world.tracker.close()
    other.store("6f1c")
    await waiting
    assert run.is_completed
    await other.tracker.close()


async def test_second_event_loop_is_rejected(world, run):
    waiting = asyncio.ensure_future(run.wait())
    await asyncio.sleep(1)
    messages = []

    def elsewhere():
        try:
            asyncio.run(run.wait())
        except FarcallError as error:
            messages.append(str(error))

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join(PATIENCE_S)
    (text,) = messages
    assert text.startswith("job 6f1c is being awaited on another event loop. Call attach('6f1c')")
    world.store("6f1c")
    await waiting


# --- results ----------------------------------------------------------------------------------


class Fetching(TaskRun):
    """Fetches the outcome once ``go`` is set; ``failures`` are raised first."""

    def __init__(self, *failures, deletable=()):
        super().__init__("6f1c", Settings(), PLACE)
        self.count = 0
        self.go = asyncio.Event()
        self.outcome = Delivered([Result(42)], deletable=list(deletable))
        self._failures = list(failures)
        self.record_outcome(ARRIVED)

    async def _fetch(self, session, submission, index, arrival):
        assert (submission, index, arrival) == (*PLACE, ARRIVED)
        self.count += 1
        await self.go.wait()
        if self._failures:
            raise self._failures.pop(0)
        return self.outcome


async def test_callers_share_one_fetch(worlds):
    run = Fetching()
    waits = [asyncio.ensure_future(run.delivered()) for _ in range(3)]
    await asyncio.sleep(1)
    waits[0].cancel()
    run.go.set()
    assert await asyncio.gather(*waits[1:]) == [run.outcome] * 2
    assert await run.delivered() is run.outcome
    assert run.count == 1


async def test_failed_fetch_is_repeated(worlds):
    run = Fetching(ServiceError("GetObject failed"))
    run.go.set()
    with pytest.raises(ServiceError, match="GetObject"):
        await run.delivered()
    assert await run.delivered() is run.outcome
    assert run.count == 2


@pytest.mark.parametrize("deletable", [[], ["outcome"]])
async def test_deletable_outcome_is_kept(worlds, deletable):
    run = Fetching(deletable=deletable)
    assert run.kept() is None
    run.go.set()
    await run.delivered()
    assert run.kept() is (run.outcome if deletable else None)
