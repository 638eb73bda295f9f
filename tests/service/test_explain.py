"""Explanations of real jobs.

Starts the local AWS emulator, because an explanation combines Batch's description, the outcome and
the log.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from pathlib import Path

import boto3
import pytest

import farcall.operations.explain
from farcall.engine.session import session_for
from farcall.model.jobs import JobStatus
from farcall.model.submission import Submission
from farcall.operations import describe
from farcall.operations.catalog import Catalog, Query
from farcall.operations.explain import explain, record
from tests.support.patience import until_async


def fails(value):
    if value % 2:
        raise ValueError(f"{value} is odd \x1b[31m[red]")
    return value


def sleep(begun):
    Path(begun).touch()
    time.sleep(600)  # until the test ends it


async def described(session, job_id, *statuses):
    """Wait until a job is in one of these, by default until it has ended."""
    wanted = statuses or (JobStatus.SUCCEEDED, JobStatus.FAILED)

    async def look():
        detail = (await session.backend.describe([job_id])).get(job_id)
        return detail if detail is not None and detail.status in wanted else None

    return await until_async(look)


@pytest.fixture
def ended(make_executor):
    """Run a function as a job to its end; returns session, description and explanation."""

    async def run(function, *arguments, **options):
        async with make_executor(**options) as executor:
            session = await session_for(executor.settings)
            job = await executor.submit(function, *arguments)
            detail = await described(session, job.id)
            return detail, await explain(session, detail)

    return run


# --- with an outcome --------------------------------------------------------------------------


async def test_a_value(ended):
    detail, why = await ended(fails, 2)
    assert (why.kind, why.error, why.source) == ("returned", "", "outcome")
    assert why.sentence == "the function returned"
    assert f"farcall result {detail.job_id}" in why.remedy
    assert why.usage.wall_s > 0
    assert why.usage.peak_memory_bytes > 2**20
    assert json.loads(json.dumps(record(why)))["usage"]["cpu_s"] == why.usage.cpu_s


async def test_an_exception_with_an_attempt_before_it(ended):
    _, why = await ended(fails, 3, retry_attempts=2, retry_on="failure")
    assert (why.kind, why.error, why.source) == ("failed", "ValueError", "outcome")
    assert why.sentence.startswith("the function raised ValueError: 3 is odd")
    assert "\x1b" not in why.sentence
    assert "traceback" in why.remedy
    assert why.traceback.startswith("Traceback (most recent call last):\n")
    assert "in fails" in why.traceback
    assert "ValueError: 3 is odd \x1b[31m[red]" in why.traceback
    (earlier,) = why.earlier
    assert earlier.startswith("ValueError: 3 is odd")


async def test_a_task_of_several_calls(make_executor):
    async with make_executor(workflow="calls") as executor:
        session = await session_for(executor.settings)
        await executor.task(fails).map([2, 3, 4], chunksize=3, return_exceptions=True)
        catalog = Catalog(session.backend)
        (entry,) = [
            e async for e in catalog.find([executor.settings.queue], Query(workflow="calls"))
        ]
        why = await explain(session, await described(session, entry.detail.job_id))
    assert (why.kind, why.calls) == ("failed", {"returned": 2, "raised": 1})
    assert why.sentence.endswith("(1 of its 3 calls failed)")


async def test_an_outcome_that_another_wrote_is_not_believed(make_executor):
    async with make_executor() as executor:
        session = await session_for(executor.settings)
        job = await executor.submit(fails, 3)
        detail = await described(session, job.id)
        submission, index = Submission.of(detail)
        bucket, key = submission.where.bucket, submission.where.outcome_key(index)
        s3 = boto3.client("s3")
        own = s3.get_object(Bucket=bucket, Key=key)["Body"].read()
        forged = own.replace(b"is odd", b"is 133")
        s3.put_object(Bucket=bucket, Key=key, Body=forged)
        why = await explain(session, detail)
    assert len(forged) == len(own)
    assert (why.kind, why.error, why.source) == ("failed", "IntegrityError", "Batch")
    assert "somebody else wrote or changed it" in why.sentence
    assert "133" not in str(record(why))
    assert why.usage is None


# --- jobs that wait ---------------------------------------------------------------------------


async def test_jobs_that_wait_with_their_place_in_the_queue(make_executor, tmp_path):
    everything = os.cpu_count()
    async with make_executor(workflow="waiting") as executor:
        session = await session_for(executor.settings)
        first = await executor.with_options(vcpu=everything).submit(sleep, str(tmp_path / "begun"))
        await described(session, first.id, JobStatus.RUNNING)
        jobs = [first] + [await executor.submit(fails, 2) for _ in range(2)]
        for job in jobs[1:]:
            await described(session, job.id, JobStatus.RUNNABLE)
        known = await Catalog(session.backend).describe([job.id for job in jobs])
        running, *said = [await describe.of(session, known[job.id]) for job in jobs]
        for job in reversed(jobs):
            await job.cancel()
    assert running["position"] is None
    assert [each["position"] for each in said] == [1, 2]
    for each in said:
        assert each["explanation"]["kind"] == "waiting"
        assert each["explanation"]["sentence"] == "the job waits for a place to run"
        assert each["explanation"]["remedy"].startswith("wait")
        assert each["links"] == {}  # the local AWS emulator has no console


# --- arrays -----------------------------------------------------------------------------------


async def test_an_array_with_failed_children(make_executor, monkeypatch):
    monkeypatch.setattr(farcall.operations.explain, "_FEW", 2)
    async with make_executor(linger_s=0.5) as executor:
        session = await session_for(executor.settings)
        jobs = await asyncio.gather(*(executor.submit(fails, n) for n in range(6)))
        parent = jobs[0].id.partition(":")[0]
        detail = await described(session, parent)
        why = await explain(session, detail)
    assert (why.kind, why.error) == ("failed", "JobError")
    assert why.sentence == "3 of 6 tasks failed"
    assert f"farcall list {parent} --state failed" in why.remedy
    assert len(why.children) == 2
    for child in why.children:
        assert child.job_id.startswith(f"{parent}:")
        assert child.error == "ValueError"
        assert "is odd" in child.sentence
