"""Memory of a client whose tasks all wait, in a fresh process.

``python -m benchmarks.waiting_client SHAPE COUNT [LINES]``: the cloud holds the jobs back, memory
is read (Linux) once nothing is on its way any more, and then every value is waited for and
checked. With LINES, Python's own allocations are followed, which makes all of it slower and
larger, and so many lines of code that hold most are told. Prints one line of JSON.
"""

from __future__ import annotations

import asyncio
import functools
import gc
import json
import sys
import time
import tracemalloc
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from benchmarks.client import control, double
from benchmarks.processes import memory_bytes, restart_peak
from farcall import BatchExecutor, Job

_QUIET_S = 3.0
_POLL_S = 0.05
_SETTLE_S = 0.05  # see benchmarks.client

Values = Callable[[], Awaitable[Sequence[int]]]
"""Waits for all values; what waits before that is called holds the memory."""


async def _map(executor: BatchExecutor, count: int) -> Values:
    """Wait for one map."""
    sweep = executor.task(double).map(range(count))

    async def wait() -> list[int]:
        return await sweep

    waiting = asyncio.ensure_future(wait())
    while not sweep.job_ids and not waiting.done():  # noqa: ASYNC110  # nothing tells when
        await asyncio.sleep(_POLL_S)
    return lambda: waiting


async def _submit(executor: BatchExecutor, count: int) -> list[Job[int]]:
    task = executor.task(double)
    return await asyncio.gather(*(task.submit(number) for number in range(count)))


async def _jobs(executor: BatchExecutor, count: int) -> Values:
    """Have the jobs of separate submissions, which farcall follows; nobody waits for each."""

    async def take(jobs: list[Job[int]]) -> list[int]:
        return [await job.result() for job in jobs]

    return functools.partial(take, await _submit(executor, count))


async def _results(executor: BatchExecutor, count: int) -> Values:
    """Wait for the result of each separate submission, in an asyncio task each."""
    jobs = await _submit(executor, count)
    waiting = asyncio.gather(*(job.result() for job in jobs))
    return lambda: waiting


async def _nothing(_executor: BatchExecutor, count: int) -> Values:
    """Wait in as many asyncio tasks for a future each: the caller's own side of `_results`."""
    futures = [asyncio.get_running_loop().create_future() for _ in range(count)]

    async def wait(future: asyncio.Future[int]) -> int:
        return await future

    waiting = asyncio.gather(*map(wait, futures))

    async def take() -> list[int]:
        for number, future in enumerate(futures):
            future.set_result(2 * number)
        return await waiting

    return take


SHAPES: dict[str, Callable[[BatchExecutor, int], Awaitable[Values]]] = {
    "map": _map,
    "jobs": _jobs,
    "results": _results,
    "nothing": _nothing,
}


async def _measure(shape: str, count: int, lines: int) -> dict[str, Any]:
    async with BatchExecutor() as executor:
        control("reset", {})
        await executor.task(double)(1)  # what the first task opens is not a waiting one's
        control("reset", {"held": True})
        if lines:
            tracemalloc.start()
        gc.collect()
        restart_peak()
        before = memory_bytes()
        values = await SHAPES[shape](executor, count)
        await asyncio.sleep(_QUIET_S)
        gc.collect()
        waiting = memory_bytes()
        held = _held(lines) if lines else {}
        tracemalloc.stop()
        control("release", {})
        if await values() != [2 * number for number in range(count)]:
            raise AssertionError("wrong values")
    return {"before": before, "waiting": waiting, **held}


def _held(lines: int) -> dict[str, Any]:
    """Tell how much Python's objects hold, and by which lines most."""
    snapshot = tracemalloc.take_snapshot()
    found = snapshot.statistics("lineno")
    return {
        "traced_bytes": sum(each.size for each in found),
        "lines": [(str(each.traceback[0]), each.size, each.count) for each in found[:lines]],
    }


if __name__ == "__main__":
    shape, count, lines = sys.argv[1], int(sys.argv[2]), int([*sys.argv, 0][3])
    print(json.dumps(asyncio.run(_measure(shape, count, lines))))
    time.sleep(_SETTLE_S)
