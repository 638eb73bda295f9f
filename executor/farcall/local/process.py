"""Attempts as processes of this machine.

What a container would bring is imitated as far as a process goes: an environment that holds
nothing of the user's, an empty working directory of its own, no standard input, and an end that
takes every process of the group with it. What is not imitated: the image, the memory limit, the
file system, and a program's being PID 1 (which ignores SIGTERM unless it handles it). A program
that moves itself into a session of its own escapes the group and outlives its job, and a server
killed by SIGKILL leaves its running jobs behind.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable
from pathlib import Path

from farcall.local import names
from farcall.local.credentials import RoleCredentials
from farcall.local.runner import AttemptSpec, Exit, Running, StartError

READ_BYTES = 64 * 1024
#: How often a process is looked at where the kernel cannot tell of its end.
POLL_S = 0.02

RUNTIME = "farcall_runtime"


class ProcessRunner:
    """Runs an attempt as a subprocess in a session of its own.

    A definition's image is not pulled; a job without a command runs what farcall's image runs,
    ``python -m farcall_runtime``, with this interpreter. Starting costs one ``vfork`` and no
    thread.

    Args:
        endpoint_url: Of the embedded AWS, given to each job as ``AWS_ENDPOINT_URL``.
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
            "AWS_ENDPOINT_URL": endpoint_url,
            "AWS_REGION": names.REGION,
            "AWS_DEFAULT_REGION": names.REGION,
            "AWS_EC2_METADATA_DISABLED": "true",
            **_runtime_path(),
        }
        self._command = (sys.executable, "-m", RUNTIME)

    async def prepare(self, spec: AttemptSpec) -> None:
        """Do nothing: a process needs no image."""

    async def start(self, spec: AttemptSpec) -> Running:
        """Start the command, or farcall's runtime when there is none."""
        command = spec.command or self._command
        keys = self._credentials.keys(spec.role_arn, spec.task_id)
        environment = {**self._environment, **keys, **spec.environment}
        directory = tempfile.mkdtemp(prefix="farcall-job-")
        reader, writer = os.pipe()
        try:
            # Popen blocks the loop for the millisecond until exec has worked or failed. The
            # program is looked up in the job's PATH.
            process = subprocess.Popen(  # noqa: ASYNC220, S603
                command,
                stdin=subprocess.DEVNULL,
                stdout=writer,
                stderr=writer,
                cwd=directory,
                env=environment,
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            os.close(reader)
            shutil.rmtree(directory, ignore_errors=True)
            raise StartError(_cannot_start(command[0], error)) from error
        finally:
            os.close(writer)
        return _Process(process, reader, directory, spec.output)

    async def close(self) -> None:
        """Do nothing: each process has let go of what was its own."""


class _Process:
    """A running attempt: the process, its output and its directory."""

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        reader: int,
        directory: str,
        output: Callable[[bytes], None],
    ) -> None:
        self._process = process
        self._reader = reader
        self._directory = directory
        self._output = output
        os.set_blocking(reader, False)
        asyncio.get_running_loop().add_reader(reader, self._pump)

    async def wait(self) -> Exit:
        try:
            await _exited(self._process)
        finally:
            # What the main process left behind dies with the container. Before the process is
            # reaped its number cannot belong to another group.
            self.kill()
            code = self._process.wait()
            self._close()
            try:
                os.rmdir(self._directory)  # noqa: PTH106 - mostly empty, and then no thread
            except OSError:
                await asyncio.to_thread(shutil.rmtree, self._directory, ignore_errors=True)
        return Exit(128 - code if code < 0 else code)

    def terminate(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        # macOS answers EPERM for a group that holds nothing but a zombie.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)

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
    text = (
        "executable file not found in $PATH"
        if isinstance(error, FileNotFoundError)
        else getattr(error, "strerror", None) or str(error)
    )
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
