"""Shared values of several calls and clients.

Starts the local AWS emulator, because values are stored once and deleted after their last use.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import boto3
import numpy as np
import pytest

from farcall import BatchExecutor, TaskNotPicklableError
from farcall.payload.sources import Archive
from tests.support.patience import PATIENCE_S

SIZE = 2 * 1024 * 1024


def stored() -> list[str]:
    """Return the keys of shared values."""
    pages = boto3.client("s3").get_paginator("list_objects_v2")
    bucket = os.environ["FARCALL_S3_BUCKET_NAME"]
    found = (
        each["Key"] for page in pages.paginate(Bucket=bucket) for each in page.get("Contents", [])
    )
    return [key for key in found if "/shared/" in key]


@pytest.fixture
def array() -> np.ndarray[Any, Any]:
    """An array that no other test uses."""
    return np.frombuffer(os.urandom(SIZE), np.uint8)


@pytest.fixture(autouse=True)
def before(aws: object) -> list[str]:
    """Return the keys that other tests have left."""
    return stored()


def total(array: Any, factor: int = 1) -> int:
    return int(array.sum()) * factor


async def test_small_project_archive_is_shared(executor: BatchExecutor) -> None:
    archive = Archive(os.urandom(Archive.LEAST_BYTES))
    assert await executor.task(len)(pickle.PickleBuffer(archive)) == len(archive)


@pytest.mark.core
async def test_array_is_stored_once(
    make_executor: Callable[..., BatchExecutor], array: Any, before: list[str]
) -> None:
    expected = int(array.sum())
    closed_over = {"array": array}
    async with make_executor() as executor:
        task = executor.task(total)
        for _ in range(2):
            assert await task.map(itertools.repeat(array), range(3)) == [0, expected, 2 * expected]
        assert await task(array.copy()) == expected  # equal bytes are the same value
        by_closure = await executor.submit(lambda: int(closed_over["array"].sum()))
        assert await by_closure.result() == expected
        shared = await executor.put([array, "and more"])
        assert await executor.task(lambda pair: int(pair[0].sum()))(shared) == expected
        assert len(set(stored()) - set(before)) == 1
    assert set(stored()) <= set(before)


async def test_put_value_may_be_nested(executor: BatchExecutor, before: list[str]) -> None:
    values = {"a": np.full(SIZE, 1, np.uint8), "b": b"x" * SIZE, "c": [1, 2]}
    shared = await executor.put(values)
    values["a"][:] = 7  # the bytes were copied before
    assert repr(shared).startswith("<Shared dict of 4.2 MB in s3://")
    task = executor.task(lambda deep: (int(deep[0]["x"]["a"].sum()), deep[0]["x"]["c"], deep[1]))
    assert await task([{"x": shared}, 5]) == (SIZE, [1, 2], 5)
    assert len(set(stored()) - set(before)) == 2
    await shared.discard()
    await shared.discard()
    assert set(stored()) <= set(before)
    with pytest.raises(TaskNotPicklableError, match="discarded> is no longer in the bucket"):
        await task([{"x": shared}, 5])


CLIENT = """
import asyncio, itertools, sys, time
import numpy as np
from pathlib import Path
from farcall import BatchExecutor

async def main():
    array = np.load(sys.argv[1])
    gate = Path(sys.argv[2])
    def total(array, number):
        while not gate.exists():
            time.sleep(0.02)
        return int(array.sum()) + number
    async with BatchExecutor(vcpu=1, memory=1, retry_attempts=1, linger_s=0.02) as executor:
        print(await executor.run_name(), flush=True)
        shared = await executor.put(array)
        sweep = executor.task(total).map(itertools.repeat(shared), range(2))
        waiting = asyncio.ensure_future(sweep._gather())
        while not sweep.job_ids:
            await asyncio.sleep(0.01)
        print("submitted", flush=True)
        await waiting

asyncio.run(main())
"""


def killed_after_submission(file: Path, gate: Path) -> str:
    """Start a client, kill it when its jobs are submitted, and return its run's name."""
    arguments = [sys.executable, "-c", CLIENT, str(file), str(gate)]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        run = process.stdout.readline().strip()
        assert process.stdout.readline() == "submitted\n"
        process.send_signal(signal.SIGKILL)
        process.wait(PATIENCE_S)
    return run


@pytest.mark.slow
async def test_killed_client_keeps_shared_array(
    make_executor: Callable[..., BatchExecutor], array: Any, tmp_path: Path
) -> None:
    file, gate = tmp_path / "array.npy", tmp_path / "gate"
    np.save(file, array)
    run = await asyncio.to_thread(killed_after_submission, file, gate)
    gate.touch()
    async with make_executor() as executor:
        recovered = await executor.recover(run)
        expected = [int(array.sum()), int(array.sum()) + 1]
        assert [await job.result() for job in recovered.jobs] == expected
        await recovered.discard()
