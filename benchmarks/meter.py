"""CPU, memory and event loop stalls of a process, on Linux, with the standard library."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_FIELDS = {"rss": "VmRSS", "peak": "VmHWM", "anonymous": "RssAnon"}
_STALL_STEP_S = 0.02
_TICKS = os.sysconf("SC_CLK_TCK")


class Meter:
    """Measurement of this process, from its creation on a running event loop."""

    def __init__(self) -> None:
        restart_peak()
        self._before = memory_bytes()["rss"]
        self._stall_s = 0.0
        self._watching = asyncio.ensure_future(self._watch())
        self._wall_s: float | None = None
        self._began, self._cpu = time.monotonic(), time.process_time()

    def stop_clock(self) -> None:
        """Stop the wall clock; CPU and memory are measured until `report`."""
        self._wall_s = time.monotonic() - self._began

    def report(self) -> dict[str, Any]:
        """Return CPU time of all threads, wall time, longest event loop stall and memory."""
        cpu_s = time.process_time() - self._cpu
        self._watching.cancel()
        return {
            "cpu_s": cpu_s,
            "wall_s": self._wall_s or time.monotonic() - self._began,
            "stall_s": self._stall_s,
            "before_bytes": self._before,
            "peak_bytes": memory_bytes()["peak"],
        }

    async def _watch(self) -> None:
        while True:
            due = time.monotonic() + _STALL_STEP_S
            await asyncio.sleep(_STALL_STEP_S)
            self._stall_s = max(self._stall_s, time.monotonic() - due)


def probe() -> list[float]:
    """Return the CPU seconds of this process and its parent since they started.

    Both clients run this function as a task, pickled by value, to measure a container's start. If
    this is the container's first process, the list has one item.
    """
    import os
    import time

    # clock_getcpuclockid(3): a process's CPU clock is ~pid << 3, with 2 for the scheduler's count.
    pids = [pid for pid in (os.getpid(), os.getppid()) if pid]
    return [time.clock_gettime((~pid << 3) | 2) for pid in pids]


def memory_bytes(pid: int | str = "self") -> dict[str, int]:
    """Return a process's resident set size, its peak, and its anonymous part."""
    lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
    values = dict(line.split(":", 1) for line in lines)
    return {name: int(values[field].split()[0]) * 1024 for name, field in _FIELDS.items()}


def restart_peak(pid: int | str = "self") -> None:
    """Reset a process's peak resident set size (proc(5), ``clear_refs``)."""
    Path(f"/proc/{pid}/clear_refs").write_text("5", encoding="ascii")


def cpu_s(pid: int) -> float:
    """Return the CPU seconds of all threads of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def descendants(pid: int) -> Iterator[int]:
    """Yield the process IDs of all descendants of a process."""
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            children = task.read_text(encoding="ascii").split()
        except OSError:  # the process has just exited
            continue
        for child in map(int, children):
            yield child
            yield from descendants(child)
