"""``farcall retry``."""

from __future__ import annotations

import json
import re

import pytest

from farcall.engine.session import session_for
from farcall.operations.finding import short
from tests.support.patience import until_async


@pytest.fixture
def retry(farcall_command):
    async def run(*arguments, **options):
        return await farcall_command("retry", *arguments, **options)

    return run


@pytest.fixture
def failed(executor, tmp_path):
    """Have a map end of which calls 1 and 3 of 4 fail, until a file is there; return its job."""
    mended = tmp_path / "mended"

    async def run():
        def halve(x):
            if x % 2 and not mended.exists():
                raise ValueError(f"{x} is odd")
            return x // 2

        sweep = executor.task(halve).map(range(4), return_exceptions=True)
        await sweep
        (job_id,) = sweep.job_ids
        session = await session_for(executor.settings)

        async def ended():
            return (await session.describe(job_id)).status.is_final

        await until_async(ended)
        return job_id

    run.mend = mended.touch
    return run


async def test_what_failed_runs_again_and_both_jobs_tell_of_it(
    executor, failed, retry, farcall_command
):
    job_id = await failed()
    said = await retry(job_id, "--dry-run", "-o", "memory=2")
    assert (said.returncode, said.stdout) == (0, "")
    assert said.stderr == "2 of 4 calls of halve: memory 1 -> 2\n"
    failed.mend()

    done = await retry(short(job_id), "-o", "memory=2GiB")

    assert done.returncode == 0, done.stderr
    assert "2 of 4 calls of halve: memory 1 -> 2\n" in done.stderr
    again = done.stdout.strip()
    assert [await executor.attach(f"{again}:{n}").result() for n in range(2)] == [0, 1]
    told = json.loads((await farcall_command("describe", job_id, "--json")).stdout)
    assert told["retries"] == [again]
    shown = (await farcall_command("describe", again)).stdout
    assert re.search(rf"^Retry of +{job_id}$", shown, re.MULTILINE)
    shown = (await farcall_command("describe", f"{job_id}:3")).stdout
    assert re.search(rf"^Run again as +{again}$", shown, re.MULTILINE)
    said = await retry(job_id)
    assert said.returncode == 1
    assert f"nothing of job {job_id}" in said.stderr


async def test_each_failed_job_of_a_run_runs_again_when_that_is_wanted(executor, failed, retry):
    jobs = [await failed() for _ in range(2)]
    run = await executor.run_name()

    said = await retry(run, "--json")
    assert said.returncode == 2
    assert "nothing was submitted: 2 jobs would have been" in said.stderr
    failed.mend()
    done = await retry(run, "--json", "--yes")

    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert [each["of"] for each in found] == jobs
    assert [each["calls"] for each in found] == [2, 2]
    for each in found:
        values = [await executor.attach(f"{each['job_id']}:{n}").result() for n in range(2)]
        assert values == [0, 1]
    said = await retry(run, "--yes")
    assert said.returncode == 1
    assert f"nothing of run {run} is to run again" in said.stderr


async def test_wrong_uses_are_told(failed, retry):
    job_id = await failed()
    for arguments, text in (
        (("-o", "nodes=2"), "nodes cannot be changed for a retry"),
        (("-o", "memroy=2"), "unknown option 'memroy'; did you mean memory?"),
        (("--memory", "much"), "memory is 'much'"),
    ):
        said = await retry(job_id, *arguments)
        assert said.returncode in (1, 2)
        assert text in said.stderr
    said = await retry("nobody-20260101-000000-abcdef")
    assert (said.returncode, "no job of run nobody" in said.stderr) == (3, True)
