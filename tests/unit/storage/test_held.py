"""Objects are kept as long as a holder exists."""

from __future__ import annotations

import asyncio
import gc
import threading

import pytest

from farcall.engine.cleaner import Held


class Holder:
    """Who may ask."""


class Bucket:
    """Notes what is to be deleted, and in which thread."""

    def __init__(self):
        self.deleted = []
        self.threads = set()

    def delete_later(self, keys):
        self.deleted += keys
        self.threads.add(threading.current_thread())


@pytest.fixture
def bucket():
    return Bucket()


async def test_objects_stay_while_their_holder_lives_and_go_with_it(bucket):
    held, one, other = Held(), Holder(), Holder()
    held.hold(one, bucket, ["a", "b"])
    held.hold(other, bucket, ["c"])
    await asyncio.sleep(0)
    assert bucket.deleted == []
    del one
    gc.collect()
    await asyncio.sleep(0)
    assert bucket.deleted == ["a", "b"]


async def test_all_are_let_go_of_at_once_and_once(bucket):
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


async def test_a_holder_that_ends_in_another_thread_has_them_deleted_by_the_loop(bucket):
    held, holders = Held(), [Holder()]
    held.hold(holders[0], bucket, ["a"])
    await asyncio.to_thread(holders.clear)
    gc.collect()
    await asyncio.sleep(0)
    assert bucket.deleted == ["a"]
    assert bucket.threads == {threading.current_thread()}


def test_a_holder_that_outlives_the_loop_does_no_harm(bucket):
    held, holders = Held(), [Holder()]

    async def hold():
        held.hold(holders[0], bucket, ["a"])

    asyncio.run(hold())
    holders.clear()
    gc.collect()
    assert bucket.deleted == []
