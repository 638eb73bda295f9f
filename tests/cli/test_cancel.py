"""``farcall cancel``."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path

import boto3
import pytest

from farcall.engine.session import session_for, this_user
from farcall.model.jobs import JobStatus
from farcall.operations.finding import short
from tests.support import command_jobs, terminal
from tests.support.commands import FARCALL
from tests.support.foreign import submit
from tests.support.patience import until_async

NOBODY = "00000000-0000-0000-0000-000000000000"


@pytest.fixture
def cancel(farcall_command):
    async def run(*arguments, **options):
        return await farcall_command("cancel", *arguments, **options)

    return run


def sleep(begun):
    print("asleep", flush=True)
    Path(begun).touch()
    time.sleep(600)  # until the test ends it


async def ends(batch, job_id):
    """Wait until Batch calls a job FAILED; return its description."""

    def job():
        (found,) = batch.describe_jobs(jobs=[job_id])["jobs"]
        return found

    await until_async(lambda: job()["status"] == "FAILED")
    return job()


@pytest.fixture
def batch(aws):
    return boto3.client("batch")


async def test_a_running_job_is_ended_and_its_output_kept(executor, batch, tmp_path, cancel):
    job = await executor.submit(sleep, str(tmp_path / "begun"))
    await until_async((tmp_path / "begun").exists)

    done = await cancel(job.id)

    assert (0, "") == (done.returncode, done.stderr)
    assert f"{job.id} was RUNNING and is being ended\n" == done.stdout
    assert "JobCancelledError" == type(await job.exception()).__name__
    assert "asleep\n" == await job.stdout()
    found = await ends(batch, job.id)
    assert "cancelled by farcall cancel" in found["statusReason"]
    assert found["isTerminated"]


async def test_the_reason_is_batchs(executor, batch, tmp_path, cancel):
    job = await executor.submit(sleep, str(tmp_path / "begun"))
    assert 0 == (await cancel("--reason", "too dear", job.id)).returncode
    assert "too dear" in (await ends(batch, job.id))["statusReason"]


async def test_a_job_that_has_ended_stays_as_it_is(executor, batch, cancel):
    job = await executor.submit(pow, 2, 3)
    assert 8 == await job.result()
    await until_async(
        lambda: batch.describe_jobs(jobs=[job.id])["jobs"][0]["status"] == "SUCCEEDED"
    )

    done = await cancel(job.id)

    assert (0, f"{job.id} has ended: SUCCEEDED\n") == (done.returncode, done.stdout)


async def test_a_child_of_an_array_is_ended_alone(make_executor, batch, tmp_path, cancel):
    async with make_executor(linger_s=0.5) as executor:
        begun = [str(tmp_path / f"begun-{number}") for number in range(2)]
        jobs = await asyncio.gather(*(executor.submit(sleep, path) for path in begun))
        await until_async(lambda: all(Path(path).exists() for path in begun))
        ended, other = jobs
        assert {"0", "1"} == {job.id.partition(":")[2] for job in jobs}

        done = await cancel(ended.id)

        assert f"{ended.id} was RUNNING and is being ended\n" == done.stdout
        assert "JobCancelledError" == type(await ended.exception()).__name__
        assert "RUNNING" == (await other.status()).value
        await other.cancel()
        await other.exception()


async def test_an_array_is_ended_as_a_whole(make_executor, batch, tmp_path, cancel):
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


async def test_unknown_and_foreign_jobs_are_told_and_the_others_are_ended(
    executor, batch, tmp_path, cancel
):
    begun = [tmp_path / "first", tmp_path / "second"]
    first, second = [await executor.submit(sleep, str(path)) for path in begun]
    await until_async(lambda: all(path.exists() for path in begun))
    foreign = submit(batch, executor.settings.batch_queue)

    done = await cancel(first.id, NOBODY, foreign, second.id)

    assert 3 == done.returncode
    assert f"Batch does not know job {NOBODY}" in done.stderr
    assert f"{foreign} was not submitted by farcall and is left alone" in done.stderr
    assert "Traceback" not in done.stderr
    for job in (first, second):
        assert f"{job.id} was RUNNING and is being ended\n" in done.stdout
        assert "JobCancelledError" == type(await job.exception()).__name__


async def test_without_a_job_or_with_too_much_it_says_how_it_is_used(aws, cancel):
    for arguments in ((), (NOBODY, "--workflow", "w")):
        done = await cancel(*arguments)
        assert 2 == done.returncode
        assert "name either jobs (JOB...), or --workflow or --run" in done.stderr


async def test_a_profile_that_does_not_exist_is_named(aws, monkeypatch, cancel):
    monkeypatch.setenv("FARCALL_PROFILE", "nobody")
    done = await cancel(NOBODY)
    assert 1 == done.returncode
    assert done.stderr.startswith("farcall: ")
    assert "nobody" in done.stderr
    assert "Traceback" not in done.stderr


async def test_a_workflow_is_ended_after_a_question(make_executor, cancel, tmp_path):
    async with make_executor(workflow="[red]w[/]") as executor:
        begun = [tmp_path / "one", tmp_path / "two"]
        jobs = [await executor.submit(sleep, str(path)) for path in begun]
        await until_async(lambda: all(path.exists() for path in begun))
        which = ("--workflow", "[red]w[/]")

        done = await cancel(*which)
        assert 2 == done.returncode
        assert "2 jobs would have been" in done.stderr
        assert "--yes ends them" in done.stderr
        command = [FARCALL, "cancel", *which]
        shown = await asyncio.to_thread(terminal.run, command, answer="n\n")
        assert 1 == shown.returncode
        assert "End 2 jobs?" in shown.text
        assert "nothing was ended" in shown.text
        for job in jobs:
            assert short(job.id) in shown.text
            assert "RUNNING" == (await job.status()).value

        shown = await asyncio.to_thread(terminal.run, command, answer="y\n")
        assert 0 == shown.returncode
        for job in jobs:
            assert f"{job.id} was RUNNING and is being ended" in shown.text
            assert "JobCancelledError" == type(await job.exception()).__name__


async def test_a_run_is_ended_and_what_is_not_there_is_told(
    make_executor, batch, cancel, tmp_path
):
    async with make_executor() as executor:
        job = await executor.submit(sleep, str(tmp_path / "begun"))
        await until_async((tmp_path / "begun").exists)
        run = (await session_for(executor.settings)).run

        done = await cancel("--run", run, "--yes", "--json")

        assert 0 == done.returncode
        text = f"{job.id} was RUNNING and is being ended"
        assert [{"id": job.id, "outcome": "ending", "text": text}] == json.loads(done.stdout)
        await ends(batch, job.id)
    done = await cancel("--run", run, "--yes")
    assert (0, "") == (done.returncode, done.stdout)
    assert "nothing to end: each of its 1 jobs has ended" in done.stderr
    done = await cancel("--workflow", "no such", "--yes")
    assert 3 == done.returncode
    assert "there is no job of " in done.stderr
    assert "in workflow no such in queue farcall-local" in done.stderr


async def test_another_s_job_is_ended_only_if_that_is_said(executor, cancel, tmp_path):
    job = await executor.submit(sleep, str(tmp_path / "begun"))
    await until_async((tmp_path / "begun").exists)
    owner = this_user()

    done = await cancel(job.id, LOGNAME="mary")
    assert (1, "") == (done.returncode, done.stdout)
    assert f"{job.id} is a job of {owner} and is left alone; --user {owner} ends it" in done.stderr
    assert "RUNNING" == (await job.status()).value

    done = await cancel(job.id, "--user", owner, LOGNAME="mary")
    assert 0 == done.returncode
    assert "JobCancelledError" == type(await job.exception()).__name__


async def test_a_command_job_is_ended_as_a_whole_and_no_node_alone(session, batch, cancel):
    job_id = await command_jobs.submit(session, command_jobs.shell("sleep 600", 2))
    await command_jobs.described(session, f"{job_id}#1", JobStatus.RUNNING)
    done = await cancel(f"{job_id}#1")
    assert (1, "") == (done.returncode, done.stdout)
    assert f"`farcall cancel {job_id}` ends its job with all nodes" in done.stderr
    done = await cancel(job_id)
    assert (0, f"{job_id} was RUNNING and is being ended\n") == (done.returncode, done.stdout)
    assert (await ends(batch, job_id))["isTerminated"]
