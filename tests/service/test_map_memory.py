"""Client memory during a map.

Starts the local AWS emulator and a client process. The test is slow, because it transfers 1.2 GB.
"""

import sys

import pytest

from tests.support.program import stdout_of

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
            if len(seen) == 1:  # wait until the other results have arrived
                job = executor.attach(sweep.job_ids[0])
                while not (await job.status()).is_final:
                    await asyncio.sleep(0.5)
                await asyncio.sleep(2)
        assert len(seen) == RESULTS
        print(peak() - before)

asyncio.run(main())
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the peak is read from /proc")
def test_loop_releases_collected_results(aws):
    grown = int(stdout_of(sys.executable, "-c", PROGRAM, timeout=500))
    # The results have 1,200,000,000 bytes; glibc keeps some freed memory.
    assert grown < 900_000_000
