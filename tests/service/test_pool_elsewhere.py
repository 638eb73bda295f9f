"""Pools as the executor of dask and asyncio.

Starts the local AWS emulator, because these libraries call the pool from their own threads.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dask
import pytest

from farcall import BatchPoolExecutor
from tests.support import jobs
from tests.support.patience import until_async
from tests.support.tasks import wait_for

pytestmark = pytest.mark.usefixtures("module_travels")


@pytest.fixture
def pool(options: dict[str, Any]) -> Iterator[BatchPoolExecutor]:
    with BatchPoolExecutor(**options) as opened:
        yield opened


@dask.delayed
def part(number: int) -> dict[int, int]:
    return {os.getpid(): number}


@dask.delayed
def whole(parts: list[dict[int, int]]) -> dict[int, int]:
    return {pid: number for each in parts for pid, number in each.items()}


def test_dask_computes_on_batch(pool: BatchPoolExecutor) -> None:
    (found,) = dask.compute(whole([part(number) for number in (1, 2)]), scheduler=pool)

    assert sorted(found.values()) == [1, 2]
    assert os.getpid() not in found


async def test_an_event_loop_runs_a_call_in_a_pool(pool: BatchPoolExecutor) -> None:
    loop = asyncio.get_running_loop()

    assert await loop.run_in_executor(pool, divmod, 7, 2) == (3, 1)


async def test_who_cancels_a_call_that_an_event_loop_runs_ends_its_job(
    pool: BatchPoolExecutor, tmp_path: Path
) -> None:
    def begin_and_wait() -> None:
        (tmp_path / "began").touch()
        wait_for(tmp_path / "never")

    call = asyncio.get_running_loop().run_in_executor(pool, begin_and_wait)
    await until_async((tmp_path / "began").exists)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    await until_async(lambda: jobs.states("begin_and_wait") == {"FAILED"})
