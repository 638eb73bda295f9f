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

from farcall_runtime import envelope
from farcall_runtime.channel import Slate
from farcall_runtime.contract import RESULT_AT, STREAMS_QUESTION
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
        result: Anonymous file for what comes of the calls.
        records: What is known of each call that has ended.
        left: How many calls come after these; None as long as none has ended.
        goes_on: Whether the child has begun, or may begin, another one.
        status: Exit status as `os.waitstatus_to_exitcode` gives it: negative for a signal; None
            while it runs.
        usage: What the kernel counted for the process and those it waited for.
    """

    def __init__(self, streams: Streams) -> None:
        self.payload = _anonymous_file("farcall-payload")
        self.result = _anonymous_file("farcall-result")
        self.records: list[dict[str, Any]] = []
        self.left: int | None = None
        self.goes_on = True
        self.status: int | None = None
        self.usage: resource.struct_rusage | None = None
        self._streams = streams
        self._is_stopping = False
        self._lengths: list[int] = []  # of the parts of all records
        self._line = b""
        self._why = Slate()
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

                task.main(theirs, self.payload, self.result, self._why)
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
        *lines, self._line = (self._line + data).split(b"\n")
        for line in lines:
            self._take(line)
        return len(data) or None

    def hear_out(self) -> None:
        """Take in all that the child has said."""
        while self.listen():
            pass

    def _take(self, line: bytes) -> None:
        """Take in one line: a question, or what came of a call."""
        if line == STREAMS_QUESTION:
            self._answer(self._streams.written())
            return
        try:
            record, lengths, self.left, waits = json.loads(line)
        except (ValueError, TypeError):  # the function may write wherever it likes
            return
        self.goes_on = waits and not self._is_stopping
        if self.goes_on:  # what is written from now on is the next call's
            record["ended"] = self._streams.written()
        self.records.append(record)
        self._lengths += lengths
        if waits:
            self._answer(self.goes_on)

    def _answer(self, said: Any) -> None:
        with contextlib.suppress(OSError):  # it died meanwhile, which `reap` will tell
            self.control.sendall(json.dumps(said).encode() + b"\n")

    def read_result(self) -> memoryview:
        """Return the packed parts of all records, without a copy."""
        head = envelope.pack_head(self._lengths)
        if self._lengths:
            head += bytes(-len(head) % envelope.ALIGNMENT)
        start = RESULT_AT - len(head)
        end = RESULT_AT
        for length in self._lengths:
            end += -end % envelope.ALIGNMENT + length
        os.pwrite(self.result.fileno(), head, start)
        skipped = start % mmap.ALLOCATIONGRANULARITY
        mapped = mmap.mmap(
            self.result.fileno(),
            end - start + skipped,
            access=mmap.ACCESS_READ,
            offset=start - skipped,
        )
        return memoryview(mapped)[skipped:]

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

    def signal(self, number: int, why: str) -> None:
        """Send a signal to the task's own process, which is to stop.

        Args:
            number: The signal.
            why: What the function is told.
        """
        self._is_stopping = True
        self._why.write(why)
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
