"""What a process holds on to: threads, open files, tasks of event loops.

A test takes note of it before, when everything that lasts as long as the process is there already
(imported, connected, warmed up), and finds nothing new some time after::

    before = Held.now()
    ...
    await before.outlived()

Threads of C and Rust code are not seen: obstore keeps its own for as long as the process lives.
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
"""For how long what is on its way out may take: connections that wait for another request."""

_DESCRIPTORS = Path("/proc/self/fd")


class Held(NamedTuple):
    """What a process holds at a moment.

    Attributes:
        threads: Python's threads.
        files: What is open, by what it is: of a file its path.
        tasks: Tasks of the running event loop, except the one that asks.
    """

    threads: frozenset[threading.Thread]
    files: Counter[str]
    tasks: frozenset[asyncio.Task[object]]

    @classmethod
    def now(cls) -> Held:
        """Return what this process holds; its garbage, which may hold files, is collected."""
        gc.collect()
        try:
            tasks = frozenset(asyncio.all_tasks()) - {asyncio.current_task()}
        except RuntimeError:  # no event loop runs
            tasks = frozenset()
        return cls(frozenset(threading.enumerate()), _files(), frozenset(t for t in tasks if t))

    def new(self) -> list[str]:
        """Return what the process holds now and did not hold at this moment."""
        now = Held.now()
        threads = [f"thread {thread.name}" for thread in now.threads - self.threads]
        files = [f"{count} x {what}" for what, count in (now.files - self.files).items()]
        return threads + files + [f"task {task!r}" for task in now.tasks - self.tasks]

    async def outlived(self, patience_s: float = PATIENCE_S) -> None:
        """Wait until nothing is left that was not held at this moment.

        Raises:
            AssertionError: Something stays.
        """
        deadline = time.monotonic() + patience_s
        while found := self.new():
            assert time.monotonic() < deadline, f"this is left: {found}"
            await asyncio.sleep(0.1)

    def check(self, patience_s: float = PATIENCE_S) -> None:
        """The same where no event loop runs."""
        deadline = time.monotonic() + patience_s
        while found := self.new():
            assert time.monotonic() < deadline, f"this is left: {found}"
            time.sleep(0.1)


def _files() -> Counter[str]:
    """Return what is open: sockets and pipes are distinguished only by kind."""
    found: Counter[str] = Counter()
    if not _DESCRIPTORS.exists():  # no Linux
        return found
    for entry in list(_DESCRIPTORS.iterdir()):
        try:
            target = str(entry.readlink())
        except FileNotFoundError:  # the one by which the folder was read
            continue
        found[target.partition(":[")[0]] += 1
    return found
