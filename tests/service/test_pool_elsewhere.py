"""Pools as the executor of dask and asyncio.

Starts the local AWS emulator, because these libraries call the pool from their own threads.
"""

from __future__ import annotations

import os

import dask
import pytest

from farcall import BatchPoolExecutor

pytestmark = pytest.mark.usefixtures("module_travels")


@pytest.fixture
def pool(options):
    with BatchPoolExecutor(**options) as opened:
        yield opened


@dask.delayed
def part(number: int) -> dict[int, int]:
    return {os.getpid(): number}


@dask.delayed
def whole(parts: list[dict[int, int]]) -> dict[int, int]:
    return {pid: number for each in parts for pid, number in each.items()}


def test_dask_computes_on_batch(pool):
    (found,) = dask.compute(whole([part(number) for number in (1, 2)]), scheduler=pool)

    assert sorted(found.values()) == [1, 2]
    assert os.getpid() not in found
