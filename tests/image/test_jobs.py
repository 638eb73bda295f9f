"""Tasks in the image, with real limits, signals and credentials.

Starts containers, because memory limits, PID 1 and the credentials endpoint exist only there.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import time

import pytest

from farcall import (
    BatchExecutor,
    JobCancelledError,
    JobTimeoutError,
    OutcomeMissingError,
    OutOfMemoryError,
)
from farcall.engine.delivered import Usage
from farcall_runtime.contract import ExitCode
from tests.image.cloud import through
from tests.support.proxy import Proxy


@pytest.mark.path
async def test_result_output_and_usage_are_returned(executor, batch, aws):
    def work(size: int) -> int:
        held = b"x" * size
        print("to stdout", flush=True)
        print("to stderr", file=sys.stderr, flush=True)
        return len(held) + os.getuid()

    job = await executor.submit(work, 64 << 20)

    assert await job.result() == (64 << 20) + 10001  # the image's user
    assert await job.stdout() == "to stdout\n"
    assert await job.stderr() == "to stderr\n"
    usage = await job.usage()
    assert usage.memory_limit_bytes == 512 << 20
    assert 64 << 20 < usage.peak_memory_bytes < 512 << 20
    assert usage.wall_s > 0
    assert usage.cpu_s > 0
    detail = batch.wait(job.id)
    group = aws.environment["FARCALL_BATCH_JOB_LOG_GROUP_NAME"]
    written = batch.output(detail, group)  # an engine may swap lines of stdout and stderr
    assert Usage.logged(written) is not None
    assert {"to stderr", "to stdout"} < set(written)


async def test_oom_names_peak_and_limit(executor):
    def work() -> None:
        print("before", flush=True)
        held = []
        while True:
            held.append(bytearray(b"x" * (16 << 20)))

    job = await executor.submit(work)

    with pytest.raises(OutOfMemoryError, match=r"\d+ MiB of 512 MiB in use") as caught:
        await job.result()
    assert caught.value.stdout == "before\n"
    assert "memory" in str(caught.value)


async def test_orphaned_processes_are_reaped(executor):
    """Zombies are reaped while the task runs, and living processes do not block the job."""

    def work() -> tuple[int, int]:
        import pathlib
        import subprocess

        def states() -> list[str]:
            found = []
            for path in pathlib.Path("/proc").glob("[0-9]*/stat"):
                try:
                    found.append(path.read_text().rpartition(")")[2].split()[0])
                except OSError:
                    continue
            return found

        # Each shell leaves a child process in its own session to PID 1.
        script = "for i in $(seq 300); do setsid sh -c 'exit 0' & setsid sleep 1000 & done"
        subprocess.run(["sh", "-c", script], check=True)
        deadline = time.monotonic() + 120
        # The last processes may start and end after a check that found no zombies.
        while ("Z" in (found := states()) or len(found) > 310) and time.monotonic() < deadline:
            time.sleep(0.1)
        return found.count("Z"), len(found)

    job = await executor.submit(work)

    zombies, processes = await job.result()
    assert zombies == 0
    assert processes > 300
    assert (await job.detail()).exit_code in (None, 0)


@pytest.mark.parametrize("init", [False, True])
async def test_read_only_image_is_supported(make_executor, *, init):
    def work() -> tuple[int, int]:
        return os.getuid(), os.getppid()

    linux = {"initProcessEnabled": init, "sharedMemorySize": 16}
    container = {"readonlyRootFilesystem": True, "user": "4242:4242", "linuxParameters": linux}
    async with make_executor(container) as executor:
        uid, supervisor = await executor.task(work)()
    assert uid == 4242
    assert (supervisor == 1) is not init


@pytest.mark.parametrize("init", [False, True])
async def test_cancelled_function_cleans_up(make_executor, batch, *, init):
    def work() -> None:
        try:
            print("working", flush=True)
            time.sleep(600)  # until it is cancelled
        except KeyboardInterrupt as stop:
            sys.stdout.write(f"cleaning up after {type(stop).__name__}")  # no line end, no flush
            raise

    async with make_executor({"linuxParameters": {"initProcessEnabled": init}}) as executor:
        job = await executor.submit(work)
        async for line in job.logs(follow=True):
            assert line == "working"
            await job.cancel("enough")
            break
        with pytest.raises(JobCancelledError) as caught:
            await job.result()
    assert caught.value.stdout == "working\ncleaning up after TaskTerminated"
    detail = batch.wait(job.id)
    assert detail["container"]["exitCode"] == ExitCode.TERMINATED
    assert detail["statusReason"] == "farcall: enough"


async def test_expired_credentials_are_renewed(make_executor, aws, proxy):
    """Output is uploaded with different keys, and no upload is denied."""
    aws.configure(credential_lifetime_s=2)

    def work() -> str:
        for number in range(8):
            print(number, flush=True)
            time.sleep(1)
        return "late"

    async with make_executor(through(proxy)) as executor:
        job = await executor.submit(work)
        assert await job.result() == "late"
        assert await job.stdout() == "".join(f"{number}\n" for number in range(8))
    assert proxy.answers["s3 PUT streams 200"] >= 2
    assert [name for name in proxy.answers if not name.endswith(("200", "206"))] == []


async def outlive(executor: BatchExecutor, proxy: Proxy) -> tuple[str, str]:
    """Cut a running task's network; return the job's ID and the error message."""

    def work(port: int) -> str:
        print("working", flush=True)
        while True:
            try:
                socket.create_connection(("127.0.0.1", port)).close()
            except OSError:
                return "lost"
            time.sleep(0.1)

    async with executor:
        job = await executor.submit(work, proxy.port)
        async for _ in job.logs(follow=True):
            proxy.refuse()
            break
        with pytest.raises(OutcomeMissingError) as caught:
            await job.result()
    return job.id, str(caught.value)


async def overrun(executor: BatchExecutor) -> tuple[str, JobTimeoutError]:
    """Run a task that ignores its time limit; return the job's ID and the error."""

    def work() -> str:
        print("working", flush=True)
        while True:
            try:
                time.sleep(600)  # forever: the container must kill it
            except KeyboardInterrupt:
                print("not yet", flush=True)

    async with executor:
        job = await executor.submit(work)
        with pytest.raises(JobTimeoutError) as caught:
            await job.result()
    return job.id, caught.value


@pytest.mark.slow  # Batch's shortest timeout is 60 s
async def test_container_exits_before_batch_timeout(make_executor, proxy, batch):
    """Both containers exit by themselves before Batch's time limit of 60 s.

    One has lost its network, and the other's function ignores the time limit.
    """
    (lost, told), (late, error) = await asyncio.gather(
        outlive(make_executor(through(proxy), time_limit=60), proxy),
        overrun(make_executor(time_limit=60)),
    )

    assert "could not be stored" in told
    assert "raise time_limit" in str(error)
    assert error.stdout == "working\nnot yet\n"
    for job_id, code in ((lost, ExitCode.OUTCOME_NOT_STORED), (late, ExitCode.TIMED_OUT)):
        detail = batch.wait(job_id)
        assert detail["container"]["exitCode"] == code
        assert detail["statusReason"] == "Essential container in task exited"
