"""Warm worker: a container that runs calls one after another, until none arrives for a while.

The client writes the worker's inbox, an object that names its calls; the worker polls it with
conditional requests. Each call runs in a process of its own, as a job would: forked from this
process, which has imported the task runner, opened no connection and started no thread. Another
process polls, for that reason.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import selectors
import signal
import sys
import time
from collections import deque
from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple, NoReturn

from farcall_runtime import contract, envelope
from farcall_runtime.bundle import Assignment, RefusedError
from farcall_runtime.container_output import log
from farcall_runtime.contract import ExitCode, WorkerPlace
from farcall_runtime.worker_inbox import Lines, poll

_MOST_ENDS = 100
_OF_CALLS = ("runner", "task", "sources", "electron", "packed_function")
"""Modules that calls use."""


class _Call(NamedTuple):
    """A call in the inbox.

    Attributes:
        number: Its number in the pool.
        environment: Variables of its job.
    """

    number: int
    environment: dict[str, str]


def run(environment: Mapping[str, str]) -> int:
    """Run the calls of a worker's inbox; return the exit code."""
    try:
        assignment = Assignment.read(environment)
    except RefusedError as refusal:
        log(str(refusal))
        return refusal.code
    place = WorkerPlace(assignment.where.root, assignment.where.bundle, assignment.entry)
    idle_s = float(environment.get(contract.ENV_WORKER_IDLE_S, "300"))
    inbox_fd, poller_writes = os.pipe()
    poller_reads, state_fd = os.pipe()
    parent = os.getpid()
    poller = os.fork()
    if not poller:
        os.close(inbox_fd)
        os.close(state_fd)
        _in_child(
            partial(poll, parent, assignment, place, environment, poller_writes, poller_reads)
        )
    os.close(poller_writes)
    os.close(poller_reads)
    _prepare(assignment.where.bucket, environment)
    return _Worker(assignment.key, environment, inbox_fd, state_fd, poller, idle_s).run()


def _in_child(function: Any) -> NoReturn:
    """Run a function in a forked process, and exit."""
    code = int(ExitCode.SUPERVISOR_FAILED)
    try:
        code = function()
    except BaseException:  # the last resort
        with contextlib.suppress(Exception):
            sys.__excepthook__(*sys.exc_info())
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        os._exit(code)


def _prepare(bucket: str, environment: Mapping[str, str]) -> None:
    """Import and open what each call needs; none of it starts a thread, so calls can be forked."""
    for name in ("cloudpickle", "shutil", *(f"farcall_runtime.{n}" for n in _OF_CALLS)):
        importlib.import_module(name)
    from farcall_runtime import storage

    storage.open_ahead(bucket, environment)
    gc.freeze()  # collections in the forked processes would copy these objects


class _Worker:
    """Runs calls, each in a forked process.

    Args:
        key: The pool's key.
        environment: The container's environment.
        inbox_fd: Pipe with the content of each new inbox.
        state_fd: Pipe for this worker's state.
        poller: Process that polls.
        idle_s: Seconds without a call after which the worker ends.
    """

    def __init__(
        self,
        key: bytes,
        environment: Mapping[str, str],
        inbox_fd: int,
        state_fd: int,
        poller: int,
        idle_s: float,
    ) -> None:
        self._key = key
        hidden = (
            *(contract.ENV_WORKER_IDLE_S, contract.ENV_OUTCOME_KEY, contract.ENV_ARRAY_INDEX),
            contract.ENV_CANCELLABLE,
        )
        self._environment = {n: text for n, text in environment.items() if n not in hidden}
        self._inboxes = Lines(inbox_fd)
        self._state_fd = state_fd
        self._poller = poller
        self._idle_s = idle_s
        self._calls: deque[_Call] = deque()
        self._known: set[int] = set()
        self._running: tuple[int, int] | None = None  # number and process
        self._ended: dict[str, int] = {}
        self._is_stopping = self._is_terminated = False
        self._busy_at = time.monotonic()
        self._wake_fd, waker = os.pipe()
        for descriptor in (self._wake_fd, waker):
            os.set_blocking(descriptor, False)
        self._waker = waker
        signal.signal(signal.SIGTERM, self._on_terminate)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(waker, warn_on_full_buffer=False)

    def run(self) -> int:
        """Run calls until there are none for a while; return the exit code."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._inboxes.descriptor, selectors.EVENT_READ)
            selector.register(self._wake_fd, selectors.EVENT_READ)
            while not self._is_done():
                selector.select(1.0)
                with contextlib.suppress(BlockingIOError):
                    os.read(self._wake_fd, 4096)
                if not self._inboxes.at_end:
                    for line in self._inboxes.read():
                        self._take(json.loads(line))
                    if self._inboxes.at_end:
                        selector.unregister(self._inboxes.descriptor)
                self._reap()
                self._start_next()
        os.close(self._state_fd)  # the poller stores the last state, and ends
        _, status = os.waitpid(self._poller, 0)
        return ExitCode.TERMINATED if self._is_terminated else os.waitstatus_to_exitcode(status)

    def _is_done(self) -> bool:
        if self._running is not None:
            return False
        if self._is_terminated or self._inboxes.at_end:
            return True
        is_idle = time.monotonic() - self._busy_at > self._idle_s
        return not self._calls and (self._is_stopping or is_idle)

    def _on_terminate(self, *_: object) -> None:
        self._is_terminated = True
        if self._running is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._running[1], signal.SIGTERM)

    def _take(self, inbox: Mapping[str, Any]) -> None:
        """Take the new calls of an inbox, and end those that were cancelled."""
        self._is_stopping = bool(inbox["stop"])
        cancelled = {int(number) for number in inbox["cancelled"]}
        for number, job, index, attempt in inbox["calls"]:
            if number not in self._known and number not in cancelled:
                self._known.add(number)
                variables = inbox["jobs"][job]
                self._calls.append(_Call(number, self._variables(variables, index, attempt)))
        self._calls = deque(call for call in self._calls if call.number not in cancelled)
        if self._running is not None and self._running[0] in cancelled:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._running[1], signal.SIGTERM)
        self._report()

    def _variables(self, variables: Mapping[str, str], index: int, attempt: int) -> dict[str, str]:
        """Return the environment of a call."""
        own = {name: variables[name] for name in contract.JOB_ENVIRONMENT if name in variables}
        key = envelope.encrypted(
            self._key, own[contract.ENV_BUNDLE], own[contract.ENV_OUTCOME_KEY]
        )
        return {
            **self._environment,
            **own,
            contract.ENV_OUTCOME_KEY: key,
            contract.ENV_OWN_JOB_ID: str(variables["id"]),
            contract.ENV_OWN_INDEX: str(index),
            contract.ENV_OWN_ATTEMPT: str(attempt),
        }

    def _start_next(self) -> None:
        if self._running is not None or not self._calls or self._is_terminated:
            return
        call = self._calls.popleft()
        # A SIGTERM must not arrive in the new process before that has its own handler.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        process = os.fork()
        if not process:
            _in_child(partial(self._run_call, call))
        self._running = call.number, process
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        self._busy_at = time.monotonic()
        self._report()

    def _run_call(self, call: _Call) -> int:
        """Run a call in its process, as the container of a job would."""
        from farcall_runtime import runner
        from farcall_runtime.times import Times

        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGTERM, lambda *_: os._exit(ExitCode.TERMINATED))
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        inbox_fd = self._inboxes.descriptor
        for descriptor in (inbox_fd, self._state_fd, self._wake_fd, self._waker):
            os.close(descriptor)
        os.environ.clear()
        os.environ.update(call.environment)
        return runner.run(os.environ, Times())

    def _reap(self) -> None:
        if self._running is None:
            return
        number, process = self._running
        try:
            reaped, status = os.waitpid(process, os.WNOHANG)
        except ChildProcessError:
            reaped, status = process, 0
        if reaped:
            self._running = None
            self._busy_at = time.monotonic()
            code = os.waitstatus_to_exitcode(status)
            if code:
                self._ended[str(number)] = code if code > 0 else 128 - code
            for old in list(self._ended)[:-_MOST_ENDS]:
                del self._ended[old]
            self._report()

    def _report(self) -> None:
        """Tell the poller this worker's state, which it stores."""
        waiting = [call.number for call in self._calls]
        running = None if self._running is None else self._running[0]
        state = {"running": running, "waiting": waiting, "ended": self._ended}
        with contextlib.suppress(OSError):  # the poller has ended
            os.write(self._state_fd, json.dumps(state).encode() + b"\n")
