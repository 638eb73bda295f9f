"""A task that prints much, in a fresh process: ``python -m benchmarks.output_client WORK BYTES``.

Prints one line of JSON.
"""

from __future__ import annotations

import asyncio
import gc
import json
import sys
import time
from collections.abc import Callable, Coroutine
from typing import Any

from benchmarks.meter import Meter
from benchmarks.processes import memory_bytes
from farcall import BatchExecutor

_SETTLE_S = 0.05  # see benchmarks.client
_LINE = b"x" * 127 + b"\n"


def speak(size: int) -> int:
    """The task: print so many bytes, and return their number."""
    piece = _LINE * 8192
    for _ in range(size // len(piece)):
        sys.stdout.buffer.write(piece)
    return size // len(piece) * len(piece)


async def value(size: int) -> dict[str, Any]:
    """Get the value, from the job's end on; nobody asks for what it printed."""
    return await _measured(size, lambda job: job.result())


async def stdout(size: int) -> dict[str, Any]:
    """Get all that it printed as one text."""

    async def read(job: Any) -> int:
        return len(await job.stdout())

    return await _measured(size, read)


async def _measured(size: int, work: Callable[[Any], Coroutine[Any, Any, int]]) -> dict[str, Any]:
    async with BatchExecutor(vcpu=1) as executor:
        await executor.task(speak)(1)  # opens what a first task opens
        job = await executor.submit(speak, size)
        await job.wait()
        gc.collect()
        meter = Meter()
        await asyncio.sleep(0)
        found = await work(job)
        await asyncio.sleep(0.1)  # a stall at the end is noted after it
        told = meter.told()
        if found != size // len(_LINE * 8192) * len(_LINE * 8192):
            raise AssertionError(f"wrong value: {found}")
    return {**told, "memory_bytes": memory_bytes()["peak"] - told["before_bytes"]}


WORKS: dict[str, Callable[[int], Coroutine[Any, Any, dict[str, Any]]]] = {
    "value": value,
    "stdout": stdout,
}


if __name__ == "__main__":
    print(json.dumps(asyncio.run(WORKS[sys.argv[1]](int(sys.argv[2])))))
    time.sleep(_SETTLE_S)
