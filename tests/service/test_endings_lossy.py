"""Cancelled jobs on a Batch that loses reasons or lacks TerminateJobs.

Starts the local AWS emulator and a proxy that removes fields from its responses.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import farcall.local
from farcall import BatchExecutor, JobCancelledError, JobStatus
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
