"""Clients, event loops, threads and processes next to each other.

Starts the local AWS emulator, because sessions are shared and closed while requests are on their
way.
"""

from __future__ import annotations

import asyncio
import functools
import gc
import multiprocessing
import os
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import pytest

from farcall import BatchExecutor, FarcallError, JobCancelledError
from farcall.engine.session import _sessions, session_for
from tests.support.leaks import Held
from tests.support.patience import PATIENCE_S, until_async

T = TypeVar("T")


def work(x: int) -> int:
    return x + 1


def linger() -> int:
    time.sleep(2)
    return 7


def wait_forever() -> None:
    time.sleep(600)  # until the test ends it


async def soon(waiting: Awaitable[T]) -> T:
    return await asyncio.wait_for(waiting, PATIENCE_S)


def in_a_thread(coroutine: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run a coroutine on a new event loop in a new thread."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(lambda: asyncio.run(soon(coroutine()))).result(2 * PATIENCE_S)


# --- clients ----------------------------------------------------------------------------------


async def test_nested_blocks_share_executor(make_executor):
    executor = make_executor()
    async with executor:
        async with executor:
            job = await executor.submit(work, 1)
        assert 2 == await soon(job.result())
        assert 3 == await soon(executor.task(work)(2))


# --- a closed executor ------------------------------------------------------------------------


async def test_closed_executor_reopens_on_use(make_executor):
    executor = make_executor()
    async with executor:
        left = await executor.submit(wait_forever)
        ended = await executor.submit(work, 1)
        while not ended.done():
            await asyncio.sleep(0.02)

    assert 2 == await soon(ended.result())
    assert 3 == await soon(executor.task(work)(2))
    assert [1, 2, 3] == await soon(executor.task(work).map(range(3)))
    await left.cancel()
    with pytest.raises(JobCancelledError):
        await soon(executor.attach(left.id).result())
    async with executor:
        assert 5 == await soon(executor.task(work)(4))


# --- event loops and threads --------------------------------------------------------------------


@pytest.mark.slow
def test_event_loops_share_executor(make_executor):
    executor = make_executor()
    task = executor.task(work)
    meeting = threading.Barrier(2, timeout=PATIENCE_S)

    async def call(first: int, *, block: bool) -> list[int]:
        meeting.wait()
        if not block:
            return [*await task.map(range(first, first + 5)), await task(first)]
        async with executor:
            return [*await task.map(range(first, first + 5)), await task(first)]

    with ThreadPoolExecutor(2) as threads:
        runs = [
            threads.submit(lambda first, block: asyncio.run(soon(call(first, block=block))), *each)
            for each in ((0, True), (100, False))
        ]
        values = [run.result(2 * PATIENCE_S) for run in runs]
    assert values == [[1, 2, 3, 4, 5, 1], [101, 102, 103, 104, 105, 101]]


async def test_job_is_cancelled_from_another_thread(make_executor):
    async with make_executor() as executor:
        job = await executor.submit(wait_forever)
        await asyncio.to_thread(in_a_thread, functools.partial(job.cancel, "from a thread"))

        with pytest.raises(JobCancelledError, match="from a thread"):
            await soon(job.result())


# --- forks ------------------------------------------------------------------------------------


def use_in_fork(executor: BatchExecutor, told: Path) -> None:
    """Use an executor in a forked process, and write the result or error to a file."""
    try:
        told.write_text(str(asyncio.run(executor.task(work)(1))))  # type: ignore[arg-type]
    except FarcallError as error:
        told.write_text(str(error))


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
async def test_forked_child_fails_and_parent_continues(make_executor, tmp_path):
    async with make_executor() as executor:
        job = await executor.submit(linger)
        told = [tmp_path / "process", tmp_path / "fork"]
        fork = multiprocessing.get_context("fork")
        process = fork.Process(target=use_in_fork, args=(executor, told[0]))
        process.start()
        pid = os.fork()
        if pid == 0:
            try:
                asyncio.events._set_running_loop(None)
                use_in_fork(executor, told[1])
            finally:
                os._exit(0)
        await asyncio.to_thread(process.join, PATIENCE_S)
        await asyncio.to_thread(os.waitpid, pid, 0)

        assert process.exitcode == 0
        for each in told:
            assert "forked" in each.read_text(), each
        assert 7 == await soon(job.result())
        assert 3 == await soon(executor.task(work)(2))


def test_fork_before_first_use_works(aws, tmp_path):
    """A usual worker pool: `multiprocessing` forks, and each process has its own client."""
    script = tmp_path / "script.py"
    script.write_text(
        "import asyncio, multiprocessing, farcall\n"
        "executor = farcall.BatchExecutor(vcpu=1, memory=1)\n"
        "@executor.task\n"
        "def work(x): return x + 1\n"
        "def call(x): return asyncio.run(work(x))\n"
        "with multiprocessing.get_context('fork').Pool(2) as pool:\n"
        "    print(pool.map(call, [1, 2]))\n"
    )
    out = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert (out.returncode, out.stdout) == (0, "[2, 3]\n"), out.stderr


# --- block exit during other coroutines' submissions --------------------------------------------


class Slow:
    """An argument that is pickled only after the test sets an event."""

    begun, go = threading.Event(), threading.Event()

    def __reduce__(self) -> tuple[Any, ...]:
        self.begun.set()
        assert self.go.wait(PATIENCE_S)
        return int, (1,)


@pytest.mark.parametrize("phase", ["pickling", "submission"])
async def test_block_exit_waits_for_other_submit(phase, proxy, make_executor):
    """The block is left in each phase of the submission; pytest reports unclosed clients."""
    executor = make_executor(endpoint_url=proxy.url)
    Slow.begun.clear()
    Slow.go.clear()
    async with executor:
        if phase == "pickling":
            submitting = asyncio.ensure_future(executor.submit(work, Slow()))
            await until_async(Slow.begun.is_set)
            asyncio.get_running_loop().call_later(0.5, Slow.go.set)
        else:
            proxy.faults["batch submitjob"] += [0.5]
            submitting = asyncio.ensure_future(executor.submit(work, 1))
            await until_async(lambda: proxy.counts["batch submitjob"])
    assert not submitting.cancelled()
    assert 2 == await soon((await soon(submitting)).result())
    gc.collect()


async def test_block_exit_cancels_map_in_submission(proxy, make_executor):
    executor = make_executor(endpoint_url=proxy.url)

    async def call() -> list[None]:
        return await executor.task(time.sleep).map([600, 600])

    async with executor:
        proxy.faults["batch submitjob"] += [0.5]
        waiting = asyncio.ensure_future(call())
        await until_async(lambda: proxy.counts["batch submitjob"])
    with pytest.raises(FarcallError, match="closed"):
        await soon(waiting)
    assert proxy.answers["batch submitjob 200"] == proxy.answers["batch terminatejob 200"] == 1
    gc.collect()


async def test_event_loop_shutdown_cancels_jobs(proxy, make_executor):
    """The loop cancels every task in any order, so the closing task may be the first."""
    executor = make_executor(endpoint_url=proxy.url)
    calls = [asyncio.ensure_future(executor.task(wait_forever)()) for _ in range(3)]
    await until_async(lambda: proxy.counts["batch describejobs"])
    session = await session_for(executor.settings)

    for task in (session._keeper, *calls):
        task.cancel()
    await asyncio.wait([session._keeper, *calls])

    assert all(call.cancelled() for call in calls)
    assert proxy.answers["batch terminatejob 200"] == 1  # for the array
    assert _sessions[asyncio.get_running_loop()] == {}  # no other session was opened


# --- leaks --------------------------------------------------------------------------------------


async def test_closed_block_leaks_nothing(make_executor):
    async def use() -> None:
        async with make_executor() as executor:
            task = executor.task(work)
            assert list(range(1, 6)) == await task.map(range(5))
            assert 2 == await task(1)
            cancelled = await executor.submit(wait_forever)
            await cancelled.cancel()
            with pytest.raises(JobCancelledError):
                await cancelled.result()
            with pytest.raises(ZeroDivisionError):
                await executor.task(lambda: 1 / 0)()

    await soon(use())  # create long-lived objects first
    before = Held.now()
    await soon(use())
    await soon(use())
    await before.outlived()


def test_closed_event_loop_leaks_nothing(make_executor):
    executor = make_executor()
    task = executor.task(work)
    asyncio.run(soon(task(1)))
    before = Held.now()
    for number in range(3):
        assert number + 1 == asyncio.run(soon(task(number)))
    before.check()
