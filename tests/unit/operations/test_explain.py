"""Why a job is as it is, in a sentence; the jobs are a fake cloud's."""

from __future__ import annotations

import asyncio
import os
import time

import pytest

from farcall.model.jobs import JobDetail, JobStatus
from farcall.operations.explain import explain
from farcall.testing import HostLost, OutcomeMissing, OutOfMemory


@pytest.fixture
def why(session, found):
    """Explains a job once it is in one of some states, by default once it has ended."""

    async def say(job, *statuses):
        job_id = getattr(job, "id", job)
        return await explain(session, (await found(job_id, *statuses)).detail)

    return say


async def test_a_function_that_returned(executor, why):
    job = await executor.submit(pow, 2, 3)
    told = await why(job)
    assert (told.kind, told.error, told.source) == ("returned", "", "outcome")
    assert told.remedy == f"run `farcall result {job.id}` to get its result"
    assert told.usage.wall_s >= 0


async def test_a_function_that_raised(executor, why):
    told = await why(await executor.submit(int, "seven"))
    assert (told.kind, told.error, told.source) == ("failed", "ValueError", "outcome")
    assert told.sentence.startswith("the function raised ValueError: invalid literal for int()")
    assert "ValueError" in told.traceback


async def test_a_process_that_ended_itself(executor, why):
    told = await why(await executor.submit(os._exit, 3))
    assert (told.kind, told.error) == ("failed", "ChildKilledError")
    assert told.remedy


async def test_jobs_that_run_and_wait(executor, why, session):
    jobs = [await executor.submit(time.sleep, 600) for _ in range((os.cpu_count() or 1) + 1)]
    *first, last = jobs
    told = [await why(job, JobStatus.RUNNING) for job in first]
    assert {each.kind for each in told} == {"running"}
    told = await why(last, JobStatus.RUNNABLE)
    assert (told.kind, told.sentence) == ("waiting", "the job is waiting for capacity")
    assert await session.backend.terminate([job.id for job in jobs], "enough") == {}
    told = await why(last)
    assert (told.kind, told.error) == ("cancelled", "JobCancelledError")


async def test_the_platform_s_words_where_there_is_no_outcome(executor, why, cloud):
    cloud.next_job(OutOfMemory())
    told = await why(await executor.submit(pow, 2, 3))
    assert (told.kind, told.error, told.source) == ("failed", "OutOfMemoryError", "Batch")
    assert told.remedy == "raise memory"


async def test_attempts_before_the_last_one_are_told_too(executor, why, cloud):
    cloud.next_job(HostLost())
    job = await executor.with_options(retry_attempts=2).submit(pow, 2, 3)
    told = await why(job)
    assert told.kind == "returned"
    (earlier,) = told.earlier
    assert "Host EC2" in earlier


async def test_an_array_names_the_first_children_that_failed(executor, why):
    given = ["1", "x", "3", "y"]
    jobs = await asyncio.gather(*(executor.submit(int, text) for text in given))
    (parent,) = {job.id.partition(":")[0] for job in jobs}
    told = await why(parent)
    assert (told.kind, told.sentence) == ("failed", "2 of 4 tasks failed")
    failed = {job.id for job, text in zip(jobs, given, strict=True) if not text.isdigit()}
    assert {child.job_id for child in told.children} == failed
    assert {child.error for child in told.children} == {"ValueError"}


async def test_an_array_that_went_well(executor, why):
    jobs = await asyncio.gather(*(executor.submit(pow, n, 2) for n in range(3)))
    (parent,) = {job.id.partition(":")[0] for job in jobs}
    told = await why(parent)
    assert (told.kind, told.sentence) == ("returned", "all 3 tasks succeeded")


async def test_a_job_of_somebody_else_s_program(session):
    detail = JobDetail("6f1c", "x", JobStatus.RUNNING, environment={"FARCALL_BUNDLE": "s3://b/x"})
    told = await explain(session, detail)
    assert (told.kind, told.remedy) == ("unknown", "check the job in the AWS console")


async def test_delivered_result_needs_no_advice(executor, why, session):
    job = await executor.submit(pow, 2, 3)
    await job.result()
    await session.stores.of(executor.settings.s3_bucket_name).flush()
    told = await why(job)
    assert (told.kind, told.remedy) == ("returned", "")
    assert told.sentence == "the function returned, and its result was delivered"


async def test_delivered_task_has_usage_from_its_log(executor, why, session):
    jobs = await asyncio.gather(*(executor.submit(pow, 2, n) for n in range(2)))
    await jobs[0].result()
    await session.stores.of(executor.settings.s3_bucket_name).flush()
    told = await why(jobs[0])
    assert (told.remedy, told.usage.peak_memory_bytes > 0) == ("", True)
    await jobs[1].result()


async def test_missing_outcome_names_image(executor, why, cloud):
    cloud.next_job(OutcomeMissing())
    told = await why(await executor.submit(pow, 2, 3))
    assert "use an image built" in told.remedy
