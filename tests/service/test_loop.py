"""CPU time of the event loop between two iterations.

Starts the local AWS emulator, because submission, polling and fetching share the loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import time
from collections.abc import AsyncIterator

import pytest

from farcall import BatchExecutor

LONGEST_S = 0.2
"""What pickling, hashing or unpickling on the loop would go beyond by far.

Some 60 ms are seen where all processors are taken: a thread's clock runs on while its caches are
cold.
"""


class Longest:
    """The most CPU the loop's thread spent between two turns of the loop, in seconds."""

    seconds = 0.0


@contextlib.asynccontextmanager
async def watched() -> AsyncIterator[Longest]:
    """Watch the event loop.

    CPU of the thread and not time on the wall: a machine that other programs share keeps a thread
    waiting, which says nothing of what this one did. What the test run has loaded so far is kept
    from the garbage collector, whose rounds over it are not farcall's doing.
    """
    gc.collect()
    gc.freeze()
    longest = Longest()

    async def watch() -> None:
        last = time.thread_time()
        while True:
            await asyncio.sleep(0.001)
            now = time.thread_time()
            longest.seconds = max(longest.seconds, now - last)
            last = now

    task = asyncio.ensure_future(watch())
    try:
        yield longest
    finally:
        task.cancel()
        gc.unfreeze()


@pytest.mark.slow
async def test_hundreds_of_tasks_do_not_block_the_loop(executor: BatchExecutor) -> None:
    def work(x: int) -> int:
        return x

    async with watched() as longest:
        values = await executor.task(work).map(range(300))

    assert list(range(300)) == values
    assert longest.seconds < LONGEST_S
