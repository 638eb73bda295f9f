"""Strict jobs: processes with a container's variables, folders, memory and GPUs."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

from farcall_local.runners.runner import AttemptSpec, StartError

#: Container's reason on Batch for a container that used more memory than its limit.
OUT_OF_MEMORY = "OutOfMemoryError: Container killed due to memory usage"
#: Interval in seconds between two measurements of a job's memory.
MEASURE_S = 0.1
_LAUNCHER = Path(__file__).with_name("isolation.py")
#: PATH of Docker's official images, in which this interpreter's folder comes first.
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_MIB = 1024 * 1024
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_CHECK_S = 30

VARIABLES = {"PATH": f"{Path(sys.executable).parent}:{_PATH}", "LANG": "C.UTF-8"}
"""Variables of a job that neither Batch nor the job definition sets."""


def missing() -> str:
    """Return what this system does not support of strict jobs; empty if it supports all."""
    if sys.platform != "linux":
        return "this system is not Linux, so jobs see your folders, and memory is not limited"
    command = launched(("true",), hidden=["/mnt"], kept=[])
    try:
        subprocess.run(command, check=True, capture_output=True, timeout=_CHECK_S)  # noqa: S603
    except (OSError, subprocess.SubprocessError):
        return "this system permits no mount namespaces to your user, so jobs see your folders"
    return ""


def launched(
    command: tuple[str, ...], *, hidden: Iterable[str], kept: Iterable[str]
) -> tuple[str, ...]:
    """Return the command that hides folders and then runs a command."""
    order = json.dumps({"hidden": list(hidden), "kept": list(kept)})
    return (sys.executable, "-I", str(_LAUNCHER), order, *command)


class Strictness:
    """Rules of strict jobs, for the user and the working directory of this process.

    Args:
        can_hide: Whether the caller's folders can be hidden.
    """

    def __init__(self, *, can_hide: bool) -> None:
        folders = {str(Path.home().resolve()), str(Path.cwd())} - {"/"}
        self._hidden = folders if can_hide else set()
        self._kept = {sys.prefix, sys.base_prefix, *_interpreters(Path(sys.executable))}

    def command(self, command: tuple[str, ...], path: str, kept: Iterable[str]) -> tuple[str, ...]:
        """Return the command that runs a job's command without the caller's folders.

        Args:
            command: The job's command.
            path: The job's PATH.
            kept: Folders that the job needs, in addition to the interpreter's.

        Raises:
            FileNotFoundError: The program does not exist.
        """
        if not self._hidden:
            return command
        if shutil.which(command[0], path=path) is None:
            raise FileNotFoundError
        return launched(command, hidden=self._hidden, kept={*self._kept, *kept})

    def check(self, spec: AttemptSpec) -> None:
        """Check that this machine has the GPUs of a job.

        Raises:
            StartError: It has fewer.
        """
        there = len(list(Path("/dev").glob("nvidia[0-9]*")))
        if spec.gpus > there:
            raise StartError(
                "CannotStartContainerError: Error response from daemon: could not select device "
                f"driver with capabilities: [[gpu]]: the job needs {spec.gpus} GPUs, and this "
                f"machine has {there}"
            )


class MemoryLimit:
    """Limit of a session's memory.

    Args:
        leader: Process ID of the session's leader.
        mib: The limit in MiB.
        kill: Kills the session.

    Attributes:
        was_exceeded: Whether the session was killed.
    """

    def __init__(self, leader: int, mib: int, kill: Callable[[], None]) -> None:
        self.was_exceeded = False
        self._leader, self._bytes, self._kill = leader, mib * _MIB, kill
        self._watching = asyncio.ensure_future(self._watch())

    def close(self) -> None:
        """Stop measuring."""
        self._watching.cancel()

    async def _watch(self) -> None:
        while not self.was_exceeded:
            await asyncio.sleep(MEASURE_S)
            self.was_exceeded = used_bytes(self._leader) > self._bytes
        self._kill()


def used_bytes(session: int) -> int:
    """Return the memory of a session's processes, with shared pages counted once.

    Without ``/proc`` it is 0.
    """
    try:
        names = os.listdir("/proc")  # noqa: PTH208 - names are numbers
    except FileNotFoundError:
        return 0
    return sum(_used_bytes(name) for name in names if _is_in(name, session))


def _is_in(name: str, session: int) -> bool:
    try:
        return os.getsid(int(name)) == session
    except (ValueError, OSError):  # not a process, or it has ended
        return False


def _used_bytes(pid: str) -> int:
    """Return a process's share of memory, or its resident set if the kernel has no shares."""
    for file, read in (("smaps_rollup", _share_bytes), ("statm", _resident_bytes)):
        try:
            return read(Path("/proc", pid, file).read_text(encoding="ascii"))
        except (OSError, ValueError, LookupError):
            continue
    return 0


def _share_bytes(text: str) -> int:
    fields = dict(line.split(":", 1) for line in text.splitlines()[1:])
    # Mapped files are not counted: the kernel drops their pages when memory is short.
    return sum(int(fields[name].split()[0]) for name in ("Pss_Anon", "Pss_Shmem")) * 1024


def _resident_bytes(text: str) -> int:
    _, resident, shared, *_ = map(int, text.split())
    return (resident - shared) * _PAGE_BYTES


def _interpreters(path: Path) -> set[str]:
    """Return the installation of an interpreter, and those to which its links lead."""
    roots = {str(path.parent.parent)}
    while path.is_symlink():
        path = path.parent / path.readlink()
        roots.add(str(path.parent.parent))
    return roots
