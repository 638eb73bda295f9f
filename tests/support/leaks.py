"""Leak checks: threads, open files and event loop tasks of a process.

A test records them when all long-lived objects exist (imported, connected, warmed up), and checks
later that there is nothing new::

    before = Held.now()
    ...
    await before.outlived()

Threads of C and Rust code are not detected: obstore keeps its threads until the process exits.
"""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections import Counter
from pathlib import Path
from typing import NamedTuple

PATIENCE_S = 120.0
"""Time limit in seconds for objects to disappear, such as idle connections."""

_DESCRIPTORS = Path("/proc/self/fd")


class Held(NamedTuple):
    """Objects that a process holds at a moment.

    Attributes:
        threads: Python threads.
        files: Number of open descriptors by kind, or by path for files.
        tasks: Tasks of the running event loop, except the current task.
    """

    threads: frozenset[threading.Thread]
    files: Counter[str]
    tasks: frozenset[asyncio.Task[object]]

    @classmethod
    def now(cls) -> Held:
        """Return the objects that this process holds after garbage collection."""
        gc.collect()
        try:
            tasks = frozenset(asyncio.all_tasks()) - {asyncio.current_task()}
        except RuntimeError:  # no event loop runs
            tasks = frozenset()
        return cls(frozenset(threading.enumerate()), _files(), frozenset(t for t in tasks if t))

    def new(self) -> list[str]:
        """Return the objects that the process holds now, but did not hold at this moment."""
        now = Held.now()
        threads = [f"thread {thread.name}" for thread in now.threads - self.threads]
        files = [f"{count} x {what}" for what, count in (now.files - self.files).items()]
        return threads + files + [f"task {task!r}" for task in now.tasks - self.tasks]

    async def outlived(self, patience_s: float = PATIENCE_S) -> None:
        """Wait until the process holds no new objects.

        Raises:
            AssertionError: New objects are left.
        """
        deadline = time.monotonic() + patience_s
        while found := self.new():
            assert time.monotonic() < deadline, f"this is left: {found}"
            await asyncio.sleep(0.1)

    def check(self, patience_s: float = PATIENCE_S) -> None:
        """Wait like `outlived`, but without an event loop."""
        deadline = time.monotonic() + patience_s
        while found := self.new():
            assert time.monotonic() < deadline, f"this is left: {found}"
            time.sleep(0.1)


def _files() -> Counter[str]:
    """Return the open descriptors; sockets and pipes are distinguished only by kind."""
    found: Counter[str] = Counter()
    if not _DESCRIPTORS.exists():  # no Linux
        return found
    for entry in list(_DESCRIPTORS.iterdir()):
        try:
            target = str(entry.readlink())
        except FileNotFoundError:  # the descriptor with which the folder was read
            continue
        found[target.partition(":[")[0]] += 1
    return found
