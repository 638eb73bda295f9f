"""Attempts as processes of this machine.

What a container would bring is imitated as far as a process goes: an environment that holds
nothing of the user's, an empty working directory of its own, no standard input, and an end that
takes every process with it. What is not imitated: the image, the memory limit, the file system,
and a program's being PID 1 (which ignores SIGTERM unless it handles it). Of a job that has a
command of its own, a program that moves itself into another session outlives it, and a server
killed by SIGKILL leaves it running. Without ``/proc`` nothing outside of a job's first process
group is found.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import importlib.util
import itertools
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from farcall_local import names
from farcall_local.runners.credentials import RoleCredentials
from farcall_local.runners.runner import AttemptSpec, Exit, Running, StartError
from farcall_local.runners.stock_python import StockPythons, minor_of
from farcall_runtime.contract import module_arguments

READ_BYTES = 64 * 1024
#: How often a process is looked at where the kernel cannot tell of its end.
POLL_S = 0.02
#: Seconds in which the process that forks jobs takes a request, and in which it has ended after
#: the last; less than `farcall_local.launch.STOP_TIMEOUT_S`.
FORK_SERVER_TIMEOUT_S = 5.0

RUNTIME = "farcall_runtime"
#: How the names of jobs' folders begin; the job's ID and the attempt's number follow.
FOLDER = "farcall-job-"

_FORKING = Path(__file__).with_name("forking.py")
#: Of a request's length, as there: it cannot be imported here without the runtime.
_LENGTH_BYTES = 4
_FORK_SERVER_GONE = "The process that forks jobs was killed"
_RUN = (
    "import sys; sys.path[:] = filter(None, sys.path); import runpy; "
    "runpy.run_path(sys.argv[1], run_name='__main__')"
)
#: Begin the names of variables that are read before a program's first line.
_EARLY = ("PYTHON", "LD_", "MALLOC_", "GLIBC_", "LANG", "LC_")


class ProcessRunner:
    """Runs an attempt as a process in a session of its own.

    A definition's image is not pulled, but Docker's official one of Python is played
    (`farcall_local.runners.stock_python`). A job without a command runs what farcall's image runs,
    ``python -m farcall_runtime``, with this interpreter. On Linux such a job is forked by a
    process that has imported the runtime already (`farcall_local.runners.forking`), which saves it
    an interpreter's start and its imports; any other one costs a ``vfork``. Each has its own
    environment, folder, session and descriptors, whichever way it came to be.

    Args:
        endpoint_url: Of the local AWS emulator, given to each job as ``AWS_ENDPOINT_URL``.
        credentials: Gives a job its keys, in its environment.
    """

    def __init__(self, endpoint_url: str, credentials: RoleCredentials) -> None:
        self._credentials = credentials
        self._environment = {
            "PATH": os.pathsep.join(
                [str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]
            ),
            "HOME": os.environ.get("HOME", "/"),
            "LANG": os.environ.get("LANG", "C.UTF-8"),
            **_runtime_path(),
        }
        self._place = {
            "AWS_ENDPOINT_URL": endpoint_url,
            "AWS_REGION": names.REGION,
            "AWS_DEFAULT_REGION": names.REGION,
            "AWS_EC2_METADATA_DISABLED": "true",
        }
        self._command = (sys.executable, *module_arguments(RUNTIME))
        self._forks: _ForkServer | None = None
        self._stock = StockPythons(endpoint_url, credentials)

    async def prepare(self, spec: AttemptSpec) -> None:
        """See that there is an interpreter to play an image of Python; others are not needed."""
        minor = minor_of(spec.image)
        if minor is not None:
            await self._stock.prepare(minor)

    async def start(self, spec: AttemptSpec) -> Running:
        """Start the command, or farcall's runtime when there is none."""
        minor = minor_of(spec.image)
        words = (*spec.entrypoint, *spec.command)
        can_fork = sys.platform == "linux" and not words
        command: tuple[str, ...] = words or self._command
        process: _Process
        with contextlib.ExitStack() as undoing:
            try:
                # What a job unpacks may be on its PYTHONPATH, where a colon separates folders.
                job = spec.job_id.replace(":", ".")
                directory = tempfile.mkdtemp(prefix=f"{FOLDER}{job}-{spec.attempt}-")
                undoing.callback(shutil.rmtree, directory, ignore_errors=True)
                told = _told(spec)
                ended: Callable[[], None] = _nothing
                if minor is None:
                    environment = {**self._environment, **self._aws(spec)}
                else:
                    stock = self._stock.environment(spec, minor)
                    ended = functools.partial(self._stock.revoke, stock)
                    undoing.callback(ended)
                    bare = {k: v for k, v in self._environment.items() if k != "PYTHONPATH"}
                    place = self._place if spec.in_aws else {}
                    environment = {**bare, **place, **stock}
                # A job that is killed cannot remove its temporary files itself.
                environment = {**environment, "TMPDIR": directory, **told}
                reader, writer = os.pipe()
                undoing.callback(os.close, reader)
                try:
                    if can_fork and not any(name.startswith(_EARLY) for name in spec.environment):
                        if self._forks is None or self._forks.is_gone:
                            self._forks = _ForkServer(self._command[0], self._environment)
                        process = await self._forks.start(environment, directory, writer)
                    else:
                        process = _Spawned(command, environment, directory, writer)
                finally:
                    os.close(writer)
            except (OSError, ValueError) as error:
                raise StartError(_cannot_start(command[0], error)) from error
            undoing.pop_all()
        return _Attempt(process, reader, directory, spec.output, ended)

    def _aws(self, spec: AttemptSpec) -> dict[str, str]:
        """Return the variables by which a job finds AWS, and its keys there."""
        if not spec.in_aws:
            return {}
        return {**self._place, **self._credentials.keys(spec.role_arn, spec.task_id)}

    async def close(self) -> None:
        """End the process that forks jobs; each job has let go of what was its own."""
        if self._forks is not None:
            self._forks.close()
        self._stock.close()


def _told(spec: AttemptSpec) -> dict[str, str]:
    """Return a job's variables. One that names a mount point names the host's folder instead.

    A process sees this machine's file system, where nothing is mounted for it.
    """
    return {name: spec.mounts.get(value) or value for name, value in spec.environment.items()}


class _Process(Protocol):
    """The first process of an attempt."""

    async def wait(self) -> int | None:
        """Wait for its end, kill what it left, and return its code: -N after signal N."""

    def terminate(self) -> None:
        """Send SIGTERM to it alone."""

    def kill(self) -> None:
        """Kill it and what it has started."""


class _Spawned:
    """A process that was started with a command."""

    def __init__(
        self, command: tuple[str, ...], environment: dict[str, str], directory: str, output: int
    ) -> None:
        # Popen blocks the loop for the millisecond until exec has worked or failed. The program
        # is looked up in the job's PATH.
        self._process = subprocess.Popen(  # noqa: S603
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            cwd=directory,
            env=environment,
            start_new_session=True,
        )

    async def wait(self) -> int:
        try:
            await _exited(self._process)
        finally:
            # What the main process left behind dies with the container. Before the process is
            # reaped its number cannot belong to another session.
            self.kill()
            code = self._process.wait()
        return code

    def terminate(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        _kill_session(self._process.pid)


class _ForkServer:
    """The process that forks jobs, seen from here; see `farcall_local.runners.forking`."""

    def __init__(self, interpreter: str, environment: dict[str, str]) -> None:
        self._socket, theirs = socket.socketpair()
        self._socket.settimeout(FORK_SERVER_TIMEOUT_S)
        with theirs, contextlib.ExitStack() as undoing:
            undoing.callback(self._socket.close)
            self._process = subprocess.Popen(  # noqa: S603
                # Not as a script, whose folder would be the first in which modules are found.
                (interpreter, "-c", _RUN, str(_FORKING)),
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                cwd="/",
                env=environment,
                start_new_session=True,
            )
            undoing.pop_all()
        self._numbers = itertools.count()
        self._jobs: dict[int, _Forked] = {}
        self._rest = b""
        self.is_gone = False
        asyncio.get_running_loop().add_reader(self._socket, self._listen)

    async def start(self, environment: dict[str, str], directory: str, output: int) -> _Forked:
        """Have a job forked.

        Raises:
            StartError: There is no process to be had.
        """
        job = _Forked(self, next(self._numbers))
        self._jobs[job.number] = job
        self.ask({"job": job.number, "environment": environment, "directory": directory}, output)
        try:
            await asyncio.shield(job.started)
        except asyncio.CancelledError:
            job.kill()
            raise
        return job

    def ask(self, request: dict[str, Any], *descriptors: int) -> None:
        """Send a request."""
        data = json.dumps(request).encode()
        data = len(data).to_bytes(_LENGTH_BYTES, "big") + data
        try:
            sent = socket.send_fds(self._socket, [data], descriptors)
            self._socket.sendall(data[sent:])
        except OSError:
            # It is gone, or takes nothing any more, and may have half of a request. `_listen`
            # sees its end, and the next job has another one started.
            self._process.kill()

    def close(self) -> None:
        """End it, and what it has forked."""
        if self.is_gone:
            return
        self.is_gone = True
        asyncio.get_running_loop().remove_reader(self._socket)
        self._socket.close()
        try:
            self._process.wait(FORK_SERVER_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        for job in self._jobs.values():
            job.lose(still_there=self._process.returncode != 0)

    def _listen(self) -> None:
        try:
            data = self._socket.recv(READ_BYTES, socket.MSG_DONTWAIT)
        except (BlockingIOError, TimeoutError):
            return
        except OSError:
            data = b""
        if not data:
            self._process.kill()
            self.close()
            return
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            answer = json.loads(line)
            job = self._jobs[answer["job"]]
            job.hear(answer)
            if "pid" not in answer:
                del self._jobs[answer["job"]]


class _Forked:
    """A process that was forked for a job.

    Who waits for one of the futures and is cancelled leaves it to whoever sets it.

    Attributes:
        number: By which the fork server knows it.
        started: Done when it is there.
    """

    def __init__(self, server: _ForkServer, number: int) -> None:
        loop = asyncio.get_running_loop()
        self.number = number
        self.started: asyncio.Future[int] = loop.create_future()
        self._ended: asyncio.Future[int | None] = loop.create_future()
        self._server = server

    def hear(self, answer: dict[str, Any]) -> None:
        """Take what the fork server says of it."""
        if "pid" in answer:
            self.started.set_result(answer["pid"])
        elif "code" in answer:
            self._ended.set_result(answer["code"])
        else:
            self._fail(StartError(_cannot_start(RUNTIME, answer["error"])))

    def lose(self, *, still_there: bool) -> None:
        """Go without the fork server, which alone could have told how it ends.

        Args:
            still_there: Whether it may live: the fork server has not killed it before its end.
        """
        if not self.started.done():
            self._fail(StartError(None, _FORK_SERVER_GONE))
            return
        if still_there:
            _kill_session(self.started.result())
        self._ended.set_result(None)

    def _fail(self, error: StartError) -> None:
        self.started.set_exception(error)
        self.started.exception()  # nobody need be there any more, and then asyncio would complain

    async def wait(self) -> int | None:
        try:
            return await asyncio.shield(self._ended)
        finally:
            self.kill()

    def terminate(self) -> None:
        self._server.ask({"job": self.number, "signal": signal.SIGTERM})

    def kill(self) -> None:
        # The server has killed what is left of one that has ended.
        if not self._ended.done():
            self._server.ask({"job": self.number, "signal": signal.SIGKILL})


class _Attempt:
    """A running attempt: the process, its output and its directory."""

    def __init__(
        self,
        process: _Process,
        reader: int,
        directory: str,
        output: Callable[[bytes], None],
        ended: Callable[[], None],
    ) -> None:
        self._ended = ended
        self._process = process
        self._reader = reader
        self._directory = directory
        self._output = output
        os.set_blocking(reader, False)
        asyncio.get_running_loop().add_reader(reader, self._pump)

    async def wait(self) -> Exit:
        try:
            code = await self._process.wait()
        finally:
            self._ended()
            self._close()
            try:
                os.rmdir(self._directory)  # noqa: PTH106 - mostly empty, and then no thread
            except OSError:
                await asyncio.to_thread(shutil.rmtree, self._directory, ignore_errors=True)
        if code is None:
            return Exit(None, _FORK_SERVER_GONE)
        return Exit(128 - code if code < 0 else code)

    def terminate(self) -> None:
        self._process.terminate()

    def kill(self) -> None:
        self._process.kill()

    def _pump(self) -> bool:
        """Pass on what has come; say whether there may be more at once."""
        try:
            data = os.read(self._reader, READ_BYTES)
        except BlockingIOError:
            return False
        if data:
            self._output(data)
        else:
            asyncio.get_running_loop().remove_reader(self._reader)
        return bool(data)

    def _close(self) -> None:
        """Pass on the rest without waiting: an escaped process may hold the pipe open."""
        while self._pump():
            pass
        asyncio.get_running_loop().remove_reader(self._reader)
        os.close(self._reader)


def _nothing() -> None:
    """Do what follows the end of a job that holds nothing."""


def _kill_session(leader: int) -> None:
    """Kill every process of a session, whichever group it is in.

    The runtime has the task in a group of its own, and so has a shell its background jobs.
    """
    # macOS answers EPERM for a group that holds nothing but a zombie.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)
    killed = {leader}
    # What was forked meanwhile is found by another look; what has been killed forks no more.
    while found := _members(leader) - killed:
        for pid in found:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        killed |= found


def _members(session: int) -> set[int]:
    found = set()
    with contextlib.suppress(FileNotFoundError):  # no Linux
        for name in os.listdir("/proc"):  # noqa: PTH208 - names are numbers
            with contextlib.suppress(ProcessLookupError, PermissionError, ValueError):
                if os.getsid(int(name)) == session:
                    found.add(int(name))
    return found


async def _exited(process: subprocess.Popen[bytes]) -> None:
    """Wait until a process has ended, leaving it to be reaped where the kernel allows that."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            descriptor = os.pidfd_open(process.pid)
            try:
                await _readable(descriptor)
            finally:
                os.close(descriptor)
            return
    while process.poll() is None:  # noqa: ASYNC110 - nothing can set an event
        await asyncio.sleep(POLL_S)


async def _readable(descriptor: int) -> None:
    loop = asyncio.get_running_loop()
    event = asyncio.Event()
    loop.add_reader(descriptor, event.set)
    try:
        await event.wait()
    finally:
        loop.remove_reader(descriptor)


def _cannot_start(command: str, error: Exception) -> str:
    text = getattr(error, "strerror", None) or str(error)
    if isinstance(error, FileNotFoundError):
        by_path = f"stat {command}: no such file or directory"
        text = by_path if "/" in command else "executable file not found in $PATH"
    return (
        "CannotStartContainerError: Error response from daemon: failed to create task for "
        f'container: exec: "{command}": {text}'
    )


def _runtime_path() -> dict[str, str]:
    """Return the PYTHONPATH a job needs where farcall is used from a checkout."""
    spec = importlib.util.find_spec(RUNTIME)
    if spec is None or spec.origin is None:
        return {}
    root = Path(spec.origin).parent.parent
    installed = {Path(sysconfig.get_path(name)) for name in ("purelib", "platlib")}
    return {} if root in installed else {"PYTHONPATH": str(root)}
