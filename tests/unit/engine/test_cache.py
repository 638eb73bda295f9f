"""Cached results of calls, on the fake cloud."""

import asyncio
import logging

import numpy as np
import pytest

from farcall import BatchExecutor, FarcallError, OutOfMemoryError
from farcall.engine import cache
from farcall.engine.session import session_for
from farcall.testing import OutOfMemory

KEY = "the key of these tests"


def double(x):
    return 2 * x


def shout(text):
    print(text)
    return text.upper()


def ones(size):
    return np.ones(size)


def fail(x):
    raise ValueError(x)


@pytest.fixture
def new(cloud):
    """Return a function that returns an executor with a cache, for a block of its own."""

    def start(**options):
        options = {"vcpu": 1, "memory": 1, "linger_s": 0.02, "cache_key": KEY, **options}
        return BatchExecutor(**{"cache": True, **options})

    return start


def sizes(cloud):
    """Return the number of tasks of each job."""
    return [max(1, job.array_size) for job in cloud.jobs]


async def keys_of(executor, part="/cache/"):
    """Return the keys of the stored objects that contain a text."""
    session = await session_for(executor.settings)
    await session.cache.close()
    store = session.stores.of(executor.settings.s3_bucket_name)
    return store, [key for key, _ in await store.list_keys("farcall/") if part in key]


async def test_equal_call_is_not_run_again(new, cloud):
    async with new() as executor:
        job = await executor.submit(double, 3)
        assert (await job.result(), job.is_cached) == (6, False)
    async with new() as executor:
        job = await executor.submit(double, 3)
        assert (await job.result(), job.is_cached, job.id) == (6, True, "")
        assert await executor.task(double)(3) == 6
        assert await executor.task(double)(4) == 8
    assert sizes(cloud) == [1, 1]


async def test_map_submits_only_new_calls(new, cloud):
    async with new() as executor:
        assert await executor.task(double).map(range(5)) == [0, 2, 4, 6, 8]
    async with new() as executor:
        sweep = executor.task(double).map([9, 0, 8, 1, 7, 2])
        assert await sweep == [18, 0, 16, 2, 14, 4]
    assert sizes(cloud) == [5, 3]


async def test_map_of_cached_calls_submits_nothing(new, cloud, caplog):
    async with new() as executor:
        await executor.task(double).map(range(5))
    async with new() as executor:
        caplog.set_level(logging.INFO, "farcall")
        pairs = {index: value async for index, value in executor.task(double).map(range(5))}
        assert pairs == {n: 2 * n for n in range(5)}
    assert sizes(cloud) == [5]
    assert "5 calls of double from the cache" in caplog.text


async def test_chunks_are_cached_whole(new, cloud):
    async with new() as executor:
        await executor.task(double).map(range(4), chunksize=2)
    async with new() as executor:
        assert await executor.task(double).map([0, 1, 9, 3], chunksize=2) == [0, 2, 18, 6]
    assert sizes(cloud) == [2, 1]


async def test_keyword_arguments_of_map_count(new, cloud):
    async with new() as executor:
        assert await executor.task(round).map([1.25], ndigits=1) == [1.2]
        assert await executor.task(round).map([1.25], ndigits=0) == [1.0]
    assert len(cloud.jobs) == 2


async def test_errors_are_not_cached(new, cloud):
    for _ in range(2):
        async with new() as executor:
            with pytest.raises(ValueError, match="3"):
                await executor.task(fail)(3)
    assert len(cloud.jobs) == 2


async def test_cached_result_has_no_output(new, cloud):
    async with new() as executor:
        await executor.task(shout)("a")
    async with new() as executor:
        job = await executor.submit(shout, "a")
        (result,) = await job.results()
        assert (result.value, result.stdout, result.job_id) == ("A", "", "")
        with pytest.raises(FarcallError, match="came from the cache, so there is no job"):
            await job.detail()


@pytest.mark.parametrize("size", [20_000, 10_000_000])  # 160 kB and 80 MB
async def test_large_results_are_copied(new, cloud, size):
    async with new() as executor:
        await executor.task(ones)(size)
        _, keys = await keys_of(executor)
        assert any("/large/" in key for key in keys)
    async with new() as executor:
        assert (await executor.task(ones)(size)).sum() == size
    assert len(cloud.jobs) == 1


@pytest.mark.parametrize("is_map", [True, False])
async def test_changed_value_is_computed_again(new, cloud, is_map):
    async with new() as executor:
        await executor.task(ones).map([20_000])
        store, keys = await keys_of(executor, "/large/")
        size = len(await store.get(keys[0]))
        await store.put(keys[0], [bytes(size)])
    async with new() as executor:
        task = executor.task(ones)
        (result,) = await task.map([20_000]) if is_map else [await task(20_000)]
        assert result.sum() == 20_000
    assert len(cloud.jobs) == 2


async def test_deleted_value_is_computed_again(new, cloud):
    async with new() as executor:
        await executor.task(ones)(20_000)
        store, keys = await keys_of(executor, "/large/")
        await store.delete(keys)
    async with new() as executor:
        assert (await executor.task(ones)(20_000)).sum() == 20_000
    assert len(cloud.jobs) == 2


async def test_pack_of_another_key_is_not_used(new, cloud, caplog):
    async with new() as executor:
        await executor.task(double)(3)
    async with new(cache_key="another key of a team") as executor:
        assert await executor.task(double)(3) == 6
    assert len(cloud.jobs) == 2
    assert "not signed with this user's key" in caplog.text


async def test_result_of_second_chance_is_cached(new, cloud):
    cloud.next_job(OutOfMemory())
    for _ in range(2):
        async with new(memory=[1, 2], retry_attempts=1) as executor:
            assert await executor.task(double).map(range(3)) == [0, 2, 4]
    assert sizes(cloud) == [3, 3]


async def test_retried_map_contains_cached_results(new, cloud):
    async with new() as executor:
        await executor.task(double).map(range(3))
    cloud.next_job(OutOfMemory())
    async with new(retry_attempts=1) as executor:
        sweep = executor.task(double).map(range(5))
        with pytest.raises(OutOfMemoryError):
            await sweep
        assert await sweep.retry().complete() == [0, 2, 4, 6, 8]


async def test_version_replaces_digest_of_code(new, cloud):
    for version in ("v1", "v1", "v2"):
        async with new(cache=version) as executor:
            await executor.task(double)(3)
    assert len(cloud.jobs) == 2


async def test_small_packs_are_merged(new, cloud, monkeypatch):
    monkeypatch.setattr(cache, "_MANY_PACKS", 2)
    for number in range(3):
        async with new() as executor:
            await executor.task(double)(number)
    async with new() as executor:
        assert await executor.task(double).map(range(3)) == [0, 2, 4]
        await keys_of(executor)
    async with new() as executor:
        _, (pack,) = await keys_of(executor)
        assert "-3-" in pack
        assert await executor.task(double).map(range(3)) == [0, 2, 4]
    assert len(cloud.jobs) == 3


async def test_results_are_stored_while_map_runs(new, cloud, monkeypatch):
    monkeypatch.setattr(cache, "_FLUSH_S", 0)
    async with new() as executor:
        await executor.task(double)(3)
        session = await session_for(executor.settings)
        store = session.stores.of(executor.settings.s3_bucket_name)
        while not await store.list_keys("farcall/v1/cache/"):
            await asyncio.sleep(0)


async def test_set_of_texts_is_reported_once(new, cloud, caplog, monkeypatch):
    monkeypatch.setattr(cache, "_has_warned", False)
    async with new() as executor:
        await executor.task(sorted).map([{"a", "b"}, {"c"}, {1, 2}])
    assert caplog.text.count("an argument contains a set of texts") == 1
