import asyncio
import threading

import pytest

from farcall.engine.worker_threads import WorkerThreads


async def test_function_runs_outside_event_loop_thread():
    threads = WorkerThreads()
    assert await threads.run(threading.current_thread) is not threading.current_thread()
    threads.close()


async def test_held_threads_outlive_close():
    threads = WorkerThreads()
    with threads.held():
        with threads.held():
            threads.close()
        assert await threads.run(abs, -1) == 1
    with pytest.raises(RuntimeError, match="shutdown"):
        await asyncio.wait_for(threads.run(abs, -1), 10)
