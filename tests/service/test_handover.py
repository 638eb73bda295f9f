"""Deletion of objects after their owner has received them.

Starts the local AWS emulator, because the order of result, fetch and deletion spans client and
container.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from farcall import BatchExecutor
from farcall.engine.session import session_for
from farcall_runtime.contract import run_root
from tests.support.patience import until_async


def invert_behind(gate: Path) -> Callable[[int], float]:
    """Return a function that inverts numbers, but 0 only when the gate exists."""

    def invert(number: int) -> float:
        while not number and not gate.exists():
            time.sleep(0.05)
        return 1 / number

    return invert


async def left(executor: BatchExecutor, kind: str = "outcomes") -> int:
    """Return how many objects of a kind are left after pending deletions."""
    session = await session_for(executor.settings)
    store = session.stores.of(executor.settings.s3_bucket_name)
    await store.flush()
    root = run_root(executor.settings.prefix, session.run)
    return len(await store.list_keys(f"{root}/{kind}/"))


async def test_awaited_map_is_deleted_at_end(executor: BatchExecutor, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    invert = executor.task(invert_behind(gate))
    sweep = invert.map([0, 1, 2, 4], return_exceptions=True)
    waiting = asyncio.ensure_future(sweep)
    await until_async(lambda: sweep._state is not None and len(sweep._state._taken) == 3)
    assert await left(executor) == 3

    gate.touch()
    assert (await waiting)[1:] == [1, 0.5, 0.25]
    assert await left(executor) == 1  # the failed call's outcome is kept


async def test_failed_map_keeps_uncollected_results(
    executor: BatchExecutor, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    sweep = executor.task(invert_behind(gate)).map(range(4))
    waiting = asyncio.ensure_future(sweep)
    await until_async(lambda: sweep._state is not None and len(sweep._state._taken) == 3)
    gate.touch()
    with pytest.raises(ZeroDivisionError):
        await waiting
    assert await left(executor) == 4
    assert await left(executor, "bundles") == 1
