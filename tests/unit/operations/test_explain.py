"""One-sentence explanations of job states, on the fake cloud."""

import asyncio
import os
import time

import pytest

from farcall.model.jobs import JobDetail, JobStatus
from farcall.operations.explain import explain
from farcall.testing import HostLost, OutOfMemory


@pytest.fixture
def why(session, found):
    """Return a function that explains a job in one of some states, by default after its end."""

    async def explained(job, *statuses):
        job_id = getattr(job, "id", job)
        return await explain(session, (await found(job_id, *statuses)).detail)

    return explained


async def test_returned_function_is_explained(executor, why):
    job = await executor.submit(pow, 2, 3)
    found = await why(job)
    assert (found.kind, found.error, found.source) == ("returned", "", "outcome")
    assert found.remedy == f"run `farcall result {job.id}` to get its result"
    assert found.usage.wall_s >= 0


async def test_raised_exception_is_explained(executor, why):
    found = await why(await executor.submit(int, "seven"))
    assert (found.kind, found.error, found.source) == ("failed", "ValueError", "outcome")
    assert found.message.startswith("the function raised ValueError: invalid literal for int()")
    assert "ValueError" in found.traceback


async def test_running_and_waiting_jobs_are_explained(executor, why, session):
    jobs = [await executor.submit(time.sleep, 600) for _ in range((os.cpu_count() or 1) + 1)]
    *first, last = jobs
    found = [await why(job, JobStatus.RUNNING) for job in first]
    assert {each.kind for each in found} == {"running"}
    found = await why(last, JobStatus.RUNNABLE)
    assert (found.kind, found.message) == ("waiting", "the job is waiting for capacity")
    assert await session.backend.terminate([job.id for job in jobs], "enough") == {}
    found = await why(last)
    assert (found.kind, found.error) == ("cancelled", "JobCancelledError")


async def test_missing_outcome_uses_platform_reason(executor, why, cloud):
    cloud.next_job(OutOfMemory())
    found = await why(await executor.submit(pow, 2, 3))
    assert (found.kind, found.error, found.source) == ("failed", "OutOfMemoryError", "Batch")
    assert found.remedy == "raise memory"


async def test_earlier_attempts_are_listed(executor, why, cloud):
    cloud.next_job(HostLost())
    job = await executor.with_options(retry_attempts=2).submit(pow, 2, 3)
    found = await why(job)
    assert found.kind == "returned"
    (earlier,) = found.previous_attempts
    assert "Host EC2" in earlier


async def test_array_names_first_failed_tasks(executor, why):
    given = ["1", "x", "3", "y"]
    jobs = await asyncio.gather(*(executor.submit(int, text) for text in given))
    (parent,) = {job.id.partition(":")[0] for job in jobs}
    found = await why(parent)
    assert (found.kind, found.message) == ("failed", "2 of 4 tasks failed")
    failed = {job.id for job, text in zip(jobs, given, strict=True) if not text.isdigit()}
    assert {child.job_id for child in found.children} == failed
    assert {child.error for child in found.children} == {"ValueError"}


async def test_successful_array_is_explained(executor, why):
    jobs = await asyncio.gather(*(executor.submit(pow, n, 2) for n in range(3)))
    (parent,) = {job.id.partition(":")[0] for job in jobs}
    found = await why(parent)
    assert (found.kind, found.message) == ("returned", "all 3 tasks succeeded")


async def test_foreign_job_is_unknown(session):
    detail = JobDetail("6f1c", "x", JobStatus.RUNNING, environment={"FARCALL_BUNDLE": "s3://b/x"})
    found = await explain(session, detail)
    assert (found.kind, found.remedy) == ("unknown", "check the job in the AWS console")


async def test_delivered_result_needs_no_advice(executor, why, session):
    job = await executor.submit(pow, 2, 3)
    await job.result()
    await session.stores.of(executor.settings.s3_bucket_name).flush()
    found = await why(job)
    assert (found.kind, found.remedy) == ("returned", "")
    assert found.message == "the function returned, and its result was delivered"


async def test_delivered_task_has_logged_usage(executor, why, session):
    jobs = await asyncio.gather(*(executor.submit(pow, 2, n) for n in range(2)))
    await jobs[0].result()
    await session.stores.of(executor.settings.s3_bucket_name).flush()
    found = await why(jobs[0])
    assert (found.remedy, found.usage.peak_memory_bytes > 0) == ("", True)
    await jobs[1].result()
