"""farcall's clients and floor: ``python -m benchmarks.client WORK COUNT OPTIONS``.

Prints one line of JSON. CPU time covers all threads of the process, including obstore's, from the
opening of the executor until it is closed and its objects are deleted.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import os
import pickle
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import cloudpickle
import obstore
from obstore.store import S3Store

from benchmarks import meter
from benchmarks.cloud import REGION
from benchmarks.harness import control
from benchmarks.meter import Meter, probe
from farcall import BatchExecutor
from farcall.storage.bucket import Bucket

_FLOOR_CONCURRENCY = 16  # farcall's concurrent fetches
_SETTLE_S = 0.05  # see farcall.aws.clients: obstore aborts a process that exits too early

Begin = Callable[[], Meter]


def double(x: int) -> int:
    """Return the double; the trivial task."""
    return 2 * x


def size(data: Any) -> int:
    """Return an array's size in bytes; the task with a large argument."""
    return int(data.nbytes)


def make(count: int) -> Any:
    """Return an array of COUNT bytes; the task with a large result."""
    import numpy as np

    return np.ones(count, np.uint8)


async def _map(executor: BatchExecutor, count: int, begin: Begin) -> None:
    meter = begin()
    values = await executor.task(double).map(range(count))
    meter.stop_clock()
    _check(values, [2 * number for number in range(count)])


async def _submit(executor: BatchExecutor, count: int, begin: Begin) -> None:
    """Submit the trivial task for all numbers concurrently, and await each result."""
    task = executor.task(double)

    async def one(number: int) -> int:
        job = await task.submit(number)
        return await job.result()

    meter = begin()
    values = await asyncio.gather(*map(one, range(count)))
    meter.stop_clock()
    _check(values, [2 * number for number in range(count)])


async def _starts(executor: BatchExecutor, count: int, begin: Begin) -> list[list[float]]:
    """Run the probe COUNT times, one job at a time."""
    begin()
    return [await executor.task(probe)() for _ in range(count)]


async def _argument(executor: BatchExecutor, count: int, begin: Begin) -> None:
    """Submit an array of COUNT bytes; stop the clock when Batch accepts the job."""
    data = make(count)
    meter = begin()
    job = await executor.submit(size, data)
    meter.stop_clock()
    _check(await job.result(), count)


async def _result(executor: BatchExecutor, count: int, begin: Begin) -> float:
    """Return the time at which a task's result, an array of COUNT bytes, has arrived."""
    begin()
    data = await (await executor.submit(make, count)).result()
    arrived = time.monotonic()
    _check((data.nbytes, bool(data.all())), (count, True))
    return arrived


_WORKS: dict[str, Callable[[BatchExecutor, int, Begin], Awaitable[Any]]] = {
    "map": _map,
    "submit": _submit,
    "starts": _starts,
    "argument": _argument,
    "result": _result,
}


def _check(found: object, wanted: object) -> None:
    if found != wanted:
        raise AssertionError("wrong values")


async def measure(
    work: str,
    count: int,
    *,
    jobs: dict[str, Any] | None = None,
    keeps_objects: bool = False,
    **options: Any,
) -> dict[str, Any]:
    """Measure one work with an open executor.

    Args:
        work: Name in `_WORKS`.
        count: Number of tasks, or size of a large value in bytes.
        jobs: Options with which the in-memory cloud runs the jobs. None on the local AWS emulator,
            which counts no requests, so that this process counts its S3 requests.
        keeps_objects: Whether the bucket keeps the objects of an earlier client.
        options: The executor's options.
    """
    begun: list[Meter] = []
    requests = _counted()

    def begin() -> Meter:
        gc.collect()
        if jobs is not None:
            name = "restart" if keeps_objects else "reset"
            control(os.environ["AWS_ENDPOINT_URL"], name, jobs)
        requests.clear()
        begun.append(Meter())
        return begun[0]

    async with BatchExecutor(**options) as executor:
        if work in ("argument", "result"):  # the first task opens connections
            await executor.task(double)(1)
        found = await _WORKS[work](executor, count, begin)
    measured = {**begun[0].report(), "result": found}
    return {**measured, "requests": requests} if jobs is None else measured


def _counted() -> Counter[str]:
    """Patch the S3 client to count this process's requests, and return the counts."""
    found: Counter[str] = Counter()
    send = Bucket.send

    async def counted(self: Bucket, operation: str, *more: Any, **named: Any) -> Any:
        found[f"s3 {operation}"] += 1
        return await send(self, operation, *more, **named)

    Bucket.send = counted  # type: ignore[method-assign]
    return found


async def floor(tasks: int, requests: dict[str, int], outcome_bytes: int) -> dict[str, Any]:
    """Repeat farcall's S3 requests with plain obstore, and create the same pickles."""
    bucket, url = os.environ["FARCALL_S3_BUCKET_NAME"], os.environ["AWS_ENDPOINT_URL"]
    store = S3Store(bucket, endpoint=url, region=REGION, client_options={"allow_http": True})
    with contextlib.suppress(FileNotFoundError):  # open a connection, as an executor does
        await obstore.get_async(store, "nothing")
    control(url, "reset", {})
    control(url, "fill", {"name": f"{bucket}/filled", "count": tasks, "size": outcome_bytes})
    number_of = Counter({name.removeprefix("s3 "): count for name, count in requests.items()})
    keys = iter([f"filled/{number}" for number in range(number_of["GetObject"])])
    answer = pickle.dumps(2, protocol=5)

    async def fetch() -> None:
        for key in keys:
            await (await obstore.get_async(store, key)).bytes_async()

    meter = Meter()
    payload = [cloudpickle.dumps([((number,), {})], protocol=5) for number in range(tasks)]
    puts, deletes = number_of["PutObject"], number_of["DeleteObjects"]
    for number in range(puts):
        bundle = b"".join(payload[number::puts])
        await obstore.put_async(store, f"bundle/{number}", bundle, use_multipart=False)
    await asyncio.gather(*(fetch() for _ in range(_FLOOR_CONCURRENCY)))
    for _ in range(number_of["ListObjectsV2"]):
        await anext(aiter(obstore.list(store, "filled/", chunk_size=1000)))
    for _ in range(tasks):
        pickle.loads(answer)
    meter.stop_clock()
    for number in range(deletes):
        await obstore.delete_async(store, [f"filled/{i}" for i in range(number, tasks, deletes)])
    return meter.report()


if __name__ == "__main__":
    cloudpickle.register_pickle_by_value(meter)  # the image does not contain this package
    name, number, given = sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3])
    coroutine = floor(number, **given) if name == "floor" else measure(name, number, **given)
    print(json.dumps(asyncio.run(coroutine)))
    time.sleep(_SETTLE_S)
