"""Jobs that are forked from a process with the runtime loaded, next to jobs in new processes.

Starts the local AWS emulator and its fork server, because the tests kill it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import resource
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import psutil
import pytest

from farcall import JobError
from farcall_local import start
from tests.support.patience import until, until_async

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="jobs are forked on Linux")

#: Read at interpreter startup, so a job with this variable cannot be forked.
EARLY = {"name": "PYTHONNODEBUGRANGES", "value": "1"}


def is_alive(process):
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


#: This file lists adopted child processes; not every kernel has it.
needs_children = pytest.mark.skipif(
    not Path(f"/proc/self/task/{os.getpid()}/children").exists(), reason="an unusual kernel"
)


def wait_with_others(path):
    """Start two programs, the second in a new session, write their PIDs, and wait."""
    others = [
        subprocess.Popen(["sleep", "600"], start_new_session=own).pid for own in (False, True)
    ]
    path.with_name("new").write_text(json.dumps(others))
    path.with_name("new").rename(path)
    time.sleep(600)  # until the test ends it


def others_in(path):
    return [psutil.Process(pid) for pid in json.loads(path.read_text())]


async def start_with_others(executor, folder):
    """Start a job that waits; return it and the programs that it has started."""
    said = folder / "others"
    job = await executor.submit(wait_with_others, said)
    await until_async(said.exists)
    return job, others_in(said)


@contextlib.contextmanager
def running_with_others(environment, folder):
    """Start such a job with a separate client, which is killed afterward."""
    source = """
        import asyncio, sys
        from pathlib import Path
        from farcall import BatchExecutor
        from tests.local.test_forking import start_with_others
        async def main():
            async with BatchExecutor() as executor:
                job, _ = await start_with_others(executor, Path(sys.argv[1]))
                await job.result()
        asyncio.run(main())
    """
    path = os.pathsep.join(filter(None, sys.path))
    client = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(source), str(folder)],
        env={**os.environ, **environment, "PYTHONPATH": path},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        until((folder / "others").exists)
        yield others_in(folder / "others")
    finally:
        client.kill()
        client.wait()


def with_variables(*variables):
    return {"containerProperties": {"environment": list(variables)}}


def surroundings():
    """Return the properties of a process that must not depend on how it was started."""
    pid = os.getpid()
    supervisor = os.getppid()

    folder = Path("/proc/self/fd")
    links = [path.readlink() for path in folder.iterdir() if path.is_symlink()]

    own = Path.cwd()
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("AWS_", "FARCALL_", "PYTHON", "TMPDIR"))
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


async def test_forked_job_has_same_environment(make_executor):
    async with (
        make_executor(sources=None) as warm,
        make_executor(sources=None, job_definition_extra=with_variables(EARLY)) as cold,
    ):
        forked, started = await asyncio.gather(
            warm.task(surroundings)(), cold.task(surroundings)()
        )
    assert started == forked


async def test_jobs_are_isolated(executor):
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


async def test_killed_fork_server_is_replaced(make_executor, tmp_path):
    """Its running jobs fail once, and later jobs start as usual."""

    def parents():
        return [process.pid for process in psutil.Process().parents()]

    async with make_executor(retry_attempts=1) as executor:
        _, server, *_ = await executor.task(parents)()
        job, others = await start_with_others(executor, tmp_path)
        running = psutil.Process(server).children(recursive=True)
        assert set(others[:1]) < set(running)

        os.kill(server, signal.SIGKILL)

        with pytest.raises(JobError, match="The process that forks jobs was killed"):
            await job.result()
        # The last program has its own session, and no parent adopts it.
        await until_async(lambda: not any(map(is_alive, {*running} - {others[-1]})))
        _, other, *_ = await executor.task(parents)()
        assert server != other
    others[-1].kill()


@needs_children
async def test_killed_job_ends_its_programs(make_executor, aws, tmp_path):
    """Including programs in another session."""
    async with make_executor() as executor:
        job, others = await start_with_others(executor, tmp_path)
        aws.reclaim(job.id)
        with pytest.raises(JobError, match="Host EC2"):
            await job.result()
    await until_async(lambda: not any(map(is_alive, others)))


async def test_killed_unforked_job_ends_its_session(make_executor, aws, tmp_path):
    async with make_executor(job_definition_extra=with_variables(EARLY)) as executor:
        job, others = await start_with_others(executor, tmp_path)
        aws.reclaim(job.id)
        with pytest.raises(JobError, match="Host EC2"):
            await job.result()
    await until_async(lambda: not is_alive(others[0]))
    others[-1].kill()


@needs_children
def test_stopped_server_ends_all_processes(tmp_path, capfd):
    """The server exits cleanly and prints nothing while a job is running."""
    with start(cpus=1) as aws, running_with_others(aws.environment, tmp_path) as others:
        aws.stop()
        assert (0, "") == (aws._process.returncode, capfd.readouterr().err)
        assert not any(map(is_alive, others))
