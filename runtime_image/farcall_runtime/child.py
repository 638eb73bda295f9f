"""The process the task runs in, seen from the supervisor."""

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
from farcall_runtime.envelope import Buffer
from farcall_runtime.outlet import say
from farcall_runtime.streams import Streams

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_ORPHAN_ROUNDS = 100
_SMALL_BYTES = 64 * 1024
_REAP_S = 5.0  # a process that waits for a network file system may outlive SIGKILL for long


class Child:
    """A forked process that waits for its payload.

    It is forked before the supervisor opens a client or starts a thread: forking a process with
    threads copies locks nobody will release.

    Args:
        streams: What it writes to.
        project: Folder to unpack the caller's project in; see `farcall_runtime.sources`.

    Attributes:
        pid: Process ID, which is also its process group.
        payload: Anonymous file for function and arguments.
        control: Where it is heard.
        records: What is known of each call that has ended.
        left: How many calls come after these; None as long as none has ended.
        goes_on: Whether the child has begun, or may begin, another one.
        status: Exit status as `os.waitstatus_to_exitcode` gives it: negative for a signal; None
            while it runs.
        usage: What the kernel counted for the process and those it waited for.
    """

    def __init__(self, streams: Streams, project: str) -> None:
        self.payload = _anonymous_file("farcall-payload")
        self.records: list[dict[str, Any]] = []
        self.left: int | None = None
        self.goes_on = True
        self.status: int | None = None
        self.usage: resource.struct_rusage | None = None
        self._streams = streams
        self._is_stopping = False
        self._parts: list[memoryview] = []  # of all records
        self._why = Slate()
        self._last_words = Slate()
        self.control, theirs = channel.pair()
        # A container's first process gets its orphans anyway, and takes all others with it.
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
                _be_first_to_go()
                streams.become_standard()
                self.control.close()
                theirs.settle()
                with contextlib.suppress(OSError):  # a working directory that is deleted
                    # Last: a json.py there must not replace the standard library's.
                    sys.path.append(os.getcwd())  # noqa: PTH109  # pathlib takes 10 ms to import
                # Not before: pickle and cloudpickle are the child's alone, and it imports them
                # while the supervisor fetches the payload.
                from farcall_runtime import sources, task

                sources.folder = project
                task.main(theirs, self.payload, self._why)
            except BaseException as error:
                self._last_words.write(_in_words(error))
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

    def go(
        self,
        function: tuple[int, int],
        arguments: tuple[int, int],
        shared_at: int,
        cloudpickle: str,
        prefix: str = "",
    ) -> None:
        """Let the child begin.

        Args:
            function: Offset and length of the function in the payload.
            arguments: The same of the arguments.
            shared_at: Where in the payload the shared values begin that these refer to.
            cloudpickle: Version of the client's cloudpickle.
            prefix: Folder of the packages that it is to import from; empty where it has none.
        """
        self.payload.flush()
        _make_final(self.payload)
        self.control.go([function, arguments, shared_at, cloudpickle, prefix])

    def listen(self) -> bool | None:
        """Take in the next message; say whether there was one, or None at the end of all."""
        try:
            return self.control.listen(self._keep, self._answer)
        except EOFError:
            return None

    def _keep(self, result: channel.Result) -> None:
        self.records.append(result.record)
        self._parts += result.parts
        self.left = result.left
        self.goes_on = False  # as long as it has not asked

    def hear_out(self) -> None:
        """Take in all that the task has said, when none of its processes lives."""
        while self.listen():
            pass
        left_behind = self.control.left_behind()
        if left_behind is not None:
            self._keep(left_behind)
        if self.control.has_noise:
            say("the function wrote to a descriptor that it did not open; it counts for nothing")

    def last_words(self) -> str:
        """Return why farcall's own part of the process failed; the empty string if it did not."""
        return self._last_words.read() or self.control.trouble

    def _answer(self, asks_to_go_on: bool) -> Any:
        written = self._streams.written()
        if not asks_to_go_on:
            return written
        self.goes_on = not self._is_stopping
        if self.goes_on and self.records:  # what is written from now on is the next call's
            self.records[-1]["ended"] = written
        return self.goes_on

    def value(self) -> list[Buffer]:
        """Return the packed parts of all records, in pieces, without a copy of large ones."""
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
        """Collect all the dead; say whether the task's own process is among them by now.

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
        """Send a signal to the task's own process, which is to stop."""
        self._is_stopping = True
        self._why.write(why)
        if self.status is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):  # a program of root's
                os.kill(self.pid, number)

    def end(self) -> None:
        """Kill what is left of the task's processes, daemons too, and collect the dead."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        until = time.monotonic() + _REAP_S
        while not self.reap() and time.monotonic() < until:
            time.sleep(0.005)
        if self.status is None:  # the kernel holds it, or it is a program of root's
            self.status = -signal.SIGKILL
        for _ in range(_ORPHAN_ROUNDS):
            orphans = children()
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
        flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
        return open(os.memfd_create(name, flags), "w+b")  # noqa: PTH123  # lives with the process
    import tempfile

    return tempfile.TemporaryFile()


def _make_final(file: BinaryIO) -> None:
    """Have nobody write to an anonymous file any more: a function may write to any descriptor."""
    if hasattr(os, "memfd_create"):
        final = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
        with contextlib.suppress(OSError):  # a kernel that has none
            fcntl.fcntl(file, fcntl.F_ADD_SEALS, final)


def _in_words(error: BaseException) -> str:
    """Say why farcall's own part of the process failed."""
    try:
        said = str(error)
    except BaseException:
        said = ""
    return said if isinstance(error, channel.BrokenError) else f"{type(error).__name__}: {said}"


def adopt_orphans() -> None:
    """Have the orphans among this process's descendants become its children; Linux alone can."""
    _process_control(_PR_SET_CHILD_SUBREAPER, 1)


def children() -> list[int]:
    """Return the processes whose parent this one is, adopted ones too."""
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
