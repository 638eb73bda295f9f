"""Cancel requests while many submissions wait.

Starts the local AWS emulator, because requests compete for Batch's rate limits.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import pytest

import farcall_local
from farcall import BatchExecutor, Job, JobCancelledError
from tests.support.patience import PATIENCE_S, until_async
from tests.support.proxy import Proxy

WAITING = 300


@pytest.fixture
def batch(aws: farcall_local.LocalAWS, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    """What counts the requests to Batch; the limit on SubmitJob is as it was afterwards."""
    with Proxy(aws.endpoint_url) as counting:
        monkeypatch.setenv("AWS_ENDPOINT_URL_BATCH", counting.url)
        yield counting
    aws.configure(submit_rate=50)


def sleep() -> None:
    time.sleep(600)  # until the test ends it


def submissions(executor: BatchExecutor, *call: Any) -> list[asyncio.Task[Job[Any]]]:
    """Begin hundreds of submissions; their tags differ, so that each is a SubmitJob."""
    each = [executor.with_options(tags={"number": str(n)}) for n in range(WAITING)]
    return [asyncio.ensure_future(one.submit(*call)) for one in each]


async def drop(tasks: list[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_job_is_ended_while_hundreds_of_submissions_are_refused(
    aws: farcall_local.LocalAWS, batch: Proxy, executor: BatchExecutor
) -> None:
    job = await executor.submit(sleep)
    aws.configure(submit_rate=0.001)  # one, and no more
    waiting = submissions(executor, sleep)
    await until_async(lambda: batch.answers["batch submitjob 429"] >= 10)

    status = await asyncio.wait_for(job.status(), PATIENCE_S)
    await asyncio.wait_for(job.cancel(), PATIENCE_S)
    with pytest.raises(JobCancelledError):
        await asyncio.wait_for(job.result(), PATIENCE_S)

    assert not status.is_final
    assert batch.counts["batch terminatejob"] == 1
    assert batch.answers["batch submitjob 200"] == 2
    assert sum(task.done() for task in waiting) == 1
    await drop(waiting)
    for task in waiting:
        if not task.cancelled():
            await task.result().cancel()
