"""Warm worker: a container that runs calls one after another, until none arrives for a while.

The client writes the worker's inbox, an object that names its calls; the worker polls it with
conditional requests. Each call runs in a process of its own, as a job would: forked from this
process, which has imported the task runner, opened no connection and started no thread. Another
process polls, for that reason.
"""

from __future__ import annotations

import contextlib
import gc
import hashlib
import hmac
import importlib
import json
import math
import os
import secrets
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

_BUSY_S, _IDLE_S = 0.2, 2.0
"""Maximum intervals between two polls: while calls arrive, and after `_RECENT_S` without one."""

_NEAREST_S, _NEAR_TIMES = 0.03, 5
"""Minimum interval for a near endpoint, and its multiple of a poll's duration."""

_RECENT_S = 30.0
_RENEW_S = 30.0
"""Interval in seconds in which a worker shows that it is alive."""

_LARGEST_INBOX_BYTES = 1024 * 1024
_MOST_ENDS = 100
_OF_CALLS = ("runner", "task", "sources", "electron", "packed_function")
"""Modules that calls use."""

_GONE_S = 60.0
"""Time for which a worker polls in vain, because its bucket does not respond, before it ends."""


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
            partial(_poll, parent, assignment, place, environment, poller_writes, poller_reads)
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


# --- the process that runs calls ----------------------------------------------------------------


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
        self._inbox_fd = inbox_fd
        self._state_fd = state_fd
        self._poller = poller
        self._idle_s = idle_s
        self._calls: deque[_Call] = deque()
        self._known: set[int] = set()
        self._running: tuple[int, int] | None = None  # number and process
        self._ended: dict[str, int] = {}
        self._is_stopping = self._is_terminated = self._is_cut_off = False
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
        with selectors.DefaultSelector() as selector, os.fdopen(self._inbox_fd, "rb") as inbox:
            selector.register(inbox, selectors.EVENT_READ)
            selector.register(self._wake_fd, selectors.EVENT_READ)
            while not self._is_done():
                for ready, _ in selector.select(1.0):
                    if ready.fileobj is inbox:
                        line = inbox.readline()
                        if line:
                            self._take(json.loads(line))
                        else:
                            selector.unregister(inbox)
                            self._is_cut_off = True
                    else:
                        with contextlib.suppress(BlockingIOError):
                            os.read(self._wake_fd, 4096)
                self._reap()
                self._start_next()
        os.close(self._state_fd)  # the poller stores the last state, and ends
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self._poller, 0)
        return ExitCode.TERMINATED if self._is_terminated else ExitCode.RETURNED

    def _is_done(self) -> bool:
        if self._running is not None:
            return False
        if self._is_terminated or self._is_cut_off:
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
        key = unsealed(self._key, own[contract.ENV_BUNDLE], own[contract.ENV_OUTCOME_KEY])
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
        process = os.fork()
        if not process:
            _in_child(partial(self._run_call, call))
        self._running = call.number, process
        self._busy_at = time.monotonic()
        self._report()

    def _run_call(self, call: _Call) -> int:
        """Run a call in its process, as the container of a job would."""
        from farcall_runtime import runner
        from farcall_runtime.times import Times

        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for descriptor in (self._inbox_fd, self._state_fd, self._wake_fd, self._waker):
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


# --- the process that polls ---------------------------------------------------------------------


def _poll(
    parent: int,
    assignment: Assignment,
    place: WorkerPlace,
    environment: Mapping[str, str],
    inbox_fd: int,
    state_fd: int,
) -> int:
    """Poll the inbox and store the worker's state, until the worker closes its pipe."""
    from farcall_runtime.storage import Storage, StorageError

    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the worker ends first
    storage = Storage(assignment.where.bucket, environment, retry_s=_GONE_S)
    poller = _Poller(storage, assignment.key, place, inbox_fd, state_fd)
    try:
        while os.getppid() == parent and poller.step():
            pass
    except StorageError as error:
        log(f"the worker ends, because its inbox cannot be read: {error}")
        return ExitCode.STORAGE_UNREACHABLE
    return ExitCode.RETURNED


class _Poller:
    """Polls one inbox, and stores the worker's state.

    Args:
        storage: The bucket.
        key: The pool's key.
        place: The worker's objects.
        inbox_fd: Pipe for the content of each new inbox.
        state_fd: Pipe with the worker's state.
    """

    def __init__(
        self, storage: Any, key: bytes, place: WorkerPlace, inbox_fd: int, state_fd: int
    ) -> None:
        self._storage = storage
        self._key = key
        self._place = place
        self._inbox_fd = inbox_fd
        self._state_fd = state_fd
        os.set_blocking(state_fd, False)
        self._nonce = secrets.token_hex(16)
        self._number = 0
        self._tag = ""
        self._state: dict[str, Any] = {"running": None, "waiting": [], "ended": {}}
        self._stored: dict[str, Any] | None = None
        self._stored_at = -math.inf
        self._busy_at = time.monotonic()
        self._left = b""

    def step(self) -> bool:
        """Poll once, and wait; return False when the worker has ended."""
        is_alive = self._read_state()
        ends = self._state["ended"]
        is_news = self._stored is None or ends != self._stored["ended"]
        if is_news or not is_alive or time.monotonic() - self._stored_at > _RENEW_S:
            self._store_state(is_alive=is_alive)
        if not is_alive:
            return False
        began = time.monotonic()
        self._read_inbox()
        took_s = time.monotonic() - began
        if self._state["running"] is not None or self._state["waiting"]:
            self._busy_at = time.monotonic()
        idle_s = time.monotonic() - self._busy_at
        longest_s = _BUSY_S if idle_s < _RECENT_S else min(_IDLE_S, idle_s / _RECENT_S * _BUSY_S)
        pause_s = max(_NEAREST_S, min(longest_s, _NEAR_TIMES * took_s))
        if idle_s >= _RECENT_S:
            pause_s = longest_s
        with selectors.DefaultSelector() as selector:
            selector.register(self._state_fd, selectors.EVENT_READ)
            selector.select(pause_s)
        return True

    def _read_state(self) -> bool:
        """Read the worker's newest state; return False at its end."""
        while True:
            try:
                data = os.read(self._state_fd, 65536)
            except BlockingIOError:
                return True
            if not data:
                return False
            *lines, self._left = (self._left + data).split(b"\n")
            if lines:
                self._state = json.loads(lines[-1])

    def _store_state(self, *, is_alive: bool) -> None:
        state = {**self._state, "nonce": self._nonce, "number": self._number, "alive": is_alive}
        key = self._place.state_key
        self._storage.put(key, envelope.seal_worker(self._key, key, state))
        self._stored, self._stored_at = self._state, time.monotonic()

    def _read_inbox(self) -> None:
        """Pass a new inbox of this worker on; others are ignored."""
        got = self._storage.get_changed(self._place.inbox_key, self._tag, _LARGEST_INBOX_BYTES)
        if got is None:
            return
        data, self._tag = got
        try:
            inbox = envelope.open_worker(self._key, self._place.inbox_key, data)
        except envelope.EnvelopeError as error:
            log(f"an inbox that is not from this pool's client was ignored: {error}")
            return
        # An inbox of an earlier container in this place, or an old one, must not run again.
        # Only the end of the pool is for a worker that its client has not seen.
        is_end = not inbox["nonce"] and not inbox["calls"] and inbox["stop"]
        is_mine = inbox["nonce"] == self._nonce and inbox["number"] > self._number
        if not (is_mine or is_end):
            return
        self._number = inbox["number"]
        self._busy_at = time.monotonic()
        os.write(self._inbox_fd, json.dumps(inbox).encode() + b"\n")


# --- keys of outcomes ---------------------------------------------------------------------------


def sealed(key: bytes, bundle: str, outcome_key: str) -> str:
    """Encrypt a bundle's outcome key, which is random and sealed only once.

    Args:
        key: The pool's key.
        bundle: URL of the bundle, which no other bundle has.
        outcome_key: The key, hexadecimal.
    """
    pad = hmac.digest(key, b"outcome key " + bundle.encode(), hashlib.sha256)
    number = int.from_bytes(pad, "big") ^ int(outcome_key, 16)
    return number.to_bytes(len(pad), "big").hex()


unsealed = sealed
"""Decrypt what `sealed` has encrypted."""
