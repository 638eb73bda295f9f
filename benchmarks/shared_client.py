"""One array shared by all calls of several maps, in a fresh process.

``python -m benchmarks.shared_client WORK BYTES CALLS MAPS`` prints one line of JSON.
"""

from __future__ import annotations

import asyncio
import gc
import hashlib
import itertools
import json
import os
import sys
import time
from collections.abc import Callable, Coroutine
from typing import Any

import numpy as np
import obstore
from obstore.store import S3Store

from benchmarks.client import control, double
from benchmarks.meter import Meter
from farcall import BatchExecutor

_SETTLE_S = 0.05  # see benchmarks.client


def pick(data: np.ndarray, number: int) -> int:
    """The task: it looks at one byte of the array."""
    return int(data[number]) + number


async def bare(size: int, calls: int, maps: int) -> dict[str, Any]:
    """Pass the array itself."""
    return await _maps(size, calls, maps, is_put=False)


async def put(size: int, calls: int, maps: int) -> dict[str, Any]:
    """Put the array before, and pass what that returns."""
    return await _maps(size, calls, maps, is_put=True)


async def _maps(size: int, calls: int, maps: int, *, is_put: bool) -> dict[str, Any]:
    async with BatchExecutor() as executor:
        await executor.task(double)(1)
        control("reset", {"held": True})
        data = np.ones(size, np.uint8)
        gc.collect()
        meter = Meter()
        began = time.monotonic()
        passed: Any = await executor.put(data) if is_put else data
        put_s = time.monotonic() - began
        submits, values_s = [], []
        for _ in range(maps):
            began = time.monotonic()
            sweep = executor.task(pick).map(itertools.repeat(passed), range(calls))
            waiting = asyncio.ensure_future(_values(sweep))
            while not sweep.job_ids:  # noqa: ASYNC110  # nobody else tells of it
                await asyncio.sleep(0.001)
            submits.append(time.monotonic() - began)
            control("release", {})
            values = await waiting
            values_s.append(time.monotonic() - began)
            if values != [1 + number for number in range(calls)]:
                raise AssertionError("wrong values")
            control("hold", {})
        told = meter.told()
    return {
        **told,
        "put_s": put_s,
        "submits_s": submits,
        "values_s": values_s,
        "memory_bytes": told["peak_bytes"] - told["before_bytes"],
    }


async def _values(sweep: Any) -> list[int]:
    return [*await sweep]


async def floor(size: int, _calls: int, _maps: int) -> dict[str, Any]:
    """Store an array once by obstore alone, and hash it meanwhile."""
    store = S3Store(
        os.environ["FARCALL_S3_BUCKET_NAME"],
        config={"endpoint": os.environ["AWS_ENDPOINT_URL"], "region": "us-east-1"},
        client_options={"allow_http": True},
    )
    await obstore.put_async(store, "small", b"")
    data = np.ones(size, np.uint8)
    gc.collect()
    meter = Meter()
    hashing = asyncio.to_thread(hashlib.sha256, memoryview(data))
    await asyncio.gather(hashing, obstore.put_async(store, "large", data))
    told = meter.told()
    return {**told, "memory_bytes": told["peak_bytes"] - told["before_bytes"]}


WORKS: dict[str, Callable[[int, int, int], Coroutine[Any, Any, dict[str, Any]]]] = {
    "bare": bare,
    "put": put,
    "floor": floor,
}


if __name__ == "__main__":
    print(json.dumps(asyncio.run(WORKS[sys.argv[1]](*map(int, sys.argv[2:5])))))
    time.sleep(_SETTLE_S)
