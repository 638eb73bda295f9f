"""However much a map gives, what lies in the client's memory is bounded."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import farcall.local
from farcall import BatchExecutor
from farcall.engine.session import session_for
from farcall.storage.store import Store
from tests.support.timing import STREAM_S

MEGABYTE = 1 << 20


class Fetches:
    """Notes the objects that a client fetches.

    Attributes:
        begun: Bytes of each that it began to fetch.
    """

    def __init__(self, store: Store) -> None:
        self.begun: list[int] = []
        get, get_large = store.get_dated, store.get_large

        async def noted(key: str, size: int | None = None, most: int | None = None) -> Any:
            found = await get(key, size, most)
            self.begun.append(size or 0)
            return found

        async def noted_large(key: str, size: int, folder: str | None = None) -> Any:
            self.begun.append(size)
            return await get_large(key, size, folder)

        store.get_dated, store.get_large = noted, noted_large  # type: ignore[method-assign]


async def fetches_of(executor: BatchExecutor) -> Fetches:
    session = await session_for(executor.settings)
    return Fetches(session.stores.of(executor.settings.s3_bucket_name))


async def all_stored(executor: BatchExecutor, sweep: farcall.Sweep[Any]) -> None:
    job = executor.attach(sweep.job_ids[0])
    while not (await job.status()).is_final:
        await asyncio.sleep(0.2)
    await asyncio.sleep(1)  # in which the client would fetch, if it did


@pytest.mark.timing(window_bytes=7 * MEGABYTE // 2)
@pytest.mark.parametrize(
    ("size", "expected"),
    [
        pytest.param(MEGABYTE, 3, id="bytes"),
        pytest.param(100, 4, id="number", marks=pytest.mark.timing(window_tasks=4)),
    ],
)
async def test_what_a_slow_loop_has_not_taken_stays_on_s3(
    executor: BatchExecutor, size: int, expected: int
) -> None:
    fetches = await fetches_of(executor)
    sweep = executor.task(bytes).map([size] * 10)

    taken = 0
    async for _, value in sweep:
        assert value == bytes(size)
        taken += 1
        if taken in (1, 4):
            await all_stored(executor, sweep)
        if taken <= 4:
            assert len(fetches.begun) <= taken + expected
        if taken == 4:
            assert len(fetches.begun) == taken + expected
    assert (taken, len(fetches.begun)) == (10, 10)


class Value:
    """Something that can be counted."""


def values_held() -> int:
    gc.collect()
    return sum(type(each) is Value for each in gc.get_objects())


async def test_a_loop_that_was_left_holds_nothing(executor: BatchExecutor) -> None:
    sweep = executor.task(lambda _: Value()).map(range(6))
    async for _, value in sweep:
        await all_stored(executor, sweep)
        assert values_held() == 6
        del value
        assert values_held() == 5
        break

    while values_held():
        await asyncio.sleep(0.05)


@pytest.mark.timing(window_tasks=1, most_unfetched=2)
async def test_of_many_outcomes_no_more_are_looked_for_than_can_be_fetched(
    executor: BatchExecutor,
) -> None:
    sweep = executor.task(lambda x: x).map(range(40))

    values = []
    async for _, value in sweep:
        values.append(value)
        if len(values) == 1:
            await all_stored(executor, sweep)
    assert sorted(values) == list(range(40))


@pytest.mark.timing(window_bytes=100 * MEGABYTE)
async def test_a_value_of_its_own_waits_for_room_before_it_is_fetched(
    executor: BatchExecutor,
) -> None:
    fetches = await fetches_of(executor)
    sweep = executor.task(bytes).map([66 * MEGABYTE] * 3)  # 64 are the most within an outcome

    taken = 0
    async for _, value in sweep:
        assert len(value) == 66 * MEGABYTE
        taken += 1
        if taken == 1:
            await all_stored(executor, sweep)
        # This one was taken, so there is room for one more.
        assert sum(size > 66 * MEGABYTE for size in fetches.begun) <= taken + 1
    assert taken == 3


@pytest.fixture
def rarely_stored(aws: farcall.local.LocalAWS) -> Iterator[None]:
    """Have output stored as seldom as on AWS, in as few chunks as that takes."""
    aws.configure(stream_s=2.0)
    yield
    aws.configure(stream_s=STREAM_S)


@pytest.mark.timing(window_bytes=10 * MEGABYTE)
async def test_output_waits_for_room_too(
    make_executor: Callable[..., BatchExecutor], rarely_stored: None
) -> None:
    """What a task has written lies in objects of its own, and may be more than its value."""

    def work(x: int) -> int:
        print("x" * (9 << 20))
        return x

    async with make_executor() as executor:
        fetches = await fetches_of(executor)
        sweep = executor.task(work).map(range(3))
        taken = 0
        async for result in sweep.results():
            assert len(result.stdout) == (9 << 20) + 1
            taken += 1
            if taken == 1:
                await all_stored(executor, sweep)
            assert len(fetches.begun) - 3 <= 2 * (taken + 1)  # two chunks, or one, and the rest
        assert taken == 3


PROGRAM = """
import asyncio, sys
import farcall

RESULTS, SIZE = 60, 20_000_000

def work(x):
    return bytes([x]) * SIZE

def peak():
    for line in open("/proc/self/status"):
        if line.startswith("VmHWM"):
            return int(line.split()[1]) * 1024

async def main():
    async with farcall.BatchExecutor(vcpu=1, memory=1) as executor:
        sweep = executor.task(work).map(range(RESULTS))
        before, seen = peak(), set()
        async for index, value in sweep:
            assert len(value) == SIZE and value[-1] == index
            seen.add(index)
            del value
            if len(seen) == 1:  # the others come meanwhile
                job = executor.attach(sweep.job_ids[0])
                while not (await job.status()).is_final:
                    await asyncio.sleep(0.5)
                await asyncio.sleep(2)
        assert len(seen) == RESULTS
        print(peak() - before)

asyncio.run(main())
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="/proc tells the peak")
def test_a_loop_over_much_more_than_the_memory_should_hold(aws: farcall.local.LocalAWS) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False, timeout=500
    )

    assert done.returncode == 0, done.stderr
    # Of 1,200,000,000; glibc keeps some of what was freed.
    assert int(done.stdout) < 900_000_000
