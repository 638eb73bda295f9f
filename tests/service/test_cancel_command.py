"""``farcall cancel``, as it is installed."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from pathlib import Path

import boto3
import pytest

FARCALL = Path(sys.executable).with_name("farcall")


async def cancel(*arguments):
    return await asyncio.to_thread(
        subprocess.run,
        [FARCALL, "cancel", *arguments],
        capture_output=True,
        text=True,
        check=False,
    )


def sleep(begun):
    print("asleep", flush=True)
    Path(begun).touch()
    time.sleep(600)  # until the test ends it


async def until(condition):
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, "it does not become true"
        await asyncio.sleep(0.05)


async def ends(batch, job_id):
    """Wait until Batch calls a job FAILED; return its description."""

    def job():
        (found,) = batch.describe_jobs(jobs=[job_id])["jobs"]
        return found

    await until(lambda: job()["status"] == "FAILED")
    return job()


@pytest.fixture
def batch(aws):
    return boto3.client("batch")


async def test_a_running_job_is_ended_and_its_output_kept(executor, batch, tmp_path):
    job = await executor.submit(sleep, str(tmp_path / "begun"))
    await until((tmp_path / "begun").exists)

    done = await cancel(job.id)

    assert (0, "") == (done.returncode, done.stderr)
    assert f"{job.id} was RUNNING and is being ended\n" == done.stdout
    assert "JobCancelledError" == type(await job.exception()).__name__
    assert "asleep\n" == await job.stdout()
    found = await ends(batch, job.id)
    assert "cancelled by farcall cancel" in found["statusReason"]
    assert found["isTerminated"]


async def test_the_reason_is_batchs(executor, batch, tmp_path):
    job = await executor.submit(sleep, str(tmp_path / "begun"))
    assert 0 == (await cancel("--reason", "too dear", job.id)).returncode
    assert "too dear" in (await ends(batch, job.id))["statusReason"]


async def test_a_job_that_has_ended_stays_as_it_is(executor, batch):
    job = await executor.submit(pow, 2, 3)
    assert 8 == await job.result()
    await until(lambda: batch.describe_jobs(jobs=[job.id])["jobs"][0]["status"] == "SUCCEEDED")

    done = await cancel(job.id)

    assert (0, f"{job.id} has ended: SUCCEEDED\n") == (done.returncode, done.stdout)


async def test_a_child_of_an_array_is_ended_alone(make_executor, batch, tmp_path):
    async with make_executor(linger_s=0.5) as executor:
        begun = [str(tmp_path / f"begun-{number}") for number in range(2)]
        jobs = await asyncio.gather(*(executor.submit(sleep, path) for path in begun))
        await until(lambda: all(Path(path).exists() for path in begun))
        ended, other = jobs
        assert {"0", "1"} == {job.id.partition(":")[2] for job in jobs}

        done = await cancel(ended.id)

        assert f"{ended.id} was RUNNING and is being ended\n" == done.stdout
        assert "JobCancelledError" == type(await ended.exception()).__name__
        assert "RUNNING" == (await other.status()).value
        await other.cancel()
        await other.exception()


async def test_an_array_is_ended_as_a_whole(make_executor, batch, tmp_path):
    async with make_executor(linger_s=0.5) as executor:
        jobs = await asyncio.gather(
            *(executor.submit(sleep, str(tmp_path / f"begun-{n}")) for n in range(3))
        )
        (parent,) = {job.id.partition(":")[0] for job in jobs}

        done = await cancel(parent)

        assert 0 == done.returncode
        assert f"{parent} was " in done.stdout
        found = [type(await job.exception()).__name__ for job in jobs]
        assert 3 * ["JobCancelledError"] == found


async def test_an_unknown_job_is_told_and_the_others_are_ended(executor, batch, tmp_path):
    begun = [tmp_path / "first", tmp_path / "second"]
    first, second = [await executor.submit(sleep, str(path)) for path in begun]
    await until(lambda: all(path.exists() for path in begun))
    unknown = "00000000-0000-0000-0000-000000000000"

    done = await cancel(first.id, unknown, second.id)

    assert 1 == done.returncode
    assert f"Batch does not know job {unknown}" in done.stderr
    assert "Traceback" not in done.stderr
    for job in (first, second):
        assert f"{job.id} was RUNNING and is being ended\n" in done.stdout
        assert "JobCancelledError" == type(await job.exception()).__name__


async def test_without_a_job_it_says_how_it_is_used(aws):
    done = await cancel()
    assert 2 == done.returncode
    assert "JOB" in done.stderr


async def test_a_profile_that_does_not_exist_is_named(aws, monkeypatch):
    monkeypatch.setenv("FARCALL_PROFILE", "nobody")
    done = await cancel("00000000-0000-0000-0000-000000000000")
    assert 1 == done.returncode
    assert done.stderr.startswith("farcall: ")
    assert "nobody" in done.stderr
    assert "Traceback" not in done.stderr
