"""Output of the nodes of command jobs, from the platform's log.

Each caller reads each node's log from its beginning or its end, and then polls it for new lines.
Logs that get lines are polled often, idle ones less often, and all callers of a session share one
limit of requests per second.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import math
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Mapping,
    Sequence,
)
from datetime import datetime, timedelta, timezone
from typing import NamedTuple

from farcall.aws import error_translation
from farcall.backends.base import Backend, Log, LogEvent
from farcall.engine.tracked_job import Patience, Trouble
from farcall.model import clock
from farcall.model.errors import FarcallError, JobLostError, ServiceError, UnknownError
from farcall.model.jobs import Attempt, JobDetail, JobStatus
from farcall.model.names import counted
from farcall.model.output import LOG, LogLine, last_state
from farcall.model.timing import Timing

# --- The nodes of a job: their logs, and which of these are complete. No I/O ---------------------


_CLOCKS = timedelta(hours=1)
"""Maximum time by which the clock of a writing machine is behind the service's."""

_STOPPING_S = 60.0
"""Seconds for other nodes to stop after the main node; Batch waits half a minute."""

_LONG = timedelta(minutes=10)
"""Time by which this machine's clock is never ahead, because requests would fail."""

_NODE, _CHILD = "#", ":"


class NodeLog(NamedTuple):
    """Log of one attempt of a node.

    Attributes:
        node: Index of the node.
        attempt: Number of the job's attempt, from 1.
        group: The log's group.
        stream: The log's stream.
        is_over: Whether the container has ended.
        stopped_at: Time at which it ended; None if unknown.
    """

    node: int
    attempt: int
    group: str
    stream: str
    is_over: bool
    stopped_at: datetime | None


class JobNodes:
    """A job and the nodes to read.

    Args:
        job: Description of the entire job.
        nodes: Descriptions of nodes by index; one that never ran may be missing.

    Attributes:
        job: Description of the entire job.
        is_forgotten: Whether the platform no longer knows the job, so that it cannot be running.
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
        """Record the platform's current descriptions.

        Args:
            found: Descriptions by ID.
            nodes: Indexes of the requested nodes.
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
        """Time before which no node has written anything."""
        return (self.job.created_at or datetime(1970, 1, 2, tzinfo=timezone.utc)) - _CLOCKS

    @property
    def is_over(self) -> bool:
        """Whether no node will run again."""
        return self.is_forgotten or self.job.status.is_final

    @property
    def last_attempt(self) -> int:
        """Number of the latest attempt, which may be about to start."""
        ended = self.job.attempts
        return max(1, ended if self.is_over else ended + 1)

    def ids(self, nodes: Iterable[int]) -> list[str]:
        """Return the IDs for describing the job and some of its nodes."""
        return list(dict.fromkeys([self.job.job_id, *map(self.job.node_id, nodes)]))

    def chosen(self, nodes: Sequence[int] | None, attempt: int | None, *, follow: bool) -> range:
        """Return the attempts to read, and check that nodes and attempts exist.

        Args:
            nodes: Indexes of nodes; None for all.
            attempt: Number of one attempt; None for all, or for the latest and later ones.
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
            return range(last, most + 1) if follow else range(1, last + 1)
        if not 1 <= attempt <= most:
            may = "may have" if most > last else "has had"
            raise UnknownError(
                f"job {job.job_id} has no attempt {attempt}: it {may} "
                f"{counted(most, 'attempt')}, counted from 1"
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
        return detail is not None and is_final and self._number(detail) >= last

    def _goes_on(self, node: JobDetail) -> bool:
        """Return whether a node's container runs; after the job's end it is being stopped."""
        if self.is_forgotten or node.status is not JobStatus.RUNNING:
            return False
        stopped_at = self.job.stopped_at
        is_old = stopped_at is not None and is_long_ago(stopped_at)
        return not self.is_over or (self._over_s < _STOPPING_S and not is_old)

    def _tried(self, node: JobDetail) -> list[tuple[int, Attempt]]:
        """Return a node's finished attempts, each with the number of the job's attempt."""
        found: list[tuple[int, Attempt]] = []
        number = 0
        for tried in node.tried:
            number = max(number + 1, self._attempt_at(tried.started_at))
            found.append((number, tried))
        return found

    def _number(self, node: JobDetail) -> int:
        """Return the number of the job's attempt in which a node ran last."""
        tried = self._tried(node)
        known = {each.log_stream for _, each in tried}
        if tried and (not node.log_stream or node.log_stream in known):
            return tried[-1][0]
        after = tried[-1][0] + 1 if tried else 1
        return max(after, self._attempt_at(node.started_at))

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
    return moment < datetime.now(timezone.utc) - _LONG


def parts_of(job_id: str, nodes: Sequence[int] | None) -> tuple[str, Sequence[int] | None]:
    """Split a job ID into job and requested nodes; a node's own ID names both."""
    job, mark, index = job_id.partition(_NODE)
    if mark and index.isdecimal() and nodes is None:
        return job, [int(index)]
    return job_id, nodes


def ids_of(job_id: str, nodes: Iterable[int]) -> list[str]:
    """Return the IDs to describe before a job is known; some may not exist.

    The job of an array task has no nodes, and neither has a node.
    """
    if _CHILD in job_id or _NODE in job_id:
        return [job_id]
    return [job_id, *(f"{job_id}{_NODE}{index}" for index in nodes)]


# --- Lines of a job's nodes ----------------------------------------------------------------------


_PAGE = 1000
"""Maximum lines of one batch to which several logs contribute."""

_TOGETHER = 8
"""Maximum logs whose new lines one batch contains."""

_SHORTEST_S = 0.01
"""Minimum pause between two polls, which keeps rounding errors from repeating them."""

_MOST_LINES = 10_000
"""Lines after which a poll of one log lets the others have their turn."""


class NodeLogs:
    """Reader of the output of command jobs; one for each session.

    Args:
        backend: Platform that runs the jobs.
        detail: Returns the backend's description of a job, or None; concurrent callers share a
            request.
        trouble: Notified of requests that fail while a log is followed.
        timing: Intervals between requests.
    """

    def __init__(
        self,
        backend: Backend,
        detail: Callable[[str], Awaitable[JobDetail | None]],
        trouble: Trouble,
        timing: Timing,
    ) -> None:
        self.backend = backend
        self.trouble = trouble
        self.timing = timing
        self._detail = detail
        self._closed = asyncio.Event()
        self._turn_at = -math.inf

    async def batches(
        self,
        job_id: str,
        nodes: Sequence[int] | None = None,
        *,
        attempt: int | None = None,
        follow: bool = False,
        tail: int | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
    ) -> AsyncGenerator[list[LogLine], None]:
        """Yield the output of a job's nodes: each node's in order, several nodes' by time.

        Args:
            job_id: The job's ID, or a node's (``"<job>#<index>"``).
            nodes: Indexes of nodes, from 0; by default all. A job on one node has node 0.
            attempt: Number of one attempt of the job, from 1. By default all, one after the
                other; with ``follow``, the last one and later ones.
            follow: Continue until the nodes have ended, including their last lines. If the job has
                not started, wait for it. The lines of one batch are ordered by time.
            tail: Maximum number of existing lines, the last ones of all nodes together.
            since: Only lines written at this time or later, to the millisecond. Without a time
                zone it is local time.
            until: Only lines written at this time or before, with the same precision.

        Raises:
            ValueError: ``tail`` is negative.
            UnknownError: The node or attempt does not exist; the message names the existing ones.
            JobLostError: The platform does not know the job.
            FarcallError: The job is an array job, or the session was closed.
            ServiceError: The platform refused.
        """
        if tail is not None and tail < 0:
            raise ValueError(f"tail is {tail}; use a number of lines, at least 0")
        since, until = (moment and _whole(moment) for moment in (since, until))
        job_id, nodes = parts_of(job_id, nodes)
        job = await self._look_up(job_id, nodes, follow=follow)
        attempts = job.chosen(nodes, attempt, follow=follow)
        wanted = list(dict.fromkeys(range(job.count) if nodes is None else nodes))
        reader = _JobReader(self, job, wanted, attempts, attempt, since, until)
        try:
            if tail is not None:
                yield await reader.last(tail)
            pages = reader.follow() if follow else reader.all() if tail is None else None
            if pages is not None:
                async with contextlib.aclosing(pages):
                    async for lines in pages:
                        yield lines
        finally:
            await reader.close()

    async def describe(self, ids: Sequence[str]) -> dict[str, JobDetail]:
        """Return the descriptions of the jobs and nodes that the platform knows."""
        details = await asyncio.gather(*map(self._detail, ids))
        return {each: found for each, found in zip(ids, details, strict=True) if found is not None}

    async def turn(self) -> None:
        """Wait until the platform allows another request for a log."""
        self._turn_at = max(self._turn_at, clock.now())
        wait_s = self._turn_at - clock.now()
        self._turn_at += 1 / self.backend.capabilities.log_reads_per_s
        if wait_s > 0:
            await asyncio.sleep(wait_s)

    async def sleep_until(self, moment: float) -> None:
        """Wait until a time of the event loop's clock.

        Raises:
            FarcallError: The session was closed.
        """
        with contextlib.suppress(asyncio.TimeoutError):
            await clock.within(max(_SHORTEST_S, moment - clock.now()), self._closed.wait())
        if self._closed.is_set():
            raise FarcallError(
                "the session was closed while a log was being followed. The job continues."
            )

    def close(self) -> None:
        """Notify all callers that follow a log. Jobs continue."""
        self._closed.set()

    async def _look_up(
        self, job_id: str, nodes: Sequence[int] | None, *, follow: bool
    ) -> JobNodes:
        """Return the state of a job and its nodes; with ``follow``, wait for a new job.

        Raises:
            JobLostError: The platform does not know the job.
        """
        began = clock.now()
        while True:
            ids = ids_of(job_id, nodes or ())
            found = await self.describe(ids)
            job = found.get(job_id)
            if job is not None:
                break
            if not follow or clock.now() - began >= self.timing.lost_after_s:
                raise JobLostError(self.backend.unknown(job_id), job_id=job_id)
            await self.sleep_until(clock.now() + self.timing.status_pause_s)
        known = JobNodes(job, {})
        wanted = range(known.count) if nodes is None else nodes
        missing = [each for each in known.ids(wanted) if each not in ids]
        if missing and not job.array_size:
            found |= await self.describe(missing)
        known.update(found, wanted)
        return known


class _Reading:
    """One log, as far as one caller has read it.

    Attributes:
        log: The log.
        source: The platform's lines of the log.
        is_done: Whether the log was read to its end.
        due: Time of the next poll.
    """

    def __init__(self, log: NodeLog, source: Log) -> None:
        self.log = log
        self.source = source
        self.is_done = False
        self.due = -math.inf
        self._pause_s = 0.0
        self._quiet_since = -math.inf
        self._settle_s = math.inf

    def lines(self, events: Sequence[LogEvent]) -> list[LogLine]:
        """Build the `LogLine` of each event of the log."""
        log = self.log
        return [
            LogLine(last_state(event.text), LOG, log.attempt, event.at, node=log.node)
            for event in events
        ]

    def record_over(self, stopped_at: datetime | None, timing: Timing) -> None:
        """Record that the container has ended; its last lines may still arrive."""
        if math.isinf(self._settle_s):
            self._quiet_since = clock.now()
            is_old = stopped_at is not None and is_long_ago(stopped_at)
            self._settle_s = 0.0 if is_old else timing.log_settle_s
            self.due = min(self.due, clock.now() + self._settle_s)

    def record_read(self, began: float, timing: Timing, *, has_news: bool) -> None:
        """Record a poll that began at a time."""
        now = clock.now()
        if has_news and self._settle_s:
            self._quiet_since = now
        self.is_done = began >= self._quiet_since + self._settle_s
        longer_s = 0.0 if has_news else 2 * self._pause_s
        self._pause_s = min(timing.node_log_rest_s, max(timing.node_log_pause_s, longer_s))
        self.due = now + min(self._pause_s, self._settle_s)


class _JobReader:
    """The output of some nodes of one job, for one caller.

    Args:
        logs: The session's reader.
        job: The job and its nodes.
        nodes: Indexes of the nodes.
        attempts: Numbers of the attempts.
        attempt: The only attempt, if the caller named one.
        since: Time of the first line; None for all.
        until: Time of the last line; None for all.
    """

    def __init__(
        self,
        logs: NodeLogs,
        job: JobNodes,
        nodes: Sequence[int],
        attempts: range,
        attempt: int | None,
        since: datetime | None,
        until: datetime | None,
    ) -> None:
        self._logs = logs
        self._timing = logs.timing
        self._job = job
        self._nodes = nodes
        self._attempts = attempts
        self._attempt = attempt
        self._since = since
        self._until = until
        self._readings: dict[str, _Reading] = {}
        self._ask_at = clock.now() + self._timing.attempts_pause_s  # its description is new
        self._unseen_since = math.inf
        self._find_logs()

    async def close(self) -> None:
        """Release the platform's resources."""
        await asyncio.gather(*(reading.source.close() for reading in self._readings.values()))

    # --- the lines up to now ------------------------------------------------------------------

    async def all(self) -> AsyncGenerator[list[LogLine], None]:
        """Yield all lines, one attempt after the other."""
        for readings in self._by_attempt():
            async for lines in _merged([self._existing(each) for each in readings]):
                yield lines

    async def last(self, number: int) -> list[LogLine]:
        """Return up to ``number`` of the last lines; `follow` continues after them."""
        found: list[LogLine] = []
        for readings in reversed(self._by_attempt()):
            wanted = number - len(found)
            ends = await asyncio.gather(*(self._end(each, wanted) for each in readings))
            lines = sorted((line for end in ends for line in end), key=_at)
            found = lines[max(0, len(lines) - wanted) :] + found
            if len(found) >= number:
                break
        return found

    def _by_attempt(self) -> list[list[_Reading]]:
        """Return the logs of each attempt, the first one first."""
        found: dict[int, list[_Reading]] = {}
        for reading in self._readings.values():
            found.setdefault(reading.log.attempt, []).append(reading)
        return [found[attempt] for attempt in sorted(found)]

    async def _existing(self, reading: _Reading) -> AsyncIterator[LogLine]:
        await self._logs.turn()
        async for events in reading.source.read():
            for line in self._wanted(reading, events):
                yield line
            if reading.is_done:
                return

    async def _end(self, reading: _Reading, number: int) -> list[LogLine]:
        await self._logs.turn()
        return self._wanted(reading, await reading.source.last(number))

    def _wanted(self, reading: _Reading, events: Sequence[LogEvent]) -> list[LogLine]:
        until = self._until
        if until is not None and events and events[-1].at > until:
            reading.is_done = True
            events = [event for event in events if event.at <= until]
        return reading.lines(events)

    # --- the lines from now on ----------------------------------------------------------------

    async def follow(self) -> AsyncGenerator[list[LogLine], None]:
        """Yield the lines that were not returned yet, until the nodes have ended."""
        patience = Patience(self._logs.trouble, self._timing)
        try:
            while self._open_logs or (self._left and not self._is_past()):
                lines, error = await self._look()
                if lines:
                    yield lines
                due = self._due()
                if error is None:
                    patience.renew()
                elif _may_pass(error) and patience.bear(error):
                    due = clock.now() + self._timing.node_log_rest_s
                else:
                    raise error
                await self._logs.sleep_until(due)
        finally:
            patience.end()

    async def _look(self) -> tuple[list[LogLine], FarcallError | None]:
        """Make the requests that are due; return the new lines and the first error."""
        try:
            if self._left and clock.now() >= self._ask_at:
                self._ask_at = clock.now() + await self._describe()
        except FarcallError as error:
            return [], error
        self._find_logs()
        due = sorted(self._open_logs, key=lambda reading: reading.due)[:_TOGETHER]
        polls = await asyncio.gather(
            *(self._poll(reading) for reading in due if reading.due <= clock.now())
        )
        lines = sorted((line for found, _ in polls for line in found), key=_at)
        return lines, next((error for _, error in polls if error is not None), None)

    async def _poll(self, reading: _Reading) -> tuple[list[LogLine], FarcallError | None]:
        """Return a log's new lines, and the error after them."""
        await self._logs.turn()
        began = clock.now()
        lines: list[LogLine] = []
        count = 0
        try:
            async with contextlib.aclosing(reading.source.read(follow=True)) as pages:
                async for events in pages:
                    count += len(events)
                    lines += self._wanted(reading, events)
                    if count >= _MOST_LINES:
                        return lines, None
        except FarcallError as error:
            return lines, error
        if not reading.is_done:
            reading.record_read(began, self._timing, has_news=bool(count))
        return lines, None

    def _due(self) -> float:
        """Return the time at which the next request is due."""
        dues = [reading.due for reading in self._open_logs]
        return min([*dues, *([self._ask_at] if self._left else [])], default=clock.now())

    @property
    def _open_logs(self) -> list[_Reading]:
        """The logs that were not read to their end."""
        return [reading for reading in self._readings.values() if not reading.is_done]

    @property
    def _left(self) -> list[int]:
        """Indexes of the nodes that may write more."""
        return [node for node in self._nodes if not self._job.has_ended(node, self._attempt)]

    def _is_past(self) -> bool:
        return self._until is not None and self._until < datetime.now(timezone.utc)

    async def _describe(self) -> float:
        """Update the state of the job and its nodes; return the pause after it."""
        left, now = self._left, clock.now()
        ids = self._job.ids(left)
        found = await self._logs.describe(ids)
        self._job.update(found, left, now)
        is_known = self._job.job.job_id in found
        self._unseen_since = math.inf if is_known else min(self._unseen_since, now)
        self._job.is_forgotten = now - self._unseen_since >= self._timing.lost_after_s
        pages = math.ceil(len(ids) / self._logs.backend.capabilities.described_together)
        return self._timing.attempts_pause_s * max(1, pages / 2)

    def _find_logs(self) -> None:
        """Add new logs, and record which containers have ended."""
        listed = set()
        for log in (log for node in self._nodes for log in self._job.logs(node)):
            listed.add(log.stream)
            if log.attempt not in self._attempts:
                continue
            if log.stream not in self._readings:
                source = self._logs.backend.log(log.group, log.stream, self._since)
                self._readings[log.stream] = _Reading(log, source)
            if log.is_over or self._is_past():
                self._readings[log.stream].record_over(log.stopped_at, self._timing)
        # Kubernetes deletes the pods of the other nodes when the main node succeeds. Such a node
        # no longer has a log, and its container has ended.
        for stream, reading in self._readings.items():
            if stream not in listed and self._job.has_ended(reading.log.node, self._attempt):
                reading.record_over(None, self._timing)


async def _merged(sources: Sequence[AsyncIterator[LogLine]]) -> AsyncIterator[list[LogLine]]:
    """Yield the lines of several logs, each ordered by time, in the order of time."""
    firsts = await asyncio.gather(*(anext(source, None) for source in sources))
    heads = [(_at(line), number, line) for number, line in enumerate(firsts) if line is not None]
    heapq.heapify(heads)
    found: list[LogLine] = []
    while heads:
        at, number, line = heads[0]
        found.append(line)
        following = await anext(sources[number], None)
        if following is None:
            heapq.heappop(heads)
        else:  # a line that is slightly out of order keeps its position
            heapq.heapreplace(heads, (max(at, _at(following)), number, following))
        if len(found) >= _PAGE or not heads:
            yield found
            found = []


def _at(line: LogLine) -> datetime:
    """Return the time of a line of the platform's log, which always has one."""
    return line.at or datetime.min.replace(tzinfo=timezone.utc)


def _may_pass(error: FarcallError) -> bool:
    if not isinstance(error, ServiceError):
        return False
    return error_translation.may_pass(error) or error_translation.is_of_credentials(error)


def _whole(moment: datetime) -> datetime:
    """Round a time down to the millisecond; without a time zone it is local time."""
    moment = moment.astimezone(timezone.utc)
    return moment.replace(microsecond=moment.microsecond // 1000 * 1000)
