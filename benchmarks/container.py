"""The container's start: real processes of the real runtime, in the local AWS emulator.

Needs the ``local`` extra. Run as a command it prints one line of JSON.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import subprocess
import sys
from typing import Any

import farcall_local
from farcall import BatchExecutor


def cpu_so_far() -> tuple[float, float]:
    """The measured task: CPU of the runtime's two processes when the function begins.

    Returns:
        Seconds of the supervisor since its interpreter started, all of its threads, and of the
        child it forked, which runs this.
    """
    import os
    import resource
    from pathlib import Path

    own = resource.getrusage(resource.RUSAGE_SELF)
    threads = Path(f"/proc/{os.getppid()}/task").glob("*/schedstat")  # nanoseconds, Linux
    supervisor = sum(int(thread.read_text().split()[0]) for thread in threads)
    return supervisor / 1e9, own.ru_utime + own.ru_stime


def floor_s() -> float:
    """CPU of an interpreter that imports what the container side needs, and does nothing."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", "import cloudpickle, obstore"], check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


async def _measure(count: int) -> list[tuple[float, float]]:
    async with BatchExecutor(vcpu=1) as executor:
        task = executor.task(cpu_so_far)
        return [await task() for _ in range(count)]


def _main(count: int) -> dict[str, Any]:
    with farcall_local.start() as aws:
        os.environ.update(aws.environment)
        found = asyncio.run(_measure(count))
    return {
        "supervisor_s": [row[0] for row in found],
        "child_s": [row[1] for row in found],
        "floor_s": [floor_s() for _ in range(count)],
    }


if __name__ == "__main__":
    print(json.dumps(_main(int(sys.argv[1]))))
