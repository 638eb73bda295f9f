"""``farcall retry``.

Starts the local AWS emulator, because a retry copies the bundle of a failed job.
"""

import functools
import json
import re

import pytest

from farcall.engine.session import session_for
from farcall.operations.finding import short
from tests.support.patience import until_async


@pytest.fixture
def retry(farcall_command):
    return functools.partial(farcall_command, "retry")


@pytest.fixture
def failed(executor, tmp_path):
    """Run a map whose odd calls fail until ``fix`` is called; return its job ID."""
    fixed = tmp_path / "fixed"

    async def run():
        def halve(x):
            if x % 2 and not fixed.exists():
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

    run.fix = fixed.touch
    return run


async def test_failed_tasks_are_retried_and_linked(executor, failed, retry, farcall_command):
    job_id = await failed()
    said = await retry(job_id, "--dry-run", "-o", "memory=2")
    assert (said.returncode, said.stdout) == (0, "")
    assert said.stderr == "2 of 4 tasks of halve: memory 1 -> 2\n"
    failed.fix()

    done = await retry(short(job_id), "-o", "memory=2GiB")

    assert done.returncode == 0, done.stderr
    assert "2 of 4 tasks of halve: memory 1 -> 2\n" in done.stderr
    again = done.stdout.strip()
    assert [await executor.attach(f"{again}:{n}").result() for n in range(2)] == [0, 1]
    told = json.loads((await farcall_command("describe", job_id, "--json")).stdout)
    assert told["retries"] == [again]
    shown = (await farcall_command("describe", again)).stdout
    assert re.search(rf"^Retry of +{job_id}$", shown, re.MULTILINE)
    shown = (await farcall_command("describe", f"{job_id}:3")).stdout
    assert re.search(rf"^Retried as +{again}$", shown, re.MULTILINE)
    said = await retry(job_id)
    assert said.returncode == 1
    assert f"no task of job {job_id}" in said.stderr
