"""Several calls in one task.

Starts the local AWS emulator, because calls share a process whose end must not lose finished
results.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import signal
import subprocess
import sys
import time
from typing import Any

import pytest

import farcall
from farcall import CallResult, ChildKilledError


async def every(sweep: farcall.Sweep[Any]) -> list[CallResult[Any]]:
    """Wait for all calls; return their results in order."""
    found = [result async for result in sweep.results()]
    return sorted(found, key=lambda result: result.index)


# --- output -----------------------------------------------------------------------------------


class Loud:
    """An object that prints when it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return print, ("unpickled",)


async def test_calls_have_own_output_and_time(executor):
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
async def test_crash_keeps_earlier_call_results(executor, end, how):
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
