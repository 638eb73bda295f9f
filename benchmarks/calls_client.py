"""One call after the other, in a fresh process: ``python -m benchmarks.calls_client TURNS TASKS``.

Prints one line of JSON.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

from benchmarks.client import double
from farcall import BatchExecutor

_SETTLE_S = 0.05  # see benchmarks.client


async def _timed(turns: int, act: Callable[[], Awaitable[object]]) -> list[float]:
    """Return the seconds of a first turn, and of so many more."""
    seconds = []
    for _ in range(turns + 1):
        began = time.monotonic()
        await act()
        seconds.append(time.monotonic() - began)
    return seconds


async def _main(turns: int, tasks: int) -> dict[str, Any]:
    executor = BatchExecutor(vcpu=1)

    async def open_and_leave() -> None:
        async with executor:
            pass

    async def call() -> None:
        assert await executor.task(double)(21) == 42

    opened = await _timed(turns, open_and_leave)
    async with executor:
        called = await _timed(turns, call)
        began = time.monotonic()
        values = await executor.task(double).map(range(tasks))
        mapped_s = time.monotonic() - began
    assert values == [2 * number for number in range(tasks)]
    return {"opened_s": opened, "called_s": called, "mapped_s": mapped_s}


if __name__ == "__main__":
    print(json.dumps(asyncio.run(_main(int(sys.argv[1]), int(sys.argv[2])))))
    time.sleep(_SETTLE_S)
