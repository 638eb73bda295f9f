"""Retries by Batch, and the errors of their attempts.

Starts the local AWS emulator, because attempts and their order come from Batch.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

import farcall_local
from farcall import (
    BatchExecutor,
    HostLostError,
    Job,
    OutOfMemoryError,
)
from tests.support.patience import PATIENCE_S, until_async

HOST_LOST = "Host EC2 (instance i-"

POLICIES = pytest.mark.parametrize("retry_on", ["failure", "infrastructure"])


def run_on_from(attempt: int) -> int:
    """Return only from this attempt on; earlier attempts hang."""
    number = int(os.environ["AWS_BATCH_JOB_ATTEMPT"])
    print(f"attempt {number}", flush=True)
    deadline = time.monotonic() + PATIENCE_S
    while number < attempt and time.monotonic() < deadline:
        time.sleep(0.1)
    return number


async def running(job: Job[Any], attempt: int = 1) -> None:
    """Wait until an attempt of a job runs its function."""
    async for line in job.logs(follow=True):
        if line == f"attempt {attempt}":
            return


async def ends(job: Job[Any]) -> list[tuple[str, int | None]]:
    """Return each attempt's status reason and exit code, according to Batch."""
    deadline = time.monotonic() + PATIENCE_S
    while not (detail := await job.detail()).status.is_final:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.1)
    return [(each.status_reason, each.exit_code) for each in detail.tried]


def retry_messages(caplog: pytest.LogCaptureFixture) -> list[str]:
    messages = [record.getMessage() for record in caplog.records]
    return [message for message in messages if "is retried" in message]


async def until_retry_logged(caplog: pytest.LogCaptureFixture, count: int = 1) -> list[str]:
    await until_async(lambda: len(retry_messages(caplog)) >= count)
    return retry_messages(caplog)


# --- retries ----------------------------------------------------------------------------------


def kill_the_container() -> None:
    os.kill(os.getppid(), signal.SIGKILL)  # as the kernel does if memory runs out
    time.sleep(PATIENCE_S)


@POLICIES
async def test_killed_container_is_not_retried(retry_on: str, executor: BatchExecutor) -> None:
    again = executor.with_options(retry_attempts=3, retry_on=retry_on)
    job = await again.submit(kill_the_container)

    with pytest.raises(OutOfMemoryError, match="raise memory") as caught:
        await job.result()
    assert caught.value.attempts == 1
    assert [code for _, code in await ends(job)] == [137]


# --- reports ----------------------------------------------------------------------------------


async def test_failed_attempt_is_reported_meanwhile(
    executor: BatchExecutor, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    go = tmp_path / "go"

    def work() -> int:
        number = int(os.environ["AWS_BATCH_JOB_ATTEMPT"])
        if number == 1:
            raise LookupError("first try")
        deadline = time.monotonic() + PATIENCE_S
        while not go.exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        return number

    job = await executor.with_options(retry_attempts=3, retry_on="failure").submit(work)
    result = asyncio.ensure_future(job.result())
    (line,) = await until_retry_logged(caplog)

    assert not result.done()
    assert line == (
        f"job {job.id} (work-{line.partition('(work-')[2].partition(')')[0]}): attempt 1 of 3 "
        "failed and is retried: LookupError: first try"
    )
    go.touch()
    assert await result == 2
    assert len(retry_messages(caplog)) == 1


async def test_last_error_names_earlier_attempts(
    aws: farcall_local.LocalAWS, executor: BatchExecutor, caplog: pytest.LogCaptureFixture
) -> None:
    def work() -> None:
        number = int(os.environ["AWS_BATCH_JOB_ATTEMPT"])
        if number == 1:
            raise LookupError("first try")
        if number == 2:
            os._exit(7)
        print(f"attempt {number}", flush=True)
        time.sleep(PATIENCE_S)

    job = await executor.with_options(retry_attempts=4, retry_on="failure").submit(work)
    await running(job, 3)
    aws.reclaim(job.id)
    await running(job, 4)
    aws.reclaim(job.id)

    with pytest.raises(HostLostError, match="the job's instance") as caught:
        await job.result()
    assert caught.value.attempts == 4
    text = str(caught.value)
    assert "Attempt 1 failed with LookupError: first try\n" in text
    assert "Attempt 2 failed with ChildKilledError: the task's process exited with code" in text
    assert "Attempt 3 failed with HostLostError: the job's instance" in text
    assert "Attempt 4 had" not in text
    assert caught.value.stdout == "attempt 4\n"
