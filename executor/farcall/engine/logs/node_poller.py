"""Log poller of nodes: one for all who follow, so that a look at many logs is one request.

A log that is new to a follower is read from its beginning. When it is read up to now it is looked
at with all others of its group, from some seconds before the newest line on: what is given again
is known by its key. Each log has a floor for each follower. What was written before it is not
given any more, and not remembered; what was written later is, once.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta, timezone
from typing import NamedTuple, TypeAlias

from farcall.aws import refusals
from farcall.backends.base import Backend, LogEvent, LogMissingError
from farcall.engine.logs import gang
from farcall.engine.logs.gang import Gang, NodeLog
from farcall.engine.watch import Patience, Trouble
from farcall.model import clock
from farcall.model.errors import FarcallError, ServiceError
from farcall.model.jobs import JobDetail
from farcall.model.output import last_state
from farcall.model.timing import Timing

Begun: TypeAlias = "dict[str, tuple[datetime, dict[str, datetime]]]"
"""Logs of which the last lines were read already: from when on, and the keys of what was read."""

_TOGETHER_S = 0.02
"""Those who begin to follow within this time are looked for together."""

_MOST_WAITING = 20_000
"""Lines that wait for one who follows; the logs are not read on before he has taken half."""

_REQUEST_SHARE = 0.5
"""Between two looks there is at least so much of the shortest pause for each request of the first
one, so that there are no more than two requests in such a pause, however much is written."""

_GROWTH = 1.5
_MOST_PROBES = 4
"""Requests of one look by which it is found out which logs are not there."""

_LONGEST_ABSENCE_S = 16.0


class NodeLine(NamedTuple):
    """A line that a node has written.

    Attributes:
        node: Index of the node in its job; 0 where it is the only one.
        attempt: Number of the job's attempt, from 1.
        at: When it was written.
        text: The line without its end.
    """

    node: int
    attempt: int
    at: datetime
    text: str


class Follower:
    """Somebody who follows nodes of one job.

    Args:
        gang: What is known of the job.
        nodes: Indexes of the nodes.
        attempts: The attempts that are followed.
        attempt: The only one of them, if that was asked for.
        since: The first moment of interest; None for all.
        until: The last one; None for all.
        begun: Logs of which the last lines were read already.

    Attributes:
        gang: The same as the argument.
        nodes: The same.
    """

    def __init__(
        self,
        gang: Gang,
        nodes: Sequence[int],
        attempts: range,
        attempt: int | None,
        since: datetime | None,
        until: datetime | None,
        begun: Begun,
    ) -> None:
        self.gang = gang
        self.nodes = nodes
        self._attempts = attempts
        self._attempt = attempt
        self._since = since
        self.until = until
        self._begun = begun
        self._readings: dict[str, Reading] = {}
        self._came: list[NodeLine] = []
        self._waiting: list[NodeLine] = []
        self._news = asyncio.Event()
        self._taken = asyncio.Event()
        self._ending: FarcallError | None = None
        self._has_ended = False
        self._unseen_since = math.inf

    # --- who follows --------------------------------------------------------------------------

    async def batches(self) -> AsyncIterator[list[NodeLine]]:
        """Yield what comes, until the end.

        Raises:
            FarcallError: What there is to read cannot be read any longer.
        """
        while True:
            await self._news.wait()
            self._news.clear()
            batch, self._waiting = self._waiting, []
            if batch:
                self._taken.set()
                yield batch
            elif self._ending is not None:
                raise self._ending
            elif self._has_ended:
                return
            if self._waiting or self._has_ended:
                self._news.set()

    # --- the poller ---------------------------------------------------------------------------

    @property
    def readings(self) -> list[Reading]:
        """The logs that are read for him and not at their end."""
        return [reading for reading in self._readings.values() if not reading.is_done]

    @property
    def is_full(self) -> bool:
        """Whether he has enough to take."""
        return len(self._waiting) + len(self._came) >= _MOST_WAITING

    @property
    def left(self) -> list[int]:
        """The nodes from which more may come."""
        return [n for n in self.nodes if not self.gang.has_ended(n, self._attempt)]

    @property
    def has_ended(self) -> bool:
        """Whether he was told of the end."""
        return self._has_ended

    def learn(self, found: Mapping[str, JobDetail], nodes: Sequence[int], timing: Timing) -> None:
        """Take in what the platform says of the job and some of its nodes."""
        self.gang.update(found, nodes, clock.now())
        if self.gang.job.job_id in found:
            self._unseen_since = math.inf
            return
        self._unseen_since = min(self._unseen_since, clock.now())
        self.gang.is_forgotten = clock.now() - self._unseen_since >= timing.lost_after_s

    def find_logs(self, timing: Timing) -> None:
        """Start to read new logs, and mark those whose container has ended."""
        listed = set()
        for log in (log for node in self.nodes for log in self.gang.logs(node)):
            listed.add(log.stream)
            if log.attempt not in self._attempts:
                continue
            reading = self._readings.get(log.stream)
            if reading is None:
                floor, seen = self._begun.pop(log.stream, (self._since or self.gang.begun, {}))
                reading = self._readings[log.stream] = Reading(self, log, floor, seen)
            if log.is_over or self._is_past():
                reading.note_over(log.stopped_at, timing)
        # Kubernetes deletes the pods of other nodes when the main node succeeds. The node then
        # has no log any more, and its container has ended.
        for stream, reading in self._readings.items():
            if stream not in listed and self.gang.has_ended(reading.log.node, self._attempt):
                reading.note_over(None, timing)

    def take(self, line: NodeLine) -> None:
        """Take a line, to be given with the others of this look."""
        self._came.append(line)

    def give(self) -> None:
        """Give what has come, by time."""
        if self._came:
            self._waiting += sorted(self._came, key=lambda line: line.at)
            self._came = []
            self._news.set()

    def end(self, error: FarcallError | None = None) -> None:
        """Say that nothing more comes.

        Args:
            error: Why, where it is not that all is read.
        """
        if not self._has_ended:
            self.give()
            self._ending, self._has_ended = error, True
            self._news.set()

    def end_if_all_is_read(self) -> None:
        """End where the nodes have ended and their logs are read to the end."""
        if not self.readings and (not self.left or self._is_past()):
            self.end()

    def _is_past(self) -> bool:
        return self.until is not None and self.until < datetime.now(timezone.utc)

    async def room(self) -> None:
        """Wait until he has taken something."""
        self._taken.clear()
        await self._taken.wait()


class Reading:
    """One log, read for one who follows.

    Args:
        follower: He.
        log: Which log.
        floor: What was written before is not given.
        seen: By key, what was given that was written later, and when.

    Attributes:
        log: The same as the argument.
        floor: The same, which rises.
        read_to: When the newest line was written of the logs that were read together last.
        is_level: Whether it was read up to now.
        is_done: Whether it is at its end.
        retry_at: When it is looked for again, where it was not there.
    """

    def __init__(
        self, follower: Follower, log: NodeLog, floor: datetime, seen: dict[str, datetime]
    ) -> None:
        self.follower = follower
        self.log = log
        self.floor = floor
        self.read_to: datetime | None = None
        self.is_level = False
        self.is_done = False
        self.retry_at = -math.inf
        self._absence_s = 0.0
        self._seen = seen
        self._quiet_since = -math.inf
        self._settle_s = math.inf

    @property
    def is_absent(self) -> bool:
        """Whether there was no such log when it was looked for last."""
        return self._absence_s > 0

    @property
    def is_ending(self) -> bool:
        """Whether its container has ended."""
        return not math.isinf(self._settle_s)

    def note_over(self, stopped_at: datetime | None, timing: Timing) -> None:
        """Note that its container has ended."""
        if self.is_ending:
            return
        self._quiet_since = max(self._quiet_since, clock.now())
        is_old = stopped_at is not None and gang.is_long_ago(stopped_at)
        self._settle_s = 0.0 if is_old else timing.log_settle_s

    def offer(self, event: LogEvent) -> bool:
        """Give a line, unless it was given; tell which."""
        until = self.follower.until
        if event.at < self.floor or event.key in self._seen or (until and event.at > until):
            return False
        self._seen[event.key] = event.at
        self.follower.take(
            NodeLine(self.log.node, self.log.attempt, event.at, last_state(event.text))
        )
        if self._settle_s:
            self._quiet_since = clock.now()
        return True

    def raise_floor(self, moment: datetime) -> None:
        """Give nothing any more that was written before a moment."""
        if moment > self.floor:
            self.floor = moment
            self._seen = {key: at for key, at in self._seen.items() if at >= moment}

    def note_read(self, began: float) -> None:
        """Note that it was read from its floor up to now; at its end that is the last time."""
        self.is_level = True
        self._absence_s = 0.0
        self._end_if_quiet(began)

    def note_absent(self, timing: Timing) -> None:
        """Note that there is no such log, or not yet."""
        self.is_level = False
        began = clock.now()
        self._absence_s = min(
            _LONGEST_ABSENCE_S, 2 * max(timing.node_log_pause_s, self._absence_s)
        )
        self.retry_at = began + self._absence_s
        self._end_if_quiet(began)

    def _end_if_quiet(self, looked_at: float) -> None:
        if self.is_ending:
            self.is_done = looked_at >= self._quiet_since + self._settle_s


class NodePoller:
    """Looks for what nodes write, for all who follow."""

    def __init__(self, backend: Backend, trouble: Trouble, timing: Timing) -> None:
        self._backend = backend
        self._timing = timing
        self._patience = Patience(trouble, timing)
        self._followers: dict[Follower, None] = {}
        self._task: asyncio.Task[None] | None = None
        self._stopping: set[asyncio.Task[None]] = set()
        self._wake = asyncio.Event()
        self._is_closed = False
        self._pause_s = timing.node_log_pause_s
        self._look_at = self._ask_at = self._deep_at = -math.inf
        self._requests = self._probes = 0
        self._newest: dict[str, datetime | None] = {}

    @contextlib.asynccontextmanager
    async def following(self, follower: Follower) -> AsyncGenerator[None, None]:
        """Look for somebody, for as long as a block lasts."""
        if self._is_closed:
            raise _closed()
        self._followers[follower] = None
        if self._task is None or self._task.done():
            self._look_at = self._ask_at = self._deep_at = clock.now()
            self._ask_at += self._timing.attempts_pause_s  # what he knows is new
            self._task = asyncio.ensure_future(self._run())
        self._wake.set()
        try:
            yield
        finally:
            del self._followers[follower]
            if not self._followers:
                self._stop()

    async def close(self) -> None:
        """Stop looking, and tell those who follow."""
        self._is_closed = True
        self._stop()
        await asyncio.gather(*self._stopping, return_exceptions=True)
        for follower in self._followers:
            follower.end(_closed())

    def _stop(self) -> None:
        """Look no more; a request may be under way for a moment."""
        if self._task is not None:
            self._task.cancel()
            self._stopping.add(self._task)
            self._task.add_done_callback(self._stopping.discard)
            self._task = None
        self._patience.end()

    # --- rounds -------------------------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(_TOGETHER_S)
            self._wake.clear()
            try:
                await self._look()
            except Exception as error:  # nobody may wait forever because of a bug
                self._endure(error, self._following)
                await asyncio.sleep(self._timing.node_log_rest_s)
            await self._rest()

    @property
    def _following(self) -> list[Follower]:
        return [follower for follower in self._followers if not follower.has_ended]

    async def _look(self) -> None:
        """Ask what is due."""
        self._requests = 0
        if clock.now() >= self._ask_at:
            await self._ask_jobs()
        for follower in self._following:
            follower.find_logs(self._timing)
        is_first = not self._level()
        if await self._read_behind():
            self._pause_s = self._timing.node_log_pause_s
        if is_first:
            self._look_at = clock.now() + self._pause_s
        elif clock.now() >= self._look_at:
            await self._read_level()
        self._patience.renew()
        for follower in self._following:
            follower.give()
            follower.end_if_all_is_read()

    async def _rest(self) -> None:
        """Wait until something is due, somebody comes, or somebody who was full has room."""
        readings = [reading for each in self._following for reading in each.readings]
        dues = [self._ask_at]
        if any(reading.is_level for reading in readings):
            dues.append(self._look_at)
        dues += [r.retry_at for r in readings if not r.is_level and not r.follower.is_full]
        rooms = [asyncio.ensure_future(each.room()) for each in self._following if each.is_full]
        waits = [asyncio.ensure_future(self._wake.wait()), *rooms]
        try:
            wait_s = max(0.0, min(dues) - clock.now()) if self._following else None
            await asyncio.wait(waits, timeout=wait_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()

    def _endure(self, error: Exception, followers: Iterable[Follower]) -> None:
        """Bear a failure that may pass; else tell those who follow."""
        if isinstance(error, FarcallError):
            told = error
        else:
            told = FarcallError(f"looking for the job's log failed: {error!r}")
            told.__cause__ = error
        if _may_pass(error) and self._patience.bear(told):
            return
        for follower in followers:
            follower.end(told)

    # --- jobs ---------------------------------------------------------------------------------

    async def _ask_jobs(self) -> None:
        """Ask how the jobs and nodes fare from which more may come."""
        asked = [(each, left) for each in self._following if (left := each.left)]
        ids = {job_id: None for each, left in asked for job_id in each.gang.ids(left)}
        pause_s = self._timing.attempts_pause_s
        if ids:
            found = await self._backend.describe(ids)
            for follower, left in asked:
                follower.learn(found, left, self._timing)
            pages = math.ceil(len(ids) / self._backend.capabilities.described_together)
            pause_s *= max(1, pages / 2)
        self._ask_at = clock.now() + pause_s

    # --- logs ---------------------------------------------------------------------------------

    def _level(self) -> list[Reading]:
        return [r for each in self._following for r in each.readings if r.is_level]

    async def _read_behind(self) -> bool:
        """Read the logs that were not read up to now; say whether there was something new."""
        self._probes = _MOST_PROBES
        due = [
            reading
            for each in self._following
            if not each.is_full
            for reading in each.readings
            if not reading.is_level and reading.retry_at <= clock.now()
        ]
        absent = [reading for reading in due if reading.is_absent]
        parts = self._parts(reading for reading in due if not reading.is_absent)
        came = False
        for part in [*parts, *self._parts(absent, 1)]:
            with self._telling(part):
                came = await self._read_those_there(part) or came
        return came

    async def _read_those_there(self, readings: list[Reading]) -> bool:
        """Read logs of which some may not be there; which ones is found by halving.

        So much of it is left to the next look that each one has but few requests in vain. The
        first half is gone into in any case: of one log at least it is known then.
        """
        if self._probes < 0:
            for reading in readings:
                reading.retry_at = clock.now() + self._timing.node_log_pause_s
            return False
        try:
            return await self._read(readings, min(r.floor for r in readings), deep=True)
        except LogMissingError:
            self._probes -= 1
        streams = list(dict.fromkeys(reading.log.stream for reading in readings))
        if len(streams) == 1:
            for reading in readings:
                reading.note_absent(self._timing)
            return False
        first = set(streams[: len(streams) // 2])
        left, self._probes = self._probes, max(0, self._probes)
        came = await self._read_those_there([r for r in readings if r.log.stream in first])
        self._probes = min(left, self._probes)
        rest = [r for r in readings if r.log.stream not in first]
        return await self._read_those_there(rest) or came

    async def _read_level(self) -> None:
        """Look at the logs that were read up to now, from some seconds before the newest line."""
        for reading in self._level():
            reading.is_level = not reading.follower.is_full
        level = self._level()
        now, timing = clock.now(), self._timing
        ending = any(reading.is_ending for reading in level)
        deep = ending or now >= self._deep_at
        came = False
        for part in self._parts(level):
            with self._telling(part):
                came = await self._read_again(part, deep=deep) or came
        if deep:
            self._deep_at = now + timing.node_log_overlap_s
        longer_s = min(timing.node_log_rest_s, self._pause_s * _GROWTH)
        self._pause_s = timing.node_log_pause_s if came else longer_s
        if ending:
            self._pause_s = min(self._pause_s, timing.log_settle_s)
        paced_s = _REQUEST_SHARE * timing.node_log_pause_s * self._requests
        self._look_at = clock.now() + max(self._pause_s, paced_s)

    @contextlib.contextmanager
    def _telling(self, readings: list[Reading]) -> Iterator[None]:
        """Tell those alone who follow what is refused for good."""
        try:
            yield
        except ServiceError as error:
            if _may_pass(error):
                raise
            self._endure(error, [reading.follower for reading in readings])

    async def _read_again(self, readings: list[Reading], *, deep: bool) -> bool:
        """Look at logs once more; say whether there was something new."""
        start = min(reading.floor for reading in readings)
        read_to = [reading.read_to for reading in readings]
        if not deep and None not in read_to:
            newest = min(moment for moment in read_to if moment is not None)
            overlap = timedelta(seconds=self._timing.node_log_overlap_s)
            start = max(start, newest - overlap)
        try:
            return await self._read(readings, start, deep=deep)
        except LogMissingError:  # somebody has deleted one
            for reading in readings:
                reading.is_level = False
            return False

    async def _read(self, readings: list[Reading], start: datetime, *, deep: bool) -> bool:
        """Read logs from a moment on; say whether there was something new.

        Args:
            readings: Those of one group, of up to as many logs as are read together.
            start: The moment.
            deep: Whether that is the floor of each of them, which may rise then.

        Raises:
            LogMissingError: One of them is not there.
        """
        began, group = clock.now(), readings[0].log.group
        by_stream: dict[str, list[Reading]] = {}
        for reading in readings:
            by_stream.setdefault(reading.log.stream, []).append(reading)
        came = False
        pages = self._backend.log_events(group, list(by_stream), start)
        async with contextlib.aclosing(pages):
            async for events in pages:
                self._requests += 1
                came = self._hand_out(events, by_stream) or came
                self._newest[group] = _newest(events, self._newest.get(group))
                if deep:
                    self._forget(readings, _newest(events))
                    if _set_back_where_full(readings):
                        return came
                _give_those_behind(readings)
        for reading in readings:
            reading.read_to = self._newest.get(group)
            if deep:
                reading.note_read(began)
        if deep:
            self._forget(readings, self._newest.get(group))
        return came

    @staticmethod
    def _hand_out(events: Iterable[LogEvent], by_stream: Mapping[str, Sequence[Reading]]) -> bool:
        """Give lines to those who follow; say whether one was new."""
        came = False
        for event in events:
            for reading in by_stream.get(event.stream, ()):
                came = reading.offer(event) or came
        return came

    def _forget(self, readings: Iterable[Reading], newest: datetime | None) -> None:
        """Leave behind what cannot come late any more of logs that are read to their newest line.

        Args:
            readings: The logs.
            newest: When that was written; None where there is none.
        """
        if newest is None:
            return
        floor = newest - timedelta(seconds=self._timing.node_log_late_s)
        for reading in readings:
            reading.raise_floor(floor)

    def _parts(self, readings: Iterable[Reading], most: int = 0) -> list[list[Reading]]:
        """Put those together that one request reads.

        Args:
            readings: They.
            most: How many logs; by default as many as one request can read.
        """
        groups: dict[str, dict[str, list[Reading]]] = {}
        for reading in readings:
            streams = groups.setdefault(reading.log.group, {})
            streams.setdefault(reading.log.stream, []).append(reading)
        most = most or self._backend.capabilities.logs_read_together
        parts = []
        for streams in groups.values():
            each = list(streams.values())
            parts += [
                [reading for readings in each[at : at + most] for reading in readings]
                for at in range(0, len(each), most)
            ]
        return parts


def _newest(events: Sequence[LogEvent], known: datetime | None = None) -> datetime | None:
    """Return when the newest line was written, by a clock that is not ahead of the platform's."""
    if not events:
        return known
    newest = min(events[-1].at, events[-1].taken_at)
    return newest if known is None else max(known, newest)


def _set_back_where_full(readings: Iterable[Reading]) -> bool:
    """Have logs read on later, from where they were read to, if somebody has enough to take."""
    if not any(reading.follower.is_full for reading in readings):
        return False
    for reading in readings:
        reading.is_level = False
        reading.follower.give()
    return True


def _give_those_behind(readings: Iterable[Reading]) -> None:
    """Give what a page has brought to those who are read all there is, which may be much."""
    for follower in {reading.follower for reading in readings if not reading.is_level}:
        follower.give()


def _may_pass(error: Exception) -> bool:
    if not isinstance(error, ServiceError):
        return False
    return refusals.may_pass(error) or refusals.is_of_credentials(error)


def _closed() -> FarcallError:
    return FarcallError("the session was closed while a log was followed; the job goes on")
