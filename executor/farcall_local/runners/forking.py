"""Fork server: has imported farcall's runtime, and forks a job on request.

It runs as a script in its own process and imports nothing of the emulator, so that a job has the
same modules as ``python -m farcall_runtime``. `farcall_local.runners.process` starts it and
communicates with it over a socket. A request is a length (four bytes) and JSON, with the output's
descriptor for a job; a response is one line of JSON.

It has no threads and no clients at any time, so forking it is safe. When the other end of the
socket closes, it kills its jobs and exits.

It adopts its jobs' orphans. A running job adopts its own orphans, so the server's orphans belong
to finished jobs, and are killed in any session.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import signal
import socket
import sys
import time
from select import select
from typing import Any, NoReturn

# The imports of a job that starts without the fork server.
import cloudpickle  # noqa: F401
import obstore.store  # noqa: F401

import farcall_runtime.runner
import farcall_runtime.task  # noqa: F401
from farcall_runtime import __main__ as runtime
from farcall_runtime import child
from farcall_runtime.contract import ExitCode

_LENGTH_BYTES = 4


class ForkServer:
    """Server that forks and reaps jobs."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._jobs: dict[int, int] = {}  # process ID -> the job's number
        self._wake, self._waker = socket.socketpair()
        for end in (self._wake, self._waker):
            end.setblocking(False)
        signal.signal(signal.SIGCHLD, lambda *_: None)  # its mere arrival wakes the loop
        signal.set_wakeup_fd(self._waker.fileno(), warn_on_full_buffer=False)
        child.adopt_orphans()

    def serve(self) -> None:
        """Handle requests until the other end of the socket closes."""
        while True:
            ready, _, _ = select([self._control, self._wake], [], [])
            if self._wake in ready:
                self._wake.recv(4096)
                self._reap()
            if self._control in ready:
                request, descriptors = _receive(self._control)
                if request is None:
                    break
                self._handle(request, descriptors)
        self._end()

    def _handle(self, request: dict[str, Any], descriptors: list[int]) -> None:
        number = request["job"]
        if "signal" in request:
            for pid in [pid for pid, job in self._jobs.items() if job == number]:
                if request["signal"] == signal.SIGKILL:
                    _kill_group(pid)
                else:
                    os.kill(pid, request["signal"])
            return
        try:
            pid = os.fork()
        except OSError as error:
            self._send(job=number, error=error.strerror)
        else:
            if pid == 0:
                _become(request, descriptors[0])
            self._jobs[pid] = number
            self._send(job=number, pid=pid)
        for descriptor in descriptors:
            os.close(descriptor)

    def _reap(self) -> None:
        """Reap dead processes, report the jobs among them, and kill their orphans.

        The child processes of a dead process are already children of this one. Each killed child's
        death wakes the loop again, and reveals its own children.
        """
        with contextlib.suppress(ChildProcessError):  # there are no more
            while ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                pid = ended.si_pid
                if pid in self._jobs:
                    # Before it is reaped its number cannot belong to another group.
                    _kill_group(pid)
                _, status = os.waitpid(pid, 0)
                self._kill_orphans()
                if pid in self._jobs:
                    self._send(job=self._jobs.pop(pid), code=os.waitstatus_to_exitcode(status))

    def _kill_orphans(self) -> None:
        for pid in child.children():
            if pid not in self._jobs:
                _kill(pid)

    def _end(self) -> None:
        """Kill all jobs, and wait until all their processes are gone."""
        for pid in self._jobs:
            _kill_group(pid)
        self._jobs.clear()
        with contextlib.suppress(ChildProcessError):  # there are no more
            while True:
                self._kill_orphans()
                os.waitpid(-1, 0)

    def _send(self, **message: Any) -> None:
        with contextlib.suppress(OSError):  # the other end is closed, which the loop detects
            self._control.sendall(json.dumps(message).encode() + b"\n")


def _receive(control: socket.socket) -> tuple[dict[str, Any] | None, list[int]]:
    """Return a request with its descriptors; None at the end."""
    data, descriptors, size = b"", [], _LENGTH_BYTES
    while len(data) < size:
        try:
            # Never more than one request's bytes: the next descriptor arrives with its first byte.
            part, sent, _, _ = socket.recv_fds(control, size - len(data), 1)
        except ConnectionError:
            part, sent = b"", []
        descriptors += sent
        if not part:
            return None, descriptors
        data += part
        if len(data) == _LENGTH_BYTES == size:
            size += int.from_bytes(data, "big")
    return json.loads(data[_LENGTH_BYTES:]), descriptors


def _kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
    _kill(pid)  # it may not lead its group yet


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):  # a program of root's
        os.kill(pid, signal.SIGKILL)


def _become(job: dict[str, Any], output: int) -> NoReturn:
    """Turn this process into a job's first process, like a new interpreter."""
    code = int(ExitCode.SUPERVISOR_FAILED)
    try:
        os.setsid()
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.chdir(job["directory"])
        nothing = os.open(os.devnull, os.O_RDONLY)
        for descriptor, number in ((nothing, 0), (output, 1), (output, 2)):
            os.dup2(descriptor, number)
        for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 - names are numbers
            if int(name) > 2:
                with contextlib.suppress(OSError):  # the one that listed them
                    os.close(int(name))
        os.environ.clear()
        os.environ.update(job["environment"])
        time.tzset()
        code = runtime.main()
    except BaseException:
        sys.excepthook(*sys.exc_info())
    runtime.leave(code)


def main() -> None:
    """Serve on the socket that is standard input."""
    sys.modules["__main__"] = runtime  # as python -m farcall_runtime has it
    sys.argv = [runtime.__file__]
    # Existing objects are permanent, and all jobs share their pages.
    gc.collect()
    gc.freeze()
    ForkServer(socket.socket(fileno=0)).serve()


if __name__ == "__main__":
    main()
