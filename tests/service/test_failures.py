"""Failures of a task, and the exception that its caller gets.

Starts the local AWS emulator, because exceptions, signals and exit codes cross a process boundary.
"""

from __future__ import annotations

import ctypes
import signal
import sys
from pathlib import Path

import pytest

from farcall import (
    BatchExecutor,
    ChildKilledError,
)

sys.path.append(str(Path(__file__).parent))


def notes(error: BaseException) -> str:
    return "\n".join(getattr(error, "__notes__", [])) or str(error.__cause__)


async def test_function_exception_is_reraised(executor: BatchExecutor) -> None:
    def work() -> None:
        print("before")
        raise KeyError("missing", 3)

    job = await executor.submit(work)

    with pytest.raises(KeyError) as caught:
        await job.result()
    assert caught.value.args == ("missing", 3)
    assert 'raise KeyError("missing", 3)' in notes(caught.value)
    assert job.id in notes(caught.value)
    assert "farcall_runtime" not in notes(caught.value)
    assert await job.stdout() == "before\n"


async def test_segfault_error_has_stack(executor: BatchExecutor) -> None:
    def work() -> None:
        ctypes.string_at(0)

    job = await executor.submit(work)

    with pytest.raises(ChildKilledError, match="SIGSEGV") as caught:
        await job.result()
    assert caught.value.exit_code == 128 + signal.SIGSEGV
    assert "Segmentation fault" in caught.value.stderr
    assert "string_at" in caught.value.stderr


async def test_writing_daemon_does_not_block_job(
    executor: BatchExecutor,
) -> None:
    def work() -> int:
        import subprocess

        subprocess.Popen(["yes"], start_new_session=True)
        return 1

    assert 1 == await executor.task(work)()
