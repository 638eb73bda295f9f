"""Jobs that cannot be placed, that Batch forgot, or of which Batch and the bucket differ.

A proxy before the embedded Batch changes what it says of jobs that are real.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import farcall.local
from farcall import (
    BatchExecutor,
    FarcallError,
    HostLostError,
    ImageError,
    Job,
    JobCancelledError,
    JobLostError,
    JobStatus,
    JobStuckError,
    OutcomeMissingError,
)
from farcall.engine.session import session_for
from farcall.operations.explain import explain
from tests.support.patience import PATIENCE_S, until_async
from tests.support.proxy import Proxy
from tests.support.tasks import wait_for

TOO_LARGE = (
    "MISCONFIGURATION:JOB_RESOURCE_REQUIREMENT - The job resource requirement (vCPU/memory/GPU) "
    "is higher than that can be met by the CE(s) attached to the job queue."
)
NO_CAPACITY = (
    "CAPACITY:INSUFFICIENT_INSTANCE_CAPACITY - Service cannot fulfill the capacity requested for "
    "instance type [r5.metal]"
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


@pytest.mark.parametrize(
    ("reason", "remedy"), [(TOO_LARGE, "larger instances"), (NO_CAPACITY, "on-demand capacity")]
)
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
        # TerminateJob has put a reason of its own in the place of Batch's.
        assert isinstance(error, JobStuckError)
        assert f"farcall: stuck for 3 s: {reason}"[:1024] in error.reason
        assert reason in str(error)
        assert remedy in str(error)
        assert "stuck_timeout_s" in str(error)
    warnings = [r.getMessage() for r in caplog.records if "waits, Batch says" in r.getMessage()]
    assert len(warnings) == 1
    assert job.id in warnings[0]
    assert remedy in warnings[0]


async def test_a_job_that_waits_for_capacity_is_left_to_wait(
    proxy: Proxy,
    make_executor: Callable[..., BatchExecutor],
    go: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    say(proxy, cannot_be_placed(NO_CAPACITY))
    async with make_executor(endpoint_url=proxy.url) as executor:
        job = await executor.submit(wait_for, str(go), 7)
        result = asyncio.ensure_future(job.result())
        await until_async(lambda: "waits, Batch says" in caplog.text)
        go.touch()  # noqa: ASYNC240  # it was placed after all
        assert await result == 7


async def test_an_array_that_cannot_be_placed_is_told_of_and_fails_when_told_to(
    proxy: Proxy,
    make_executor: Callable[..., BatchExecutor],
    go: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Batch gives the reason to a child; of the array it says that it is pending."""
    say(proxy, cannot_be_placed(TOO_LARGE))
    async with make_executor(endpoint_url=proxy.url, stuck_timeout_s=2) as executor:
        sweep = executor.task(wait_for).map([str(go)] * 3, return_exceptions=True)
        found: list[Any] = await sweep
        assert [type(error) for error in found] == [JobStuckError] * 3
        assert all(TOO_LARGE in str(error) for error in found)
    assert sum("waits, Batch says" in record.getMessage() for record in caplog.records) == 1


async def test_a_stuck_job_that_somebody_else_ended_is_not_called_stuck(
    proxy: Proxy, make_executor: Callable[..., BatchExecutor], go: Path
) -> None:
    say(proxy, cannot_be_placed(TOO_LARGE))
    async with make_executor(endpoint_url=proxy.url) as executor:
        job = await executor.submit(wait_for, str(go))
        result = asyncio.ensure_future(end_of(job))
        await until_async(lambda: proxy.of("batch").get("describejobs", 0) >= 2)
        async with make_executor() as other:  # as a colleague in AWS's console
            await other.attach(job.id).cancel("the lab needs the queue")
        error = await result
        assert isinstance(error, JobCancelledError)
        assert "the lab needs the queue" in str(error)


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


async def test_an_outcome_without_a_job_is_a_result(
    proxy: Proxy, make_executor: Callable[..., BatchExecutor]
) -> None:
    forget(proxy)
    async with make_executor(endpoint_url=proxy.url) as executor:
        assert await executor.task(abs)(-3) == 3
        assert await executor.task(abs).map([-1, -2, -3]) == [1, 2, 3]


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
        assert "container_image_uri" in str(error)


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
        assert str(await job.status()) == "FAILED"
        # Batch's word is known from the beginning to who comes later.
        assert await executor.attach(job.id).result() == 3


async def test_without_an_outcome_what_batch_says_is_the_end(
    proxy: Proxy, make_executor: Callable[..., BatchExecutor], go: Path
) -> None:
    def lose(job: dict[str, Any]) -> None:
        job.update(status="FAILED", statusReason="Host EC2 (instance i-0) terminated.")

    async with make_executor(endpoint_url=proxy.url) as executor:
        job = await executor.submit(wait_for, str(go))
        say(proxy, lose)
        error = await end_of(job)
        assert isinstance(error, HostLostError)
        assert "Host EC2 (instance i-0) terminated." in str(error)


# --- attempts, listed as it comes -------------------------------------------------------------


def talk(go: str) -> None:
    print("begun", flush=True)
    wait_for(go)
    print("through")


async def test_an_attempt_that_is_listed_while_it_goes_on_has_not_failed(
    proxy: Proxy,
    make_executor: Callable[..., BatchExecutor],
    go: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def list_it(job: dict[str, Any]) -> None:
        if job["status"] == "RUNNING":
            own = {name: job["container"][name] for name in ("logStreamName", "taskArn")}
            job["attempts"].append({"container": own, "startedAt": job["startedAt"]})

    say(proxy, list_it)
    async with make_executor(endpoint_url=proxy.url, retry_attempts=3) as executor:
        job = await executor.submit(talk, str(go))
        session = await session_for(executor.settings)
        lines = []
        async for line in job.logs(follow=True):
            lines.append(line)
            if len(lines) == 1:
                detail = await job.detail()
                assert (detail.status, detail.attempts) == (JobStatus.RUNNING, 0)
                found = await explain(session, detail)
                assert (found.sentence, found.earlier) == ("the job runs", ())
                await asyncio.to_thread(go.touch)
        assert lines == ["begun", "through"]
    assert "failed" not in caplog.text


async def test_the_log_of_a_job_without_listed_attempts_is_found(
    proxy: Proxy, make_executor: Callable[..., BatchExecutor]
) -> None:
    say(proxy, lambda job: job.update(attempts=[]))
    own = {"containerProperties": {"command": ["sh", "-c", "echo from another image; exit 3"]}}
    async with make_executor(endpoint_url=proxy.url, job_definition_extra=own) as executor:
        job = await executor.submit(abs, -1)
        error = await end_of(job)
        assert "from another image" in str(getattr(error, "stdout", ""))
        assert getattr(error, "attempts", 0) == 1
        assert ["from another image"] == [line async for line in executor.attach(job.id).logs()]


def raise_once(go: str) -> int:
    if os.environ["AWS_BATCH_JOB_ATTEMPT"] == "1":
        raise ValueError("the function's own")
    return wait_for(go)


async def test_what_the_last_attempt_stored_counts_where_none_follows_after_all(
    proxy: Proxy, make_executor: Callable[..., BatchExecutor], go: Path
) -> None:
    """The container took its attempt for one that another follows, and Batch ended the job."""

    def end_it(job: dict[str, Any]) -> None:
        if job["attempts"]:
            job.update(status="FAILED", statusReason=job["attempts"][0]["statusReason"])
            job["container"] = {**job["container"], **job["attempts"][0]["container"]}

    say(proxy, end_it)
    options = {"endpoint_url": proxy.url, "retry_attempts": 3, "retry_on": "failure"}
    async with make_executor(**options) as executor:
        job = await executor.submit(raise_once, str(go))
        error = await end_of(job)
        assert isinstance(error, ValueError)
        assert error.args == ("the function's own",)
        found = await explain(await session_for(executor.settings), await job.detail())
        assert (found.error, found.source) == ("ValueError", "outcome")
        assert "raise_once" in found.traceback


async def test_a_container_that_was_not_started_for_an_unknown_reason_points_to_the_image(
    aws: farcall.local.LocalAWS, make_executor: Callable[..., BatchExecutor]
) -> None:
    aws.break_starts("SnapshotterError: words that nobody knows yet")
    async with make_executor() as executor:
        error = await end_of(await executor.submit(abs, -1))
        assert isinstance(error, ImageError)
        assert "SnapshotterError: words that nobody knows yet" in str(error)
        assert "To do: check the image of container_image_uri" in str(error)
        assert "s3:" not in str(error)


@pytest.mark.timing(lost_after_s=1.0)
async def test_a_child_that_batch_never_listed_is_told_as_what_it_is(
    proxy: Proxy, make_executor: Callable[..., BatchExecutor], go: Path
) -> None:
    def hide(answer: dict[str, Any]) -> None:
        answer["jobs"] = [job for job in answer["jobs"] if not job["jobId"].endswith(":1")]
        for job in answer["jobs"]:
            job["status"] = "FAILED"

    proxy.changes["describejobs"] = hide
    async with make_executor(endpoint_url=proxy.url) as executor:
        jobs = await asyncio.gather(*(executor.submit(wait_for, str(go), n) for n in range(2)))
        (child,) = (job for job in jobs if job.id.endswith(":1"))
        error = await end_of(child)
        parent = child.id.partition(":")[0]
        assert isinstance(error, JobLostError)
        assert "Batch does not list the job, and there is no outcome of it" in str(error)
        assert f"`farcall describe {parent}` tells of the array as a whole" in str(error)
