"""Client memory during a map.

Starts the local AWS emulator and a client process. The test is slow, because it transfers 1.2 GB.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

import farcall_local

PROGRAM = """
import asyncio, sys
import farcall

RESULTS, SIZE = 60, 20_000_000

def work(x):
    return bytes([x]) * SIZE

def peak():
    for line in open("/proc/self/status"):
        if line.startswith("VmHWM"):
            return int(line.split()[1]) * 1024

async def main():
    async with farcall.BatchExecutor(vcpu=1, memory=1) as executor:
        sweep = executor.task(work).map(range(RESULTS))
        before, seen = peak(), set()
        async for index, value in sweep:
            assert len(value) == SIZE and value[-1] == index
            seen.add(index)
            del value
            if len(seen) == 1:  # the others come meanwhile
                job = executor.attach(sweep.job_ids[0])
                while not (await job.status()).is_final:
                    await asyncio.sleep(0.5)
                await asyncio.sleep(2)
        assert len(seen) == RESULTS
        print(peak() - before)

asyncio.run(main())
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="/proc tells the peak")
def test_a_loop_over_much_more_than_the_memory_should_hold(aws: farcall_local.LocalAWS) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False, timeout=500
    )

    assert done.returncode == 0, done.stderr
    # Of 1,200,000,000; glibc keeps some of what was freed.
    assert int(done.stdout) < 900_000_000
