"""The process the task runs in, seen from the supervisor."""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import resource
import signal
import socket
import sys
import time
from typing import Any, BinaryIO

from farcall_runtime.contract import STREAMS_QUESTION
from farcall_runtime.streams import Streams

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_ORPHAN_ROUNDS = 100


class Child:
    """A forked process that waits for its payload.

    It is forked before the supervisor opens a client or starts a thread: forking a process with
    threads copies locks nobody will release.

    Attributes:
        pid: Process ID, which is also its process group.
        payload: Anonymous file for function and arguments.
        result: Anonymous file with the packed pickles of the results.
        status: Exit status as `os.waitstatus_to_exitcode` gives it: negative for a signal; None
            while it runs.
        usage: What the kernel counted for the process and those it waited for.
    """

    def __init__(self, streams: Streams) -> None:
        self.payload = _anonymous_file("farcall-payload")
        self.result = _anonymous_file("farcall-result")
        self.status: int | None = None
        self.usage: resource.struct_rusage | None = None
        self._message = b""
        # A container's first process gets its orphans anyway, and takes all others with it.
        first = os.getpid() == 1
        if not first:
            _process_control(_PR_SET_CHILD_SUBREAPER, 1)
        self.control, theirs = socket.socketpair()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                signal.set_wakeup_fd(-1)
                os.setpgid(0, 0)
                if not first:
                    _process_control(_PR_SET_PDEATHSIG, signal.SIGKILL)
                _be_first_to_go()
                streams.become_standard()
                self.control.close()
                # Not before: pickle and cloudpickle are the child's alone, and it imports them
                # while the supervisor fetches the payload.
                from farcall_runtime import task

                task.main(theirs, self.payload, self.result)
            except BaseException:  # such as a socket that the function closed
                # The interpreter's own way to print it: the function may have set another.
                sys.__excepthook__(*sys.exc_info())
                sys.stdout.flush()
                sys.stderr.flush()
            finally:
                os._exit(1)
        with contextlib.suppress(OSError):
            os.setpgid(self.pid, self.pid)  # whoever is first; killing the group needs it
        theirs.close()
        streams.close_child_ends()

    def go(self, function: tuple[int, int], arguments: tuple[int, int], cloudpickle: str) -> None:
        """Let the child begin.

        Args:
            function: Offset and length of the function in the payload.
            arguments: The same of the arguments.
            cloudpickle: Version of the client's cloudpickle.
        """
        self.payload.flush()
        with contextlib.suppress(OSError):  # it died already, which `reap` will tell
            self.control.sendall(json.dumps([function, arguments, cloudpickle]).encode() + b"\n")
        self.control.setblocking(False)

    def listen(self) -> int | None:
        """Take in what the child says now; return the number of bytes, or None at the end."""
        try:
            data = self.control.recv(1 << 16)
        except BlockingIOError:
            return 0
        except OSError:
            return None
        self._message += data
        return len(data) or None

    def asks_for_streams(self) -> bool:
        """Tell whether the child waits for `answer`; it asks one question at a time."""
        if self._message != STREAMS_QUESTION:
            return False
        self._message = b""
        return True

    def answer(self, numbers: list[int]) -> None:
        """Tell the child how much it has written to each stream."""
        with contextlib.suppress(OSError):  # it died over the question, which `reap` will tell
            self.control.sendall(json.dumps(numbers).encode() + b"\n")

    @property
    def records(self) -> list[dict[str, Any]] | None:
        """The child's description of its results; None if it did not come to that."""
        while self.listen():
            pass
        try:
            records = json.loads(self._message)
        except ValueError:
            return None
        return records if isinstance(records, list) else None

    def read_result(self) -> memoryview:
        """Return the packed pickles of the results, without a copy."""
        size = os.fstat(self.result.fileno()).st_size
        if not size:
            return memoryview(b"")
        return memoryview(mmap.mmap(self.result.fileno(), size, access=mmap.ACCESS_READ))

    def reap(self) -> bool:
        """Collect all the dead; tell whether the task's own process is among them by now.

        What it started and left is this process's to collect: a zombie counts against the
        container's limit of processes.
        """
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
                if pid == 0:
                    break
                if pid == self.pid and self.status is None:  # a later one may have its number
                    self.status, self.usage = os.waitstatus_to_exitcode(status), usage
        return self.status is not None

    def signal(self, number: int) -> None:
        """Send a signal to the task's own process."""
        if self.status is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def end(self) -> None:
        """Kill what is left of the task's processes, daemons too, and collect the dead."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        while not self.reap():
            time.sleep(0.005)
        for _ in range(_ORPHAN_ROUNDS):
            orphans = _children()
            for pid in orphans:  # a new session is no way out of the task
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            self.reap()
            if not orphans:
                break
            time.sleep(0.005)


def _anonymous_file(name: str) -> BinaryIO:
    """Open a file without a name: memory where the system can, else the temporary folder."""
    if hasattr(os, "memfd_create"):
        return open(os.memfd_create(name), "w+b")  # noqa: PTH123  # lives with the process
    import tempfile

    return tempfile.TemporaryFile()


def _children() -> list[int]:
    """Return the processes whose parent this one is: of a subreaper's, orphans too."""
    pid = os.getpid()
    try:
        with open(f"/proc/self/task/{pid}/children") as file:  # noqa: PTH123  # see memory.py
            return [int(child) for child in file.read().split()]
    except OSError:  # no Linux, or a kernel without it
        return []


def _be_first_to_go() -> None:
    """Have the kernel take the task, not the supervisor, where memory runs out."""
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
