"""Jobs of a strict emulator: what a container on AWS lacks.

Starts a local AWS emulator, because its rules depend on its own working directory and home.
"""

import os
import sys
from pathlib import Path

import pytest

from farcall import BatchExecutor, CommandError, ImageError, OutOfMemoryError
from farcall_local import start
from farcall_local.runners import strict
from farcall_local.runners.strict import Strictness
from farcall_runtime.contract import THREAD_COUNTS

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has namespaces")

LACK = strict.missing() if sys.platform == "linux" else "not Linux"


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    folder = tmp_path_factory.mktemp("home")
    for name in ("project", "temporary"):
        (folder / name).mkdir()
        (folder / name / "mine").touch()
    return folder


@pytest.fixture(scope="module")
def emulator(home):
    with pytest.MonkeyPatch.context() as context:
        context.chdir(home / "project")
        context.setenv("HOME", str(home))
        context.setenv("TMPDIR", str(home / "temporary"))
        context.setenv("MINE", "1")
        with start(strict=True, cpus=2) as aws:
            yield aws.environment


@pytest.fixture
async def executor(emulator, monkeypatch):
    for name, value in emulator.items():
        monkeypatch.setenv(name, value)
    async with BatchExecutor(vcpu=1, memory=0.125, retry_attempts=1, sources=None) as executor:
        yield executor


@pytest.mark.skipif(bool(LACK), reason=LACK)
async def test_callers_folders_are_hidden(executor, home):
    """Except the job's own folder, which is in the caller's folder for temporary files."""

    def seen(home):
        return sorted(home.rglob("*")) == [home / "temporary", Path(os.environ["TMPDIR"])]

    assert await (await executor.submit(seen, home)).result()
    assert (home / "project" / "mine").exists()


async def test_job_has_variables_of_container(executor):
    def variables():
        is_own = os.environ["HOME"] == os.environ["TMPDIR"]
        return is_own, [name for name in os.environ if not name.startswith("AWS_")]

    is_own, names = await (await executor.submit(variables)).result()
    farcalls = {"PYTHONPATH", *THREAD_COUNTS}
    assert is_own
    assert set(names) - farcalls == {"HOME", "LANG", "PATH", "TMPDIR"}


async def test_job_beyond_its_memory_is_killed(executor):
    def fill():
        import time

        filled = b"x" * (256 * 1024 * 1024)
        time.sleep(600)  # until it is killed
        return len(filled)

    with pytest.raises(OutOfMemoryError, match="Container killed due to memory usage"):
        await (await executor.submit(fill)).result()


async def test_missing_gpu_is_rejected(executor):
    with pytest.raises(ImageError, match="the job needs 99 GPUs, and this machine has"):
        await (await executor.with_options(num_gpus=99).submit(print)).result()


async def test_missing_program_fails_at_start(executor):
    job = await executor.command("any", ["no-such-program"])
    with pytest.raises(CommandError, match="executable file not found"):
        await job.wait()


def test_system_without_namespaces_hides_nothing(monkeypatch, tmp_path):
    monkeypatch.setattr(strict, "_LAUNCHER", tmp_path / "none")
    assert "jobs see your folders" in strict.missing()
    assert Strictness(can_hide=False).command(("true",), "/bin", []) == ("true",)


def test_strict_containers_are_rejected():
    with pytest.raises(ValueError, match="leave out docker"):
        start(strict=True, docker=True)
