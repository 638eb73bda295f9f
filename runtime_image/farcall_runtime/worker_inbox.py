"""Inbox of a warm worker: the process that polls it, and stores the worker's state."""

from __future__ import annotations

import json
import math
import os
import secrets
import selectors
import signal
import time
from collections.abc import Mapping
from typing import Any

from farcall_runtime import envelope
from farcall_runtime.bundle import Assignment
from farcall_runtime.container_output import log
from farcall_runtime.contract import LARGEST_INBOX_BYTES, ExitCode, WorkerPlace

_BUSY_S, _IDLE_S = 0.2, 2.0
"""Maximum intervals between two polls: while calls arrive, and long after the last one."""

_NEAREST_S, _NEAR_TIMES = 0.03, 5
"""Minimum interval for a near endpoint, and its multiple of a poll's duration."""

_RECENT_S = 30.0
"""Time in seconds after a call from which the polls become less frequent."""

_RENEW_S = 30.0
"""Interval in seconds in which a worker shows that it is alive."""

_GONE_S = 60.0
"""Time for which a worker polls in vain, because its bucket does not respond, before it ends."""


class Lines:
    """Lines from a pipe, without waiting for them.

    Attributes:
        descriptor: The pipe.
        at_end: Whether its writer has closed it.
    """

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.at_end = False
        self._left = b""
        os.set_blocking(descriptor, False)

    def read(self) -> list[bytes]:
        """Return the lines that have arrived."""
        lines: list[bytes] = []
        while not self.at_end:
            try:
                data = os.read(self.descriptor, 65536)
            except BlockingIOError:
                break
            self.at_end = not data
            *whole, self._left = (self._left + data).split(b"\n")
            lines += whole
        return lines


def poll(
    parent: int,
    assignment: Assignment,
    place: WorkerPlace,
    environment: Mapping[str, str],
    inbox_fd: int,
    state_fd: int,
) -> int:
    """Poll the inbox and store the worker's state, until the worker closes its pipe.

    Args:
        parent: Process ID of the worker.
        assignment: The pool and its key.
        place: The worker's objects.
        environment: The container's environment, for storage.
        inbox_fd: Pipe for the content of each new inbox, one in a line.
        state_fd: Pipe with the worker's states, one in a line.

    Returns:
        The exit code.
    """
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
        self._states = Lines(state_fd)
        self._nonce = secrets.token_hex(16)
        self._number = 0
        self._tag = ""
        self._state: dict[str, Any] = {"running": None, "waiting": [], "ended": {}}
        self._stored: dict[str, Any] | None = None
        self._stored_at = -math.inf
        self._busy_at = time.monotonic()

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
            selector.register(self._states.descriptor, selectors.EVENT_READ)
            selector.select(pause_s)
        return True

    def _read_state(self) -> bool:
        """Read the worker's newest state; return False at its end."""
        for line in self._states.read():
            self._state = json.loads(line)
        return not self._states.at_end

    def _store_state(self, *, is_alive: bool) -> None:
        state = {**self._state, "nonce": self._nonce, "number": self._number, "alive": is_alive}
        key = self._place.state_key
        self._storage.put(key, envelope.seal_worker(self._key, key, state))
        self._stored, self._stored_at = self._state, time.monotonic()

    def _read_inbox(self) -> None:
        """Pass a new inbox of this worker on; others are ignored."""
        got = self._storage.get_changed(self._place.inbox_key, self._tag, LARGEST_INBOX_BYTES)
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
