"""Supervisor: forks a child, fetches its task, watches it, stores the outcome.

Whatever the function does to its process (segfault, ``os._exit``, running out of memory, hanging),
the supervisor survives and stores the failure and the output so far. Every failure becomes a
stored outcome or, if nothing can be stored, a documented exit code.
"""

from __future__ import annotations

import gc
import math
import selectors
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from types import FrameType
from typing import Any, TypeAlias

from farcall_runtime import container_output, contract, envelope, memory, sources
from farcall_runtime.bundle import (
    Assignment,
    RefusedError,
    fetch,
    is_cancelled,
    is_delivered,
    is_receipted,
    stored_code,
)
from farcall_runtime.child import Child
from farcall_runtime.container_output import log
from farcall_runtime.contract import CallStatus, ExitCode, OutcomeStatus
from farcall_runtime.envelope import Buffer
from farcall_runtime.peers import Peers
from farcall_runtime.storage import SINGLE_PUT_BYTES, Created, Storage, StorageError
from farcall_runtime.streams import Limits, Streams
from farcall_runtime.times import Times

_STREAM_RETRY_S = 20.0
_REFUSAL_S = 10.0  # the exit code is informative enough
_POLL_S, _HELD_POLL_S = 0.5, 0.05
_MESSAGES = 32  # maximum messages in a row before output and deadlines are handled again

_SETTLE_S = 2.0
"""Time in seconds for which the main node polls the others after its own failure.

One of them may be the cause, and be about to report it.
"""

_NODE_VALUE_BYTES = 1024 * 1024
"""Maximum result bytes inside other nodes' outcomes, which the main node reads."""


_End: TypeAlias = "tuple[OutcomeStatus, ExitCode, dict[str, Any]]"
"""End of an attempt: status, exit code, and further facts for the outcome."""


class Supervisor:
    """One attempt of one task.

    Args:
        assignment: The task to run.
        environment: Contains endpoint, region and credentials for storage, and limits for streams.
        times: The attempt's deadlines.
    """

    def __init__(
        self, assignment: Assignment, environment: Mapping[str, str], times: Times
    ) -> None:
        self.assignment = assignment
        self._times = times
        self._oom_kills = memory.oom_kills()
        self._meta: dict[str, Any] = {}  # the bundle's, once the index is verified
        self._streams = Streams(
            assignment.where,
            assignment.number,
            assignment.attempt,
            assignment.key,
            Limits.read(environment),
        )
        project = sources.new_folder(environment)
        self._child = Child(self._streams, project)
        signal.signal(signal.SIGTERM, self._on_terminate)
        signal.signal(signal.SIGCHLD, lambda *_: None)  # its arrival wakes the selector
        self._wake, self._waker = socket.socketpair()
        for end in (self._wake, self._waker):
            end.setblocking(False)
        signal.set_wakeup_fd(self._waker.fileno(), warn_on_full_buffer=False)
        self._storage = Storage(
            assignment.where.bucket, environment, deadline=self._times.give_up_at
        )
        self._clean_ups: list[Callable[[], None]] = [partial(sources.remove, project)]
        self._peers: Peers | None = None
        if assignment.nodes > 1 and assignment.is_main:
            self._peers = Peers(assignment, self._storage)

    def run(self) -> ExitCode:
        """Run the attempt to its end and store its outcome."""
        assignment = self.assignment
        try:
            known = self._known_code()
            if known is not None:
                self._child.end()
                return known
            fetched = fetch(assignment, self._storage, self._child.payload)
            self._meta = fetched.meta
            prefix = self._packages(fetched.packages)
        except RefusedError as refusal:
            self._child.end()
            if self._times.terminated_at is not None:
                return ExitCode.TERMINATED
            if refusal.code == ExitCode.BUNDLE_MISSING and assignment.attempt > 1:
                log(str(refusal))
                return refusal.code  # most likely the result was delivered: no caller waits
            self._times.end(_REFUSAL_S)
            return self._store(OutcomeStatus.REFUSED, refusal.code, {"detail": str(refusal)})
        self._times.limit_s = fetched.meta.get("time_limit_s")
        self._child.go(
            fetched.function,
            fetched.arguments,
            fetched.shared_at,
            str(fetched.meta.get("cloudpickle", "")),
            prefix,
        )
        gc.enable()  # nothing waits for this process now
        bounded = self._storage.bounded(_STREAM_RETRY_S, self._times.give_up_streams_at)
        self._streams.start(bounded)
        if self._peers is not None:
            self._peers.start()
        self._watch()
        if self._peers is None:
            self._times.end()
        self._child.end()
        self._streams.drain()
        end = self._judge()
        if self._peers is not None:
            end = self._judge_all(self._peers, *end)
            self._times.end()
        self._streams.finish(self._times.give_up_streams_at)
        return self._store(*end)

    def _known_code(self) -> ExitCode | None:
        """Return the exit code if there is nothing to run, else None.

        Raises:
            RefusedError: S3 cannot be reached, or the stored outcome is not this job's.
        """
        stored = self._earlier_code() if self.assignment.attempt > 1 else None
        if stored is not None or not self.assignment.may_be_cancelled:
            return stored
        return ExitCode.CANCELLED if is_cancelled(self.assignment, self._storage) else None

    def _earlier_code(self) -> ExitCode | None:
        """Return the exit code if an earlier attempt died after it was done, else None.

        Raises:
            RefusedError: S3 cannot be reached, or the stored outcome is not this job's.
        """
        job = self.assignment
        stored = stored_code(job, self._storage)
        if stored is not None:
            if stored == ExitCode.RETURNED:  # maybe stored twice before that attempt died
                self._delete_duplicate(self._storage, job.where.outcome_key(job.entry))
            return stored
        try:
            # Clients delete only successful outcomes.
            return ExitCode.RETURNED if is_receipted(job, self._storage) else None
        except StorageError as error:
            raise RefusedError(ExitCode.STORAGE_UNREACHABLE, str(error)) from error

    def _packages(self, wanted: envelope.Reference | None) -> str:
        """Fetch the task's packages; return their folder, or "" if it has none.

        Raises:
            RefusedError: The packages cannot be used here.
        """
        if wanted is None:
            return ""
        from farcall_runtime import environment  # its imports would cost every task about 30 ms

        prefix = environment.prepare(
            self.assignment.where,
            self._storage,
            wanted,
            is_stopped=lambda: self._times.terminated_at is not None,
        )
        self._clean_ups.append(partial(environment.remove, prefix))
        return str(prefix)

    def clean_up(self) -> None:
        """Delete the attempt's files; no caller waits for it."""
        for each in self._clean_ups:
            each()

    # --- while it runs ------------------------------------------------------------------------

    def _watch(self) -> None:
        """Pump output and enforce deadlines until the child has exited."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._wake, selectors.EVENT_READ)
            selector.register(self._child.control, selectors.EVENT_READ)
            while not self._child.reap() and not self._times.is_unkillable():
                held = self._choose(selector)
                wait_s = self._times.until_due(_HELD_POLL_S if held else _POLL_S)
                for ready, _ in selector.select(wait_s):
                    if ready.fileobj is self._wake:
                        self._wake.recv(4096)
                    elif ready.fileobj is self._child.control:
                        if self._receive() is None:
                            selector.unregister(ready.fileobj)
                    else:
                        self._streams.pump(ready.data)
                self._keep_time()

    def _receive(self) -> bool | None:
        """Receive messages; return whether there were any, None at the end.

        A large result takes several messages. Every other message gets a reply before the next one
        arrives.
        """
        for _ in range(_MESSAGES):
            received = self._child.receive()
            if not received or not self._child.control.is_receiving():
                return received
        return True

    def _choose(self, selector: selectors.BaseSelector) -> bool:
        """Watch the streams that should be read now; return whether one is held back."""
        held = False
        for stream in self._streams.both:
            holds = not stream.at_end and self._streams.holds(stream)
            held = held or holds
            wanted = not (holds or stream.at_end)
            if wanted and not stream.is_watched:
                selector.register(stream.read_fd, selectors.EVENT_READ, stream)
            elif stream.is_watched and not wanted:
                selector.unregister(stream.read_fd)
            stream.is_watched = wanted
        return held

    def _keep_time(self) -> None:
        """Interrupt the function when it must stop; kill its process if it does not react.

        The same applies to a process that stays after its last result, because it waits for
        processes that the function left, or in an `atexit` handler.
        """
        if self._child.left == 0:
            self._times.done()
        if self._peers is not None and self._peers.failed is not None:
            self._times.stop(f"node {self._peers.failed['node']} of this job has failed")
        number = self._times.due()
        if number is None:
            return
        if self._child.left == 0:
            stayed_s = time.monotonic() - self._times.done_at
            log(
                f"killing the task's process, which has not exited for {stayed_s:.0f} s after its "
                "last result: it waits for another process or an atexit handler"
            )
        self._child.signal(number, self._times.reason())

    def _on_terminate(self, _number: int, _frame: FrameType | None) -> None:
        if self._times.terminated_at is None:
            self._times.terminated_at = time.monotonic()

    # --- after --------------------------------------------------------------------------------

    def _judge(self) -> _End:
        """Determine how this node's attempt ended."""
        child, times = self._child, self._times
        child.receive_rest()
        records = child.records
        results: dict[str, Any] = {"results": records, "begun": len(records) + child.in_call}
        if self.assignment.nodes > 1:
            results["ended_at"] = time.time()  # the first of several failures decides
        late = times.timed_out  # the function was interrupted before any SIGTERM
        if times.was_stopped and not late:
            return OutcomeStatus.TERMINATED, ExitCode.TERMINATED, results
        was_signaled = late or times.stopped_at is not None
        if child.left == 0 and not (was_signaled and _was_interrupted(records)):
            return OutcomeStatus.DONE, _code_of(records), results
        if late:
            results["time_limit_s"] = times.limit_s
            return OutcomeStatus.TIMED_OUT, ExitCode.TIMED_OUT, results
        if was_signaled:
            return OutcomeStatus.PEER_FAILED, ExitCode.CHILD_KILLED, results
        return self._judge_death(results)

    def _judge_death(self, results: dict[str, Any]) -> _End:
        """Determine why the task's process ended early without being stopped."""
        child = self._child
        if child.status is not None and child.status >= 0:
            results["detail"] = child.failure_text()
            return OutcomeStatus.EXITED, ExitCode.CHILD_KILLED, results
        if memory.oom_kills() > self._oom_kills:
            results["memory_peak_bytes"] = memory.peak_bytes()
            return OutcomeStatus.OUT_OF_MEMORY, ExitCode.OUT_OF_MEMORY, results
        return OutcomeStatus.KILLED, ExitCode.CHILD_KILLED, results

    def _judge_all(
        self, peers: Peers, status: OutcomeStatus, code: ExitCode, results: dict[str, Any]
    ) -> _End:
        """Determine how the attempt ended on all nodes, given the main node's end.

        The main node's own failure decides; the other nodes' outcomes report theirs. If the
        platform stops all nodes because one of them failed, that node decides.
        """
        times = self._times
        if status is OutcomeStatus.TERMINATED and peers.poll_for_failure():
            status = OutcomeStatus.PEER_FAILED
        self._wait_for_peers(peers, status, code)
        if code != ExitCode.RETURNED and status != OutcomeStatus.PEER_FAILED:
            return status, code, results
        if peers.failed is not None:
            results["peer"] = peers.failed
            return OutcomeStatus.PEER_FAILED, ExitCode(peers.failed["code"]), results
        missing = sorted(peers.left.copy())
        if not missing:
            return status, code, results
        if times.terminated_at is not None:
            return OutcomeStatus.TERMINATED, ExitCode.TERMINATED, results
        results["missing"] = missing
        return OutcomeStatus.TIMED_OUT, ExitCode.TIMED_OUT, results

    def _wait_for_peers(self, peers: Peers, status: OutcomeStatus, code: ExitCode) -> None:
        """Wait for the other nodes' outcomes for as long as they may matter."""
        times = self._times
        if code == ExitCode.RETURNED:
            peers.wait(times.leave_at)
        elif status not in (OutcomeStatus.TERMINATED, OutcomeStatus.TIMED_OUT):
            until = time.monotonic() + _SETTLE_S
            peers.wait(lambda: min(until, times.leave_at()))
        peers.close()

    def _store(self, status: OutcomeStatus, code: ExitCode, details: dict[str, Any]) -> ExitCode:
        """Store the outcome; return the exit code."""
        job = self.assignment
        usage = self._usage()
        if usage:
            log(contract.usage_text(usage["wall_s"], usage["cpu_s"], usage["peak_memory_bytes"]))
        meta: dict[str, Any] = {
            "status": status,
            "code": code.value,
            "attempt": job.attempt,
            "job_id": job.job_id,
            "python": sys.version.partition(" ")[0],
            "child_status": self._child.status,
            "usage": usage,
            **{stream.name: stream.describe() for stream in self._streams.both},
            **self._place(),
            **details,
        }
        value: list[Buffer] = []
        if details.get("results"):
            value = self._child.value()
        final = job.is_main and self._is_final(code)
        key = self._outcome_key(final=final)
        most = SINGLE_PUT_BYTES if job.is_main else _NODE_VALUE_BYTES
        storage = self._storage.bounded(math.inf, self._times.give_up_at)
        try:
            if (size := envelope.size(value)) > most:
                place = partial(job.where.value_key, job.number, job.attempt)
                digest = storage.put_large(place, value)
                meta["value"] = {"size": size, "sha256": digest}
                value = []
            out, err = (stream.pending for stream in self._streams.both)
            pieces = envelope.seal_outcome(job.key, key, meta, out, err, value)
            if not final:
                storage.put(key, pieces)
                return code
            created = storage.create(key, pieces)
        except StorageError as error:
            log(f"the result ({status.value}) could not be stored: {error}")
            return self._without_outcome(code)
        if created is Created.BEFORE:
            code = self._existing_code(storage, code)
        if created is not Created.NOW and code == ExitCode.RETURNED:
            self._delete_duplicate(storage.bounded(_STREAM_RETRY_S, self._times.give_up_at), key)
        return code

    def _place(self) -> dict[str, Any]:
        """Return the outcome's description of the node, if there are several."""
        job = self.assignment
        if job.nodes == 1:
            return {}
        return {"node": job.node, "nodes": job.nodes, "ended_at": time.time()}

    def _outcome_key(self, *, final: bool) -> str:
        """Return the outcome's key; ``final`` is whether no other attempt follows."""
        job = self.assignment
        if not job.is_main:
            return job.where.node_key(job.attempt, job.node)
        if final:
            return job.where.outcome_key(job.entry)
        return job.where.attempt_key(job.entry, job.attempt)

    def _delete_duplicate(self, storage: Storage, key: str) -> None:
        """Delete an outcome that was stored again after a client had collected it.

        Of three requests, the second may have stored the outcome without its response arriving,
        and the third found it there. Clients delete only successful outcomes.
        """
        try:
            if is_delivered(self.assignment, storage):
                storage.delete(key)
        except StorageError as error:
            log(f"cannot check whether the result was stored twice: {error}")

    def _existing_code(self, storage: Storage, code: ExitCode) -> ExitCode:
        """Return the exit code if an outcome exists already.

        It may be this container's, stored by a request whose response was lost, or another run's
        of the same job. Any other outcome must not look like success.
        """
        try:
            stored = stored_code(self.assignment, storage)
        except RefusedError as refusal:
            log(str(refusal))
            return refusal.code if refusal.code == ExitCode.OUTCOME_OCCUPIED else code
        return code if stored is None else stored  # None: the client has collected it already

    def _without_outcome(self, code: ExitCode) -> ExitCode:
        """Return the exit code if the outcome is lost; most codes are informative enough."""
        if code not in (ExitCode.RETURNED, ExitCode.RAISED):
            return code
        if self._times.terminated_at is not None:
            return ExitCode.TERMINATED  # SIGTERM took the time for storing
        return ExitCode.OUTCOME_NOT_STORED

    def _is_final(self, code: ExitCode) -> bool:
        """Return whether Batch starts no further attempt after this exit code."""
        if code in (ExitCode.TERMINATED, ExitCode.STORAGE_UNREACHABLE):
            return False  # another attempt follows a reclaimed host, but not a cancellation
        if code in (ExitCode.RETURNED, ExitCode.BAD_ENVIRONMENT) or str(code.value)[0] == "6":
            return True
        retried = self._meta.get("retry_on") == contract.RETRY_ON_FAILURE
        return not retried or self.assignment.attempt >= self._meta.get("attempts", 1)

    def _usage(self) -> dict[str, Any]:
        usage = self._child.usage
        if usage is None:
            return {}
        unit = 1 if sys.platform == "darwin" else 1024
        return {
            "wall_s": time.monotonic() - self._times.started,
            "cpu_s": usage.ru_utime + usage.ru_stime,
            "peak_memory_bytes": usage.ru_maxrss * unit,
            "memory_limit_bytes": memory.limit_bytes(),
        }


def run(environment: Mapping[str, str], times: Times | None = None) -> int:
    """Run the container's task.

    Args:
        environment: The process's environment.
        times: The attempt's deadlines; None for Batch's.

    Returns:
        The exit code.
    """
    times = times or Times()
    try:
        assignment = Assignment.read(environment)
    except RefusedError as refusal:
        log(str(refusal))
        code = refusal.code
    else:
        supervisor = Supervisor(assignment, environment, times)
        try:
            code = supervisor.run()
        finally:
            supervisor.clean_up()
    container_output.flush(times.left_to_flush_s())
    return code


def _code_of(records: list[dict[str, Any]]) -> ExitCode:
    """Return the exit code if every call has ended."""
    if any(record["status"] == CallStatus.UNREADABLE for record in records):
        return ExitCode.UNREADABLE
    if any(record["status"] != CallStatus.RETURNED for record in records):
        return ExitCode.RAISED
    return ExitCode.RETURNED


def _was_interrupted(records: list[dict[str, Any]]) -> bool:
    """Return whether an interruption ended a call, or a node of a task group."""
    each = [node for record in records for node in (record, *record.get("nodes", ()))]
    links = (link for record in each for link in record.get("chain", ()))
    return any(link["type"] == contract.TERMINATED_TYPE for link in links)
