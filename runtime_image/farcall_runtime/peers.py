"""Other nodes of a multi-node job, whose outcomes the main node polls.

Batch monitors only the main node: the job ends when the main node ends, and another node's failure
has no effect. (Kubernetes stops all nodes then.) So the main node polls for the outcomes of the
others and leaves when all have arrived. If one of them reports a failure, the main node stops its
function, which might wait for the failed node forever. A lost node leaves no outcome; then the
time limit ends the job.

Source:
    https://docs.aws.amazon.com/batch/latest/userguide/multi-node-parallel-jobs.html
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from farcall_runtime import envelope
from farcall_runtime.bundle import LARGEST_OUTCOME_BYTES, Assignment
from farcall_runtime.container_output import log
from farcall_runtime.contract import ExitCode, OutcomeStatus
from farcall_runtime.storage import NotFoundError, Storage, TooShortError
from farcall_runtime.waiting import POLL_S, NoThreadError, start_thread

_SOONEST_S, _LATEST_S = 0.25, 5.0
_SHARE = 0.1
"""Delay of a poll as a share of the time waited so far, within these bounds.

A poll costs as much as a request for one object, however many nodes there are.
"""


class Peers:
    """Other nodes of one attempt.

    Attributes:
        left: The nodes whose outcome has not been seen.
        failed: The outcome's description of the node that failed first; None if none has.
    """

    def __init__(self, job: Assignment, storage: Storage) -> None:
        self.left = set(range(1, job.nodes))
        self.failed: dict[str, Any] | None = None
        self._job = job
        self._storage = storage
        self._since = time.monotonic()
        self._wake = threading.Event()
        self._changed = threading.Event()
        self._thread: threading.Thread | None = None
        self._closing = False
        self._has_reported = False

    def start(self) -> None:
        """Start to poll in a thread."""
        if self._thread is None or not self._thread.is_alive():
            try:
                self._thread = start_thread(self._run, "farcall-nodes")
            except NoThreadError as error:
                self._report(f"the other nodes cannot be checked while the task runs: {error}")

    def wait(self, until: Callable[[], float]) -> None:
        """Wait until all outcomes have arrived or one reports a failure.

        Polls are frequent at first.

        Args:
            until: Returns when to stop waiting, `time.monotonic`. It is called repeatedly.
        """
        self._since = time.monotonic()
        self._wake.set()
        while self._is_open() and time.monotonic() < until():
            self.start()
            if self._thread is None:
                self._poll()
                time.sleep(_SOONEST_S)
            self._changed.wait(POLL_S)

    def poll_for_failure(self) -> bool:
        """Poll once; return whether a node failed without having been stopped."""
        if self._is_open():
            self._poll()
        return self.failed is not None and self.failed["status"] != OutcomeStatus.TERMINATED

    def close(self) -> None:
        """Stop polling."""
        self._closing = True
        self._wake.set()

    def _is_open(self) -> bool:
        return bool(self.left) and self.failed is None

    def _run(self) -> None:
        while self._is_open() and not self._closing:
            waited_s = time.monotonic() - self._since
            self._wake.wait(min(_LATEST_S, max(_SOONEST_S, _SHARE * waited_s)))
            self._wake.clear()
            self._poll()
        self._changed.set()

    def _poll(self) -> None:
        try:
            there = self._storage.names(self._job.where.nodes_prefix(self._job.attempt))
            outcomes = [self._read(node) for node in self.left.intersection(map(_number, there))]
        except Exception as error:  # the next poll may succeed after any error
            self._report(f"the other nodes' results cannot be listed at the moment: {error}")
            return
        known = [meta for meta in outcomes if meta is not None]
        failed = [meta for meta in known if meta["code"] != ExitCode.RETURNED]
        self.left.difference_update(meta["node"] for meta in known)
        if failed and self.failed is None:
            self.failed = min(failed, key=lambda meta: float(meta["ended_at"]))

    def _read(self, node: int) -> dict[str, Any] | None:
        """Return the description in a node's outcome; None if there is no outcome."""
        key = self._job.where.node_key(self._job.attempt, node)
        try:
            data = self._storage.read(key, 0, LARGEST_OUTCOME_BYTES)
            return envelope.open_outcome(self._job.key, key, data).meta
        except NotFoundError:
            return None
        except (TooShortError, envelope.EnvelopeError) as error:
            return {
                "status": OutcomeStatus.REFUSED,
                "code": ExitCode.OUTCOME_OCCUPIED.value,
                "detail": f"another client wrote {key} ({error})",
                "node": node,
                "ended_at": time.time(),
            }

    def _report(self, text: str) -> None:
        if not self._has_reported:
            self._has_reported = True
            log(text)


def _number(name: str) -> int:
    """Return the node number at the end of a key; -1 if there is none."""
    return int(name) if name.isascii() and name.isdecimal() and len(name) < 5 else -1
