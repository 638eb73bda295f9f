"""Lifecycle of executors and jobs.

Starts the local AWS emulator, because a job outlives the client that submitted it.
"""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
import time

import boto3
import pytest

import farcall_local
from farcall import JobCancelledError, JobStatus

pytestmark = pytest.mark.core


def work(x: int) -> int:
    return x + 1


def wait_forever() -> None:
    print("started", flush=True)
    time.sleep(600)  # until the test, or what it tests, ends it


def objects(aws: farcall_local.LocalAWS) -> list[str]:
    s3 = boto3.client("s3")
    bucket = aws.environment["FARCALL_S3_BUCKET_NAME"]
    pages = s3.get_paginator("list_objects_v2").paginate(Bucket=bucket)
    return [item["Key"] for page in pages for item in page.get("Contents", [])]


async def test_job_has_id_status_and_usage(executor):
    job = await executor.submit(work, 1)

    assert isinstance(await job.status(), JobStatus)
    assert await job.result() == 2
    assert job.done()
    assert await job.exception() is None
    usage = await job.usage()
    assert usage.wall_s > 0
    assert usage.peak_memory_bytes > 1_000_000
    assert job.id in repr(job)


async def test_delivered_objects_are_deleted(aws, make_executor):
    before = set(objects(aws))
    async with make_executor() as executor:
        await executor.task(work).map(range(5))
        await executor.task(work)(1)
    assert set(objects(aws)) <= before

    async with make_executor() as executor:
        with pytest.raises(ZeroDivisionError):
            await executor.task(lambda: 1 / 0)()
    kinds = {key.split("/")[3] for key in set(objects(aws)) - before}
    assert {"bundles", "outcomes"} == kinds


async def test_another_process_attaches_to_job(aws, make_executor, tmp_path):
    async with make_executor(keep_artifacts=True) as executor:
        job = await executor.submit(work, 41)
        child, _ = await asyncio.gather(executor.submit(work, 1), executor.submit(work, 2))
        script = (
            "import asyncio, farcall, sys\n"
            "async def main():\n"
            "    async with farcall.BatchExecutor() as executor:\n"
            "        for job_id in sys.argv[1:]:\n"
            "            print(await executor.attach(job_id).result())\n"
            "asyncio.run(main())\n"
        )
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", script, job.id, child.id, stdout=subprocess.PIPE
        )
        out, _ = await process.communicate()

    assert out.decode().split() == ["42", "2"]


async def test_cancelled_await_cancels_job(executor):
    call = asyncio.ensure_future(executor.task(wait_forever)())
    while not executor._unfinished:
        await asyncio.sleep(0.05)
    (run,) = executor._unfinished
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call

    with pytest.raises(JobCancelledError):
        await executor.attach(run.id).result()


async def test_cancelled_wait_leaves_job_running(executor):
    job = await executor.submit(lambda: time.sleep(3))

    with pytest.raises(TimeoutError):
        await asyncio.wait_for(job.result(), 0.2)

    assert await job.result() is None


async def test_exception_in_block_cancels_jobs(make_executor):
    with pytest.raises(RuntimeError, match="on the way"):
        async with make_executor() as executor:
            job = await executor.submit(wait_forever)
            raise RuntimeError("on the way")

    async with make_executor() as executor:
        with pytest.raises(JobCancelledError, match="interrupted by RuntimeError"):
            await executor.attach(job.id).result()


async def test_normal_exit_leaves_jobs_running(make_executor, caplog):
    with caplog.at_level(logging.WARNING, "farcall"):
        async with make_executor() as executor:
            job = await executor.submit(lambda: time.sleep(2))
    assert job.id in caplog.text

    async with make_executor() as executor:
        assert await executor.attach(job.id).result() is None
