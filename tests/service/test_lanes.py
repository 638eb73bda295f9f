"""Cancelling and asking get through, whatever else Batch is asked for; requests are counted."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import farcall.local
from farcall import BatchExecutor, Job, JobCancelledError, JobStatus
from farcall.engine.session import session_for
from tests.support.patience import PATIENCE_S, until_async
from tests.support.proxy import Proxy

WAITING = 300

IMPATIENT = """
from farcall.cli.main import main
from farcall.testing import Timing, use_timing

with use_timing(Timing(call_retry_s=1.0)):
    main()
"""
"""The command line, which tries calls of Batch again for a second instead of ten."""


@pytest.fixture
def batch(aws: farcall.local.LocalAWS, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
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
    aws: farcall.local.LocalAWS, batch: Proxy, executor: BatchExecutor
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


async def test_a_job_is_ended_while_submissions_are_not_answered(
    batch: Proxy, executor: BatchExecutor
) -> None:
    answering = threading.Event()
    job = await executor.submit(sleep)
    batch.changes["submitjob"] = lambda _: answering.wait(PATIENCE_S) and None
    waiting = submissions(executor, sleep)
    try:
        await until_async(lambda: batch.counts["batch submitjob"] > 35)

        await asyncio.wait_for(job.status(), PATIENCE_S)
        await asyncio.wait_for(job.cancel(), PATIENCE_S)

        assert batch.counts["batch terminatejob"] == 1
        assert not any(task.done() for task in waiting)
    finally:
        answering.set()
        await drop(waiting)
    # Those on their way become jobs all the same, and are ended.
    await until_async(
        lambda: batch.counts["batch terminatejob"] == batch.counts["batch submitjob"]
    )
    assert batch.counts["batch submitjob"] < WAITING


async def test_what_waits_to_be_submitted_is_taken_back(
    aws: farcall.local.LocalAWS, batch: Proxy, executor: BatchExecutor
) -> None:
    aws.configure(submit_rate=0.001)
    waiting = submissions(executor, sleep)
    await until_async(lambda: batch.answers["batch submitjob 429"] >= 10)
    await until_async(lambda: any(task.done() for task in waiting))
    (accepted,) = [task for task in waiting if task.done()]

    waiting.remove(accepted)
    await drop(waiting)
    await accepted.result().cancel()

    aws.configure(submit_rate=None)
    assert await asyncio.wait_for(executor.task(pow)(2, 5), PATIENCE_S) == 32
    assert batch.answers["batch submitjob 200"] == 2


async def test_a_job_is_asked_for_and_ended_in_the_midst_of_ten_thousand(
    batch: Proxy, executor: BatchExecutor
) -> None:
    job = await executor.submit(sleep)
    session = await session_for(executor.settings)
    asking = asyncio.ensure_future(session.backend.describe(f"unknown-{n}" for n in range(10_000)))
    await until_async(lambda: batch.counts["batch describejobs"] >= 5)

    assert isinstance(await asyncio.wait_for(job.status(), PATIENCE_S), JobStatus)
    await asyncio.wait_for(job.cancel(), PATIENCE_S)

    assert not asking.done()
    assert batch.counts["batch describejobs"] < 50
    await drop([asking])


async def test_all_tasks_of_an_array_are_ended_with_one_call(
    batch: Proxy, make_executor: Callable[..., BatchExecutor]
) -> None:
    with pytest.raises(RuntimeError, match="on the way"):
        async with make_executor(linger_s=0.5) as executor:
            jobs = await asyncio.gather(*(executor.submit(sleep) for _ in range(50)))
            raise RuntimeError("on the way")
    assert len({job.id.partition(":")[0] for job in jobs}) == 1
    assert batch.counts["batch terminatejob"] == 1

    async with make_executor(linger_s=0.5) as executor:
        sleeping = executor.task(sleep)
        calls = [asyncio.ensure_future(sleeping()) for _ in range(50)]
        await until_async(lambda: len(executor._unfinished) == 50)
        await drop(calls)
    assert batch.counts["batch terminatejob"] == 2


async def test_a_batch_that_cannot_be_reached_says_what_was_tried(
    aws: farcall.local.LocalAWS, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_BATCH", "http://127.0.0.1:9")
    command = [sys.executable, "-c", IMPATIENT, "cancel", "some-job"]
    done = await asyncio.to_thread(
        subprocess.run, command, capture_output=True, text=True, check=False
    )
    assert 4 == done.returncode
    assert re.match(r"farcall: \w+: nothing answers at http://127.0.0.1:9 \(", done.stderr)
    assert "from AWS_ENDPOINT_URL_BATCH" in done.stderr
    assert re.search(r"; tried \d+ times in \d+ s\b", done.stderr)
    assert "farcall local" in done.stderr
    assert "Traceback" not in done.stderr
