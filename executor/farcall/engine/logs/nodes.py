"""Output of the nodes of command jobs, from the platform's log.

Each caller reads its logs from their beginning and then polls them. The polls of all callers of a
session share requests; see `_Polls`.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import math
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Sequence
from datetime import datetime, timedelta, timezone
from typing import NamedTuple

from farcall.aws import error_translation
from farcall.backends.base import Backend, LogEvent, LogMissingError
from farcall.engine.logs import job_nodes
from farcall.engine.logs.job_nodes import JobNodes, NodeLog
from farcall.engine.packer import Batcher
from farcall.engine.tracked_job import Patience, Trouble
from farcall.model import clock
from farcall.model.errors import FarcallError, JobLostError, ServiceError
from farcall.model.jobs import JobDetail
from farcall.model.output import LOG, LogLine, last_state
from farcall.model.timing import Timing

_MILLISECOND = timedelta(milliseconds=1)
_FIRST_S, _LONGER = 10.0, 4
"""Time span in seconds that is searched first for the last lines, and its growth.

The first span ends at the end of the log. Each span before it is longer by this factor.
"""

_PAGE = 1000
"""Maximum lines of one batch to which several requests contribute."""

_TOGETHER_S = 0.02
"""Time in seconds within which starting polls share requests."""

_GROWTH = 2
"""Growth of the pause between polls of idle logs.

Pauses are multiples of each other, so that the polls of several callers coincide.
"""

_REQUEST_SHARE = 0.5
"""Share of the shortest pause that each request adds to the pause after its poll.

So there are at most two requests per shortest pause, however much is written.
"""

_PROBES = 4
"""Maximum failing requests of one poll; the remaining logs wait for the next."""

_LONGEST_ABSENCE_S = 16.0
"""Maximum interval in seconds between requests for a log that does not exist."""


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
        self.polls = _Polls(backend, timing)
        self._detail = detail
        self._closed = asyncio.Event()

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
                not started, wait for it.
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
        if tail is not None:
            yield await reader.last(tail, self.timing.node_log_late_s if follow else _FIRST_S)
        pages = reader.follow() if follow else reader.all() if tail is None else None
        if pages is not None:
            async with contextlib.aclosing(pages):
                async for lines in pages:
                    yield lines

    async def describe(self, ids: Sequence[str]) -> dict[str, JobDetail]:
        """Return the descriptions of the jobs and nodes that the platform knows."""
        details = await asyncio.gather(*map(self._detail, ids))
        return {each: found for each, found in zip(ids, details, strict=True) if found is not None}

    async def sleep_until(self, moment: float) -> None:
        """Wait until a time of the event loop's clock.

        Raises:
            FarcallError: The session was closed.
        """
        with contextlib.suppress(asyncio.TimeoutError):
            await clock.within(max(0.0, moment - clock.now()), self._closed.wait())
        if self._closed.is_set():
            raise _closed()

    async def close(self) -> None:
        """Stop polling and notify all callers that follow a log. Jobs continue."""
        self._closed.set()
        await self.polls.close()

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
        floor: Lines written earlier have been delivered or are not wanted. It never decreases.
        seen: Time of each delivered line that was written since `floor`, by the line's key.
        read_to: Time of the newest line when the log was read last; None before that.
        is_level: Whether the log was read up to now, so that polls continue.
        is_done: Whether the log was read to its end.
        retry_at: Time at which a missing log is requested again.
    """

    def __init__(self, log: NodeLog, floor: datetime) -> None:
        self.log = log
        self.floor = floor
        self.seen: dict[str, datetime] = {}
        self.read_to: datetime | None = None
        self.is_level = False
        self.is_done = False
        self.retry_at = -math.inf
        self._absence_s = 0.0
        self._quiet_since = -math.inf
        self._settle_s = math.inf

    @property
    def is_absent(self) -> bool:
        """Whether the log did not exist when it was requested last."""
        return self._absence_s > 0

    @property
    def is_ending(self) -> bool:
        """Whether the container has ended."""
        return not math.isinf(self._settle_s)

    def line(self, event: LogEvent) -> LogLine:
        """Build the `LogLine` of an event of the log."""
        return LogLine(last_state(event.text), LOG, self.log.attempt, event.at, node=self.log.node)

    def is_new(self, event: LogEvent) -> bool:
        """Return whether a line was not delivered yet, and record its delivery."""
        if event.at < self.floor or event.key in self.seen:
            return False
        self.seen[event.key] = event.at
        if self._settle_s:
            self._quiet_since = clock.now()
        return True

    def raise_floor(self, moment: datetime) -> None:
        """Stop delivering lines written before a time."""
        if moment > self.floor:
            self.floor = moment
            self.seen = {key: at for key, at in self.seen.items() if at >= moment}

    def record_over(self, stopped_at: datetime | None, timing: Timing) -> None:
        """Record that the container has ended; its last lines may still arrive."""
        if not self.is_ending:
            self._quiet_since = max(self._quiet_since, clock.now())
            is_old = stopped_at is not None and job_nodes.is_long_ago(stopped_at)
            self._settle_s = 0.0 if is_old else timing.log_settle_s

    def record_read(self, began: float) -> None:
        """Record that a request that began at a time read the log from its floor."""
        self.is_level = True
        self._absence_s = 0.0
        self._end_if_quiet(began)

    def record_absent(self, timing: Timing) -> None:
        """Record that the log does not exist, or not yet."""
        self.is_level = False
        self._absence_s = min(
            _LONGEST_ABSENCE_S, 2 * max(timing.node_log_pause_s, self._absence_s)
        )
        self.retry_at = clock.now() + self._absence_s
        self._end_if_quiet(clock.now())

    def _end_if_quiet(self, looked_at: float) -> None:
        if self.is_ending:
            self.is_done = looked_at >= self._quiet_since + self._settle_s


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
        self._backend = logs.backend
        self._timing = logs.timing
        self._job = job
        self._nodes = nodes
        self._attempts = attempts
        self._attempt = attempt
        self._since = since or job.begun
        self._until = until
        self._readings: dict[str, _Reading] = {}
        self._probes = math.inf
        self._requests = 0
        self._has_news = False
        self._pause_s = self._timing.node_log_pause_s
        self._ask_at = self._poll_at = self._deep_at = -math.inf
        self._unseen_since = math.inf
        self._find_logs()

    # --- the lines up to now ------------------------------------------------------------------

    async def all(self) -> AsyncGenerator[list[LogLine], None]:
        """Yield all lines, one attempt after the other."""
        for attempt in sorted({reading.log.attempt for reading in self._readings.values()}):
            async for events in self._read(self._of(attempt), self._since, self._until):
                yield [self._readings[event.stream].line(event) for event in events]

    async def last(self, number: int, first_s: float) -> list[LogLine]:
        """Return up to ``number`` of the last lines; `follow` continues after them.

        Args:
            number: Maximum number of lines.
            first_s: Time before the end that is always read, in seconds.
        """
        found: deque[LogEvent] = deque(maxlen=number)
        attempts = {reading.log.attempt for reading in self._readings.values()}
        for attempt in sorted(attempts, reverse=True):
            # With 0 lines, search for the last line, because `follow` continues after it.
            wanted = max(1, number) - len(found)
            found.extendleft(reversed(await self._go_back(attempt, wanted, first_s)))
            if len(found) >= number:
                break
        return [self._readings[event.stream].line(event) for event in found]

    async def _go_back(self, attempt: int, number: int, first_s: float) -> deque[LogEvent]:
        """Return the last lines of an attempt."""
        found: deque[LogEvent] = deque(maxlen=number)
        until, top, span = self._until, self._end(attempt), timedelta(seconds=first_s)
        while True:
            start = _whole(max(self._since, top - span))
            before: deque[LogEvent] = deque(maxlen=number - len(found))
            async for events in self._read(self._of(attempt), start, until):
                before.extend(events)
                for event in events:
                    self._readings[event.stream].seen[event.key] = event.at
            found.extendleft(reversed(before))
            for reading in self._of(attempt):
                reading.floor = start
            if len(found) >= number or start <= self._since:
                return found
            until, top, span = start - _MILLISECOND, start, span * _LONGER

    def _of(self, attempt: int) -> list[_Reading]:
        """Return the logs of an attempt, except those that do not exist."""
        readings = self._readings.values()
        return [each for each in readings if each.log.attempt == attempt and not each.is_absent]

    def _end(self, attempt: int) -> datetime:
        """Return the approximate time of an attempt's last lines."""
        now = datetime.now(timezone.utc)
        ends = [
            reading.log.stopped_at if reading.log.is_over and reading.log.stopped_at else now
            for reading in self._of(attempt)
        ]
        return min(max(ends, default=now), self._until or now)

    # --- the lines from now on ----------------------------------------------------------------

    async def follow(self) -> AsyncGenerator[list[LogLine], None]:
        """Yield the lines that were not returned yet, until the nodes have ended."""
        timing, patience = self._timing, Patience(self._logs.trouble, self._timing)
        self._ask_at = _after(clock.now(), timing.attempts_pause_s)  # its description is new
        try:
            while self._open_logs or (self._left and not self._is_past()):
                try:
                    async for lines in self._look():
                        yield lines
                    patience.renew()
                    due = self._due()
                except FarcallError as error:
                    if not (_may_pass(error) and patience.bear(error)):
                        raise
                    due = clock.now() + timing.node_log_rest_s
                await self._logs.sleep_until(due)
        finally:
            patience.end()

    async def _look(self) -> AsyncIterator[list[LogLine]]:
        """Yield the new lines; make the requests that are due."""
        if self._left and clock.now() >= self._ask_at:
            self._ask_at = _after(clock.now(), await self._describe())
        self._find_logs()
        self._requests, self._has_news = 0, False
        is_due = clock.now() >= self._poll_at
        lines = await self._poll() if is_due else []
        if lines:
            yield lines
        async for lines in self._read_new():
            yield lines
        if is_due or self._has_news:
            longer_s = min(self._timing.node_log_rest_s, self._pause_s * _GROWTH)
            self._pause_s = self._timing.node_log_pause_s if self._has_news else longer_s
            paced_s = _REQUEST_SHARE * self._timing.node_log_pause_s * self._requests
            self._poll_at = _after(clock.now(), max(self._pause_s, paced_s))

    def _due(self) -> float:
        """Return the time at which the next request is due."""
        open_logs = self._open_logs
        if any(each.is_ending for each in open_logs):
            self._poll_at = min(self._poll_at, _after(clock.now(), self._timing.log_settle_s))
        dues = [self._poll_at if each.is_level else each.retry_at for each in open_logs]
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
        pages = math.ceil(len(ids) / self._backend.capabilities.described_together)
        return self._timing.attempts_pause_s * max(1, pages / 2)

    def _find_logs(self) -> None:
        """Add new logs, and record which containers have ended."""
        listed = set()
        for log in (log for node in self._nodes for log in self._job.logs(node)):
            listed.add(log.stream)
            if log.attempt not in self._attempts:
                continue
            if log.stream not in self._readings:
                self._readings[log.stream] = _Reading(log, self._since)
            if log.is_over or self._is_past():
                self._readings[log.stream].record_over(log.stopped_at, self._timing)
        # Kubernetes deletes the pods of the other nodes when the main node succeeds. Such a node
        # no longer has a log, and its container has ended.
        for stream, reading in self._readings.items():
            if stream not in listed and self._job.has_ended(reading.log.node, self._attempt):
                reading.record_over(None, self._timing)

    async def _read_new(self) -> AsyncIterator[list[LogLine]]:
        """Yield the lines of logs that were not read up to now, if they are due."""
        began, self._probes = clock.now(), _PROBES
        due = [
            reading
            for reading in self._open_logs
            if not reading.is_level and reading.retry_at <= began
        ]
        absent = [[reading] for reading in due if reading.is_absent]
        for some in [[reading for reading in due if not reading.is_absent], *absent]:
            start = min((reading.floor for reading in some), default=self._since)
            async for events in self._read(some, start):
                lines = self._new(events)
                self._forget(some, _newest(events))
                if lines:
                    yield lines

    async def _poll(self) -> list[LogLine]:
        """Return the new lines of the logs that were read up to now.

        Lines arrive late, usually by seconds and sometimes by up to a minute. So each poll reads
        the
        last seconds again, and from time to time the last minute.
        """
        level = [reading for reading in self._open_logs if reading.is_level]
        began, overlap_s = clock.now(), self._timing.node_log_overlap_s
        is_deep = began >= self._deep_at or any(reading.is_ending for reading in level)
        if is_deep:
            self._deep_at = _after(began, overlap_s)
        overlap = timedelta(seconds=overlap_s)
        wanted = []
        for reading in level:
            start = reading.floor
            if not is_deep and reading.read_to is not None:
                start = max(start, reading.read_to - overlap)
            wanted.append(_Wanted(reading.log.group, reading.log.stream, start))
        try:
            polls = await self._logs.polls.read(wanted)
        except LogMissingError:  # a log was deleted
            for reading in level:
                reading.is_level = False
            return []
        self._requests = sum(poll.requests for poll in polls)
        lines = self._new(event for poll in polls for event in poll.events)
        for reading in level:
            reading.read_to = self._logs.polls.newest.get(reading.log.group)
            if is_deep:
                reading.record_read(began)
                self._forget([reading], reading.read_to)
        return sorted(lines, key=lambda line: line.at or self._since)

    def _new(self, events: Iterable[LogEvent]) -> list[LogLine]:
        """Return the lines that were not delivered yet."""
        lines = []
        for event in events:
            reading = self._readings.get(event.stream)
            if reading is None or (self._until is not None and event.at > self._until):
                continue
            if reading.is_new(event):
                lines.append(reading.line(event))
        self._has_news = self._has_news or bool(lines)
        return lines

    def _forget(self, readings: Iterable[_Reading], newest: datetime | None) -> None:
        """Forget lines that are not read again: the newest line is much newer."""
        if newest is not None:
            for reading in readings:
                reading.raise_floor(newest - timedelta(seconds=self._timing.node_log_late_s))

    # --- requests -----------------------------------------------------------------------------

    async def _read(
        self, readings: Sequence[_Reading], since: datetime, until: datetime | None = None
    ) -> AsyncGenerator[list[LogEvent], None]:
        """Yield the lines of logs in the order of their times."""
        groups: dict[str, list[_Reading]] = {}
        for reading in readings:
            groups.setdefault(reading.log.group, []).append(reading)
        most = self._backend.capabilities.logs_read_together
        parts = [
            self._read_existing(some[at : at + most], since, until, is_first=not some[0].is_absent)
            for some in groups.values()
            for at in range(0, len(some), most)
        ]
        async for events in _merged(parts):
            yield events

    async def _read_existing(
        self,
        readings: Sequence[_Reading],
        since: datetime,
        until: datetime | None,
        *,
        is_first: bool,
    ) -> AsyncGenerator[list[LogEvent], None]:
        """Yield the lines of the logs that exist, which are found by bisection.

        If the probes are used up, the rest waits for the next poll. The first half is always read,
        so that at least one log is known after each poll.
        """
        if self._probes < 0 and not is_first:
            for reading in readings:
                reading.retry_at = clock.now() + self._timing.node_log_pause_s
            return
        halves: list[Sequence[_Reading]] = []
        try:
            async for events in self._read_all(readings, since, until):
                yield events
        except LogMissingError:
            self._probes -= 1
            half = len(readings) // 2
            halves = [readings[:half], readings[half:]] if half else []
            if not half:
                readings[0].record_absent(self._timing)
        parts = [
            self._read_existing(part, since, until, is_first=not number)
            for number, part in enumerate(halves)
        ]
        async for events in _merged(parts):
            yield events

    async def _read_all(
        self, readings: Sequence[_Reading], since: datetime, until: datetime | None
    ) -> AsyncGenerator[list[LogEvent], None]:
        """Yield the lines of logs that one request reads.

        Raises:
            LogMissingError: One of them does not exist.
        """
        began, group = clock.now(), readings[0].log.group
        streams = [reading.log.stream for reading in readings]
        pages = self._backend.log_events(group, streams, since, until)
        async with contextlib.aclosing(pages):
            async for events in pages:
                self._requests += 1
                self._logs.polls.note(group, events)
                yield events
        for reading in readings:
            reading.read_to = self._logs.polls.newest.get(group)
            reading.record_read(began)


class _Wanted(NamedTuple):
    """One log that a poll reads from a time on."""

    group: str
    stream: str
    since: datetime


class _Poll(NamedTuple):
    """Lines that one poll of several logs has read, and its number of requests."""

    events: list[LogEvent]
    requests: int


class _Polls:
    """Polls of logs that were read up to now; concurrent polls share requests.

    Attributes:
        newest: By log group, the time of the newest line, by a clock that is not ahead of the
            platform's.
    """

    def __init__(self, backend: Backend, timing: Timing) -> None:
        self.newest: dict[str, datetime] = {}
        self._backend = backend
        self._span = timedelta(seconds=timing.node_log_late_s)
        self._batcher = Batcher(self._answer, wait_s=_TOGETHER_S)

    async def read(self, wanted: Sequence[_Wanted]) -> list[_Poll]:
        """Return the lines of logs; there may be lines of other logs among them.

        Raises:
            LogMissingError: A log does not exist.
            ServiceError: The platform refused.
        """
        polls = await asyncio.gather(*(asyncio.shield(self._batcher.ask(w)) for w in wanted))
        return list({id(poll): poll for poll in polls}.values())

    def note(self, group: str, events: Sequence[LogEvent]) -> None:
        """Record the time of the newest line of a page."""
        newest = _newest(events)
        if newest is not None:
            self.newest[group] = max(newest, self.newest.get(group, newest))

    async def close(self) -> None:
        """Cancel the pending request, and notify its callers."""
        await self._batcher.close(_closed())

    async def _answer(self, wanted: list[_Wanted]) -> list[_Poll | Exception]:
        found: dict[_Wanted, _Poll | Exception] = {}
        for part in self._parts(wanted):
            try:
                answer: _Poll | Exception = await self._read(part)
            except Exception as error:  # only the callers of this part receive it
                answer = error
            found.update(dict.fromkeys(part, answer))
        return [found[each] for each in wanted]

    def _parts(self, wanted: list[_Wanted]) -> list[list[_Wanted]]:
        """Return the logs of each request: one group, and about the same time."""
        parts: list[list[_Wanted]] = []
        for each in sorted(wanted, key=lambda one: (one.group, one.since)):
            part = parts[-1] if parts else []
            if (
                part
                and part[0].group == each.group
                and each.since - part[0].since <= self._span
                and len(part) < self._backend.capabilities.logs_read_together
            ):
                part.append(each)
            else:
                parts.append([each])
        return parts

    async def _read(self, part: list[_Wanted]) -> _Poll:
        group, since = part[0].group, part[0].since
        streams = list(dict.fromkeys(each.stream for each in part))
        found: list[LogEvent] = []
        requests = 0
        async with contextlib.aclosing(self._backend.log_events(group, streams, since)) as pages:
            async for events in pages:
                self.note(group, events)
                found += events
                requests += 1
        return _Poll(found, requests)


async def _merged(
    parts: Sequence[AsyncGenerator[list[LogEvent], None]],
) -> AsyncIterator[list[LogEvent]]:
    """Merge several readings, each ordered by time, in the order of time."""
    if len(parts) == 1:
        async for events in parts[0]:
            yield events
        return
    sources = [_events(part) for part in parts]
    firsts = [await anext(source, None) for source in sources]
    heads = [(each.at, number, each) for number, each in enumerate(firsts) if each is not None]
    heapq.heapify(heads)
    found: list[LogEvent] = []
    while heads:
        _, number, event = heads[0]
        found.append(event)
        following = await anext(sources[number], None)
        if following is None:
            heapq.heappop(heads)
        else:
            heapq.heapreplace(heads, (following.at, number, following))
        if len(found) >= _PAGE or not heads:
            yield found
            found = []


async def _events(pages: AsyncIterator[list[LogEvent]]) -> AsyncIterator[LogEvent]:
    async for events in pages:
        for event in events:
            yield event


def _newest(events: Sequence[LogEvent]) -> datetime | None:
    """Return the time of a page's newest line; never ahead of the platform's clock."""
    return min(events[-1].at, events[-1].taken_at or events[-1].at) if events else None


def _after(moment: float, pause_s: float) -> float:
    """Return the next multiple of a pause, so that callers wake up at the same time."""
    return (moment // pause_s + 1) * pause_s


def _closed() -> FarcallError:
    return FarcallError(
        "the session was closed while a log was being followed. The job continues."
    )


def _may_pass(error: FarcallError) -> bool:
    if not isinstance(error, ServiceError):
        return False
    return error_translation.may_pass(error) or error_translation.is_of_credentials(error)


def _whole(moment: datetime) -> datetime:
    """Round a time down to the millisecond; without a time zone it is local time."""
    moment = moment.astimezone(timezone.utc)
    return moment.replace(microsecond=moment.microsecond // 1000 * 1000)
