"""What a process costs, told by itself. Linux; the standard library alone, for the peer's sake."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from benchmarks.processes import memory_bytes, restart_peak

_STALL_STEP_S = 0.02


class Meter:
    """Counts from the moment it is made, on the running event loop."""

    def __init__(self) -> None:
        restart_peak()
        self._before = memory_bytes()["rss"]
        self._stall_s = 0.0
        self._watching = asyncio.ensure_future(self._watch())
        self._wall_s: float | None = None
        self._began, self._cpu = time.monotonic(), time.process_time()

    def note_last(self) -> None:
        """Say that the last result is there: what follows is not counted as wall time."""
        self._wall_s = time.monotonic() - self._began

    def told(self) -> dict[str, Any]:
        """Return CPU of all threads, wall time, the event loop's longest stall, and memory."""
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
        """Note for how long the event loop did not turn."""
        while True:
            due = time.monotonic() + _STALL_STEP_S
            await asyncio.sleep(_STALL_STEP_S)
            self._stall_s = max(self._stall_s, time.monotonic() - due)
