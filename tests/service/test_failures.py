"""Failures of a task, and the exception that its caller gets.

Starts the local AWS emulator, because exceptions, signals and exit codes cross a process boundary.
"""

from __future__ import annotations

import asyncio
import builtins
import ctypes
import os
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import pytest

from farcall import (
    BatchExecutor,
    ChildKilledError,
    JobCancelledError,
    ResultNotPicklableError,
    TaskError,
)
from tests.support.patience import PATIENCE_S

sys.path.append(str(Path(__file__).parent))

from project import models


def notes(error: BaseException) -> str:
    return "\n".join(getattr(error, "__notes__", [])) or str(error.__cause__)


async def test_the_functions_own_exception_is_raised(executor: BatchExecutor) -> None:
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


async def test_an_exception_with_its_own_constructor_is_the_clients_class(
    executor: BatchExecutor,
) -> None:
    job = await executor.submit(models.fail, 5)

    with pytest.raises(models.PickyError, match="code 5 at here") as caught:
        await job.result()
    assert (caught.value.code, caught.value.where) == (5, "here")


async def test_an_exception_whose_class_is_not_here_arrives_as_text(
    executor: BatchExecutor,
) -> None:
    def work() -> None:
        import importlib.util
        import sys

        code = "class OddError(Exception):\n    pass\n"
        module = importlib.util.module_from_spec(
            importlib.util.spec_from_loader("only_in_the_job", loader=None)
        )
        exec(code, module.__dict__)
        sys.modules["only_in_the_job"] = module
        module.OddError.__module__ = "only_in_the_job"
        raise module.OddError("what happened")

    job = await executor.submit(work)

    with pytest.raises(TaskError, match=r"only_in_the_job\.OddError: what happened") as caught:
        await job.result()
    assert job.id == caught.value.job_id


async def test_chained_exceptions_keep_their_chain(executor: BatchExecutor) -> None:
    def work() -> None:
        try:
            try:
                raise LookupError("first")
            except LookupError:
                raise OSError(5, "second")  # noqa: B904  # a context is what is tested
        except OSError as error:
            raise RuntimeError("third") from error

    job = await executor.submit(work)

    with pytest.raises(RuntimeError, match="third") as caught:
        await job.result()
    cause = caught.value.__cause__
    assert isinstance(cause, OSError)
    assert cause.errno == 5
    assert isinstance(cause.__context__, LookupError)


async def test_sys_exit_is_told_and_does_not_end_the_client(executor: BatchExecutor) -> None:
    job = await executor.submit(sys.exit, 3)

    with pytest.raises(TaskError, match="SystemExit: 3"):
        await job.result()


def spring(name: str, client: int) -> str:
    """Raise in the client; anywhere else be a value."""
    if os.getpid() == client:
        raise (getattr(asyncio, name, None) or getattr(builtins, name))("enough")
    return name


class Trap:
    """What raises where it is read in the client."""

    def __init__(self, name: str, client: int) -> None:
        self.recipe = spring, (name, client)

    def __reduce__(self) -> tuple[Any, ...]:
        return self.recipe


ENDS = ["SystemExit", "KeyboardInterrupt", "GeneratorExit", "CancelledError"]


async def test_a_value_that_would_end_the_client_is_one_calls_error(
    executor: BatchExecutor,
) -> None:
    task, here = (
        executor.task(lambda name: Trap(name, here) if name in ENDS else name),
        os.getpid(),
    )

    found = await task.map(["one", *ENDS, "two"], return_exceptions=True)

    assert (found[0], found[-1]) == ("one", "two")
    assert {type(error) for error in found[1:-1]} == {ResultNotPicklableError}
    for name, error in zip(ENDS, found[1:-1], strict=True):
        assert f"cannot be unpickled here ({name}: enough)" in str(error)


async def test_os_exit_is_told_with_its_code_and_the_output(executor: BatchExecutor) -> None:
    def work() -> None:
        print("last words", flush=True)
        os._exit(7)

    job = await executor.submit(work)

    with pytest.raises(ChildKilledError, match="exit code 7") as caught:
        await job.result()
    assert caught.value.exit_code == 7
    assert caught.value.stdout == "last words\n"


async def test_a_segfault_is_told_with_its_stack(executor: BatchExecutor) -> None:
    def work() -> None:
        ctypes.string_at(0)

    job = await executor.submit(work)

    with pytest.raises(ChildKilledError, match="SIGSEGV") as caught:
        await job.result()
    assert caught.value.exit_code == 128 + signal.SIGSEGV
    assert "Segmentation fault" in caught.value.stderr
    assert "string_at" in caught.value.stderr


async def test_a_value_that_cannot_be_pickled_says_so(executor: BatchExecutor) -> None:
    def work() -> object:
        import threading

        return threading.Lock()

    job = await executor.submit(work)

    with pytest.raises(ResultNotPicklableError, match="lock"):
        await job.result()


async def test_a_package_the_image_lacks_is_named(executor: BatchExecutor) -> None:
    def work() -> None:
        import a_package_nobody_has  # noqa: F401

    job = await executor.submit(work)

    with pytest.raises(ModuleNotFoundError, match="a_package_nobody_has") as caught:
        await job.result()
    told = "".join(traceback.format_exception(caught.value))
    assert "has no a_package_nobody_has: name its package in extra_packages" in told


async def test_children_left_behind_do_not_keep_the_job(executor: BatchExecutor) -> None:
    def work() -> int:
        import subprocess

        for _ in range(20):
            subprocess.Popen(["sleep", "600"])
        return 1

    assert await asyncio.wait_for(executor.task(work)(), PATIENCE_S) == 1  # of 600


async def test_a_cancelled_job_says_so_and_keeps_its_output(executor: BatchExecutor) -> None:
    def work() -> None:
        print("started", flush=True)
        time.sleep(600)  # until the test, or what it tests, ends it

    job = await executor.submit(work)
    async for line in job.logs(follow=True):
        assert line == "started"
        await job.cancel("enough")
        break

    with pytest.raises(JobCancelledError, match="farcall: enough") as caught:
        await job.result()
    assert caught.value.stdout == "started\n"


async def test_every_attempt_of_a_failing_task_runs_and_the_last_error_is_raised(
    executor: BatchExecutor,
) -> None:
    @executor.task(retry_attempts=3, retry_on="failure")
    def work() -> None:
        import os

        raise RuntimeError(f"attempt {os.environ['AWS_BATCH_JOB_ATTEMPT']}")

    with pytest.raises(RuntimeError, match="attempt 3"):
        await work()


async def test_a_process_the_function_forks_does_not_speak_for_it(
    executor: BatchExecutor,
) -> None:
    def work() -> str:
        import os

        if os.fork() == 0:
            return "the copy's"
        os.wait()
        return "the original's"

    assert "the original's" == await executor.task(work)()


async def test_a_daemon_that_writes_for_ever_does_not_keep_the_job(
    executor: BatchExecutor,
) -> None:
    def work() -> int:
        import subprocess

        subprocess.Popen(["yes"], start_new_session=True)
        return 1

    assert 1 == await executor.task(work)()
