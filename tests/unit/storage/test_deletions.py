"""Deletions on an in-memory store instead of S3; requests are recorded in order."""

import asyncio

import pytest

from farcall.model.submission import Submission
from farcall.storage import deletions as module
from farcall.storage.store import Store
from farcall_runtime import envelope
from farcall_runtime.contract import RECEIPTS, Location
from tests.unit.fakes import access_in_memory

KEY = b"k" * 32
WHERE = Location("bucket", "v1/run", "work-1")
TASKS = 9
AT_ONCE = pytest.mark.timing(delete_after_s=0.0)


class World:
    """Bucket with a bundle and its outcomes."""

    def __init__(self, monkeypatch, timing):
        self.store = Store("bucket", access_in_memory(timing))
        self.submission = Submission("job", WHERE.bundle, WHERE, KEY, TASKS)
        self.asked = []
        self.refused = None
        self._obstore = module.obstore
        monkeypatch.setattr(module, "obstore", self)

    async def fill(self):
        await self.store.put(WHERE.bundle_key, [b"bundle"])
        for index in range(TASKS):
            await self.store.put(WHERE.outcome_key(index), [b"x"])

    async def delete_async(self, store, paths):
        self.asked.append(("delete", sorted(paths)))
        await self._obstore.delete_async(store, paths)

    async def put_async(self, store, key, data, **options):
        if self.refused is not None:
            raise self.refused
        self.asked.append(("put", key))
        await self._obstore.put_async(store, key, data, **options)

    def deliver(self, *indexes):
        for index in indexes:
            self.store.delete_delivered(self.submission, index, [WHERE.outcome_key(index)])

    async def receipts(self):
        return [key for key, _ in await self.store.list_keys(f"{WHERE.bundle_key}{RECEIPTS}")]

    async def receipted(self):
        """Return the tasks in receipts."""
        found = set()
        for key in await self.receipts():
            data = await self.store.get(key)
            found |= envelope.receipted(KEY, key, data, TASKS)
        return found

    async def left(self):
        found, _ = await self.store.list_outcomes("v1/run")
        return {arrived.index for arrived in found}


@pytest.fixture
async def world(monkeypatch, timing):
    made = World(monkeypatch, timing)
    await made.fill()
    return made


async def test_receipt_is_written_before_deletion(world):
    world.deliver(0, 8)
    await world.store.flush()
    (receipt,) = await world.receipts()
    assert world.asked == [
        ("put", receipt),
        ("delete", [WHERE.outcome_key(0), WHERE.outcome_key(8)]),
    ]
    assert await world.receipted() == {0, 8}
    assert await world.left() == {1, 2, 3, 4, 5, 6, 7}


async def test_receipt_includes_earlier_deliveries(world):
    world.deliver(3)
    await world.store.flush()
    world.deliver(1)
    await world.store.flush()
    assert len(await world.receipts()) == 1
    assert await world.receipted() == {1, 3}


async def test_delivered_bundle_is_deleted_first(world):
    world.deliver(*range(TASKS))
    world.store.end_bundle(WHERE, delete=True)
    await world.store.flush()
    outcomes = sorted(WHERE.outcome_key(index) for index in range(TASKS))
    assert world.asked == [("delete", [WHERE.bundle_key]), ("delete", outcomes)]
    assert await world.store.list_keys("v1/") == []


async def test_receipt_is_deleted_after_its_bundle(world):
    world.deliver(*range(TASKS - 1))
    await world.store.flush()
    (receipt,) = await world.receipts()
    world.asked.clear()
    world.deliver(TASKS - 1)
    world.store.end_bundle(WHERE, delete=True)
    await world.store.flush()
    last = WHERE.outcome_key(TASKS - 1)
    assert world.asked == [("delete", [WHERE.bundle_key]), ("delete", sorted([receipt, last]))]
    assert await world.store.list_keys("v1/") == []


async def test_bundle_ended_during_receipt_is_deleted(world, monkeypatch):
    write = world.put_async

    async def put(*args, **options):
        world.deliver(1)
        world.store.end_bundle(WHERE, delete=True)
        await write(*args, **options)

    monkeypatch.setattr(world, "put_async", put)
    world.deliver(0)
    await world.store.flush()
    assert await world.left() == {2, 3, 4, 5, 6, 7, 8}
    assert await world.store.get(WHERE.bundle_key) is None
    assert await world.receipts() == []


async def test_failed_bundle_keeps_its_receipt(world):
    """The client then forgets the bundle, and a late delivery writes its own receipt."""
    world.deliver(0)
    world.store.end_bundle(WHERE, delete=False)
    await world.store.flush()
    world.deliver(2)
    await world.store.flush()
    assert len(await world.receipts()) == 2
    assert await world.receipted() == {0, 2}
    assert await world.store.get(WHERE.bundle_key) == b"bundle"


async def test_unreceipted_outcomes_are_not_deleted(world, caplog):
    world.refused = OSError("<Error><Code>AccessDenied</Code><Message>no</Message></Error>")
    world.deliver(0)
    await world.store.flush()
    assert await world.left() == set(range(TASKS))
    assert "delivered objects stay" in caplog.text


async def test_many_outcomes_need_few_requests(world):
    whole = Submission("job", WHERE.bundle, WHERE, KEY, 10_000)
    for index in range(10_000):
        world.store.delete_delivered(whole, index, [WHERE.outcome_key(index)])
        if index % 1000 == 999:
            await asyncio.sleep(0)  # a turn of the event loop between them
    world.store.end_bundle(WHERE, delete=True)
    await world.store.flush()
    assert len(world.asked) <= 25


async def test_interrupted_sweep_is_repeated(world, monkeypatch):
    begun, delete = asyncio.Event(), world.delete_async

    async def hang(*_args, **_options):
        begun.set()
        await asyncio.get_running_loop().create_future()  # never done

    monkeypatch.setattr(world, "delete_async", hang)
    world.deliver(0)
    await begun.wait()
    monkeypatch.setattr(world, "delete_async", delete)
    await world.store.flush()
    assert await world.left() == set(range(1, TASKS))
    assert await world.receipted() == {0}


async def test_undelivered_bundle_is_deleted_first_too(world):
    """Its receipts are from another client."""
    await world.store.put(WHERE.receipt_key(0), [b"x"])
    world.store.delete_later([WHERE.receipt_key(0)])
    world.store.end_bundle(WHERE, delete=True)
    await world.store.flush()
    assert world.asked == [("delete", [WHERE.bundle_key]), ("delete", [WHERE.receipt_key(0)])]


@AT_ONCE
async def test_deliveries_during_deletion_are_deleted_too(world, monkeypatch):
    begun, go_on, delete = asyncio.Event(), asyncio.Event(), world.delete_async

    async def wait(*args, **options):
        begun.set()
        await go_on.wait()
        await delete(*args, **options)

    monkeypatch.setattr(world, "delete_async", wait)
    world.deliver(0)
    flushing = asyncio.ensure_future(world.store.flush())
    await begun.wait()
    for index in range(1, 4):
        world.deliver(index)
        world.store.delete_later([WHERE.outcome_key(4 + index)])
        await asyncio.sleep(0)
    go_on.set()
    await flushing
    await world.store.flush()
    assert await world.left() == {4, 8}
    assert await world.receipted() == {0, 1, 2, 3}
