"""Failures of a task, and the exception that its caller gets.

Starts the local AWS emulator, because exceptions, signals and exit codes cross a process boundary.
"""

from __future__ import annotations

import ctypes
import os
import signal
import time

import pytest

from farcall import ChildKilledError, FarcallError, HostLostError, Job
from tests.support.notes import notes
from tests.support.patience import PATIENCE_S


async def test_function_exception_is_reraised(executor):
    def work() -> None:
        print("before")
        raise KeyError("missing", 3)

    job = await executor.submit(work)

    with pytest.raises(KeyError) as caught:
        await job.result()
    assert caught.value.args == ("missing", 3)
    (note,) = notes(caught.value)
    assert 'raise KeyError("missing", 3)' in note
    assert job.id in note
    assert "farcall_runtime" not in note
    assert await job.stdout() == "before\n"


async def test_segfault_error_has_stack(executor):
    def work() -> None:
        ctypes.string_at(0)

    job = await executor.submit(work)

    with pytest.raises(ChildKilledError, match="SIGSEGV") as caught:
        await job.result()
    assert caught.value.exit_code == 128 + signal.SIGSEGV
    assert "Segmentation fault" in caught.value.stderr
    assert "string_at" in caught.value.stderr


async def test_writing_daemon_does_not_block_job(executor):
    def work() -> int:
        import subprocess

        subprocess.Popen(["yes"], start_new_session=True)
        return 1

    assert 1 == await executor.task(work)()


async def running(job: Job[None], attempt: int) -> None:
    """Wait until an attempt of a job runs its function."""
    async for line in job.logs(follow=True):
        if line == f"attempt {attempt}":
            return


async def test_last_error_names_earlier_attempts(aws, executor):
    def work() -> None:
        number = int(os.environ["AWS_BATCH_JOB_ATTEMPT"])
        if number == 1:
            raise LookupError("first try")
        if number == 2:
            os._exit(7)
        print(f"attempt {number}", flush=True)
        time.sleep(PATIENCE_S)

    job = await executor.with_options(retry_attempts=4, retry_on="failure").submit(work)
    await running(job, 3)
    aws.reclaim(job.id)
    await running(job, 4)
    aws.reclaim(job.id)

    with pytest.raises(HostLostError, match="the job's instance") as caught:
        await job.result()
    assert caught.value.attempts == 4
    text = str(caught.value)
    assert "Attempt 1 failed with LookupError: first try\n" in text
    assert "Attempt 2 failed with ChildKilledError: the task's process exited with code" in text
    assert "Attempt 3 failed with HostLostError: the job's instance" in text
    assert "Attempt 4 had" not in text
    assert caught.value.stdout == "attempt 4\n"


async def test_image_without_runtime_is_named(make_executor):
    own = {"containerProperties": {"command": ["sh", "-c", "echo no module >&2; exit 1"]}}
    async with make_executor(job_definition_extra=own) as executor:
        error = await (await executor.submit(abs, -1)).exception()
        assert isinstance(error, FarcallError)
        assert "farcall's Dockerfile" in str(error)
        assert "no module" in str(error) + str(getattr(error, "stdout", ""))
