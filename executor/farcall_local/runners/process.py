"""Attempts as processes of this machine.

A process imitates a container as far as possible: its environment contains nothing of the user's,
it has its own empty working directory and no standard input, and all its processes end with it.
With `farcall_local.runners.strict`, it also has a memory limit and does not see the caller's
folders. Not imitated are the image, the rest of the file system, and PID 1 (which ignores SIGTERM
unless it handles it). If a job has its own command, a program that moves to another session
outlives the job, and continues if the server is killed with SIGKILL. Without ``/proc``, processes
outside the first process group are not found.
"""

from __future__ import annotations

import asyncio
import atexit
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
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from farcall import filesystem
from farcall_local import names
from farcall_local.runners.credentials import RoleCredentials
from farcall_local.runners.runner import AttemptSpec, Exit, Running, StartError
from farcall_local.runners.stock_python import StockPythons, minor_of
from farcall_local.runners.strict import OUT_OF_MEMORY, VARIABLES, MemoryLimit, Strictness
from farcall_runtime.contract import ENV_BUNDLE, ENV_PROJECTS, module_arguments

READ_BYTES = 64 * 1024
#: Interval in seconds between checks of a process if the kernel cannot report its exit.
POLL_S = 0.02
#: Timeout in seconds for a request to the fork server, and for its exit after the last one;
#: less than `farcall_local.launch.STOP_TIMEOUT_S`.
FORK_SERVER_TIMEOUT_S = 5.0

RUNTIME = "farcall_runtime"
#: Prefix of the names of jobs' folders, before the job's ID and the attempt's number.
FOLDER = "farcall-job-"

#: Folder in memory, where Linux has one.
_MEMORY = "/dev/shm"  # noqa: S108 - its contents get unguessable names
_MEMORY_FOLDER = "farcall-projects-"
#: Minimum space in bytes for jobs' project files in memory, which are tens of megabytes.
_LEAST_MEMORY_BYTES = 1024**3

_FORKING = Path(__file__).with_name("forking.py")
#: Size of a request's length, as in `forking`, which cannot be imported without the runtime.
_LENGTH_BYTES = 4
_FORK_SERVER_GONE = "The process that forks jobs was killed"
#: Prefixes of variables that are read before a program's first line.
_EARLY = ("PYTHON", "LD_", "MALLOC_", "GLIBC_", "LANG", "LC_")


class ProcessRunner:
    """Runner that runs an attempt as a process in its own session.

    A definition's image is not pulled. A local interpreter emulates Docker's official Python image
    (`farcall_local.runners.stock_python`). A job without a command runs the command of the farcall
    image, ``python -m farcall_runtime``, with this interpreter. On Linux such a job is forked from
    a process that has already imported the runtime (`farcall_local.runners.forking`), which saves
    the interpreter's start and imports; other jobs use ``vfork``. Each job has its own
    environment, folder, session and descriptors in both cases.

    Args:
        endpoint_url: URL of the local AWS emulator, each job's ``AWS_ENDPOINT_URL``.
        credentials: Creates a job's keys for its environment.
        idle: Keeps the fork server when the runner is closed; None to stop it.
        strict: Rules of strict jobs; None for jobs that see this machine.
    """

    def __init__(
        self,
        endpoint_url: str,
        credentials: RoleCredentials,
        idle: IdleForkServer | None = None,
        strict: Strictness | None = None,
    ) -> None:
        self._strict = strict
        self._credentials = credentials
        self._environment = {
            "PATH": os.pathsep.join(
                [str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]
            ),
            "HOME": os.environ.get("HOME", "/"),
            "LANG": os.environ.get("LANG", "C.UTF-8"),
            **(VARIABLES if strict else {}),
            **_runtime_path(),
        }
        self._endpoint = {
            "AWS_ENDPOINT_URL": endpoint_url,
            "AWS_REGION": names.REGION,
            "AWS_DEFAULT_REGION": names.REGION,
            "AWS_EC2_METADATA_DISABLED": "true",
        }
        self._command = (sys.executable, *module_arguments(RUNTIME))
        self._forks: _ForkServer | None = None
        self._idle = idle
        self._stock = StockPythons(endpoint_url, credentials)
        self._projects = _folder_in_memory()

    async def prepare(self, spec: AttemptSpec) -> None:
        """Create an interpreter for a Python image; other images are not needed."""
        minor = minor_of(spec.image)
        if minor is not None:
            await self._stock.prepare(minor)

    async def start(self, spec: AttemptSpec) -> Running:
        """Start the command, or farcall's runtime if there is none."""
        minor = minor_of(spec.image)
        words = (*spec.entrypoint, *spec.command)
        can_fork = sys.platform == "linux" and not words and not self._strict
        if self._strict:
            self._strict.check(spec)
        if not words and spec.image != names.IMAGE and ENV_BUNDLE not in spec.environment:
            raise StartError(
                f"CannotStartContainerError: the local AWS emulator does not know the default "
                f"command of {spec.image}, because its jobs are processes; pass a command"
            )
        command: tuple[str, ...] = words or self._command
        process: _Spawned | _Forked
        with contextlib.ExitStack() as undoing:
            try:
                # The folder may be on the job's PYTHONPATH, in which a colon separates folders.
                job = spec.job_id.replace(":", ".")
                directory = tempfile.mkdtemp(prefix=f"{FOLDER}{job}-{spec.attempt}-")
                undoing.callback(shutil.rmtree, directory, ignore_errors=True)
                projects = directory
                if self._projects:
                    projects = f"{self._projects}/{Path(directory).name}"
                    os.mkdir(projects, 0o700)  # noqa: PTH102
                    undoing.callback(shutil.rmtree, projects, ignore_errors=True)
                variables = _variables(spec)
                environment, ended = self._variables(spec, minor)
                undoing.callback(ended)
                # A job that is killed cannot remove its temporary files itself.
                own = {"TMPDIR": directory, ENV_PROJECTS: projects}
                environment = {**environment, **own, **variables}
                if self._strict:
                    environment["HOME"] = _home(variables, directory)
                    needed = (directory, projects, *self._needed(spec))
                    command = self._strict.command(command, environment["PATH"], needed)
                reader, writer = os.pipe()
                undoing.callback(os.close, reader)
                try:
                    if can_fork and not any(name.startswith(_EARLY) for name in spec.environment):
                        process = await self._fork_server().start(environment, directory, writer)
                    else:
                        process = _Spawned(command, environment, directory, writer)
                finally:
                    os.close(writer)
            except (OSError, ValueError) as error:
                raise StartError(_cannot_start(command[0], error)) from error
            undoing.pop_all()
        limit = None
        if self._strict and spec.memory_mib and isinstance(process, _Spawned):
            limit = MemoryLimit(process.pid, spec.memory_mib, process.kill)
        return _Attempt(process, reader, (projects, directory), spec.output, ended, limit)

    def _fork_server(self) -> _ForkServer:
        if self._forks is None or self._forks.is_gone:
            kept = self._idle and self._idle.take()
            self._forks = kept or _ForkServer(self._command[0], self._environment)
        return self._forks

    def _variables(
        self, spec: AttemptSpec, minor: str | None
    ) -> tuple[dict[str, str], Callable[[], None]]:
        """Return the variables of a job's image and AWS, and what to call at the job's end."""
        if minor is None:
            return {**self._environment, **self._aws(spec)}, _do_nothing
        stock = self._stock.environment(spec, minor)
        bare = {k: v for k, v in self._environment.items() if k != "PYTHONPATH"}
        endpoint = self._endpoint if spec.in_aws else {}
        return {**bare, **endpoint, **stock}, functools.partial(self._stock.revoke, stock)

    def _needed(self, spec: AttemptSpec) -> list[str]:
        """Return the folders that a strict job sees, in addition to its own."""
        roots = self._environment.get("PYTHONPATH", "").split(os.pathsep)
        return [*filter(None, roots), *self._stock.folders(), *spec.mounts.values()]

    def _aws(self, spec: AttemptSpec) -> dict[str, str]:
        """Return the variables with a job's AWS endpoint and keys."""
        if not spec.in_aws:
            return {}
        return {**self._endpoint, **self._credentials.keys(spec.role_arn, spec.task_id)}

    async def close(self) -> None:
        """Stop the fork server; each job has already released its own resources."""
        if self._forks is not None and not (self._idle and self._idle.keep(self._forks)):
            self._forks.close()
        self._stock.close()
        if self._projects:
            await asyncio.to_thread(shutil.rmtree, self._projects, ignore_errors=True)


def _folder_in_memory() -> str:
    """Create a folder in memory for jobs' project files; return "" where that is impossible.

    Each job unpacks its project, and some file systems create files slowly: ext4 without a journal
    examines all inodes that were deleted in the last minute.
    """
    if sys.platform != "linux":
        return ""
    try:
        about = os.statvfs(_MEMORY)
        if about.f_flag & os.ST_NOEXEC or about.f_bavail * about.f_frsize < _LEAST_MEMORY_BYTES:
            return ""
        filesystem.remove_folders(_MEMORY_FOLDER, _MEMORY)
        prefix = f"{_MEMORY_FOLDER}{filesystem.identity(os.getpid())}-"
        return tempfile.mkdtemp(prefix=prefix, dir=_MEMORY)
    except OSError:
        return ""


def _variables(spec: AttemptSpec) -> dict[str, str]:
    """Return a job's variables, with mount points replaced by the host's folders.

    A process uses this machine's file system, in which nothing is mounted for it.
    """
    return {name: spec.mounts.get(value) or value for name, value in spec.environment.items()}


def _home(variables: Mapping[str, str], directory: str) -> str:
    """Return a strict job's HOME; the folder of its own stands for a container's /tmp."""
    home = variables.get("HOME", "/tmp")  # noqa: S108
    return directory if home == "/tmp" else home  # noqa: S108


class _Spawned:
    """Process that was started with a command.

    Like `_Forked`, it has `wait`, which waits for its end, kills its orphans and returns its code
    (-N after signal N); `terminate`, which sends SIGTERM to this process only; and `kill`, which
    kills it and its child processes.
    """

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

    @property
    def pid(self) -> int:
        """ID of the process, and of its session."""
        return self._process.pid

    async def wait(self) -> int:
        try:
            await _exited(self._process)
        finally:
            # Processes that the main process left die with the container. Until the process is
            # reaped, its number cannot belong to another session.
            self.kill()
            code = self._process.wait()
        return code

    def terminate(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        _kill_session(self._process.pid)


class _ForkServer:
    """Client of the process that forks jobs; see `farcall_local.runners.forking`."""

    def __init__(self, interpreter: str, environment: dict[str, str]) -> None:
        self._socket, theirs = socket.socketpair()
        self._socket.settimeout(FORK_SERVER_TIMEOUT_S)
        with theirs, contextlib.ExitStack() as undoing:
            undoing.callback(self._socket.close)
            self._process = subprocess.Popen(  # noqa: S603
                # -P: the script's folder is not the first in which modules are found.
                (interpreter, "-P", str(_FORKING)),
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
        self.attach()

    @property
    def is_idle(self) -> bool:
        """Whether it has no jobs."""
        return not (self.is_gone or self._jobs)

    @property
    def is_running(self) -> bool:
        """Whether its process runs."""
        return self._process.poll() is None

    def attach(self) -> None:
        """Receive its messages on the running event loop."""
        asyncio.get_running_loop().add_reader(self._socket, self._receive)

    def detach(self) -> None:
        """Stop receiving its messages on the running event loop."""
        asyncio.get_running_loop().remove_reader(self._socket)

    async def start(self, environment: dict[str, str], directory: str, output: int) -> _Forked:
        """Request a fork for a job.

        Raises:
            StartError: The fork server cannot be started.
        """
        job = _Forked(self, next(self._numbers))
        self._jobs[job.number] = job
        self.send({"job": job.number, "environment": environment, "directory": directory}, output)
        try:
            await asyncio.shield(job.started)
        except asyncio.CancelledError:
            job.kill()
            raise
        return job

    def send(self, request: dict[str, Any], *descriptors: int) -> None:
        """Send a request."""
        data = json.dumps(request).encode()
        data = len(data).to_bytes(_LENGTH_BYTES, "big") + data
        try:
            sent = socket.send_fds(self._socket, [data], descriptors)
            self._socket.sendall(data[sent:])
        except OSError:
            # The fork server has exited or is stuck, possibly with a partial request. `_receive`
            # detects its end, and the next job starts another one.
            self._process.kill()

    def close(self) -> None:
        """Stop the fork server and its jobs."""
        if self.is_gone:
            return
        self.is_gone = True
        self.detach()
        self.end()
        for job in self._jobs.values():
            job.lose(still_there=self._process.returncode != 0)

    def end(self) -> None:
        """End its process."""
        self._socket.close()
        try:
            self._process.wait(FORK_SERVER_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _receive(self) -> None:
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
            message = json.loads(line)
            job = self._jobs[message["job"]]
            job.handle(message)
            if "pid" not in message:
                del self._jobs[message["job"]]


class IdleForkServer:
    """Fork server without jobs, kept for this process's next runner."""

    def __init__(self) -> None:
        self._kept: _ForkServer | None = None
        self._owner = 0
        self._lock = threading.Lock()
        atexit.register(self._end)

    def take(self) -> _ForkServer | None:
        """Return the fork server, if there is one, with its messages on the running loop."""
        with self._lock:
            server, self._kept = self._kept, None
        if server is None or self._owner != os.getpid():  # after a fork it is the parent's
            return None
        if not server.is_running:
            server.end()
            return None
        server.attach()
        return server

    def keep(self, server: _ForkServer) -> bool:
        """Keep a fork server of the running loop; return whether it was kept."""
        with self._lock:
            if self._kept is not None or not server.is_idle:
                return False
            self._kept, self._owner = server, os.getpid()
        server.detach()
        return True

    def _end(self) -> None:
        if self._kept is not None and self._owner == os.getpid():
            self._kept.end()


class _Forked:
    """Process that was forked for a job.

    A waiter that is cancelled leaves the future to the fork server's client.

    Attributes:
        number: The process's number on the fork server.
        started: Done when the process exists.
    """

    def __init__(self, server: _ForkServer, number: int) -> None:
        loop = asyncio.get_running_loop()
        self.number = number
        self.started: asyncio.Future[int] = loop.create_future()
        self._ended: asyncio.Future[int | None] = loop.create_future()
        self._server = server

    def handle(self, message: dict[str, Any]) -> None:
        """Handle a fork server's message about this process."""
        if "pid" in message:
            self.started.set_result(message["pid"])
        elif "code" in message:
            self._ended.set_result(message["code"])
        else:
            self._fail(StartError(_cannot_start(RUNTIME, message["error"])))

    def lose(self, *, still_there: bool) -> None:
        """Continue without the fork server, the only source of the exit code.

        Args:
            still_there: Whether the process may be alive, because the fork server has not killed
                it.
        """
        if not self.started.done():
            self._fail(StartError(None, _FORK_SERVER_GONE))
            return
        if still_there:
            _kill_session(self.started.result())
        self._ended.set_result(None)

    def _fail(self, error: StartError) -> None:
        self.started.set_exception(error)
        self.started.exception()  # retrieved, because asyncio logs exceptions without a waiter

    async def wait(self) -> int | None:
        try:
            return await asyncio.shield(self._ended)
        finally:
            self.kill()

    def terminate(self) -> None:
        self._server.send({"job": self.number, "signal": signal.SIGTERM})

    def kill(self) -> None:
        # If the process has ended, the server has killed its remaining child processes.
        if not self._ended.done():
            self._server.send({"job": self.number, "signal": signal.SIGKILL})


class _Attempt:
    """Running attempt: the process, its output and its folders."""

    def __init__(
        self,
        process: _Spawned | _Forked,
        reader: int,
        folders: tuple[str, ...],
        output: Callable[[bytes], None],
        ended: Callable[[], None],
        limit: MemoryLimit | None = None,
    ) -> None:
        self._ended = ended
        self._limit = limit
        self._process = process
        self._reader = reader
        self._folders = folders
        self._output = output
        os.set_blocking(reader, False)
        asyncio.get_running_loop().add_reader(reader, self._pump)

    async def wait(self) -> Exit:
        try:
            code = await self._process.wait()
        finally:
            self._ended()
            if self._limit:
                self._limit.close()
            self._close()
            for folder in self._folders:
                try:
                    os.rmdir(folder)  # noqa: PTH106 - mostly empty, and then no thread
                except FileNotFoundError:
                    pass
                except OSError:
                    await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
        if code is None:
            return Exit(None, _FORK_SERVER_GONE)
        reason = OUT_OF_MEMORY if self._limit and self._limit.was_exceeded else None
        return Exit(128 - code if code < 0 else code, reason)

    def terminate(self) -> None:
        self._process.terminate()

    def kill(self) -> None:
        self._process.kill()

    def _pump(self) -> bool:
        """Forward available output; return whether more may be ready."""
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
        """Forward the rest without waiting; an escaped process may hold the pipe open."""
        while self._pump():
            pass
        asyncio.get_running_loop().remove_reader(self._reader)
        os.close(self._reader)


def _do_nothing() -> None:
    """No-op callback for the end of a job that holds no resources."""


def _kill_session(leader: int) -> None:
    """Kill every process of a session, in all process groups.

    The runtime runs the task in its own group, and shells do so for background jobs.
    """
    # macOS returns EPERM for a group that only contains a zombie.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)
    killed = {leader}
    # Another pass finds processes forked meanwhile; killed processes do not fork any more.
    while members := _members(leader) - killed:
        for pid in members:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        killed |= members


def _members(session: int) -> set[int]:
    pids = set()
    with contextlib.suppress(FileNotFoundError):  # not Linux
        for name in os.listdir("/proc"):  # noqa: PTH208 - names are numbers
            with contextlib.suppress(ProcessLookupError, PermissionError, ValueError):
                if os.getsid(int(name)) == session:
                    pids.add(int(name))
    return pids


async def _exited(process: subprocess.Popen[bytes]) -> None:
    """Wait until a process has exited, without reaping it if the kernel allows that."""
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
    """Return the PYTHONPATH that a job needs if farcall runs from a checkout."""
    spec = importlib.util.find_spec(RUNTIME)
    if spec is None or spec.origin is None:
        return {}
    root = Path(spec.origin).parent.parent
    installed = {Path(sysconfig.get_path(name)) for name in ("purelib", "platlib")}
    return {} if root in installed else {"PYTHONPATH": str(root)}
