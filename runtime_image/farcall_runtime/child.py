"""Supervisor's view of the task's process."""

from __future__ import annotations

import contextlib
import fcntl
import os
import resource
import signal
import sys
import time
from typing import Any, BinaryIO

from farcall_runtime import channel, envelope
from farcall_runtime.channel import Slate
from farcall_runtime.container_output import log
from farcall_runtime.envelope import Buffer
from farcall_runtime.streams import Streams

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_ORPHAN_ROUNDS = 100
_SMALL_BYTES = 64 * 1024
_REAP_S = 5.0  # a process that waits for a network file system may outlive SIGKILL for long


class Child:
    """Forked process that waits for its payload.

    It is forked before the supervisor opens a client or starts a thread, because forking a process
    with threads copies locks that no thread releases.

    Args:
        streams: The pipes for its output.
        project: Folder to unpack the caller's project in; see `farcall_runtime.sources`.

    Attributes:
        pid: Process ID, which is also its process group.
        payload: Anonymous file for function and arguments.
        control: The supervisor's end of the channel.
        records: Description of each finished call.
        left: Number of calls that follow; None before the first has finished.
        in_call: Whether the child is in a call, or may begin one.
        status: Exit status as returned by `os.waitstatus_to_exitcode`: negative for a signal; None
            while it runs.
        usage: The kernel's resource usage of the process and the children that it waited for.
    """

    def __init__(self, streams: Streams, project: str) -> None:
        self.payload = _anonymous_file("farcall-payload")
        self.records: list[dict[str, Any]] = []
        self.left: int | None = None
        self.in_call = True
        self.status: int | None = None
        self.usage: resource.struct_rusage | None = None
        self._streams = streams
        self._is_stopping = False
        self._parts: list[memoryview] = []  # of all records
        self._why = Slate()
        self._failure_text = Slate()
        self.control, theirs = channel.pair()
        # Orphans become children of a container's first process anyway, and end with it.
        first = os.getpid() == 1
        if not first:
            adopt_orphans()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                signal.set_wakeup_fd(-1)
                os.setpgid(0, 0)
                if not first:
                    _process_control(_PR_SET_PDEATHSIG, signal.SIGKILL)
                _prefer_for_oom_kill()
                streams.become_standard()
                self.control.close()
                theirs.settle()
                with contextlib.suppress(OSError):  # the working directory is deleted
                    # Last: a json.py there must not replace the standard library's.
                    sys.path.append(os.getcwd())  # noqa: PTH109  # pathlib takes 10 ms to import
                # Not before: only the child needs pickle and cloudpickle, and it imports them
                # while the supervisor fetches the payload.
                from farcall_runtime import sources, task

                sources.folder = project
                task.main(theirs, self.payload, self._why)
            except BaseException as error:
                self._failure_text.write(_describe(error))
                # The interpreter's own hook prints it, because the function may have set another.
                sys.__excepthook__(*sys.exc_info())
                sys.stdout.flush()
                sys.stderr.flush()
            finally:
                os._exit(1)
        with contextlib.suppress(OSError):
            os.setpgid(self.pid, self.pid)  # in both processes: killing the group needs it
        theirs.close()
        streams.close_child_ends()

    def go(
        self,
        function: tuple[int, int],
        arguments: tuple[int, int],
        shared_at: int,
        cloudpickle: str,
        prefix: str = "",
    ) -> None:
        """Start the child.

        Args:
            function: Offset and length of the function in the payload.
            arguments: Offset and length of the arguments in the payload.
            shared_at: Offset of the shared values in the payload.
            cloudpickle: Version of the client's cloudpickle.
            prefix: Folder of the task's packages; empty if it has none.
        """
        self.payload.flush()
        _make_final(self.payload)
        self.control.go([function, arguments, shared_at, cloudpickle, prefix])

    def receive(self) -> bool | None:
        """Receive the next message; return whether there was one, None at the end."""
        try:
            return self.control.receive(self._keep_result, self._reply)
        except EOFError:
            return None

    def _keep_result(self, result: channel.Result) -> None:
        self.records.append(result.record)
        self._parts += result.parts
        self.left = result.left
        self.in_call = False  # until it requests the next call

    def receive_rest(self) -> None:
        """Receive all remaining messages after the task's processes have ended."""
        while self.receive():
            pass
        result = self.control.abandoned_result()
        if result is not None:
            self._keep_result(result)
        if self.control.has_noise:
            log("the function wrote to a descriptor that it did not open; the data is ignored")

    def failure_text(self) -> str:
        """Return why farcall's code in the process failed; empty if it did not."""
        return self._failure_text.read() or self.control.trouble

    def _reply(self, is_next_call: bool) -> Any:
        written = self._streams.written()
        if not is_next_call:
            return written
        self.in_call = not self._is_stopping
        if self.in_call and self.records:  # output from now on belongs to the next call
            self.records[-1]["ended"] = written
        return self.in_call

    def value(self) -> list[Buffer]:
        """Return the packed parts of all records in pieces, without copying large ones."""
        pieces: list[Buffer] = []
        small: list[Buffer] = []
        for piece in envelope.pack([[part] for part in self._parts]):
            if len(piece) < _SMALL_BYTES:
                small.append(piece)
                continue
            pieces += [b"".join(small), piece]
            small = []
        return [piece for piece in (*pieces, b"".join(small)) if piece]

    def reap(self) -> bool:
        """Reap exited processes; return whether the task's own process has exited.

        The supervisor also reaps processes that the task started and left, because zombies count
        against the container's process limit.
        """
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
                if pid == 0:
                    break
                if pid == self.pid and self.status is None:  # numbers are reused
                    self.status, self.usage = os.waitstatus_to_exitcode(status), usage
        return self.status is not None

    def signal(self, number: int, why: str) -> None:
        """Send a signal to the task's own process, which must stop."""
        self._is_stopping = True
        self._why.write(why)
        if self.status is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):  # a setuid program
                os.kill(self.pid, number)

    def end(self) -> None:
        """Kill and reap the task's remaining processes, daemons included."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        until = time.monotonic() + _REAP_S
        while not self.reap() and time.monotonic() < until:
            time.sleep(0.005)
        if self.status is None:  # the kernel blocks it, or it runs a setuid program
            self.status = -signal.SIGKILL
        for _ in range(_ORPHAN_ROUNDS):
            orphans = children()
            for pid in orphans:  # a new session does not leave the task
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            self.reap()
            if not orphans:
                break
            time.sleep(0.005)


def _anonymous_file(name: str) -> BinaryIO:
    """Open an unnamed file: in memory if supported, else in the temporary folder."""
    if hasattr(os, "memfd_create"):
        flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
        return open(os.memfd_create(name, flags), "w+b")  # noqa: PTH123  # lives with the process
    import tempfile

    return tempfile.TemporaryFile()


def _make_final(file: BinaryIO) -> None:
    """Seal an anonymous file, because a function may write to any descriptor."""
    if hasattr(os, "memfd_create"):
        final = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
        with contextlib.suppress(OSError):  # the kernel does not support seals
            fcntl.fcntl(file, fcntl.F_ADD_SEALS, final)


def _describe(error: BaseException) -> str:
    """Return why farcall's code in the process failed."""
    try:
        message = str(error)
    except BaseException:
        message = ""
    if isinstance(error, channel.BrokenError):
        return message
    return f"{type(error).__name__}: {message}"


def adopt_orphans() -> None:
    """Make orphaned descendants children of this process; only Linux supports it."""
    _process_control(_PR_SET_CHILD_SUBREAPER, 1)


def children() -> list[int]:
    """Return the child processes of this process, adopted ones included."""
    pid = os.getpid()
    try:
        with open(f"/proc/self/task/{pid}/children") as file:  # noqa: PTH123  # see memory.py
            return [int(child) for child in file.read().split()]
    except OSError:  # not Linux, or a kernel without this file
        return []


def _prefer_for_oom_kill() -> None:
    """Make the kernel kill the task, not the supervisor, if memory runs out."""
    with (
        contextlib.suppress(OSError),
        open("/proc/self/oom_score_adj", "w") as file,  # noqa: PTH123  # see memory.py
    ):
        file.write("1000")


def _process_control(option: int, value: int) -> None:
    """Call prctl, which only Linux has; the container is always Linux."""
    if sys.platform == "linux":
        import ctypes  # seldom needed, and slow to import

        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)
