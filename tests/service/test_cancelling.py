"""Jobs are ended by whoever names them, and it is told what came of each."""

from __future__ import annotations

import asyncio

import boto3
import pytest

from farcall import BatchExecutor
from farcall.covalent.api import Covalent
from farcall.covalent.cancel import CovalentCompanion
from farcall.engine.session import session_for
from farcall.operations.cancel import cancel, cancel_all, unfinished
from farcall.operations.catalog import Catalog, Query
from tests.support.foreign import submit
from tests.support.patience import until
from tests.support.tasks import wait_for

QUEUE = "farcall-local"
UNKNOWN = "00000000-0000-0000-0000-000000000000"


@pytest.fixture
def batch(aws):
    return boto3.client("batch")


@pytest.fixture
def waiting(aws):
    """Have no job leave RUNNABLE."""
    aws.configure(delays={"RUNNABLE": 600})
    yield
    aws.configure(delays={})


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
    assert ending == f"{job.id} was RUNNABLE and is being ended"
    assert status(batch, foreign) != "FAILED"
    (found,) = batch.describe_jobs(jobs=[job.id])["jobs"]
    assert found["statusReason"] == "farcall: enough"
    again = await cancel(session, [job.id], "enough")
    assert [each.text for each in again] == [f"{job.id} has ended: CANCELLED"]
    batch.terminate_job(jobId=foreign, reason="ours")
    assert 0 == proxy.counts["batch terminatejobs"]
    assert 1 == proxy.counts["batch terminatejob"]


@pytest.mark.usefixtures("waiting")
async def test_children_are_ended_alone_and_all_of_them_as_a_whole(
    executor, session, proxy, batch
):
    jobs = await asyncio.gather(*(executor.submit(pow, n, 2) for n in range(250)))
    (parent,) = {job.id.partition(":")[0] for job in jobs}
    children = [job.id for job in jobs]

    proxy.counts.clear()
    said = await cancel(session, children[:2], "enough")
    assert [each.outcome for each in said] == ["ending"] * 2
    # Twice the two; they are not all, which is seen by the array's size.
    assert proxy.of("batch") == {"describejobs": 3, "terminatejobs": 1}
    assert [status(batch, child) for child in children[1:3]] == ["FAILED", "RUNNABLE"]

    proxy.counts.clear()
    said = await cancel(session, children, "enough")
    assert [each.outcome for each in said] == ["ended"] * 2 + ["ending"] * 248
    assert proxy.of("batch") == {"describejobs": 3 + 1 + 3, "terminatejob": 1}
    (found,) = batch.describe_jobs(jobs=[parent])["jobs"]
    assert found["isTerminated"]
    assert {"JobCancelledError"} == {type(await job.exception()).__name__ for job in jobs}


@pytest.mark.usefixtures("waiting")
async def test_a_workflow_is_found_and_ended(make_executor, session, batch):
    async with make_executor(workflow="to be ended") as executor:
        await executor.submit(pow, 2, 3)
        task = executor.task(square)
        array = await asyncio.gather(*(task.submit(n) for n in range(3)))
        kept = await executor.with_options(workflow="to be kept").submit(pow, 2, 3)
        catalog = Catalog(session.backend)
        query = Query(workflow="to be ended")
        entries = [entry async for entry in catalog.find([QUEUE], query)]
        assert entries == unfinished(entries)
        assert sorted(entry.function for entry in entries) == ["pow", "square"]

        said = await cancel_all(session, entries, "enough")
        assert {each.outcome for each in said} == {"ending"}
        again = [entry async for entry in catalog.find([QUEUE], query)]
        assert ([], 2) == (unfinished(again), len(again))
        assert {"JobCancelledError"} == {type(await job.exception()).__name__ for job in array}
        assert "RUNNABLE" == status(batch, kept.id)
        await kept.cancel()


def square(x):
    return x * x


@pytest.mark.usefixtures("waiting")
async def test_what_batch_refuses_is_told_and_the_others_are_ended(
    executor, session, proxy, batch
):
    jobs = [(await executor.submit(pow, 2, 3)).id for _ in range(2)]
    proxy.faults["batch terminatejobs"] += ["denied"]  # as a whole, for one that may not be ended
    proxy.faults["batch terminatejob"] += ["denied"]
    said = await cancel(session, jobs, "enough")
    refused, ending = sorted(said, key=lambda each: each.outcome, reverse=True)
    assert ("refused", "ending") == (refused.outcome, ending.outcome)
    assert refused.text.startswith(f"{refused.job_id} may still run: TerminateJob")
    assert "AccessDenied" in refused.text
    assert "RUNNABLE" == status(batch, refused.job_id)
    assert "FAILED" == status(batch, ending.job_id)
    assert "ending" == (await cancel(session, [refused.job_id], "enough"))[0].outcome


@pytest.mark.usefixtures("waiting")
@pytest.mark.parametrize("more", [{}, {"FARCALL_DIGEST": "0" * 64, "FARCALL_OUTCOME_KEY": "00"}])
async def test_what_only_looks_like_an_electron_is_ended_and_covalent_not_told(
    session, batch, more
):
    bundle = f"s3://{QUEUE}/farcall/v1/eve-20261122-101500-0a1b2c/bundles/x-0123456789abcdef"
    environment = {"FARCALL_BUNDLE": bundle, "FARCALL_DISPATCH": "d-1", **more}
    job_id = submit(batch, QUEUE, environment=environment)
    nobody = CovalentCompanion(Covalent("http://127.0.0.1:9"))
    (said,) = await cancel(session, [job_id], "enough", nobody)
    why = "is no longer there" if more else "was not submitted by farcall"
    assert "ending" == said.outcome
    assert f"{job_id} was RUNNABLE and is being ended; Covalent was not told: " in said.text
    assert said.text.endswith(why)
    assert "FAILED" == status(batch, job_id)


async def test_a_job_that_ends_before_it_can_be_is_told_as_it_turned_out(
    executor, session, proxy, batch, tmp_path
):
    gate = tmp_path / "gate"
    job = await executor.submit(wait_for, str(gate), 8)
    await asyncio.to_thread(until, lambda: status(batch, job.id) == "RUNNING")

    def let_it_end(answer):
        if not gate.exists() and job.id in str(answer):
            gate.touch()
            until(lambda: status(batch, job.id) == "SUCCEEDED")

    proxy.changes["describejobs"] = let_it_end
    said = await cancel(session, [job.id], "enough")
    assert said == [(job.id, "ended", f"{job.id} has ended: SUCCEEDED")]
    assert 1 == proxy.counts["batch terminatejob"]
    assert 8 == await job.result()
