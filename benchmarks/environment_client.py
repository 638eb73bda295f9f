"""A client whose jobs have its packages: ``python -m benchmarks.environment_client WHAT``.

``submit`` submits one task to nobody's container, ``none`` the same without packages, and ``run``
has the task run, which tells what its container's start took. At last it prints a line of JSON.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import Any

from farcall import BatchExecutor


def started() -> dict[str, float]:
    """The measured task: what its container took up to here, and what the imports take then.

    Returns:
        Seconds since the container's process was started, CPU of the supervisor and of the
        processes it started, and seconds that the imports took.
    """
    import importlib
    import os
    import time
    from pathlib import Path

    ticks = os.sysconf("SC_CLK_TCK")
    fields = Path(f"/proc/{os.getppid()}/stat").read_text().rpartition(")")[2].split()
    age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - int(fields[19]) / ticks
    cpu_s = sum(int(each) for each in fields[11:15]) / ticks  # its own, and that of the dead
    began = time.perf_counter()
    for name in ("numpy", "pandas", "pyarrow", "sklearn.svm"):
        importlib.import_module(name)
    return {"ready_s": age_s, "cpu_s": cpu_s, "import_s": time.perf_counter() - began}


async def _main(what: str) -> dict[str, Any]:
    packages = None if what == "none" else "local"
    async with BatchExecutor(vcpu=1, memory=2, packages=packages) as executor:
        began = time.perf_counter()
        job = await executor.submit(started)
        told = {"submit_s": time.perf_counter() - began}
        if what == "run":
            told |= await job.result()
        else:
            await job.cancel()
        return told


if __name__ == "__main__":
    print(json.dumps(asyncio.run(_main(sys.argv[1]))), flush=True)
