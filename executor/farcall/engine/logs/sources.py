"""Sources of output: the platform's log of an attempt, and the stored output of a task.

`farcall.engine.logs.reader` polls them.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Collection, Mapping
from datetime import UTC, datetime, timedelta
from typing import NamedTuple, TypeAlias

from farcall.backends.base import Backend, LogEvent
from farcall.engine.delivered import Delivered, fetch_written
from farcall.engine.logs.nodes import NodeAttempt, is_long_ago
from farcall.engine.logs.transcript import Transcript
from farcall.model import clock, output
from farcall.model.errors import FarcallError, ServiceError
from farcall.model.output import LOG, LogLine
from farcall.model.submission import Submission
from farcall.model.timing import Timing
from farcall.storage.chunks import ChunkPlace, Chunks, Written
from farcall.storage.store import Store
from farcall_runtime.contract import FOLLOWED_S, SOON_CHUNKS, STREAMS

_LONGEST_CHARACTER = 4
"""Maximum bytes of a UTF-8 character; a log never cuts within a character."""

_NO_CHUNKS = timedelta(seconds=60)
"""Time without chunks after which the container may be unable to store any."""


class Part(NamedTuple):
    """Requested part of the output.

    Attributes:
        since: Earliest time of a line; None for all.
        until: Latest time of a line; None for all.
        streams: Names of the streams. Lines of the platform's own log, which merges both, are
            always included.
        follow: Whether the sources are polled until the end of the job.
    """

    since: datetime | None = None
    until: datetime | None = None
    streams: Collection[str] = STREAMS
    follow: bool = False

    def select(self, lines: list[LogLine]) -> list[LogLine]:
        """Return the requested ones of some lines."""
        return [line for line in lines if self._includes(line)]

    def _includes(self, line: LogLine) -> bool:
        if line.stream not in self.streams and line.stream != LOG:
            return False
        if line.at is None:
            return True
        is_early = self.since is not None and line.at < self.since
        return not is_early and (self.until is None or line.at <= self.until)


class PacedLogs:
    """The platform's logs, with one limit of requests per second for all readers of a session."""

    def __init__(self, backend: Backend, timing: Timing) -> None:
        self.backend = backend
        self.timing = timing
        self._turn_at = -math.inf

    async def turn(self) -> None:
        """Wait until the platform allows another request for a log."""
        self._turn_at = max(self._turn_at, clock.now())
        wait_s = self._turn_at - clock.now()
        self._turn_at += 1 / self.backend.capabilities.log_reads_per_s
        if wait_s > 0:
            await asyncio.sleep(wait_s)


class LogSource:
    """The platform's log of one attempt of a node.

    A log that gets lines is polled often, an idle one less often.

    Attributes:
        attempt: The latest description of the attempt.
        is_done: Whether the log was read to its end.
        due: Time of the next poll, by the event loop's clock.
    """

    def __init__(self, logs: PacedLogs, attempt: NodeAttempt, part: Part) -> None:
        self.attempt = attempt
        self.is_done = False
        self.due = -math.inf
        self._logs = logs
        self._log = logs.backend.log(attempt.group, attempt.stream, part.since)
        self._part = part
        self._pause_s = 0.0
        self._quiet_since = -math.inf
        self._settle_s = math.inf
        self.update(attempt)

    @property
    def is_missing(self) -> bool:
        """Whether the log does not exist."""
        return self._log.exists is False

    def update(self, attempt: NodeAttempt) -> None:
        """Record a new description; the last lines may arrive after the container's end."""
        self.attempt = attempt
        if attempt.is_over and math.isinf(self._settle_s):
            self._quiet_since = clock.now()
            is_old = attempt.stopped_at is not None and is_long_ago(attempt.stopped_at)
            self._settle_s = 0.0 if is_old else self._logs.timing.log_settle_s
            self.due = min(self.due, clock.now() + self._settle_s)

    async def read(self) -> AsyncGenerator[list[LogLine], None]:
        """Yield the requested lines that are new since the last call.

        Raises:
            ServiceError: The platform refused.
        """
        await self._logs.turn()
        began, has_news = clock.now(), False
        async with contextlib.aclosing(self._log.read(follow=self._part.follow)) as pages:
            async for events in pages:
                has_news = has_news or bool(events)
                until = self._part.until
                self.is_done = until is not None and bool(events) and events[-1].at > until
                yield self._lines(events)
                if self.is_done:
                    return
        now, timing = clock.now(), self._logs.timing
        if has_news and self._settle_s:
            self._quiet_since = now
        self.is_done = began >= self._quiet_since + self._settle_s
        longer_s = 0.0 if has_news else 2 * self._pause_s
        self._pause_s = min(timing.node_log_rest_s, max(timing.node_log_pause_s, longer_s))
        self.due = now + min(self._pause_s, self._settle_s)

    async def last(self, number: int) -> list[LogLine]:
        """Return up to ``number`` of the last requested lines; `read` continues after them.

        Raises:
            ServiceError: The platform refused.
        """
        await self._logs.turn()
        return self._lines(await self._log.last(number))

    async def close(self) -> None:
        """Release what `read` has opened."""
        await self._log.close()

    def _lines(self, events: list[LogEvent]) -> list[LogLine]:
        node, number = self.attempt[:2]
        return self._part.select(
            [
                LogLine(text, LOG, number, event.at, node=node)
                for event in events
                if (text := self._last_state(event.text)) is not None
            ]
        )

    def _last_state(self, text: str) -> str | None:
        """Return a line's last state; None for a part that the next part replaces."""
        if "\r" not in text:
            return text
        cut_bytes = self._logs.backend.capabilities.longest_log_line_bytes
        if len(text.encode(errors="replace")) > cut_bytes - _LONGEST_CHARACTER:
            return None
        return output.last_state(text) or None


class TaskOutput:
    """Stored output of a task, or of one of its nodes, in all attempts.

    Args:
        store: The bucket.
        submission: The task's job.
        index: Index of the task, or of the node.
        kept: Returns the outcome that this process has taken from the bucket, if any.

    Attributes:
        store: The bucket.
        chunks: The chunks.
        kept: Returns the outcome that this process has taken from the bucket, if any.
        followed_key: Key of the follow marker.
    """

    def __init__(
        self,
        store: Store,
        submission: Submission,
        index: int,
        kept: Callable[[], Delivered | None] = lambda: None,
    ) -> None:
        self.store = store
        self.chunks = Chunks(store, submission, index)
        self.kept = kept
        self.followed_key = submission.where.followed_key(index)
        self._submission = submission
        self._index = index
        self._final: Written | None = None

    @property
    def last_attempt(self) -> int | None:
        """Number of the last attempt; None while it is unknown."""
        source = self.kept() or self._final
        return None if source is None else source.attempt

    async def written(self, attempt: int) -> Written | None:
        """Return an attempt's outcome; None if it is missing or was deleted.

        Raises:
            IntegrityError: It is not what the container wrote.
            ServiceError: S3 refused a request.
        """
        submission, index = self._submission, self._index
        if self._final is None and not submission.is_other_node(index):
            key = submission.where.outcome_key(index)
            self._final = await fetch_written(self.store, submission, index, key)
        if self._final is not None and self._final.attempt == attempt:
            return self._final
        key = submission.attempt_key(index, attempt)
        return await fetch_written(self.store, submission, index, key)

    async def collected(self, kept: Delivered) -> AsyncIterator[list[LogLine]]:
        """Yield the output of the last attempt after its outcome was taken from the bucket.

        Raises:
            IntegrityError: A chunk is not the one the container wrote.
            ServiceError: S3 refused a request.
        """
        transcript = Transcript(self.chunks, kept.attempt)
        if kept.elsewhere() is not None:
            async for lines in transcript.catch_up():
                yield lines
        yield await transcript.close_delivered(kept)


class TaskSource:
    """Output of one attempt of a task; see `LogSource`.

    Chunks and the outcome are polled twice a second. Their keys are known, so a poll needs no
    listing. If chunks or the outcome are missing at the end, the platform's log has the rest.

    Args:
        logs: The platform's logs.
        task: The task's stored output.
        attempt: The attempt.
        part: The requested part.
        refresh: Describes the job again, and calls `update`.
    """

    def __init__(
        self,
        logs: PacedLogs,
        task: TaskOutput,
        attempt: NodeAttempt,
        part: Part,
        refresh: Callable[[], Awaitable[None]],
    ) -> None:
        self.attempt = attempt
        self.is_done = False
        self._logs = logs
        self._task = task
        self._part = part
        self._refresh = refresh
        cut_bytes = logs.backend.capabilities.longest_log_line_bytes
        self._transcript = Transcript(task.chunks, attempt.number, cut_bytes)
        self._existing = self._transcript.catch_up()  # kept, because it fetches chunks ahead
        self._marker = Marker(task.store, task.followed_key)
        self._due = -math.inf
        self._is_placed = False
        self._is_caught_up = False
        self._written: Written | None = None
        self._log: LogSource | None = None
        self._lines_before_log = 0

    @property
    def due(self) -> float:
        """Time of the next poll."""
        return self._due if self._log is None else self._log.due

    def update(self, attempt: NodeAttempt) -> None:
        """Record a new description."""
        self.attempt = attempt
        if self._log is not None:
            self._log.update(attempt)

    async def read(self) -> AsyncGenerator[list[LogLine], None]:
        """Yield new lines."""
        node = self.attempt.node
        async with contextlib.aclosing(self._read()) as pages:
            async for lines in pages:
                yield self._part.select([line._replace(node=node) for line in lines])

    async def last(self, number: int) -> list[LogLine]:
        """Return the last lines, of which only the necessary chunks are read."""
        if not await self._skip(number):
            log = self._open_log()
            last_lines = await log.last(number)
            if last_lines:
                self._log, self._lines_before_log = log, -1  # the chunks are not read
                return self._part.select(last_lines)
        lines = [line async for page in self.read() for line in page]
        return lines[max(0, len(lines) - number) :]

    async def close(self) -> None:
        """Delete the follow marker, and close the log."""
        await self._marker.remove()
        await self._existing.aclose()
        if self._log is not None:
            await self._log.close()

    # --- chunks and outcome -------------------------------------------------------------------

    async def _read(self) -> AsyncGenerator[list[LogLine], None]:
        if self._log is None:
            async for lines in self._stored():
                yield lines
        if self._log is not None:
            async for lines in self._logged(self._log):
                yield lines

    async def _stored(self) -> AsyncIterator[list[LogLine]]:
        """Yield new lines from the bucket; open the log if these are not all."""
        transcript = self._transcript
        if not self._is_placed and self._part.since is not None:
            await self._skip(None)
        async for lines in transcript.read_new() if self._is_caught_up else self._existing:
            yield lines
        is_over = await self._is_over()
        if is_over:
            async for lines in self._end():
                yield lines
        elif not self._part.follow:
            yield self._pause()
        elif self._is_caught_up:
            yield transcript.states()
        self._is_caught_up = True
        if self._part.follow and not is_over:
            self._marker.renew(transcript.next)
            self._due = clock.now() + self._logs.timing.log_pause_s

    async def _is_over(self) -> bool:
        if self.attempt.is_over or self._task.kept() is not None:
            return True
        self._written = await self._task.written(self.attempt.number)
        last = self._task.last_attempt
        return self._written is not None or (last is not None and last <= self.attempt.number)

    def _pause(self) -> list[LogLine]:
        """Return a running attempt's unfinished lines."""
        lines = self._transcript.end()
        started = self.attempt.started_at
        if self._transcript.line_count or started is None or not _is_past(started + _NO_CHUNKS):
            self.is_done = True
            return lines
        return lines + self._begin_log()

    async def _end(self) -> AsyncIterator[list[LogLine]]:
        """Yield the last lines of an attempt that is over, as far as they are in the bucket."""
        transcript, number = self._transcript, self.attempt.number
        kept = self._task.kept()
        if kept is not None and kept.attempt == number:
            lines = await transcript.close_delivered(kept)
            self.is_done = True
            yield lines
            return
        self._written = self._written or await self._task.written(number)
        if self._written is not None:
            rest = await transcript.close(self._written)
            if rest is not None:
                self.is_done = True
                yield rest
                return
        await self._refresh()  # get the log's location
        if self._written is None:  # chunks stored right before the container died
            async for lines in transcript.read_new():
                yield lines
        yield self._begin_log()

    # --- the platform's log -------------------------------------------------------------------

    def _open_log(self) -> LogSource:
        # Times in the bucket differ from times in the log, so a range cannot be requested.
        return LogSource(self._logs, self.attempt, Part(follow=self._part.follow))

    def _begin_log(self) -> list[LogLine]:
        self._log = self._open_log()
        self._lines_before_log = self._transcript.line_count
        return self._transcript.begin_log()

    async def _logged(self, log: LogSource) -> AsyncIterator[list[LogLine]]:
        transcript = self._transcript
        async for lines in log.read():
            yield transcript.unseen(lines)
        if self._part.follow and not log.is_done:
            return
        self.is_done = True
        if transcript.line_count > self._lines_before_log:
            return
        if self._written is not None:
            yield await transcript.close(self._written, with_notes=True) or []
            return
        yield transcript.end()
        if self.attempt.is_over and log.is_missing and self.attempt.started_at is not None:
            yield [transcript.missing()]

    # --- the beginning of the requested part --------------------------------------------------

    async def _skip(self, tail: int | None) -> bool:
        """Skip chunks before the requested part.

        Args:
            tail: Number of lines at the end; None for all.

        Returns:
            False if the bucket lacks output, so that only the platform's log has the last lines.
        """
        self._is_placed = True
        chunks, number = self._task.chunks, self.attempt.number
        is_over = await self._is_over()
        if is_over and self._written is None:
            self._written = await self._task.written(number)
        written = self._written
        places = await chunks.places(number)
        if is_over and not _is_whole(written, places):
            return tail is None
        count = 0
        if written is not None:
            count = sum(written.tails[stream].count(b"\n") for stream in self._part.streams)
        begin = dict.fromkeys(STREAMS, 0)
        begin.update({place.stream: place.sequence + 1 for place in places})
        since = self._part.since
        for place in reversed(places):
            is_enough = tail is not None and count >= tail
            if is_enough or (since is not None and place.at < since):
                break
            begin[place.stream] = place.sequence
            if tail is not None and place.stream in self._part.streams:
                chunk = await chunks.get(number, place.stream, place.sequence)
                count += 0 if chunk is None else chunk[0].count(b"\n")
        left_out = {(place.stream, place.sequence): place for place in places}
        for stream, sequence in begin.items():
            begun = await _begun(chunks, number, stream, sequence)
            before = left_out.get((stream, sequence - 1))
            self._transcript.begin_at(stream, sequence, begun, before)
        return True


Source: TypeAlias = LogSource | TaskSource


async def _begun(chunks: Chunks, number: int, stream: str, sequence: int) -> bytes:
    """Return the beginning of the line that continues in a chunk."""
    begun = b""
    for before in range(sequence - 1, -1, -1):
        chunk = await chunks.get(number, stream, before)
        _, end, last = (chunk[0] if chunk is not None else b"\n").rpartition(b"\n")
        begun = last + begun
        if end or b"\r" in begun.rstrip(b"\r"):
            break  # earlier states were replaced
    return begun


def _is_whole(written: Written | None, places: list[ChunkPlace]) -> bool:
    """Return whether S3 has the complete output of an attempt."""
    if written is None:
        return False
    there = {(place.stream, place.sequence) for place in places}
    return all(
        (stream, number) in there
        for stream in STREAMS
        for number in range(written.records[stream]["chunks"])
    )


_RENEW_S = FOLLOWED_S / 2.5
_FROM_CHUNKS = SOON_CHUNKS // 2
"""Number of chunks from which the marker is stored; before, uploads are frequent."""


class Marker:
    """Follow marker: makes a container with infrequent uploads upload output often.

    A client without the permission to store the marker reads the output some seconds later.

    Args:
        store: The bucket.
        key: The marker's key.
    """

    def __init__(self, store: Store, key: str) -> None:
        self._store = store
        self._key = key
        self._due = -math.inf
        self._storing: asyncio.Future[None] | None = None

    def renew(self, seen: Mapping[str, int]) -> None:
        """Store the marker in the background, if it is due and uploads are infrequent."""
        now = clock.now()
        if max(seen.values()) >= _FROM_CHUNKS and now >= self._due:
            self._due = now + _RENEW_S
            self._storing = asyncio.ensure_future(self._put())

    async def remove(self) -> None:
        """Delete the marker in the background; other followers store it again in time."""
        if self._storing is not None:
            self._storing.cancel()
            await asyncio.gather(self._storing, return_exceptions=True)
            self._store.delete_later([self._key])

    async def _put(self) -> None:
        try:
            await self._store.put(self._key, [b"followed"], quick=True)
        except ServiceError as error:
            if error.code == "AccessDenied":
                self._due = math.inf
        except FarcallError:
            pass  # the next one may succeed


def _is_past(moment: datetime) -> bool:
    return moment < datetime.now(UTC)
