"""However much a map gives, what lies in the client's memory is bounded."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from typing import Any

import pytest

import farcall.local
from farcall import BatchExecutor
from farcall.engine.session import session_for
from farcall.storage.store import Store

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
