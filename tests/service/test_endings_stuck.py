"""Jobs that cannot be placed, and images without the runtime.

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
    JobStuckError,
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
    """The file that `wait_for` waits for; it is always created in the teardown."""
    path = tmp_path / "go"
    yield path
    path.touch()


def change_descriptions(proxy: Proxy, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the DescribeJobs response for each unfinished job."""

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


async def end_of(job: Job[Any]) -> BaseException | None:
    return await asyncio.wait_for(job.exception(), PATIENCE_S)


# --- jobs that cannot be placed ---------------------------------------------------------------


@pytest.mark.parametrize(("reason", "remedy"), [(TOO_LARGE, "larger instances")])
async def test_stuck_job_is_reported_and_fails(
    reason: str,
    remedy: str,
    proxy: Proxy,
    make_executor: Callable[..., BatchExecutor],
    go: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    change_descriptions(proxy, cannot_be_placed(reason))
    async with make_executor(endpoint_url=proxy.url, stuck_timeout_s=3) as executor:
        job = await executor.submit(wait_for, str(go))
        result = asyncio.ensure_future(end_of(job))
        await until_async(lambda: "is waiting, because Batch reports" in caplog.text)
        assert not result.done()
        assert proxy.of("batch").get("terminatejobs", 0) == 0

        error = await result
        # TerminateJob has replaced Batch's reason.
        assert isinstance(error, JobStuckError)
        assert f"farcall: stuck for 3 s: {reason}"[:1024] in error.reason
        assert reason in str(error)
        assert remedy in str(error)
        assert "stuck_timeout_s" in str(error)
    warnings = [
        r.getMessage()
        for r in caplog.records
        if "is waiting, because Batch reports" in r.getMessage()
    ]
    assert len(warnings) == 1
    assert job.id in warnings[0]
    assert remedy in warnings[0]


# --- images without the runtime ---------------------------------------------------------------


async def test_image_without_runtime_is_named(
    make_executor: Callable[..., BatchExecutor],
) -> None:
    own = {"containerProperties": {"command": ["sh", "-c", "echo no module >&2; exit 1"]}}
    async with make_executor(job_definition_extra=own) as executor:
        error = await end_of(await executor.submit(abs, -1))
        assert isinstance(error, FarcallError)
        assert "farcall's Dockerfile" in str(error)
        assert "no module" in str(error) + str(getattr(error, "stdout", ""))
