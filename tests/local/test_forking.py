"""Jobs that are forked by a process which has the runtime, beside jobs that start from nothing."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from farcall import JobError
from patience import until_async

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="jobs are forked on Linux")

#: Read by an interpreter before anything else, so a job that has it starts from nothing.
EARLY = {"name": "PYTHONNODEBUGRANGES", "value": ""}


def lives(process):
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def with_variables(*variables):
    return {"containerProperties": {"environment": list(variables)}}


def surroundings():
    """Return what a function finds, by whichever way its process came to be."""
    pid = os.getpid()
    supervisor = os.getppid()

    folder = Path("/proc/self/fd")
    links = [path.readlink() for path in folder.iterdir() if path.is_symlink()]

    own = Path.cwd()
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("AWS_", "FARCALL_", "PYTHON"))
    }
    return {
        "environment": environment,
        "names": sorted(name for name in os.environ if not name.startswith("PYTHON")),
        "arguments": sys.argv,
        "flags": str(sys.flags),
        "path": [entry for entry in sys.path if entry != str(own)],
        "first in path": sys.path[0] == str(own),
        "folder": (own.name.startswith("farcall-job-"), list(own.iterdir())),
        "main": sys.modules["__main__"].__spec__.name,
        "session": (os.getsid(pid) == supervisor, os.getpgid(supervisor) == supervisor),
        "signals": {
            number: str(signal.getsignal(number))
            for number in sorted(signal.valid_signals())
            if number != signal.SIGTERM  # a function of the runtime, at an address
        },
        "blocked": signal.pthread_sigmask(signal.SIG_BLOCK, ()),
        "umask": os.umask(0o022),
        "limits": [resource.getrlimit(number) for number in range(16)],
        "threads": threading.active_count(),
        "descriptors": sorted(str(link).partition(":")[0] for link in links),
        "streams": [
            (stream.encoding, stream.errors, stream.line_buffering)
            for stream in (sys.stdout, sys.stderr)
        ],
        "zone": time.tzname,
        "executable": sys.executable,
    }


async def test_a_forked_job_finds_what_one_finds_that_starts_from_nothing(make_executor):
    async with (
        make_executor() as warm,
        make_executor(job_definition_extra=with_variables(EARLY)) as cold,
    ):
        forked, started = await asyncio.gather(
            warm.task(surroundings)(), cold.task(surroundings)()
        )
    assert started == forked


async def test_no_job_finds_anything_of_another(executor):
    def leave_traces():
        os.environ["TRACE"] = "left"
        sys.modules["trace_of_a_job"] = sys
        os.chdir("/")

    def look():
        return os.environ.get("TRACE"), "trace_of_a_job" in sys.modules, str(Path.cwd())

    await executor.task(leave_traces)()
    folders = set()
    for _ in range(3):
        trace, module, folder = await executor.task(look)()
        assert (None, False) == (trace, module)
        folders.add(folder)
    assert len(folders) == 3


async def test_a_fork_server_that_was_killed_is_replaced(make_executor):
    """Whose jobs were running fail, once each, and the next ones start as ever."""

    def parents():
        return [process.pid for process in psutil.Process().parents()]

    def wait():
        time.sleep(600)  # until the test ends it

    async with make_executor(retry_attempts=1) as executor:
        _, server, *_ = await executor.task(parents)()
        job = await executor.submit(wait)
        await until_async(lambda: len(psutil.Process(server).children()) == 1, 30)
        running = psutil.Process(server).children(recursive=True)

        os.kill(server, signal.SIGKILL)

        with pytest.raises(JobError, match="The process that forks jobs was killed"):
            await job.result()
        for process in running:  # a zombie waits for this machine's init
            await until_async(lambda process=process: not lives(process), 30)
        _, other, *_ = await executor.task(parents)()
        assert server != other
