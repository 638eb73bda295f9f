"""What is measured, in a fresh process each time: ``python -m benchmarks.client WORK ...``.

Prints one line of JSON. CPU is that of all threads of the process, obstore's included, from the
moment the executor is open to the moment it is closed, with what was to be deleted deleted.
"""

from __future__ import annotations

import asyncio
import contextlib
import cProfile
import json
import os
import pickle
import resource
import sys
import time
import urllib.request
from collections.abc import Awaitable, Callable
from typing import Any

import cloudpickle
import obstore
from obstore.store import S3Store

from benchmarks.cloud import CONTROL
from farcall import BatchExecutor

_FLOOR_CONCURRENCY = 16  # as many as farcall fetches at once
_SETTLE_S = 0.05  # see farcall.aws: obstore aborts a process that ends too fast
_STALL_STEP_S = 0.02
_UNIT = 1 if sys.platform == "darwin" else 1024

Work = Callable[[BatchExecutor], Awaitable[Any]]


def double(x: int) -> int:
    """The trivial task."""
    return 2 * x


def control(name: str, document: dict[str, Any]) -> None:
    """Tell the benchmark's cloud something."""
    data = json.dumps(document).encode()
    urllib.request.urlopen(f"{os.environ['AWS_ENDPOINT_URL']}{CONTROL}{name}", data).close()


def sweep(count: int) -> Work:
    """Map the trivial task over some numbers."""

    async def work(executor: BatchExecutor) -> None:
        values = await executor.task(double).map(range(count))
        if values != [2 * number for number in range(count)]:
            raise AssertionError("wrong values")

    return work


def singles(count: int) -> Work:
    """Submit the trivial task so many times at once, and wait for each result."""

    async def one(task: Any, number: int) -> int:
        job = await task.submit(number)
        return int(await job.result())

    async def work(executor: BatchExecutor) -> None:
        task = executor.task(double)
        values = await asyncio.gather(*(one(task, number) for number in range(count)))
        if values != [2 * number for number in range(count)]:
            raise AssertionError("wrong values")

    return work


def arrivals(count: int) -> Work:
    """Note when each result of a map is in the caller's hands."""

    async def work(executor: BatchExecutor) -> dict[str, float]:
        return {
            str(index): time.monotonic()
            async for index, _ in executor.task(double).map(range(count))
        }

    return work


async def measure(work: Work, options: dict[str, Any]) -> dict[str, Any]:
    """Do some work with an open executor."""
    stalls = [0.0]
    watching = asyncio.ensure_future(_watch(stalls))
    async with BatchExecutor() as executor:
        before = _peak_bytes()
        control("reset", options)
        wall, cpu = time.monotonic(), time.process_time()
        told = await work(executor)
        wall = time.monotonic() - wall
    cpu = time.process_time() - cpu
    watching.cancel()
    return {
        "cpu_s": cpu,
        "wall_s": wall,
        "before_bytes": before,
        "peak_bytes": _peak_bytes(),
        "stall_s": max(stalls),
        "told": told,
    }


async def floor(requests: dict[str, int], tasks: int) -> dict[str, Any]:
    """Send bare requests, as many and of the kinds farcall sent, and make the same pickles."""
    bucket = os.environ["FARCALL_S3_BUCKET_NAME"]
    store = S3Store(
        bucket,
        config={"endpoint": os.environ["AWS_ENDPOINT_URL"], "region": "us-east-1"},
        client_options={"allow_http": True},
    )
    keys = iter([f"filled/{number}" for number in range(requests.get("GetObject", 0))])
    answer = pickle.dumps(2, protocol=5)

    async def fetch() -> None:
        for key in keys:
            await (await obstore.get_async(store, key)).bytes_async()

    wall, cpu = time.monotonic(), time.process_time()
    payload = [cloudpickle.dumps([((number,), {})], protocol=5) for number in range(tasks)]
    for number in range(requests.get("PutObject", 0)):
        await obstore.put_async(store, f"bundle/{number}", b"".join(payload), use_multipart=False)
    await asyncio.gather(*(fetch() for _ in range(_FLOOR_CONCURRENCY)))
    for _ in range(requests.get("ListObjectsV2", 0)):
        await anext(aiter(obstore.list(store, "filled/", chunk_size=1000)))
    for _ in range(tasks):
        pickle.loads(answer)
    deletes = requests.get("DeleteObjects", 0)
    for number in range(deletes):
        await obstore.delete_async(store, [f"filled/{i}" for i in range(number, tasks, deletes)])
    return {
        "cpu_s": time.process_time() - cpu,
        "wall_s": time.monotonic() - wall,
        "peak_bytes": _peak_bytes(),
    }


async def _watch(stalls: list[float]) -> None:
    """Note for how long the event loop did not turn."""
    while True:
        due = time.monotonic() + _STALL_STEP_S
        await asyncio.sleep(_STALL_STEP_S)
        stalls[0] = max(stalls[0], time.monotonic() - due)


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _UNIT


def _main(name: str, count: int, options: dict[str, Any]) -> None:
    if name == "floor":
        coroutine = floor(options, count)
    else:
        work = {"sweep": sweep, "singles": singles, "arrivals": arrivals}[name](count)
        coroutine = measure(work, options)
    path = os.environ.get("BENCHMARK_PROFILE")
    profile = cProfile.Profile()
    with profile if path else contextlib.nullcontext():
        told = asyncio.run(coroutine)
    if path:
        profile.dump_stats(path)
    print(json.dumps(told))
    time.sleep(_SETTLE_S)


if __name__ == "__main__":
    _main(sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3]))
