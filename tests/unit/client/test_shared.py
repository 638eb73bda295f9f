"""Values stored with `put`, on the fake cloud, whose bucket is a folder."""

import pickle
import threading

import pytest

from farcall import BatchExecutor, FarcallError, TaskNotPicklableError

SIZE = 2 * 1024 * 1024


async def test_shared_value_nests_in_arguments(executor):
    shared = await executor.put({"bytes": b"x" * SIZE, "list": [1, 2]})
    assert repr(shared).startswith("<Shared dict of 2.1 MB in s3://")
    assert shared.size > SIZE
    look = executor.task(lambda pair, *, other: (len(pair[0]["bytes"]), pair[1], other["list"]))
    assert await look([shared, 3], other=shared) == (SIZE, 3, [1, 2])
    assert len(pickle.dumps(await executor.put(range(3)))) < 1000  # small values are in the handle


async def test_discarded_value_is_rejected(executor):
    shared = await executor.put(b"x" * SIZE)
    await shared.discard()
    await shared.discard()
    assert "discarded" in repr(shared)
    with pytest.raises(TaskNotPicklableError, match="Put the value again"):
        await executor.task(len)(shared)


async def test_many_small_parts_become_one_object(executor):
    parts = [bytes([n]) * 100_000 for n in range(30)]
    shared = await executor.put(parts)
    assert len(shared._value.pieces) == 1
    assert await executor.task(lambda some: [len(each) for each in some])(shared) == [100_000] * 30


async def test_unpicklable_value_is_rejected(executor):
    with pytest.raises(TaskNotPicklableError, match="a list cannot be pickled"):
        await executor.put([threading.Lock()])


async def test_value_of_finished_run_is_missing(cloud):
    async with BatchExecutor(linger_s=0.02) as executor:
        shared = await executor.put(b"x" * SIZE)
    async with BatchExecutor(linger_s=0.02) as executor:
        with pytest.raises(FarcallError, match=r"no longer at .*; put it again"):
            await executor.task(len)(shared)
        await shared.discard()  # a no-op, because the object is gone
        with pytest.raises(TaskNotPicklableError, match="Put the value again"):
            await executor.task(len)(shared)
