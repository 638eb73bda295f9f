"""Every way a task can fail, and what its caller gets."""

from __future__ import annotations

import asyncio
import builtins
import contextlib
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
    JobTimeoutError,
    ResultNotPicklableError,
    TaskError,
    TaskNotPicklableError,
)
from tests.support.patience import PATIENCE_S

sys.path.append(str(Path(__file__).parent))

from project import models


def notes(error: BaseException) -> str:
    return "\n".join(getattr(error, "__notes__", [])) or str(error.__cause__)


def zombies_of(parent: int) -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, number = path.read_text().rpartition(")")[2].split()[:2]
            if state == "Z" and int(number) == parent:
                found.append(path.parts[2])
    return found


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


async def test_a_value_that_would_end_the_client_leaves_its_siblings_alone(
    executor: BatchExecutor, tmp_path: Path
) -> None:
    def work(name: str, go: str) -> Any:
        while name == "one" and not Path(go).exists():
            time.sleep(0.02)
        return Trap(name, here) if name in ENDS else name

    here, go = os.getpid(), tmp_path / "go"
    names = ["one", *ENDS]
    jobs = [await executor.submit(work, name, str(go)) for name in names]

    found = await asyncio.gather(*(job.result() for job in jobs[1:]), return_exceptions=True)
    assert {type(error) for error in found} == {ResultNotPicklableError}
    go.touch()
    assert await jobs[0].result() == "one"


@pytest.mark.parametrize("name", ENDS)
async def test_an_argument_that_would_end_the_client_is_refused(
    executor: BatchExecutor, name: str
) -> None:
    class Argument:
        def __reduce__(self) -> tuple[Any, ...]:
            return str, (spring(name, here),)

    here = os.getpid()
    with pytest.raises(TaskNotPicklableError, match=f"argument 1 .Argument.*{name}"):
        await executor.submit(str, Argument())
    with pytest.raises(TaskNotPicklableError, match=f"argument 1 .Argument.*{name}"):
        await executor.task(str).map([1, Argument()])


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
    assert 'has no a_package_nobody_has: set packages to "local"' in told


async def test_an_unpicklable_exception_attribute_does_not_hide_the_exception(
    executor: BatchExecutor,
) -> None:
    def work() -> None:
        import threading

        error = ValueError("with a lock")
        error.lock = threading.Lock()  # type: ignore[attr-defined]
        error.code = 3  # type: ignore[attr-defined]
        raise error

    job = await executor.submit(work)

    with pytest.raises(ValueError, match="with a lock") as caught:
        await job.result()
    assert caught.value.code == 3  # type: ignore[attr-defined]


async def test_children_left_behind_do_not_keep_the_job(executor: BatchExecutor) -> None:
    def work() -> int:
        import subprocess

        for _ in range(20):
            subprocess.Popen(["sleep", "600"])
        return 1

    assert await asyncio.wait_for(executor.task(work)(), PATIENCE_S) == 1  # of 600


async def test_orphans_are_collected_while_the_task_runs(executor: BatchExecutor) -> None:
    def work() -> list[str]:
        for _ in range(300):
            if os.fork() == 0:
                if os.fork() == 0:
                    time.sleep(0.05)
                os._exit(0)
            os.wait()
        deadline = time.monotonic() + 60
        while (found := zombies_of(os.getppid())) and time.monotonic() < deadline:
            time.sleep(0.1)
        return found

    assert [] == await executor.task(work)()


async def test_what_a_task_used_is_known_though_orphans_end_first(executor: BatchExecutor) -> None:
    def work() -> int:
        import subprocess

        for _ in range(20):
            subprocess.run(["sh", "-c", "true & true &"], check=True)
        end = time.process_time() + 0.3
        while time.process_time() < end:
            pass
        os._exit(3)

    job = await executor.submit(work)

    with pytest.raises(ChildKilledError, match="exit code 3"):
        await job.result()
    usage = await job.usage()
    assert usage.cpu_s >= 0.3


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


async def test_a_function_may_clean_up_when_it_is_terminated(executor: BatchExecutor) -> None:
    def work() -> None:
        try:
            print("started", flush=True)
            time.sleep(600)  # until the test, or what it tests, ends it
        except KeyboardInterrupt as stop:
            print(f"cleaning up after {type(stop).__name__}", flush=True)
            raise

    job = await executor.submit(work)
    async for _ in job.logs(follow=True):
        await job.cancel()
        break

    with pytest.raises(JobCancelledError) as caught:
        await job.result()
    assert "cleaning up after TaskTerminated" in caught.value.stdout


async def test_every_attempt_of_a_failing_task_runs_and_the_last_error_is_raised(
    executor: BatchExecutor,
) -> None:
    @executor.task(retry_attempts=3, retry_on="failure")
    def work() -> None:
        import os

        raise RuntimeError(f"attempt {os.environ['AWS_BATCH_JOB_ATTEMPT']}")

    with pytest.raises(RuntimeError, match="attempt 3"):
        await work()


async def test_a_failing_task_is_final_by_default(
    executor: BatchExecutor,
) -> None:
    @executor.task(retry_attempts=3)
    def work() -> None:
        import os

        raise RuntimeError(f"attempt {os.environ['AWS_BATCH_JOB_ATTEMPT']}")

    with pytest.raises(RuntimeError, match="attempt 1"):
        await work()


@pytest.mark.slow  # no time limit of Batch's is below 60 s
async def test_a_function_learns_that_its_time_is_up_and_keeps_its_output(
    executor: BatchExecutor,
) -> None:
    def work() -> None:
        try:
            print("started", flush=True)
            time.sleep(600)  # until the test, or what it tests, ends it
        finally:
            print("cleaned up", flush=True)

    job = await executor.with_options(time_limit=60).submit(work)

    with pytest.raises(JobTimeoutError, match="raise time_limit") as caught:
        await job.result()
    assert "started\ncleaned up\n" == caught.value.stdout
    detail = await job.detail()
    assert "timeout" not in detail.status_reason  # it was told before Batch would have ended it


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


async def test_an_exception_that_refuses_attributes_is_raised_all_the_same(
    executor: BatchExecutor,
) -> None:
    class FrozenError(Exception):
        def __setattr__(self, name: str, value: object) -> None:
            raise AttributeError(name)

    def work() -> None:
        raise FrozenError("as it was")

    with pytest.raises(FrozenError, match="as it was"):
        await executor.task(work)()
