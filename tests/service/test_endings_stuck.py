"""Jobs that cannot be placed, that Batch forgot, or whose status and outcome differ.

Starts the local AWS emulator and a proxy that changes DescribeJobs responses about real jobs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from farcall import (
    BatchExecutor,
    FarcallError,
    Job,
    JobLostError,
    JobStuckError,
    OutcomeMissingError,
)
from tests.support.patience import PATIENCE_S, until_async
from tests.support.proxy import Proxy
from tests.support.tasks import wait_for

TOO_LARGE = (
    "MISCONFIGURATION:JOB_RESOURCE_REQUIREMENT - The job resource requirement (vCPU/memory/GPU) "
    "is higher than that can be met by the CE(s) attached to the job queue."
)


@pytest.fixture
def go(tmp_path: Path) -> Iterator[Path]:
    """What `wait_for` waits for; made at the end, whatever happens."""
    path = tmp_path / "go"
    yield path
    path.touch()


def say(proxy: Proxy, change: Callable[[dict[str, Any]], object]) -> None:
    """Change what DescribeJobs says of each job that nobody has ended."""

    def of_each(answer: dict[str, Any]) -> None:
        for job in answer["jobs"]:
            if not job["isTerminated"]:
                change(job)

    proxy.changes["describejobs"] = of_each


def cannot_be_placed(reason: str) -> Callable[[dict[str, Any]], None]:
    def change(job: dict[str, Any]) -> None:
        counts = job.get("arrayProperties", {}).get("statusSummary")
        if counts is not None:
            size = sum(counts.values())
            counts.update(dict.fromkeys(counts, 0), RUNNABLE=size)
            return
        job.update(status="RUNNABLE", statusReason=reason, attempts=[])
        for name in ("startedAt", "stoppedAt"):
            job.pop(name, None)

    return change


def forget(proxy: Proxy) -> None:
    proxy.changes["describejobs"] = lambda answer: answer["jobs"].clear()


async def end_of(job: Job[Any]) -> BaseException | None:
    return await asyncio.wait_for(job.exception(), PATIENCE_S)


# --- jobs that cannot be placed ---------------------------------------------------------------


@pytest.mark.parametrize(("reason", "remedy"), [(TOO_LARGE, "larger instances")])
async def test_a_job_that_cannot_be_placed_is_told_of_at_once_and_fails_when_told_to(
    reason: str,
    remedy: str,
    proxy: Proxy,
    make_executor: Callable[..., BatchExecutor],
    go: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    say(proxy, cannot_be_placed(reason))
    async with make_executor(endpoint_url=proxy.url, stuck_timeout_s=3) as executor:
        job = await executor.submit(wait_for, str(go))
        result = asyncio.ensure_future(end_of(job))
        await until_async(lambda: "waits, Batch says" in caplog.text)
        assert not result.done()
        assert proxy.of("batch").get("terminatejobs", 0) == 0

        error = await result
        # TerminateJob has put a reason of its own instead of Batch's.
        assert isinstance(error, JobStuckError)
        assert f"farcall: stuck for 3 s: {reason}"[:1024] in error.reason
        assert reason in str(error)
        assert remedy in str(error)
        assert "stuck_timeout_s" in str(error)
    warnings = [r.getMessage() for r in caplog.records if "waits, Batch says" in r.getMessage()]
    assert len(warnings) == 1
    assert job.id in warnings[0]
    assert remedy in warnings[0]


# --- jobs that Batch does not know ------------------------------------------------------------


@pytest.mark.timing(lost_after_s=3.0)
@pytest.mark.parametrize("size", [1, 3])
async def test_a_job_that_batch_lists_no_more_is_lost_after_a_bound(
    size: int, proxy: Proxy, make_executor: Callable[..., BatchExecutor], go: Path
) -> None:
    async with make_executor(endpoint_url=proxy.url) as executor:
        jobs = await asyncio.gather(*(executor.submit(wait_for, str(go), n) for n in range(size)))
        ends = [asyncio.ensure_future(end_of(job)) for job in jobs]
        await until_async(lambda: proxy.of("batch").get("describejobs", 0) >= 1)
        forget(proxy)
        errors = await asyncio.gather(*ends)
        assert [type(error) for error in errors] == [JobLostError] * size
        for job, error in zip(jobs, errors, strict=True):
            assert job.id in str(error)
            assert "Batch does not list the job" in str(error)


# --- where Batch and the bucket differ --------------------------------------------------------


async def test_a_success_without_an_outcome_is_an_error(
    make_executor: Callable[..., BatchExecutor],
) -> None:
    own = {"containerProperties": {"command": ["true"]}}  # not farcall's runtime
    async with make_executor(job_definition_extra=own) as executor:
        error = await end_of(await executor.submit(abs, -1))
        assert isinstance(error, OutcomeMissingError)
        assert error.exit_code == 0
        assert "no outcome in the bucket (or there was one, and it was delivered" in str(error)
        assert "image" in str(error)


async def test_an_image_that_lacks_the_runtime_is_named(
    make_executor: Callable[..., BatchExecutor],
) -> None:
    own = {"containerProperties": {"command": ["sh", "-c", "echo no module >&2; exit 1"]}}
    async with make_executor(job_definition_extra=own) as executor:
        error = await end_of(await executor.submit(abs, -1))
        assert isinstance(error, FarcallError)
        assert "farcall's Dockerfile" in str(error)
        assert "no module" in str(error) + str(getattr(error, "stdout", ""))


@pytest.mark.parametrize(
    ("reason", "container"),
    [
        ("Host EC2 (instance i-0a1b2c3d4e5f60718) terminated.", None),
        (None, "CannotInspectContainerError: Could not transition to inspecting; timed out"),
        ("Job attempt duration exceeded timeout", None),
    ],
)
async def test_the_outcome_of_a_job_that_batch_calls_failed_wins(
    reason: str | None,
    container: str | None,
    proxy: Proxy,
    make_executor: Callable[..., BatchExecutor],
) -> None:
    """The container had stored it when its host, or what was told of it, was lost."""

    def lose(job: dict[str, Any]) -> None:
        if job["status"] == "SUCCEEDED":
            job.update(status="FAILED", statusReason=reason or "")
            job["container"].pop("exitCode", None)
            if container:
                job["container"]["reason"] = container

    say(proxy, lose)
    async with make_executor(endpoint_url=proxy.url, keep_artifacts=True) as executor:
        job = await executor.submit(abs, -3)
        assert await job.result() == 3
        while str(await job.status()) != "FAILED":  # the outcome comes before the job's end
            await asyncio.sleep(0.02)
        # Batch's word is known from the beginning to who comes later.
        assert await executor.attach(job.id).result() == 3
