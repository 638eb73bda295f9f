"""Log reader: a job's output in lines, of one attempt or all, existing or live.

Batch is polled every few seconds. S3 is polled twice a second for the next chunk of each stream
and for the outcome. Because their keys are known, such a poll needs no listing and is cheap.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections import deque
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Mapping,
    Sequence,
)
from datetime import datetime, timedelta, timezone
from typing import NamedTuple

from farcall.backends.base import Log
from farcall.engine.fetcher import Delivered
from farcall.engine.logs.transcript import Transcript
from farcall.engine.session import Session
from farcall.model import clock, failure_reasons
from farcall.model.errors import FarcallError, ServiceError, UnknownError
from farcall.model.failure_reasons import About
from farcall.model.jobs import Attempt, JobDetail, JobStatus
from farcall.model.names import counted
from farcall.model.output import LOG, LogLine, last_state
from farcall.model.submission import Submission
from farcall.storage import outcomes
from farcall.storage.chunks import ChunkPlace, Chunks, Written
from farcall.storage.store import Store
from farcall_runtime import envelope
from farcall_runtime.contract import FOLLOWED_S, SOON_CHUNKS, STREAMS

# --- The attempts of a task: their ends and outputs ----------------------------------------------


_JUST_NOW = timedelta(seconds=30)


class AttemptHistory:
    """The attempts of one task.

    Args:
        find: Returns the running event loop's session, again if it was closed meanwhile.
        session: The current session.
        submission: The task's job.
        index: The task's index in the job.
        detail: Batch's description of the task.
        kept: Returns the data that this process has taken from the bucket, if any.

    Attributes:
        timing: Polling intervals.
        detail: Batch's latest description.
        kept: Returns the data that this process has taken from the bucket, if any.
        store: The bucket.
        submission: The task's job.
        index: The task's index in the job.
        chunks: The task's chunks.
    """

    def __init__(
        self,
        find: Callable[[], Awaitable[Session]],
        session: Session,
        submission: Submission,
        index: int,
        detail: JobDetail,
        kept: Callable[[], Delivered | None] = lambda: None,
    ) -> None:
        self.timing = session.timing
        self.detail = detail
        self.kept = kept
        self._find = find
        self._backend = session.backend
        self.store = session.stores.of(submission.where.bucket)
        self.submission = submission
        self.index = index
        self.chunks = Chunks(self.store, submission, index)
        self._final: Written | None = None
        self._asked_at = clock.now()
        self._is_forgotten = False

    def last(self) -> int:
        """Return the number of the latest attempt, which may be about to start."""
        detail = self.detail
        return max(1, detail.attempts) if detail.status.is_final else detail.attempts + 1

    def check(self, attempt: int, *, follow: bool) -> None:
        """Check that an attempt exists or may still start.

        Raises:
            FarcallError: The attempt does not exist.
        """
        detail, last = self.detail, self.last()
        most = detail.attempts_allowed if follow and not detail.status.is_final else last
        if attempt > most:
            may = "may have" if most > last else "has had"
            raise FarcallError(
                f"attempt {attempt} does not exist: job {detail.job_id} {may} "
                f"{counted(most, 'attempt')}"
            )

    def goes_on(self, number: int, *, follow: bool) -> bool:
        """Return whether another attempt follows, or may follow, a finished one."""
        if self._is_forgotten or (self._final is not None and self._final.attempt <= number):
            return False
        kept = self.kept()
        if kept is not None:
            return number < kept.attempt
        if follow and not self.detail.status.is_final:
            self._asked_at = -math.inf  # Batch may now know whether another attempt follows
            return True
        return number < self.last()

    async def is_over(self, number: int) -> bool:
        """Return whether an attempt has finished.

        Raises:
            IntegrityError: Its stored outcome is not what the container wrote.
            ServiceError: AWS refused a call.
        """
        if self.kept() is not None or self._has_ended(number):
            return True
        if clock.now() - self._asked_at >= self.timing.attempts_pause_s:
            await self.ask()
        return self._has_ended(number) or await self.ending(number) is not None

    async def ask(self) -> None:
        """Describe the job again. A job that Batch has forgotten has finished.

        Raises:
            ServiceError: Batch refused the call.
        """
        self._asked_at = clock.now()
        session = await self._find()
        detail = await session.detail(self.submission.id_of(self.index))
        if detail is not None:
            self.detail = detail
        self._is_forgotten = detail is None

    def _has_ended(self, number: int) -> bool:
        is_final = self._final is not None and self._final.attempt <= number
        is_final = is_final or self._is_forgotten
        return is_final or self.detail.status.is_final or self.detail.attempts >= number

    async def ending(self, number: int) -> Written | None:
        """Return an attempt's outcome; None if it is missing or was deleted.

        Raises:
            IntegrityError: It is not what the container wrote.
            ServiceError: S3 refused a request.
        """
        submission, index = self.submission, self.index
        if self._final is None and not submission.is_other_node(index):
            self._final = await self._open(submission.where.outcome_key(index))
        if self._final is not None and self._final.attempt == number:
            return self._final
        return await self._open(submission.attempt_key(index, number))

    async def _open(self, key: str) -> Written | None:
        try:
            found = await outcomes.fetch(self.store, self.submission, key)
        except envelope.EnvelopeError as error:
            about = About(self.detail.job_id, self.detail.name)
            raise failure_reasons.unusable(error).error(about) from error
        if found is None:
            return None
        return Written.of(self.submission, self.index, found.outcome, found.at)

    def tried(self, number: int) -> Attempt:
        """Return Batch's description of an attempt; None for a running one."""
        tried = self.detail.tried
        return tried[number - 1] if number <= len(tried) else Attempt()

    def transcript(self, number: int) -> Transcript:
        """Return the output of an attempt, still unread."""
        cut_bytes = self._backend.capabilities.longest_log_line_bytes
        return Transcript(self.chunks, number, self.timing, cut_bytes)

    def log(self, number: int) -> Log:
        """Return the platform's log of an attempt; for a running attempt, the job's."""
        stream = self.tried(number).log_stream
        detail = self.detail
        if number == detail.attempts + 1 and detail.status is JobStatus.RUNNING:
            known = {tried.log_stream for tried in detail.tried}
            stream = "" if detail.log_stream in known else detail.log_stream
        return self._backend.log(detail.log_group, stream)

    def has_just_ended(self) -> bool:
        """Return whether the job ended so recently that CloudWatch may lack output."""
        stopped = self.detail.stopped_at
        return stopped is not None and not _is_past(stopped + _JUST_NOW)


# --- Lines of one attempt or all -----------------------------------------------------------------


_RENEW_S = FOLLOWED_S / 2.5
_FROM_CHUNKS = SOON_CHUNKS // 2
"""Number of chunks from which the marker is stored; before, uploads are frequent."""
_LONG = timedelta(seconds=60)
"""Time without chunks after which the container may be unable to store any."""


class Part(NamedTuple):
    """Requested part of the output.

    Attributes:
        since: Earliest time at which a line was stored; None for all.
        tail: Number of lines at the end, or all.
        streams: Names of the streams.
    """

    since: datetime | None = None
    tail: int | None = None
    streams: Collection[str] = STREAMS


EVERYTHING = Part()


class _Prepared(NamedTuple):
    """An attempt whose beginning may be skipped.

    Attributes:
        transcript: The attempt's output.
        lines: The requested lines, if they are from the platform's own log; otherwise None.
    """

    transcript: Transcript
    lines: list[LogLine] | None = None


async def lines(
    session: Session,
    job_id: str,
    *,
    nodes: Sequence[int] = (),
    follow: bool = False,
    streams: Collection[str] = STREAMS,
    attempt: int | None = None,
    since: datetime | None = None,
    tail: int | None = None,
    detail: JobDetail | None = None,
) -> AsyncGenerator[list[LogLine], None]:
    """Yield the output of a job, of a task or of a command.

    Args:
        session: The running event loop's session.
        job_id: A single job, an array task, or a node.
        nodes: Indexes of nodes. By default all nodes of a command, and the main node of a task;
            of a task, one node can be read at a time.
        follow: Continue until the job's end, including its last lines and the intermediate states
            of progress bars; see `LogLine.goes_on`.
        streams: ``"stdout"``, ``"stderr"`` or both. Lines from the platform's own log, which
            merges both, are always yielded.
        attempt: Number of one attempt, from 1; by default all, one after the other.
        since: Only lines stored at this time or later, which may be seconds after they were
            written.
        tail: Maximum number of existing lines, the last ones.
        detail: The platform's description of the job, if the caller has it.

    Raises:
        ValueError: A stream, an attempt or ``tail`` is invalid.
        JobLostError: The platform does not know the job.
        UnknownError: farcall did not submit the job, or the node does not exist.
        FarcallError: The job is an array job, or the attempt does not exist.
        IntegrityError: A piece of output is not what the container wrote.
        ServiceError: The platform refused.
    """
    _check(streams, attempt, tail)
    detail = detail or await session.describe(job_id)
    if detail.is_command:
        pages = session.node_logs.batches(
            job_id, nodes or None, attempt=attempt, follow=follow, tail=tail, since=since
        )
    else:
        node_id = _node_of(detail, nodes)
        if node_id != detail.job_id:
            detail = await session.describe(node_id)
        part = Part(since, tail, streams)
        pages = _of_task(session, detail, attempt, part, follow=follow)
    async with contextlib.aclosing(pages):
        async for batch in pages:
            yield batch


def _node_of(detail: JobDetail, nodes: Sequence[int]) -> str:
    """Return the ID of the task's requested node; by default the job's ID.

    Raises:
        UnknownError: The node does not exist.
        FarcallError: Several nodes are named.
    """
    if len(nodes) > 1:
        raise FarcallError(
            f"job {detail.job_id} runs a function, whose nodes can only be read one at a time. "
            f"Use --node {nodes[0]}."
        )
    if nodes and nodes[0] >= max(1, detail.nodes):
        raise UnknownError(f"job {detail.job_id} has no node {nodes[0]}")
    return detail.node_id(nodes[0]) if nodes else detail.job_id


async def _of_task(
    session: Session,
    detail: JobDetail,
    attempt: int | None,
    part: Part,
    *,
    follow: bool,
) -> AsyncGenerator[list[LogLine], None]:
    submission, index = Submission.of(detail)

    async def same() -> Session:
        return session

    history = AttemptHistory(same, session, submission, index, detail)
    reading = LogReader(history, follow=follow)
    held: deque[LogLine] | None = None if part.tail is None else deque(maxlen=part.tail)
    async with contextlib.aclosing(reading.read(attempt, part)) as batches:
        async for batch in batches:
            if batch is None:
                found, held = held, None
                if found:
                    yield list(found)
                continue
            wanted = [
                line
                for line in batch
                if (line.stream in part.streams or line.stream == LOG)
                and (part.since is None or line.at is None or line.at >= part.since)
            ]
            if held is not None:
                held.extend(wanted)
            elif wanted:
                yield wanted
    if held:
        yield list(held)


class LogReader:
    """Reader of a task's output.

    Args:
        history: The task's attempts.
        follow: Whether to continue until the task's end.
    """

    def __init__(self, history: AttemptHistory, *, follow: bool) -> None:
        self._history = history
        self._chunks = history.chunks
        key = history.submission.where.followed_key(history.index)
        self._mark = Mark(history.store, key)
        self._follow = follow

    async def read(
        self, attempt: int | None = None, part: Part = EVERYTHING
    ) -> AsyncGenerator[list[LogLine] | None, None]:
        """Yield lines, and None whenever all existing lines were yielded.

        Args:
            attempt: Number of one attempt; by default all.
            part: The requested part; more may be yielded.

        Raises:
            FarcallError: See `lines`.
        """
        history = self._history
        number, last = 1, history.last()
        if attempt is not None:
            history.check(attempt, follow=self._follow)
            number = last = attempt
        prepared: dict[int, _Prepared] = {}
        if part.tail is not None or part.since is not None:
            prepared = await prepare(history, number, last, part)
            number = min(prepared)
        try:
            while True:
                async for batch in self._attempt(
                    prepared.get(number) or _Prepared(history.transcript(number))
                ):
                    yield batch
                if attempt is not None or not history.goes_on(number, follow=self._follow):
                    return
                number += 1
        finally:
            await self._mark.remove()

    async def _attempt(self, prepared: _Prepared) -> AsyncIterator[list[LogLine] | None]:
        transcript, lines = prepared
        number = transcript.number
        if lines is not None:
            yield lines
            return
        async for batch in transcript.catch_up():
            yield batch
        is_over = await self._history.is_over(number)
        while self._follow and not is_over:
            yield None
            yield transcript.states()
            self._mark.renew(transcript.next)
            await asyncio.sleep(self._history.timing.log_pause_s)
            yield await transcript.look()
            is_over = await self._history.is_over(number)
        async for batch in self._close(transcript) if is_over else self._pause(transcript):
            yield batch

    async def _pause(self, transcript: Transcript) -> AsyncIterator[list[LogLine]]:
        """Yield a running attempt's lines from other sources."""
        yield transcript.end()
        started = self._history.detail.started_at
        if not transcript.given and started is not None and _is_past(started + _LONG):
            async for batch in transcript.from_log(
                self._history.log(transcript.number), settle=False
            ):
                yield batch

    async def _close(self, transcript: Transcript) -> AsyncIterator[list[LogLine]]:
        """Yield the remaining lines of a finished attempt."""
        number = transcript.number
        kept = self._history.kept()
        if kept is not None and kept.attempt == number:
            yield await transcript.close_kept(kept.elsewhere(), kept.stdout, kept.stderr)
            return
        ending = await self._history.ending(number)
        if ending is None:
            yield await transcript.look()  # chunks stored right before the container died
        else:
            rest = await transcript.close(ending)
            if rest is not None:
                yield rest
                return
        await self._history.ask()  # get the log's location
        log, given = self._history.log(number), transcript.given
        async for batch in transcript.from_log(
            log, settle=self._follow and self._history.has_just_ended()
        ):
            yield batch
        if transcript.given > given:
            return
        if ending is not None:
            yield await transcript.close(ending, with_notes=True) or []
            return
        yield transcript.end()
        if log.exists is False and self._history.tried(number).started_at is not None:
            yield [transcript.missing()]


async def prepare(
    history: AttemptHistory, first: int, last: int, part: Part
) -> dict[int, _Prepared]:
    """Go back from the end as far as requested.

    Returns:
        The attempts to read, by number.

    Raises:
        IntegrityError: A chunk is not the one the container wrote.
        ServiceError: AWS refused a call.
    """
    prepared: dict[int, _Prepared] = {}
    for number in range(last, first - 1, -1):
        prepared[number], count = await _prepare(history, number, part)
        started = history.tried(number).started_at
        if part.tail is not None:
            part = part._replace(tail=max(0, part.tail - count))
            if not part.tail:
                break
        if part.since is not None and started is not None and started < part.since:
            break
    return prepared


async def _prepare(history: AttemptHistory, number: int, part: Part) -> tuple[_Prepared, int]:
    """Return an attempt, and the number of lines found in it."""
    chunks = history.chunks
    transcript = history.transcript(number)
    is_over = await history.is_over(number)
    ending = await history.ending(number) if is_over else None
    places = await chunks.places(number)
    if is_over and not _is_whole(ending, places):
        found = [] if part.tail is None else await history.log(number).last(part.tail)
        lines = [LogLine(last_state(event.text), LOG, number, event.at) for event in found]
        return _Prepared(transcript, lines or None), len(lines)
    count = 0
    if ending is not None:
        count = sum(ending.tails[stream].count(b"\n") for stream in part.streams)
    begin = dict.fromkeys(STREAMS, 0)
    begin.update({place.stream: place.sequence + 1 for place in places})
    for place in reversed(places):
        is_enough = part.tail is not None and count >= part.tail
        if is_enough or (part.since is not None and place.at < part.since):
            break
        begin[place.stream] = place.sequence
        if part.tail is not None and place.stream in part.streams:
            chunk = await chunks.get(number, place.stream, place.sequence)
            count += 0 if chunk is None else chunk[0].count(b"\n")
    left_out = {(place.stream, place.sequence): place for place in places}
    for stream, sequence in begin.items():
        begun = await _begun(chunks, number, stream, sequence)
        transcript.begin_at(stream, sequence, begun, left_out.get((stream, sequence - 1)))
    return _Prepared(transcript), count


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
        for number in range(written.said[stream]["chunks"])
    )


class Mark:
    """Follow marker: asks a container with infrequent uploads to upload output often.

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


def _check(streams: Collection[str], attempt: int | None, tail: int | None) -> None:
    unknown = [stream for stream in streams if stream not in STREAMS]
    if unknown or not streams:
        raise ValueError(f"streams is {streams!r}; use {' or '.join(STREAMS)}")
    if attempt is not None and attempt < 1:
        raise ValueError(f"attempt is {attempt}; use a number of at least 1")
    if tail is not None and tail < 0:
        raise ValueError(f"tail is {tail}; use a number of lines, at least 0")


def _is_past(moment: datetime) -> bool:
    return moment < datetime.now(timezone.utc)
