"""Jobs ended here, on a Batch that is not AWS's own: it loses why, or does not know newer calls.

A proxy before the embedded Batch takes from its answers what such a one does not say.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import farcall.local
from farcall import BatchExecutor, HostLostError, JobCancelledError, JobStatus
from farcall.engine.session import session_for
from farcall.operations.json_view import CANCELLED, state
from tests.support.patience import until_async
from tests.support.proxy import Proxy, lose_reasons


@pytest.fixture
def lossy(proxy: Proxy) -> Proxy:
    """A way to a Batch that does not say who ended a job, or why."""

    lose_reasons(proxy)
    return proxy


def sleep(started: str) -> None:
    Path(started).touch()
    time.sleep(600)  # until it is ended


async def test_a_job_ended_by_its_owner_was_cancelled(
    make_executor: Callable[..., BatchExecutor], lossy: Proxy, tmp_path: Path
) -> None:
    async with make_executor(endpoint_url=lossy.url) as executor:
        job = await executor.submit(sleep, str(tmp_path / "started"))
        await until_async((tmp_path / "started").exists)
        await job.cancel("enough of it")

        with pytest.raises(JobCancelledError, match="enough of it") as caught:
            await job.result()
        assert caught.value.exit_code in (137, 143)
        assert state(await job.detail()) == CANCELLED


async def test_one_child_that_was_ended_was_cancelled_and_others_were_not(
    make_executor: Callable[..., BatchExecutor], lossy: Proxy, tmp_path: Path
) -> None:
    async with make_executor(endpoint_url=lossy.url, linger_s=0.5) as executor:
        paths = [tmp_path / "first", tmp_path / "second"]
        jobs = await asyncio.gather(*(executor.submit(sleep, str(path)) for path in paths))
        await until_async(lambda: all(path.exists() for path in paths))
        await jobs[0].cancel()
        with pytest.raises(JobCancelledError):
            await jobs[0].result()
        # Somebody else ends the other one.
        session = await session_for(executor.settings)
        await session.aws.batch.terminate_job(jobId=jobs[1].id, reason="not farcall's words")
        with pytest.raises(HostLostError):
            await jobs[1].result()


async def test_what_never_ran_was_cancelled(
    make_executor: Callable[..., BatchExecutor], lossy: Proxy, aws: farcall.local.LocalAWS
) -> None:
    aws.configure(delays={"RUNNABLE": 600})
    try:
        async with make_executor(endpoint_url=lossy.url) as executor:
            jobs = [await executor.submit(pow, 2, n) for n in range(2)]
            for job in jobs:
                await job.cancel()
            for job in jobs:
                with pytest.raises(JobCancelledError):
                    await job.result()
    finally:
        aws.configure(delays={})


@pytest.mark.parametrize("answer", ["", (404, "UnknownOperationException"), (501, "NotYet")])
async def test_jobs_are_ended_whether_or_not_batch_knows_the_call_for_many(
    answer: Any,
    proxy: Proxy,
    make_executor: Callable[..., BatchExecutor],
    aws: farcall.local.LocalAWS,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    aws.configure(delays={"RUNNABLE": 600})
    proxy.lasting["batch terminatejobs"] = answer
    try:
        async with make_executor(endpoint_url=proxy.url, linger_s=0) as executor:
            jobs = [await executor.submit(pow, 2, n) for n in range(4)]
            await asyncio.gather(*(job.cancel() for job in jobs[:2]))
            await asyncio.gather(*(job.cancel() for job in jobs[2:]))
            for job in jobs:
                with pytest.raises(JobCancelledError):
                    await job.result()
                assert await job.status() is JobStatus.FAILED
    finally:
        aws.configure(delays={})
    many, each = proxy.counts["batch terminatejobs"], proxy.counts["batch terminatejob"]
    assert (many, each) == ((1, 4) if answer else (2, 0))
