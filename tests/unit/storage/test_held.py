"""Objects that are kept as long as their holder exists."""

from __future__ import annotations

import asyncio
import gc
import threading

import pytest

from farcall.engine.cleaner import Held


class Holder:
    """Holder of objects."""


class Bucket:
    """Records deleted keys, and the threads that delete them."""

    def __init__(self):
        self.deleted = []
        self.threads = set()

    def delete_later(self, keys):
        self.deleted += keys
        self.threads.add(threading.current_thread())


@pytest.fixture
def bucket():
    return Bucket()


async def test_objects_are_deleted_with_their_holder(bucket):
    held, one, other = Held(), Holder(), Holder()
    held.hold(one, bucket, ["a", "b"])
    held.hold(other, bucket, ["c"])
    await asyncio.sleep(0)
    assert bucket.deleted == []
    del one
    gc.collect()
    await asyncio.sleep(0)
    assert bucket.deleted == ["a", "b"]


async def test_release_deletes_all_objects_once(bucket):
    held, holders = Held(), [Holder(), Holder()]
    for number, holder in enumerate(holders):
        held.hold(holder, bucket, [f"{number}"])
    held.let_go()
    assert bucket.deleted == ["0", "1"]
    del holder
    holders.clear()
    gc.collect()
    await asyncio.sleep(0)
    assert bucket.deleted == ["0", "1"]


async def test_holder_ending_in_thread_uses_loop(bucket):
    held, holders = Held(), [Holder()]
    held.hold(holders[0], bucket, ["a"])
    await asyncio.to_thread(holders.clear)
    gc.collect()
    await asyncio.sleep(0)
    assert bucket.deleted == ["a"]
    assert bucket.threads == {threading.current_thread()}


def test_holder_may_outlive_the_loop(bucket):
    held, holders = Held(), [Holder()]

    async def hold():
        held.hold(holders[0], bucket, ["a"])

    asyncio.run(hold())
    holders.clear()
    gc.collect()
    assert bucket.deleted == []
