"""Maps: many calls of one function.

Starts the local AWS emulator, because results, errors and cancellation concern whole array jobs.
"""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys

import pytest

from farcall import (
    BatchExecutor,
    JobStatus,
)
from tests.support.patience import PATIENCE_S


@pytest.mark.core
async def test_results_have_argument_order(executor):
    sweep = executor.task(lambda x, y: x * y).map(range(12), range(1, 13))

    assert [x * (x + 1) for x in range(12)] == await sweep
    assert len(sweep.job_ids) == 1
    detail = await executor.attach(sweep.job_ids[0]).detail()
    assert detail.array_size == 12


# --- cancellation -------------------------------------------------------------------------------


async def ended(executor: BatchExecutor, job_ids: list[str]) -> None:
    """Wait until jobs have failed; without a cancellation they would hang."""
    assert job_ids
    for job_id in job_ids:
        job = executor.attach(job_id)
        while not (await job.status()).is_final:
            await asyncio.sleep(0.2)
        assert JobStatus.FAILED is await job.status()


PROGRAM = """
import asyncio, sys, time
import farcall

def work(x):
    time.sleep(600 * x)  # until the test, or what it tests, ends it
    return x

executor = farcall.BatchExecutor(vcpu=1, memory=1)

async def main():
    sweep = executor.task(work).map(range(3), progress=True)
    async for _ in sweep:
        print(*sweep.job_ids, flush=True)
        BODY

async def block():
    async with executor:
        await main()

asyncio.run(MAIN())
"""


@pytest.mark.parametrize(
    ("body", "status", "main"),
    [("break", 0, "main"), ("raise SystemExit(7)", 7, "block"), ("pass", -signal.SIGINT, "block")],
)
def test_exiting_program_leaves_no_jobs(aws, make_executor, body, status, main):
    program = PROGRAM.replace("BODY", body).replace("MAIN", main)
    process = subprocess.Popen(
        [sys.executable, "-X", "dev", "-c", program],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            assert process.stdout is not None
            job_ids = process.stdout.readline().split()
            if body == "pass":
                process.send_signal(signal.SIGINT)
            _, complaints = process.communicate(timeout=PATIENCE_S)
        finally:
            process.kill()

    assert process.returncode == status, complaints
    assert "farcall: work: 1 of 3 done, 0 failed" in complaints
    for word in ("never retrieved", "was destroyed", "nclosed"):
        assert word not in complaints, complaints
    asyncio.run(ended(make_executor(), job_ids))
