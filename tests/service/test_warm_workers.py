"""Warm workers on Kubernetes, and beyond their memory.

Starts a local Kubernetes emulator and a strict AWS emulator, because pods are killed and the
memory of jobs is limited.
"""

import os
import signal
import sys
from pathlib import Path

import pytest

from farcall import BatchExecutor
from farcall_local import start
from farcall_local.runners import strict
from tests import emulators

pytestmark = pytest.mark.usefixtures("module_travels")

LACK = strict.missing() if sys.platform == "linux" else "not Linux"
OPTIONS = {"vcpu": 1, "linger_s": 0.01, "sources": None}


def worker():
    """Return the worker's process, which has forked the task runner, which has forked this one."""
    status = Path(f"/proc/{os.getppid()}/stat").read_text()
    return int(status.rpartition(")")[2].split()[1])


def kill_first_worker(mark):
    if not Path(mark).exists():
        Path(mark).touch()
        os.kill(worker(), signal.SIGKILL)
    return "survived"


def fill(mib):
    return len(bytearray(mib * 2**20))


async def test_call_of_killed_pod_runs_again(monkeypatch, tmp_path):
    with emulators.start(kubernetes=True, cpus=4) as aws:
        for name, value in aws.environment.items():
            monkeypatch.setenv(name, value)
        async with BatchExecutor(
            backend="kubernetes", memory=0.5, workers=2, **OPTIONS
        ) as cluster:
            assert await cluster.task(len).map(["a", "bc", "def"]) == [1, 2, 3]
            assert await cluster.task(kill_first_worker)(str(tmp_path / "mark")) == "survived"
            processes = [await cluster.task(worker)() for _ in range(4)]
            assert len(set(processes)) <= 2


# As in tests/local/test_strict.py: strict jobs need namespaces, which only Linux has, and some
# containers do not allow.
@pytest.mark.skipif(bool(LACK), reason=LACK)
async def test_call_without_memory_gets_job_of_its_own(monkeypatch):
    with start(strict=True, cpus=2) as aws:
        for name, value in aws.environment.items():
            monkeypatch.setenv(name, value)
        options = {**OPTIONS, "memory": [0.125, 1], "retry_attempts": 1}
        async with BatchExecutor(workers=1, **options) as executor:
            assert await executor.task(len)("ab") == 2
            job = await executor.submit(fill, 400)
            assert await job.result() == 400 * 2**20
            assert (await job.detail()).memory_mib == 1024
            assert not job.id.startswith("call-")
            assert await executor.task(len)("abc") == 3
