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
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from datetime import datetime, timezone

from farcall.aws import error_translation
from farcall.backends.base import Backend, Log, LogEvent
from farcall.engine.logs import job_nodes
from farcall.engine.logs.job_nodes import JobNodes, NodeLog
from farcall.engine.tracked_job import Patience, Trouble
from farcall.model import clock
from farcall.model.errors import FarcallError, JobLostError, ServiceError
from farcall.model.jobs import JobDetail
from farcall.model.output import LOG, LogLine, last_state
from farcall.model.timing import Timing

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
        job_id, nodes = job_nodes.parts_of(job_id, nodes)
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
            ids = job_nodes.ids_of(job_id, nodes or ())
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
            is_old = stopped_at is not None and job_nodes.is_long_ago(stopped_at)
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
