"""Gang of nodes: which logs the nodes of a command job have, and which of them are over. No I/O.

A job on one node is a gang of one, whose node is the job itself. Batch makes another attempt of
the whole job, never of one node: a node that has ended may run again as long as the job goes on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta, timezone
from typing import NamedTuple

from farcall.model.errors import FarcallError, UnknownError
from farcall.model.jobs import Attempt, JobDetail, JobStatus
from farcall.model.names import counted

_CLOCKS = timedelta(hours=1)
"""The clock of a machine that writes may be behind that of the service by so much."""

_STOPPING_S = 60.0
"""Other nodes are stopped when the main one has ended. They have half a minute for it."""

_LONG = timedelta(minutes=10)
"""The clock of this machine may be ahead of the service's; not by so much, or it is refused."""

_NODE, _CHILD = "#", ":"


class NodeLog(NamedTuple):
    """The log that one attempt of a node has written, or writes.

    Attributes:
        node: Index of the node.
        attempt: Number of the job's attempt, from 1.
        group: Where the log is.
        stream: Its name.
        is_over: Whether the container has ended.
        stopped_at: When it did; None where that is not known.
    """

    node: int
    attempt: int
    group: str
    stream: str
    is_over: bool
    stopped_at: datetime | None


class Gang:
    """A job and those of its nodes that somebody wants to read.

    Args:
        job: What is known of the job as a whole.
        nodes: By index, what is known of nodes; one that never ran may be missing.

    Attributes:
        job: The same as the argument.
        is_forgotten: Whether the platform knows the job no more: nothing of it goes on.
    """

    def __init__(self, job: JobDetail, nodes: Mapping[int, JobDetail]) -> None:
        self.job = job
        self._nodes = dict(nodes)
        self.is_forgotten = False
        self._is_confirmed = True
        self._over_s = 0.0
        self._over_since: float | None = None

    def update(
        self, found: Mapping[str, JobDetail], nodes: Iterable[int], now: float = 0.0
    ) -> None:
        """Take in what the platform says by now.

        Args:
            found: Descriptions by ID.
            nodes: Indexes of the nodes that were asked for.
            now: The event loop's time.
        """
        self._is_confirmed = self.is_over
        self.job = found.get(self.job.job_id, self.job)
        if self.is_over:
            self._over_since = now if self._over_since is None else self._over_since
            self._over_s = now - self._over_since
        for index in nodes:
            detail = found.get(self.job.node_id(index))
            if detail is not None:
                self._nodes[index] = detail

    @property
    def count(self) -> int:
        """Number of nodes."""
        return self.job.nodes or 1

    @property
    def begun(self) -> datetime:
        """When no node had written anything yet."""
        return (self.job.created_at or datetime(1970, 1, 2, tzinfo=timezone.utc)) - _CLOCKS

    @property
    def is_over(self) -> bool:
        """Whether no node runs again."""
        return self.is_forgotten or self.job.status.is_final

    @property
    def last_attempt(self) -> int:
        """Number of the last attempt there is up to now, or is about to be."""
        ended = self.job.attempts
        return max(1, ended if self.is_over else ended + 1)

    def ids(self, nodes: Iterable[int]) -> list[str]:
        """Return the IDs by which the platform is asked for the job and some of its nodes."""
        return list(dict.fromkeys([self.job.job_id, *map(self.job.node_id, nodes)]))

    def chosen(self, nodes: Sequence[int] | None, attempt: int | None, *, follow: bool) -> range:
        """Return which attempts are read, and see that there are such nodes and attempts.

        Args:
            nodes: Indexes of nodes; None for all.
            attempt: Number of one attempt; None for all, or for those from now on.
            follow: Whether what is to come is read as well.

        Raises:
            UnknownError: There is no such node, or no such attempt; it names those there are.
            FarcallError: The job is an array as a whole.
        """
        job, last = self.job, self.last_attempt
        if job.array_size:
            raise FarcallError(
                f"job {job.job_id} is an array of {job.array_size} jobs, each with a log of its "
                f"own; name one of them, such as {job.job_id}:0"
            )
        for node in nodes or ():
            if not 0 <= node < self.count:
                there = "node 0 alone" if self.count == 1 else f"nodes 0 to {self.count - 1}"
                raise UnknownError(f"job {job.job_id} has no node {node}; it has {there}")
        most = max(last, job.attempts_allowed) if follow and not self.is_over else last
        if attempt is None:
            return range(last, most + 1) if follow else range(1, last + 1)
        if not 1 <= attempt <= most:
            may = "may have" if most > last else "has had"
            raise UnknownError(
                f"job {job.job_id} has no attempt {attempt}; it {may} {counted(most, 'attempt')}, "
                "counted from 1"
            )
        return range(attempt, attempt + 1)

    def logs(self, index: int) -> list[NodeLog]:
        """Return the logs of a node, the first attempt first."""
        detail = self._nodes.get(index)
        if detail is None:
            return []
        found = [
            NodeLog(index, number, detail.log_group, tried.log_stream, True, tried.stopped_at)
            for number, tried in self._tried(detail)
            if tried.log_stream
        ]
        if detail.log_stream and detail.log_stream not in {log.stream for log in found}:
            number, is_over = self._number(detail), not self._goes_on(detail)
            place = detail.log_group, detail.log_stream
            found.append(NodeLog(index, number, *place, is_over, detail.stopped_at))
        return found

    def has_ended(self, index: int, attempt: int | None = None) -> bool:
        """Return whether no log is to come from a node.

        Args:
            index: Which node.
            attempt: The last attempt that is of interest; by default any that may come.
        """
        detail = self._nodes.get(index)
        if detail is not None and self._goes_on(detail):
            return False
        last = self.job.attempts_allowed if attempt is None else attempt
        is_final = detail is not None and detail.status.is_final
        if self.is_over or self.job.attempts >= last:
            # A node may be seen to end a moment later than its job.
            return is_final or self._is_confirmed or not self.is_over
        return detail is not None and is_final and self._number(detail) >= last

    def _goes_on(self, node: JobDetail) -> bool:
        """Return whether a node's container runs; it is being stopped when the job has ended."""
        if self.is_forgotten or node.status is not JobStatus.RUNNING:
            return False
        stopped_at = self.job.stopped_at
        is_old = stopped_at is not None and is_long_ago(stopped_at)
        return not self.is_over or (self._over_s < _STOPPING_S and not is_old)

    def _tried(self, node: JobDetail) -> list[tuple[int, Attempt]]:
        """Return a node's attempts that have ended, each with the number of the job's attempt."""
        found: list[tuple[int, Attempt]] = []
        number = 0
        for tried in node.tried:
            number = max(number + 1, self._attempt_at(tried.started_at))
            found.append((number, tried))
        return found

    def _number(self, node: JobDetail) -> int:
        """Return the number of the job's attempt that a node had last, or has."""
        tried = self._tried(node)
        known = {each.log_stream for _, each in tried}
        if tried and (not node.log_stream or node.log_stream in known):
            return tried[-1][0]
        after = tried[-1][0] + 1 if tried else 1
        return max(after, self._attempt_at(node.started_at))

    def _attempt_at(self, moment: datetime | None) -> int:
        """Return in which attempt of the job something began; 1 where that is not known.

        Kubernetes tells whole seconds: what began as another ended may have been that one. A node
        has had fewer attempts than the job where the main node did not get so far as to
        have it started.
        """
        if moment is None:
            return 1
        stops = [tried.stopped_at for tried in self.job.tried]
        return 1 + sum(stop is not None and stop < moment for stop in stops)


def is_long_ago(moment: datetime) -> bool:
    """Return whether nothing of a container comes any more that ended at a moment."""
    return moment < datetime.now(timezone.utc) - _LONG


def parts_of(job_id: str, nodes: Sequence[int] | None) -> tuple[str, Sequence[int] | None]:
    """Return the job and the nodes that are meant; a node's own ID names both."""
    job, mark, index = job_id.partition(_NODE)
    if mark and index.isdecimal() and nodes is None:
        return job, [int(index)]
    return job_id, nodes


def ids_of(job_id: str, nodes: Iterable[int]) -> list[str]:
    """Return IDs to ask for before anything is known of a job; some may be nobody's.

    The job of an array's child has no nodes, nor has a node.
    """
    if _CHILD in job_id or _NODE in job_id:
        return [job_id]
    return [job_id, *(f"{job_id}{_NODE}{index}" for index in nodes)]
