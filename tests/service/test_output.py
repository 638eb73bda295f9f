"""Output capture.

Starts the local AWS emulator, because descriptors of a real process are captured.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from farcall import BatchExecutor


@pytest.mark.core
async def test_output_of_all_sources_is_captured(executor: BatchExecutor) -> None:
    def work() -> None:
        import ctypes

        print("from python", flush=True)
        libc = ctypes.CDLL(None)
        libc.puts(b"from c")
        libc.fflush(None)
        os.write(1, b"from a descriptor\n")
        subprocess.run([sys.executable, "-c", "print('from a subprocess')"], check=True)
        print("an error", file=sys.stderr)

    job = await executor.submit(work)
    await job.result()

    expected = ["from python", "from c", "from a descriptor", "from a subprocess"]
    assert expected == (await job.stdout()).splitlines()
    assert await job.stderr() == "an error\n"


@pytest.mark.slow
async def test_million_lines_keep_their_order(executor: BatchExecutor) -> None:
    def work() -> None:
        for number in range(1_000_000):
            print(number)

    job = await executor.submit(work)
    await job.result()

    lines = (await job.stdout()).splitlines()
    assert len(lines) == 1_000_000
    assert [str(n) for n in range(1_000_000)] == lines


async def test_closed_stdout_is_harmless(executor: BatchExecutor) -> None:
    def work() -> int:
        sys.stdout.close()
        os.close(1)
        return 1

    assert await executor.task(work)() == 1


async def test_running_task_lines_are_followed(executor: BatchExecutor) -> None:
    def work() -> None:
        print("early", flush=True)
        time.sleep(600)  # the test cancels the job once it has read the line

    job = await executor.submit(work)
    async for line in job.logs(follow=True):
        assert line == "early"
        assert not (await job.status()).is_final
        break
    await job.cancel()
