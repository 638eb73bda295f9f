"""Several calls in one task.

Starts the local AWS emulator, because calls share a process whose end must not lose finished
results.
"""

from __future__ import annotations

import asyncio
import atexit
import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import farcall
from farcall import BatchExecutor, CallResult, ChildKilledError, JobCancelledError
from tests.support.patience import until


async def every(sweep: farcall.Sweep[Any]) -> list[CallResult[Any]]:
    """Wait for all calls; return their results in order."""
    found = [result async for result in sweep.results()]
    return sorted(found, key=lambda result: result.index)


# --- output -----------------------------------------------------------------------------------


class Loud:
    """An object that prints when it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return print, ("unpickled",)


async def test_calls_have_own_output_and_time(executor: BatchExecutor) -> None:
    def work(x: int, _loud: object) -> int:
        print("out", x)  # stays in Python's buffer
        print("err", x, file=sys.stderr)
        subprocess.run(["echo", "program", str(x)], check=True)
        if x == 1:
            time.sleep(0.3)
        if x == 2:
            atexit.register(print, "at the end")
        return x

    found = await every(executor.task(work).map(range(3), [Loud(), 0, 0], chunksize=3))

    assert [(r.index, r.value, r.error) for r in found] == [(n, n, None) for n in range(3)]
    lines = [result.stdout.splitlines() for result in found]
    assert sorted(lines[0]) == ["out 0", "program 0", "unpickled"]
    assert sorted(lines[1]) == ["out 1", "program 1"]
    assert sorted(lines[2]) == ["at the end", "out 2", "program 2"]
    assert [result.stderr for result in found] == ["err 0\n", "err 1\n", "err 2\n"]
    assert found[1].wall_s is not None
    assert found[1].wall_s >= 0.3 > (found[1].cpu_s or 0)
    assert len({result.job_id for result in found}) == 1


async def test_every_byte_is_counted_once(executor: BatchExecutor) -> None:
    def work(x: int) -> None:
        if x == 0:  # the thread writes while the other calls run
            threading.Thread(target=background, daemon=True).start()
        for _ in range(x * 20):
            os.write(1, b"%d" % x * 10_000)  # more than a pipe holds

    def background() -> None:
        for _ in range(50):
            os.write(2, b"b")
            time.sleep(0.005)

    sweep = executor.task(work).map(range(8), chunksize=8)
    found = await every(sweep)

    assert [result.stdout for result in found] == [str(x) * 10_000 * x * 20 for x in range(8)]
    (job_id,) = sweep.job_ids
    assert {result.job_id for result in found} == {job_id}
    assert set("".join(result.stderr for result in found)) == {"b"}


# --- process exits ------------------------------------------------------------------------------


def segfault() -> None:
    ctypes.string_at(0)


@pytest.mark.parametrize(
    ("end", "how"),
    [
        (segfault, "was killed by SIGSEGV"),
        (lambda: os._exit(3), "exited with code 3 before the function returned"),
        (lambda: os.kill(os.getpid(), signal.SIGKILL), "was killed by SIGKILL"),
    ],
    ids=["segfault", "exit", "kill"],
)
async def test_crash_keeps_earlier_call_results(
    executor: BatchExecutor, end: Callable[[], None], how: str
) -> None:
    def work(x: int) -> bytes:
        print("call", x, flush=True)
        if x == 2:
            raise ValueError(x)
        if x == 4:
            end()
        return bytes([x]) * 100_000

    found = await every(executor.task(work).map(range(7), chunksize=7))

    assert [found[x].value for x in (0, 1, 3)] == [bytes([x]) * 100_000 for x in (0, 1, 3)]
    assert repr(found[2].error) == "ValueError(2)"
    cut_off, *not_begun = (result.error for result in found[4:])
    assert isinstance(cut_off, ChildKilledError)
    assert str(cut_off).startswith(f"the task's process {how}: job {found[4].job_id} (work")
    assert (cut_off.stdout, found[4].stdout) == ("call 4\n", "call 4\n")
    for number, error in enumerate(not_begun, start=6):
        assert isinstance(error, ChildKilledError)
        words = f"call {number} of 7 in the task did not start: the task's process {how} in call 5"
        assert str(error).startswith(words)
        assert error.stdout == ""


async def test_cancelled_chunk_keeps_finished_results(
    make_executor: Callable[..., BatchExecutor], tmp_path: Path
) -> None:
    def work(x: int, folder: str) -> int:
        print("call", x)
        if x == 1:
            raise ValueError(x)
        if x == 3:
            Path(folder, "there").touch()
            time.sleep(600)  # until the test, or what it tests, ends it
        return x

    async with make_executor() as executor:
        sweep = executor.task(work).map(range(6), [str(tmp_path)] * 6, chunksize=6)
        waiting = asyncio.ensure_future(every(sweep))
        await asyncio.to_thread(until, (tmp_path / "there").exists)
        await executor.attach(sweep.job_ids[0]).cancel("by hand")
        found = await waiting

    assert [found[x].value for x in (0, 2)] == [0, 2]
    assert repr(found[1].error) == "ValueError(1)"
    cancelled = [result.error for result in found[3:]]
    assert all(isinstance(error, JobCancelledError) for error in cancelled)
    assert found[3].stdout == "call 3\n"
    assert "by hand" in str(cancelled[0])
    assert "call 5 of 6 in the task did not start: " in str(cancelled[1])
    assert "in call 4: job" in str(cancelled[1])
