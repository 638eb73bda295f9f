"""Log lines of the nodes of command jobs, from the platform's own log alone.

What there is up to now is read by whoever asks. What is to come is looked for by one poller of the
session, `farcall.engine.logs.node_poller`, however many follow.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Sequence
from datetime import datetime, timedelta, timezone

from farcall.backends.base import Backend, LogEvent, LogMissingError
from farcall.engine.logs import gang
from farcall.engine.logs.gang import Gang, NodeLog
from farcall.engine.logs.node_poller import Begun, Follower, NodeLine, NodePoller
from farcall.engine.watch import Trouble
from farcall.model import clock
from farcall.model.errors import JobLostError
from farcall.model.jobs import JobDetail
from farcall.model.output import last_state
from farcall.model.timing import Timing

__all__ = ["NodeLine", "NodeLogs"]

_MILLISECOND = timedelta(milliseconds=1)
_FIRST_S, _LONGER = 10.0, 4
"""The last lines are looked for in the last seconds, and then in times before, each longer."""


class NodeLogs:
    """What the nodes of command jobs have written; one for each session.

    Args:
        backend: Where the jobs run.
        detail: Returns what the backend says of a job, or None; many askers share a request.
        trouble: Is told of requests that fail while somebody follows.
        timing: How often is looked and asked.
    """

    def __init__(
        self,
        backend: Backend,
        detail: Callable[[str], Awaitable[JobDetail | None]],
        trouble: Trouble,
        timing: Timing,
    ) -> None:
        self._backend = backend
        self._detail = detail
        self._timing = timing
        self._poller = NodePoller(backend, trouble, timing)

    async def lines(
        self,
        job_id: str,
        nodes: Sequence[int] | None = None,
        *,
        attempt: int | None = None,
        follow: bool = False,
        tail: int | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
    ) -> AsyncGenerator[NodeLine, None]:
        """Yield what nodes of a job have written, line by line; see `batches`."""
        pages = self.batches(
            job_id, nodes, attempt=attempt, follow=follow, tail=tail, since=since, until=until
        )
        async with contextlib.aclosing(pages):
            async for lines in pages:
                for line in lines:
                    yield line

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
    ) -> AsyncGenerator[list[NodeLine], None]:
        """Yield what nodes of a job have written: of each in its order, of several by time.

        Args:
            job_id: The job's ID, or a node's (``"<job>#<index>"``).
            nodes: Indexes of nodes, from 0; by default all. A job on one node has node 0.
            attempt: Number of one attempt of the job, from 1. By default all, one after the
                other; where it is followed, the last one and those to come.
            follow: Go on until the nodes have ended; their last lines are among them. A job that
                has not started is waited for.
            tail: Only so many lines of what there is up to now, of all nodes together, the last
                ones.
            since: Only what was written at this moment or later, to the millisecond. Without a
                time zone it is local time.
            until: Only what was written at this moment or before, likewise.

        Raises:
            ValueError: ``tail`` is negative.
            UnknownError: There is no such node or attempt; it names those there are.
            JobLostError: The platform does not know the job.
            FarcallError: It is an array as a whole, or the session was closed.
            ServiceError: The platform refused.
        """
        if tail is not None and tail < 0:
            raise ValueError(f"tail is {tail}, and is to be 0 or more lines")
        since, until = (moment and _whole(moment) for moment in (since, until))
        job_id, nodes = gang.parts_of(job_id, nodes)
        known = await self._look_up(job_id, nodes, follow=follow)
        attempts = known.chosen(nodes, attempt, follow=follow)
        wanted = list(dict.fromkeys(range(known.count) if nodes is None else nodes))
        there = [log for node in wanted for log in known.logs(node) if log.attempt in attempts]
        past = _Past(self._backend, there, since or known.begun, until)
        if follow:
            least_s = self._timing.node_log_late_s
            tailed = past.last(tail, least_s) if tail is not None else None
            pages = self._follow(
                lambda: Follower(known, wanted, attempts, attempt, since, until, past.begun()),
                tailed,
            )
        else:
            pages = past.all() if tail is None else past.last(tail, _FIRST_S)
        async with contextlib.aclosing(pages):
            async for lines in pages:
                yield lines

    async def _follow(
        self,
        make: Callable[[], Follower],
        tailed: AsyncGenerator[list[NodeLine], None] | None,
    ) -> AsyncGenerator[list[NodeLine], None]:
        """Yield the last lines there are, where they are asked for, and then what comes."""
        if tailed is not None:
            async for lines in tailed:
                yield lines
        follower = make()
        async with self._poller.following(follower):
            async for lines in follower.batches():
                yield lines

    async def close(self) -> None:
        """Stop looking, and tell those who follow. Jobs go on."""
        await self._poller.close()

    async def _look_up(self, job_id: str, nodes: Sequence[int] | None, *, follow: bool) -> Gang:
        """Return what is known of a job and its nodes; who follows waits for one just submitted.

        Raises:
            JobLostError: The platform does not know the job.
        """
        began = clock.now()
        while True:
            ids = gang.ids_of(job_id, nodes or ())
            found = await self._ask(ids)
            job = found.get(job_id)
            if job is not None:
                break
            if not follow or clock.now() - began >= self._timing.lost_after_s:
                raise JobLostError(self._backend.unknown(job_id), job_id=job_id)
            await asyncio.sleep(self._timing.status_pause_s)
        known = Gang(job, {})
        wanted = range(known.count) if nodes is None else nodes
        missing = [each for each in known.ids(wanted) if each not in ids]
        if missing and not job.array_size:
            found |= await self._ask(missing)
        known.update(found, wanted)
        return known

    async def _ask(self, ids: Sequence[str]) -> dict[str, JobDetail]:
        details = await asyncio.gather(*map(self._detail, ids))
        return {each: found for each, found in zip(ids, details, strict=True) if found is not None}


class _Past:
    """What logs have up to now.

    Args:
        backend: Where they are.
        logs: Which ones.
        since: The first moment.
        until: The last one; None for now.
    """

    def __init__(
        self, backend: Backend, logs: Sequence[NodeLog], since: datetime, until: datetime | None
    ) -> None:
        self._backend = backend
        self._logs = {log.stream: log for log in logs}
        self._since = since
        self._until = until
        self._missing: set[str] = set()
        self._floor: datetime | None = None
        self._keys: dict[str, dict[str, datetime]] = {}

    async def all(self) -> AsyncGenerator[list[NodeLine], None]:
        """Yield all lines, one attempt after the other."""
        for attempt in sorted({log.attempt for log in self._logs.values()}):
            async for events in self._read(attempt, self._since, self._until):
                yield [self._line(event) for event in events]

    async def last(self, number: int, first_s: float) -> AsyncGenerator[list[NodeLine], None]:
        """Yield the last lines, up to so many.

        Args:
            number: How many.
            first_s: So many seconds before the end are read in any case.
        """
        found: deque[LogEvent] = deque(maxlen=number)
        for attempt in sorted({log.attempt for log in self._logs.values()}, reverse=True):
            # Where none is asked for the last one is looked for, to know what is new.
            wanted = max(1, number) - len(found)
            found.extendleft(reversed(await self._go_back(attempt, wanted, first_s)))
            if len(found) >= number:
                break
        yield [self._line(event) for event in found]

    async def _go_back(self, attempt: int, number: int, first_s: float) -> deque[LogEvent]:
        """Return the last lines of an attempt."""
        found: deque[LogEvent] = deque(maxlen=number)
        until, top, span = self._until, self._end(attempt), timedelta(seconds=first_s)
        while True:
            start = _whole(max(self._since, top - span))
            before: deque[LogEvent] = deque(maxlen=number - len(found))
            async for events in self._read(attempt, start, until):
                before.extend(events)
                for event in events:
                    self._keys.setdefault(event.stream, {})[event.key] = event.at
            found.extendleft(reversed(before))
            self._floor = start
            if len(found) >= number or start <= self._since:
                return found
            until, top, span = start - _MILLISECOND, start, span * _LONGER

    def begun(self) -> Begun:
        """Return from when on logs were read for the last lines, and what was read of each."""
        if self._floor is None:
            return {}
        return {
            stream: (self._floor, self._keys.get(stream, {}))
            for stream in self._logs
            if stream not in self._missing
        }

    def _end(self, attempt: int) -> datetime:
        """Return when an attempt's last lines were written, about."""
        now = datetime.now(timezone.utc)
        ends = [
            log.stopped_at if log.is_over and log.stopped_at else now
            for log in self._logs.values()
            if log.attempt == attempt
        ]
        return min(max(ends, default=now), self._until or now)

    async def _read(
        self, attempt: int, since: datetime, until: datetime | None
    ) -> AsyncGenerator[list[LogEvent], None]:
        """Yield the lines of an attempt's logs by time."""
        groups: dict[str, list[str]] = {}
        for log in self._logs.values():
            if log.attempt == attempt and log.stream not in self._missing:
                groups.setdefault(log.group, []).append(log.stream)
        most = self._backend.capabilities.logs_read_together
        readings = [
            self._read_some(group, streams[at : at + most], since, until)
            for group, streams in groups.items()
            for at in range(0, len(streams), most)
        ]
        async for events in _merged(readings):
            yield events

    async def _read_some(
        self, group: str, streams: Sequence[str], since: datetime, until: datetime | None
    ) -> AsyncGenerator[list[LogEvent], None]:
        """Yield the lines of those logs that are there; which ones is found by halving."""
        parts: Sequence[Sequence[str]] = ()
        try:
            async for events in self._backend.log_events(group, streams, since, until):
                yield events
        except LogMissingError:
            half = len(streams) // 2
            parts = (streams[:half], streams[half:])
        if len(streams) == 1 and parts:
            self._missing.update(streams)
            return
        readings = [self._read_some(group, part, since, until) for part in parts]
        async for events in _merged(readings):
            yield events

    def _line(self, event: LogEvent) -> NodeLine:
        log = self._logs[event.stream]
        return NodeLine(log.node, log.attempt, event.at, last_state(event.text))


async def _merged(
    readings: Sequence[AsyncGenerator[list[LogEvent], None]],
) -> AsyncIterator[list[LogEvent]]:
    """Yield by time what several readings give by time, a page of each in memory at most."""
    if len(readings) == 1:
        async for events in readings[0]:
            yield events
        return
    pages: list[deque[LogEvent]] = [deque() for _ in readings]
    left = dict(enumerate(readings))
    while True:
        for place, reading in list(left.items()):
            while not pages[place] and place in left:
                try:
                    pages[place].extend(await anext(reading))
                except StopAsyncIteration:
                    del left[place]
        if not any(pages):
            return
        # What comes next of a reading is not older than what it has given.
        bound = min((pages[place][-1].at for place in left), default=None)
        given = [event for page in pages for event in _taken(page, bound)]
        yield sorted(given, key=lambda event: event.at)


def _taken(page: deque[LogEvent], bound: datetime | None) -> Iterator[LogEvent]:
    """Take from a page what was written up to some moment."""
    while page and (bound is None or page[0].at <= bound):
        yield page.popleft()


def _whole(moment: datetime) -> datetime:
    """Return the millisecond that a moment is in; without a time zone it is local time."""
    moment = moment.astimezone(timezone.utc)
    return moment.replace(microsecond=moment.microsecond // 1000 * 1000)
