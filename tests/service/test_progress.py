"""Progress bars on a terminal.

Starts programs on a pseudo-terminal and the local AWS emulator, because bars depend on both.
"""

from __future__ import annotations

import contextlib
import os
import pty
import re
import subprocess
import sys

import farcall_local
from tests.support.patience import PATIENCE_S

HIDE, SHOW = "\x1b[?25l", "\x1b[?25h"

PROGRAM = """
import asyncio, dataclasses, sys, time
import farcall
from farcall.backends.batch.backend import BatchBackend

BatchBackend.capabilities = dataclasses.replace(BatchBackend.capabilities, largest_array=3)

def work(x):
    time.sleep(0.3)
    if x == 4:
        raise ValueError(x)
    return x

def other(x):
    time.sleep(0.3)
    return x

executor = farcall.BatchExecutor(vcpu=1, memory=1, retry_attempts=1)

async def main():
    async with executor:
        others = executor.task(other).map(range(4), progress=True)
        waiting = asyncio.ensure_future(others)
        sweep = executor.task(work).map(range(9), chunksize=2, progress=True)
        async for result in sweep.results():
            print("result", result.index, flush=True)
        print(await waiting)

asyncio.run(main())
"""


def run(program: str) -> tuple[int, str]:
    """Run a program on a new pseudo-terminal; return exit status and output."""
    ours, theirs = pty.openpty()
    environment = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "FORCE_COLOR")}
    with contextlib.ExitStack() as stack:
        process = subprocess.Popen(
            [sys.executable, "-c", program],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env={**environment, "TERM": "xterm", "COLUMNS": "100", "LINES": "40"},
        )
        os.close(theirs)
        stack.callback(os.close, ours)
        stack.callback(process.wait)
        stack.callback(process.kill)  # if it is still running
        shown = b""
        with contextlib.suppress(OSError):  # the other end is closed
            while data := os.read(ours, 65536):
                shown += data
        return process.wait(timeout=PATIENCE_S), shown.decode()


def plain(shown: str) -> str:
    return re.sub(r"\x1b\[[\d;]*m", "", shown)


def test_terminal_shows_two_maps(aws: farcall_local.LocalAWS) -> None:
    status, shown = run(PROGRAM)

    assert status == 0, shown
    assert shown.count(HIDE) == shown.count(SHOW) == 1
    text = plain(shown)
    assert "8 of 9 done, 1 failed (ValueError x1), 0 running, 0 queued" in text
    assert "4 of 4 done, 0 failed, 0 running, 0 queued" in text
    assert all(f"result {number}" in shown for number in range(9))
