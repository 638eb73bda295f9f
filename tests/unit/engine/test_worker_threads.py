from __future__ import annotations

import asyncio
import threading

import pytest

from farcall.engine.packer import WorkerThreads


async def test_a_function_runs_beside_the_event_loop():
    threads = WorkerThreads()
    assert await threads.run(threading.current_thread) is not threading.current_thread()
    threads.close()


async def test_what_fails_there_is_raised_here():
    threads = WorkerThreads()
    with pytest.raises(ZeroDivisionError):
        await threads.run(divmod, 1, 0)
    threads.close()


async def test_threads_outlive_their_end_as_long_as_somebody_holds_them():
    threads = WorkerThreads()
    with threads.held():
        with threads.held():
            threads.close()
        assert await threads.run(abs, -1) == 1
    with pytest.raises(RuntimeError, match="shutdown"):
        await asyncio.wait_for(threads.run(abs, -1), 10)
