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
import sys
import time
import urllib.request
from collections.abc import Awaitable, Callable
from typing import Any

import cloudpickle
import obstore
from obstore.store import S3Store

from benchmarks.cloud import CONTROL
from benchmarks.meter import Meter
from farcall import BatchExecutor

_FLOOR_CONCURRENCY = 16  # as many as farcall fetches at once
_SETTLE_S = 0.05  # see farcall.aws.clients: obstore aborts a process that ends too fast

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


_WORKS = {
    "sweep": sweep,
    "singles": singles,
    "arrivals": arrivals,
}


async def measure(work: Work, options: dict[str, Any]) -> dict[str, Any]:
    """Do some work with an open executor."""
    async with BatchExecutor() as executor:
        control("reset", options)
        meter = Meter()
        told = await work(executor)
        meter.note_last()
    return {**meter.told(), "told": told}


async def floor(tasks: int, options: dict[str, Any]) -> dict[str, Any]:
    """Send bare requests, as many and of the kinds farcall sent, and make the same pickles.

    Args:
        tasks: Number of tasks.
        options: ``requests`` by operation, an ``outcome``, and the ``calls`` in each task.
    """
    calls: int = options.get("calls", 1)
    bucket = os.environ["FARCALL_S3_BUCKET_NAME"]
    store = S3Store(
        bucket,
        config={"endpoint": os.environ["AWS_ENDPOINT_URL"], "region": "us-east-1"},
        client_options={"allow_http": True},
    )
    with contextlib.suppress(FileNotFoundError):  # an executor that opens looks so, too
        await obstore.get_async(store, "nothing")
    control("reset", {})
    control("fill", {"name": f"{bucket}/filled", "count": tasks, "data": options["outcome"]})
    requests: dict[str, int] = options["requests"]
    keys = iter([f"filled/{number}" for number in range(requests.get("GetObject", 0))])
    answer = pickle.dumps(2, protocol=5)

    async def fetch() -> None:
        for key in keys:
            await (await obstore.get_async(store, key)).bytes_async()

    meter = Meter()
    numbers = (range(first, first + calls) for first in range(0, tasks * calls, calls))
    payload = [cloudpickle.dumps([((n,), {}) for n in each], protocol=5) for each in numbers]
    puts = requests.get("PutObject", 0)
    for number in range(puts):
        bundle = b"".join(payload[number::puts])
        await obstore.put_async(store, f"bundle/{number}", bundle, use_multipart=False)
    await asyncio.gather(*(fetch() for _ in range(_FLOOR_CONCURRENCY)))
    for _ in range(requests.get("ListObjectsV2", 0)):
        await anext(aiter(obstore.list(store, "filled/", chunk_size=1000)))
    for _ in range(tasks * calls):
        pickle.loads(answer)
    meter.note_last()
    deletes = requests.get("DeleteObjects", 0)
    for number in range(deletes):
        await obstore.delete_async(store, [f"filled/{i}" for i in range(number, tasks, deletes)])
    return meter.told()


def _main(name: str, count: int, options: dict[str, Any]) -> None:
    is_floor = name == "floor"
    coroutine = floor(count, options) if is_floor else measure(_WORKS[name](count), options)
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
