"""Results of one cancel request for many jobs.

Starts the local AWS emulator, because a job's reaction to a cancel request depends on its state in
Batch.
"""

from __future__ import annotations

import asyncio

import boto3
import pytest

from farcall import BatchExecutor
from farcall.engine.session import session_for
from farcall.operations.cancel import cancel
from tests.support.foreign import submit
from tests.support.patience import until

QUEUE = "farcall-local"
UNKNOWN = "00000000-0000-0000-0000-000000000000"


@pytest.fixture
def batch(aws):
    return boto3.client("batch")


@pytest.fixture
async def session(options, proxy):
    """Another client than the one that submits; its requests are counted."""
    async with BatchExecutor(**options, endpoint_url=proxy.url) as executor:
        yield await session_for(executor.settings)


def status(batch, job_id):
    (found,) = batch.describe_jobs(jobs=[job_id])["jobs"]
    return found["status"]


async def test_each_job_is_told_of(executor, session, proxy, batch, aws):
    done = await executor.submit(pow, 2, 3)
    await done.result()
    await asyncio.to_thread(until, lambda: status(batch, done.id) == "SUCCEEDED")
    aws.configure(delays={"RUNNABLE": 600})
    try:
        job = await executor.submit(pow, 2, 3)
        foreign = submit(batch, QUEUE)
        said = await cancel(session, [UNKNOWN, foreign, done.id, job.id, job.id], "enough")
    finally:
        aws.configure(delays={})

    assert [(each.job_id, each.outcome) for each in said] == [
        (UNKNOWN, "unknown"),
        (foreign, "foreign"),
        (done.id, "ended"),
        (job.id, "ending"),
    ]
    unknown, other, ended, ending = (each.text for each in said)
    assert f"Batch does not know job {UNKNOWN} in us-east-1" in unknown
    assert f"{foreign} was not submitted by farcall and is left alone" in other
    assert ended == f"{done.id} has ended: SUCCEEDED"
    assert ending == f"{job.id} was RUNNABLE and is being cancelled"
    assert status(batch, foreign) != "FAILED"
    (found,) = batch.describe_jobs(jobs=[job.id])["jobs"]
    assert found["statusReason"] == "farcall: enough"
    again = await cancel(session, [job.id], "enough")
    assert [each.text for each in again] == [f"{job.id} has ended: CANCELLED"]
    batch.terminate_job(jobId=foreign, reason="ours")
    assert 0 == proxy.counts["batch terminatejobs"]
    assert 1 == proxy.counts["batch terminatejob"]
