"""One large argument or result, or the floor of one, in a fresh process.

``python -m benchmarks.large_client WORK BYTES`` prints one line of JSON.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import hashlib
import json
import os
import sys
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import numpy as np
import obstore
from obstore.store import S3Store

from benchmarks.client import control, double
from benchmarks.meter import Meter
from benchmarks.processes import memory_bytes
from farcall import BatchExecutor

_KEY = "large"
_PART_BYTES, _PARALLEL = 8 << 20, 6
_SETTLE_S = 0.05  # see benchmarks.client


def size(data: np.ndarray) -> int:
    """The task that takes a large argument."""
    return data.nbytes


def make(count: int) -> np.ndarray:
    """The task that returns a large array."""
    return np.ones(count, np.uint8)


async def argument(count: int) -> dict[str, Any]:
    """Submit an array; what it costs up to Batch's having accepted the job."""
    async with _warm() as executor:
        data = make(count)
        meter = _Meter()
        job = await executor.submit(size, data)
        told = meter.told()
        if await job.result() != count:
            raise AssertionError("wrong value")
        return {**told, "memory_bytes": memory_bytes()["peak"] - told["before_bytes"]}


async def result(count: int) -> dict[str, Any]:
    """Get an array; from its job's submission to the array at hand."""
    async with _warm() as executor:
        job = await executor.submit(make, count)
        meter = _Meter()
        data = await job.result()
        told = {**meter.told(), "at_hand": time.monotonic()}
        if data.nbytes != count or not data.all():
            raise AssertionError("wrong value")
        grown = memory_bytes()["peak"] - told["before_bytes"]
        return {**told, "memory_bytes": grown - count}


async def put(count: int) -> dict[str, Any]:
    """Store an array by obstore alone, and hash it meanwhile."""
    store, data = await _store(), make(count)
    meter = _Meter()
    hashing = asyncio.to_thread(hashlib.sha256, memoryview(data))
    await asyncio.gather(hashing, obstore.put_async(store, _KEY, data))
    told = meter.told()
    return {**told, "memory_bytes": told["peak_bytes"] - told["before_bytes"]}


async def get(count: int) -> dict[str, Any]:
    """Fetch what `put` stored by obstore alone, some parts at once, and hash it meanwhile."""
    store = await _store()
    meter = _Meter()
    digest, data = hashlib.sha256(), bytearray(count)
    coming: deque[tuple[int, asyncio.Future[Any]]] = deque()

    async def take() -> None:
        start, part = coming.popleft()
        piece = await part
        data[start : start + len(piece)] = piece
        await asyncio.to_thread(digest.update, piece)

    for start in range(0, count, _PART_BYTES):
        end = min(start + _PART_BYTES, count)
        part = obstore.get_range_async(store, _KEY, start=start, end=end)
        coming.append((start, asyncio.ensure_future(part)))
        if len(coming) == _PARALLEL:
            await take()
    while coming:
        await take()
    told = meter.told()
    return {**told, "memory_bytes": told["peak_bytes"] - told["before_bytes"] - count}


class _Meter(Meter):
    def __init__(self) -> None:
        gc.collect()
        super().__init__()


@contextlib.asynccontextmanager
async def _warm() -> AsyncIterator[BatchExecutor]:
    """An executor with a first task behind it; the jobs that follow are real processes."""
    async with BatchExecutor() as executor:
        control("reset", {})
        await executor.task(double)(1)
        control("reset", {"process": True})
        yield executor


async def _store() -> S3Store:
    store = S3Store(
        os.environ["FARCALL_S3_BUCKET_NAME"],
        config={"endpoint": os.environ["AWS_ENDPOINT_URL"], "region": "us-east-1"},
        client_options={"allow_http": True},
    )
    await obstore.put_async(store, "small", b"")  # opens what a first request opens
    return store


WORKS: dict[str, Callable[[int], Coroutine[Any, Any, dict[str, Any]]]] = {
    "argument": argument,
    "result": result,
    "put": put,
    "get": get,
}


if __name__ == "__main__":
    print(json.dumps(asyncio.run(WORKS[sys.argv[1]](int(sys.argv[2])))))
    time.sleep(_SETTLE_S)
