"""Calls of a pool, in a fresh process: ``python -m benchmarks.pool_client WORK COUNT``.

Prints one line of JSON. CPU is that of all threads of the process, from a first call's end to the
moment all is closed.
"""

from __future__ import annotations

import asyncio
import json
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from benchmarks.client import control, double
from farcall import BatchExecutor, BatchPoolExecutor

_SETTLE_S = 0.05  # see benchmarks.client


class _Clock:
    """CPU and wall time since it was made."""

    def __init__(self) -> None:
        control("reset", {})
        self._began, self._cpu = time.monotonic(), time.process_time()

    def told(self) -> dict[str, float]:
        return {
            "cpu_s": time.process_time() - self._cpu,
            "wall_s": time.monotonic() - self._began,
        }


def pool(count: int) -> dict[str, float]:
    """Submit so many calls to a pool, and wait for each one's result."""
    with BatchPoolExecutor() as opened:
        opened.submit(double, 1).result()
        clock = _Clock()
        futures = [opened.submit(double, number) for number in range(count)]
        _check([future.result() for future in futures])
    return clock.told()


def coroutines(count: int) -> dict[str, float]:
    """Submit as many in coroutines of one event loop."""

    async def one(task: Any, number: int) -> int:
        job = await task.submit(number)
        return int(await job.result())

    async def work() -> _Clock:
        async with BatchExecutor() as executor:
            task = executor.task(double)
            await one(task, 1)
            clock = _Clock()
            _check(await asyncio.gather(*(one(task, number) for number in range(count))))
        return clock

    return asyncio.run(work()).told()


def floor(count: int) -> dict[str, float]:
    """Have an event loop in a thread run as many coroutines that do nothing but return."""

    async def answer(number: int) -> int:
        return 2 * number

    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    clock = _Clock()
    futures = [asyncio.run_coroutine_threadsafe(answer(number), loop) for number in range(count)]
    _check([future.result() for future in futures])
    told = clock.told()
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()
    return told


def _check(values: list[int]) -> None:
    if values != [2 * number for number in range(len(values))]:
        raise AssertionError("wrong values")


_WORKS: dict[str, Callable[[int], dict[str, float]]] = {
    "pool": pool,
    "coroutines": coroutines,
    "floor": floor,
}

if __name__ == "__main__":
    print(json.dumps(_WORKS[sys.argv[1]](int(sys.argv[2]))))
    time.sleep(_SETTLE_S)
