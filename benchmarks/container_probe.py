"""What the user's function tells of the container that it runs in; no dependencies.

The same for farcall, for the peer, whose client imports this file in a venv of its own, and for
the floors, whose interpreter is given the function's source.
"""

from __future__ import annotations

from typing import Any


def probe() -> dict[str, Any]:
    """Tell the time, and the CPU of every process of the container so far, all threads included.

    Returns:
        ``moment``: seconds since 1970; ``pid``: the own process ID; ``cpu_s``: by process ID,
        seconds to the nanosecond. The first process, 1, was docker's before it executed the
        image's program, and its CPU has that share in it.
    """
    import os
    import time

    moment = time.time()
    # clock_getcpuclockid(3) for any process: ~pid << 3, and 2 for the scheduler's clock.
    cpu_s = {
        pid: time.clock_gettime((~int(pid) << 3) | 2)
        for pid in os.listdir("/proc")  # noqa: PTH208 - pathlib may not be imported yet
        if pid.isdigit()
    }
    return {"moment": moment, "pid": str(os.getpid()), "cpu_s": cpu_s}
