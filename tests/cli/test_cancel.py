"""``farcall cancel``.

Starts the local AWS emulator, because the command terminates running jobs.
"""

import asyncio
import functools
import json
import time
from pathlib import Path

import boto3
import pytest

from farcall.operations.finding import short
from tests.support import terminal
from tests.support.commands import FARCALL
from tests.support.patience import until_async

UNKNOWN_ID = "00000000-0000-0000-0000-000000000000"


@pytest.fixture
def cancel(farcall_command):
    return functools.partial(farcall_command, "cancel")


def sleep(begun):
    print("asleep", flush=True)
    Path(begun).touch()
    time.sleep(600)  # until the test ends it


async def ends(batch, job_id):
    """Wait until Batch reports a job as FAILED; return its description."""

    def job():
        (found,) = batch.describe_jobs(jobs=[job_id])["jobs"]
        return found

    await until_async(lambda: job()["status"] == "FAILED")
    return job()


@pytest.fixture
def batch(aws):
    return boto3.client("batch")


@pytest.mark.core
async def test_cancelled_job_keeps_its_output(executor, batch, tmp_path, cancel):
    job = await executor.submit(sleep, str(tmp_path / "begun"))
    await until_async((tmp_path / "begun").exists)

    done = await cancel(job.id)

    assert (0, "") == (done.returncode, done.stderr)
    assert f"{job.id} was running and is being cancelled\n" == done.stdout
    assert "JobCancelledError" == type(await job.exception()).__name__
    assert "asleep\n" == await job.stdout()
    found = await ends(batch, job.id)
    assert "cancelled by farcall cancel" in found["statusReason"]
    assert found["isTerminated"]


async def test_wrong_usage_is_explained(aws, cancel):
    for arguments in ((), (UNKNOWN_ID, "--workflow", "w")):
        done = await cancel(*arguments)
        assert 2 == done.returncode
        assert "specify either jobs (JOB...), or --workflow or --run" in done.stderr


async def test_workflow_is_cancelled_after_confirmation(make_executor, cancel, tmp_path):
    async with make_executor(workflow="[red]w[/]") as executor:
        begun = [tmp_path / "one", tmp_path / "two"]
        jobs = [await executor.submit(sleep, str(path)) for path in begun]
        await until_async(lambda: all(path.exists() for path in begun))
        which = ("--workflow", "[red]w[/]")

        done = await cancel(*which)
        assert 2 == done.returncode
        assert "nothing was cancelled: stdin is not a terminal. Use --yes" in done.stderr
        for named in (which, [job.id for job in jobs]):
            done = await cancel(*named, "--dry-run", "--json")
            found = [(each["id"], each["text"]) for each in json.loads(done.stdout)]
            would = "is running and would be cancelled"
            assert sorted((job.id, f"{job.id} {would}") for job in jobs) == sorted(found)
        command = [FARCALL, "cancel", *which]
        shown = await asyncio.to_thread(terminal.run, command, answer="n\n")
        assert 1 == shown.returncode
        assert "Cancel 2 jobs?" in shown.text
        assert "nothing was cancelled" in shown.text
        for job in jobs:
            assert short(job.id) in shown.text
            assert "RUNNING" == (await job.status()).value

        shown = await asyncio.to_thread(terminal.run, command, answer="y\n")
        assert 0 == shown.returncode
        for job in jobs:
            assert f"{job.id} was running and is being cancelled" in shown.text
            assert "JobCancelledError" == type(await job.exception()).__name__
