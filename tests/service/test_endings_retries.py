"""Which failures are tried again, as told meanwhile and in the end: on the embedded Batch."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import farcall.local
from farcall import (
    BatchExecutor,
    HostLostError,
    ImageError,
    Job,
    JobStatus,
    OutOfMemoryError,
    TaskError,
)
from tests.support.patience import PATIENCE_S, until_async

HOST_LOST = "Host EC2 (instance i-"
SPOT = "Your Spot Task was interrupted."
NOT_STARTED = "Task failed to start"
PULL = "CannotPullContainerError: pull image manifest has been retried 5 time(s): i/o timeout"
SLOW_DOCKER = "DockerTimeoutError: Could not transition to created; timed out after waiting 4m0s"
BAD_COMMAND = "CannotStartContainerError: Error response from daemon: no such device"

POLICIES = pytest.mark.parametrize("retry_on", ["failure", "infrastructure"])


def number_of_attempt() -> int:
    return int(os.environ["AWS_BATCH_JOB_ATTEMPT"])


def run_on_from(attempt: int) -> int:
    """Never come back from attempts before this one."""
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
    """Return how each attempt ended by Batch's account: status reason and exit code."""
    deadline = time.monotonic() + PATIENCE_S
    while not (detail := await job.detail()).status.is_final:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.1)
    return [(each.status_reason, each.exit_code) for each in detail.tried]


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    messages = [record.getMessage() for record in caplog.records]
    return [message for message in messages if "is followed by another" in message]


async def until_told(caplog: pytest.LogCaptureFixture, count: int = 1) -> list[str]:
    await until_async(lambda: len(told(caplog)) >= count)
    return told(caplog)


def notes(error: BaseException) -> str:
    return "\n".join(getattr(error, "__notes__", [])) or str(error.__cause__)


# --- what is tried again ----------------------------------------------------------------------


@POLICIES
async def test_a_job_whose_instance_is_reclaimed_runs_again(
    retry_on: str, aws: farcall.local.LocalAWS, executor: BatchExecutor
) -> None:
    again = executor.with_options(retry_attempts=3, retry_on=retry_on)
    job = await again.submit(run_on_from, 2)
    await running(job)
    aws.reclaim(job.id)

    assert await job.result() == 2
    first, second = await ends(job)
    assert first[0].startswith(HOST_LOST)
    assert (first[1], second[1]) == (None, 0)


@POLICIES
async def test_a_fargate_spot_task_that_is_interrupted_runs_again(
    retry_on: str, aws: farcall.local.LocalAWS, executor: BatchExecutor
) -> None:
    fargate = {"platformCapabilities": ["FARGATE"]}
    again = executor.with_options(
        retry_attempts=3, retry_on=retry_on, memory=2, job_definition_extra=fargate
    )
    job = await again.submit(run_on_from, 2)
    await running(job)
    aws.reclaim(job.id)

    assert await job.result() == 2
    assert [end[0] for end in await ends(job)][:1] == [SPOT]
    assert (await ends(job))[0][1] == 143  # told to stop, and never 0


@POLICIES
@pytest.mark.parametrize("reason", [PULL, SLOW_DOCKER])
async def test_a_container_that_the_host_failed_to_start_is_started_again(
    reason: str, retry_on: str, aws: farcall.local.LocalAWS, executor: BatchExecutor
) -> None:
    aws.break_starts(reason)
    again = executor.with_options(retry_attempts=3, retry_on=retry_on)
    job = await again.submit(number_of_attempt)

    assert await job.result() == 2
    assert [end[0] for end in await ends(job)][:1] == [NOT_STARTED]


@pytest.mark.parametrize(("retry_on", "attempts"), [("failure", 3), ("infrastructure", 1)])
async def test_what_would_not_start_elsewhere_is_tried_again_only_with_everything(
    retry_on: str, attempts: int, aws: farcall.local.LocalAWS, executor: BatchExecutor
) -> None:
    aws.break_starts(*[BAD_COMMAND] * attempts)
    again = executor.with_options(retry_attempts=3, retry_on=retry_on)
    job = await again.submit(number_of_attempt)

    with pytest.raises(ImageError, match="could not be started") as caught:
        await job.result()
    assert caught.value.attempts == attempts
    assert BAD_COMMAND in caught.value.reason
    assert str(caught.value).count("had ended with ImageError") == attempts - 1


@pytest.mark.parametrize(("retry_on", "attempts"), [("failure", 3), ("infrastructure", 1)])
async def test_the_functions_own_exception_is_tried_again_only_with_everything(
    retry_on: str, attempts: int, executor: BatchExecutor
) -> None:
    def work() -> None:
        raise RuntimeError(f"attempt {os.environ['AWS_BATCH_JOB_ATTEMPT']}")

    job = await executor.with_options(retry_attempts=3, retry_on=retry_on).submit(work)

    with pytest.raises(RuntimeError, match=f"attempt {attempts}") as caught:
        await job.result()
    earlier = [line for line in notes(caught.value).splitlines() if line.startswith("Attempt ")]
    assert earlier == [
        f"Attempt {n} had ended with RuntimeError: attempt {n}" for n in range(1, attempts)
    ]
    assert [code for _, code in await ends(job)] == [1] * attempts


@POLICIES
async def test_what_would_end_the_same_way_is_final(
    retry_on: str, executor: BatchExecutor
) -> None:
    class Unreadable:
        def __reduce__(self) -> tuple[Any, ...]:
            return int, ("no number",)

    job = await executor.with_options(retry_attempts=3, retry_on=retry_on).submit(
        print, Unreadable()
    )

    with pytest.raises(TaskError, match="no number"):
        await job.result()
    assert [code for _, code in await ends(job)] == [69]


def kill_the_container() -> None:
    os.kill(os.getppid(), signal.SIGKILL)  # as the kernel does where there is too little memory
    time.sleep(PATIENCE_S)


@POLICIES
async def test_what_was_killed_for_its_memory_is_final(
    retry_on: str, executor: BatchExecutor
) -> None:
    again = executor.with_options(retry_attempts=3, retry_on=retry_on)
    job = await again.submit(kill_the_container)

    with pytest.raises(OutOfMemoryError, match="raise memory") as caught:
        await job.result()
    assert caught.value.attempts == 1
    assert [code for _, code in await ends(job)] == [137]


async def test_as_many_attempts_are_made_as_are_asked_for(
    aws: farcall.local.LocalAWS, executor: BatchExecutor
) -> None:
    aws.break_starts(*[PULL] * 10)
    job = await executor.with_options(retry_attempts=10).submit(number_of_attempt)

    with pytest.raises(ImageError) as caught:
        await job.result()
    assert caught.value.attempts == 10
    assert len(await ends(job)) == 10
    assert "Attempt 9 had ended with ImageError" in str(caught.value)


# --- what is told of it -----------------------------------------------------------------------


async def test_a_failed_attempt_is_told_of_while_the_next_one_runs(
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
    (line,) = await until_told(caplog)

    assert not result.done()
    assert line == (
        f"job {job.id} (work-{line.partition('(work-')[2].partition(')')[0]}): attempt 1 of 3 "
        "failed and is followed by another: LookupError: first try"
    )
    go.touch()
    assert await result == 2
    assert len(told(caplog)) == 1


async def test_a_child_s_failed_attempt_is_told_of_while_the_array_runs(
    executor: BatchExecutor, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    go = tmp_path / "go"

    def work(item: int) -> tuple[int, int]:
        number = int(os.environ["AWS_BATCH_JOB_ATTEMPT"])
        if item == 1 and number == 1:
            raise LookupError("first try")
        deadline = time.monotonic() + PATIENCE_S
        while not go.exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        return item, number

    task = executor.with_options(retry_attempts=2, retry_on="failure").task(work)
    values = asyncio.ensure_future(_all(task.map(range(3))))
    (line,) = await until_told(caplog)

    assert not values.done()
    assert ":1 (" in line
    assert line.endswith(
        "attempt 1 of 2 failed and is followed by another: LookupError: first try"
    )
    go.touch()
    assert await values == [(0, 1), (1, 2), (2, 1)]
    assert len(told(caplog)) == 1


async def _all(sweep: Any) -> Any:
    return await sweep


async def test_the_error_of_the_last_attempt_tells_of_those_before(
    aws: farcall.local.LocalAWS, executor: BatchExecutor, caplog: pytest.LogCaptureFixture
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

    with pytest.raises(HostLostError, match="the instance under the job") as caught:
        await job.result()
    assert caught.value.attempts == 4
    text = str(caught.value)
    assert "Attempt 1 had ended with LookupError: first try\n" in text
    assert "Attempt 2 had ended with ChildKilledError: the task's process left with exit" in text
    assert "Attempt 3 had ended with HostLostError: the instance under the job" in text
    assert "Attempt 4 had" not in text
    assert caught.value.stdout == "attempt 4\n"


async def test_a_cancelled_job_is_not_said_to_be_tried_again(
    make_executor: Callable[..., BatchExecutor], caplog: pytest.LogCaptureFixture
) -> None:
    async with make_executor(retry_attempts=3) as executor:
        jobs = [await executor.submit(run_on_from, 9) for _ in range(2)]
        for job in jobs:
            await running(job)
        await asyncio.gather(*(job.cancel() for job in jobs))
        assert [type(await job.exception()).__name__ for job in jobs] == ["JobCancelledError"] * 2
        assert [await job.status() for job in jobs] == [JobStatus.FAILED] * 2
    assert told(caplog) == []
