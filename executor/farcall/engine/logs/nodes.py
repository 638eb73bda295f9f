"""The nodes of a job: their attempts, and which of these have ended. No I/O.

A job on one node has one node, 0, which is the job itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from farcall.model.errors import FarcallError, UnknownError
from farcall.model.jobs import Attempt, JobDetail, JobStatus
from farcall.model.names import counted

_STOPPING_S = 60.0
"""Seconds for other nodes to stop after the main node; Batch waits half a minute."""

_LONG = timedelta(minutes=10)
"""Time by which this machine's clock is never ahead, because requests would fail."""


class NodeAttempt(NamedTuple):
    """One attempt of a node.

    Attributes:
        node: Index of the node.
        number: Number of the job's attempt, from 1.
        group: Group of its log.
        stream: Stream of its log; empty if it has none yet.
        is_over: Whether the container has ended, or will not start.
        started_at: Time at which it started; None if unknown.
        stopped_at: Time at which it ended; None if unknown.
    """

    node: int
    number: int
    group: str = ""
    stream: str = ""
    is_over: bool = False
    started_at: datetime | None = None
    stopped_at: datetime | None = None


class JobNodes:
    """A job and the nodes to read.

    Args:
        job: Description of the entire job.
        nodes: Descriptions of nodes by index; one that never ran may be missing.

    Attributes:
        job: Description of the entire job.
        is_command: Whether only the platform's log has its output.
        is_forgotten: Whether the platform no longer knows the job, so that it cannot be running.
    """

    def __init__(self, job: JobDetail, nodes: Mapping[int, JobDetail]) -> None:
        self.job = job
        self.is_command = job.is_command
        self._nodes = dict(nodes)
        self.is_forgotten = False
        self._is_confirmed = True
        self._over_s = 0.0
        self._over_since: float | None = None

    def update(
        self, details: Mapping[str, JobDetail], nodes: Iterable[int], now: float = 0.0
    ) -> None:
        """Record the platform's current descriptions.

        Args:
            details: Descriptions by ID.
            nodes: Indexes of the requested nodes.
            now: The event loop's time.
        """
        self._is_confirmed = self.is_over
        self.job = details.get(self.job.job_id, self.job)
        if self.is_over:
            self._over_since = now if self._over_since is None else self._over_since
            self._over_s = now - self._over_since
        for index in nodes:
            detail = details.get(self.job.node_id(index))
            if detail is not None:
                self._nodes[index] = detail

    @property
    def count(self) -> int:
        """Number of nodes."""
        return self.job.nodes or 1

    @property
    def is_over(self) -> bool:
        """Whether no node will run again."""
        return self.is_forgotten or self.job.status.is_final

    @property
    def last_attempt(self) -> int:
        """Number of the latest attempt, which may be about to start."""
        ended = self.job.attempts
        return max(1, ended if self.is_over else ended + 1)

    def wanted(self, nodes: Sequence[int] | None) -> list[int]:
        """Return the nodes to read; by default all of a command, and the main node of a task."""
        if nodes is None:
            nodes = range(self.count) if self.is_command else (0,)
        return list(dict.fromkeys(nodes))

    def ids(self, nodes: Iterable[int]) -> list[str]:
        """Return the IDs for describing the job and some of its nodes."""
        return list(dict.fromkeys([self.job.job_id, *map(self.job.node_id, nodes)]))

    def chosen(self, nodes: Sequence[int] | None, attempt: int | None, *, follow: bool) -> range:
        """Return the attempts to read, and check that nodes and attempts exist.

        Args:
            nodes: Indexes of nodes; None for all.
            attempt: Number of one attempt; None for all, or for the latest and later ones of a
                command that is followed.
            follow: Whether to read future output, too.

        Raises:
            UnknownError: The node or attempt does not exist; the error names the existing ones.
            FarcallError: The job is an array job.
        """
        job, last = self.job, self.last_attempt
        if job.array_size:
            raise FarcallError(
                f"job {job.job_id} is an array of {job.array_size} jobs, each with its own "
                f"log. Name one of them, for example {job.job_id}:0."
            )
        for node in nodes or ():
            if not 0 <= node < self.count:
                there = "only node 0" if self.count == 1 else f"nodes 0 to {self.count - 1}"
                raise UnknownError(f"job {job.job_id} has no node {node}; it has {there}")
        most = max(last, job.attempts_allowed) if follow and not self.is_over else last
        if attempt is None:
            first = last if follow and self.is_command else 1
            return range(first, (most if follow else last) + 1)
        if not 1 <= attempt <= most:
            may = "may have" if most > last else "has had"
            raise UnknownError(
                f"job {job.job_id} has no attempt {attempt}: it {may} "
                f"{counted(most, 'attempt')}, counted from 1"
            )
        return range(attempt, attempt + 1)

    def attempts(self, index: int) -> list[NodeAttempt]:
        """Return the attempts of a node, the first one first; a waiting node has one more."""
        detail = self._nodes.get(index)
        if detail is None:
            return []
        group = detail.log_group
        node_attempts = [
            NodeAttempt(index, number, group, tried.log_stream, True, *tried[-2:])
            for number, tried in self._tried(detail)
        ]
        is_over = (self.is_over or detail.status.is_final) and not self._goes_on(detail)
        stream = (
            ""
            if detail.log_stream in {each.stream for each in node_attempts}
            else detail.log_stream
        )
        if stream or not is_over or not node_attempts:
            after = node_attempts[-1].number + 1 if node_attempts else 1
            number = max(after, self._attempt_at(detail.started_at))
            times = detail.started_at, detail.stopped_at
            node_attempts.append(NodeAttempt(index, number, group, stream, is_over, *times))
        return node_attempts

    def has_ended(self, index: int, attempt: int | None = None) -> bool:
        """Return whether a node has no further logs.

        Args:
            index: The node.
            attempt: The last relevant attempt; by default any later one.
        """
        detail = self._nodes.get(index)
        if detail is not None and self._goes_on(detail):
            return False
        last = self.job.attempts_allowed if attempt is None else attempt
        is_final = detail is not None and detail.status.is_final
        if self.is_over or self.job.attempts >= last:
            # A node's end may be reported a moment after its job's.
            return is_final or self._is_confirmed or not self.is_over
        return is_final and self.attempts(index)[-1].number >= last

    def _goes_on(self, node: JobDetail) -> bool:
        """Return whether a node's container runs; after the job's end it is being stopped."""
        if self.is_forgotten or node.status is not JobStatus.RUNNING:
            return False
        stopped_at = self.job.stopped_at
        is_old = stopped_at is not None and is_long_ago(stopped_at)
        return not self.is_over or (self._over_s < _STOPPING_S and not is_old)

    def _tried(self, node: JobDetail) -> list[tuple[int, Attempt]]:
        """Return a node's finished attempts, each with the number of the job's attempt."""
        attempts: list[tuple[int, Attempt]] = []
        number = 0
        for tried in node.tried:
            number = max(number + 1, self._attempt_at(tried.started_at))
            attempts.append((number, tried))
        return attempts

    def _attempt_at(self, moment: datetime | None) -> int:
        """Return the job's attempt at a time; 1 if unknown.

        Kubernetes reports whole seconds: a container that began as an attempt ended may belong to
        that attempt. A node has had fewer attempts than the job if the main node failed before the
        node started.
        """
        if moment is None:
            return 1
        stops = [tried.stopped_at for tried in self.job.tried]
        return 1 + sum(stop is not None and stop < moment for stop in stops)


def is_long_ago(moment: datetime) -> bool:
    """Return whether a container ended so long ago that it has no further output."""
    return moment < datetime.now(UTC) - _LONG


def parts_of(job_id: str, nodes: Sequence[int] | None) -> tuple[str, Sequence[int] | None]:
    """Split a job ID into job and requested nodes; a node's own ID names both."""
    job, mark, index = job_id.partition("#")
    if mark and index.isdecimal() and nodes is None:
        return job, [int(index)]
    return job_id, nodes
