"""Log reader: the output of a job's nodes in lines, existing or live.

Each caller reads each node's attempts one after the other, from the beginning or the end, and then
polls the last one for new lines.
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
    Collection,
    Hashable,
    Iterable,
    Sequence,
)
from datetime import UTC, datetime
from operator import itemgetter

from farcall.aws import error_translation
from farcall.backends.base import Backend
from farcall.engine.delivered import Delivered
from farcall.engine.logs import nodes as job_nodes
from farcall.engine.logs.nodes import JobNodes, NodeAttempt
from farcall.engine.logs.sources import (
    LogSource,
    PacedLogs,
    Part,
    Source,
    TaskOutput,
    TaskSource,
)
from farcall.engine.tracked_job import RetryBudget, Trouble
from farcall.model import clock
from farcall.model.errors import FarcallError, JobLostError, ServiceError
from farcall.model.jobs import JobDetail
from farcall.model.output import LogLine
from farcall.model.submission import Submission
from farcall.model.timing import Timing
from farcall.storage.store import Stores
from farcall_runtime.contract import STREAMS

_PAGE = 1000
"""Maximum lines of one batch to which several sources contribute."""

_TOGETHER = 8
"""Maximum sources whose new lines one batch contains."""

_SHORTEST_S = 0.01
"""Minimum pause between two polls, which keeps rounding errors from repeating them."""

_MOST_LINES = 10_000
"""Lines after which a poll of one source lets the others have their turn."""

_EARLIEST = datetime.min.replace(tzinfo=UTC)


class LogReader:
    """Reader of jobs' output; one for each session.

    Args:
        backend: Platform that runs the jobs.
        stores: Buckets.
        detail: Returns the backend's description of a job, or None; concurrent callers share a
            request.
        trouble: Notified of requests that fail while output is followed.
        timing: Intervals between requests.
    """

    def __init__(
        self,
        backend: Backend,
        stores: Stores,
        detail: Callable[[str], Awaitable[JobDetail | None]],
        trouble: Trouble,
        timing: Timing,
    ) -> None:
        self.logs = PacedLogs(backend, timing)
        self.stores = stores
        self.trouble = trouble
        self.timing = timing
        self._detail = detail
        self._closed = asyncio.Event()

    async def lines(
        self,
        job_id: str,
        nodes: Sequence[int] | None = None,
        *,
        follow: bool = False,
        streams: Collection[str] = STREAMS,
        attempt: int | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        tail: int | None = None,
        detail: JobDetail | None = None,
        kept: Callable[[], Delivered | None] = lambda: None,
    ) -> AsyncGenerator[list[LogLine], None]:
        """Yield the output of a job's nodes: each node's in order, several nodes' by time.

        Args:
            job_id: A single job, an array task, or a node (``"<job>#<index>"``).
            nodes: Indexes of nodes, from 0; by default all nodes of a command, and the main node
                of a task.
            follow: Continue until the nodes have ended, including their last lines and the
                intermediate states of progress bars; see `LogLine.goes_on`. If the job has not
                started, wait for it. The lines of one batch are ordered by time.
            streams: ``"stdout"``, ``"stderr"`` or both. Lines from the platform's own log, which
                merges both, are always yielded.
            attempt: Number of one attempt of the job, from 1. By default all, one after the
                other; for a command with ``follow``, the last one and later ones.
            since: Only lines of this time or later, to the millisecond. Without a time zone it is
                local time. A line of a task has the time at which it was stored, which may be
                seconds after it was written.
            until: Only lines of this time or before, with the same precision.
            tail: Maximum number of existing lines, the last ones of all nodes together.
            detail: The platform's description of the job, if the caller has it.
            kept: Returns the outcome that this process has taken from the bucket, if any.

        Raises:
            ValueError: A stream or ``tail`` is invalid.
            JobLostError: The platform does not know the job.
            UnknownError: farcall did not submit the job, or the node or attempt does not exist;
                the message names the existing ones.
            FarcallError: The job is an array job, or the session was closed.
            IntegrityError: A piece of output is not what the container wrote.
            ServiceError: The platform refused.
        """
        _check(streams, tail)
        since, until = (moment and _whole(moment) for moment in (since, until))
        job_id, nodes = job_nodes.parts_of(job_id, nodes)
        if detail is None or detail.job_id != job_id:
            detail = await self._find(job_id, follow=follow)
        job = JobNodes(detail, {} if detail.groups else {0: detail})
        attempts = job.chosen(nodes, attempt, follow=follow)
        wanted = job.wanted(nodes)
        if detail.groups:
            job.update(await self.describe(job.ids(wanted)), wanted)
        part = Part(since, until, streams, follow)
        reader = _JobReader(self, job, wanted, attempts, attempt, part, kept)
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
        return {
            each: detail for each, detail in zip(ids, details, strict=True) if detail is not None
        }

    async def sleep_until(self, moment: float) -> None:
        """Wait until a time of the event loop's clock.

        Raises:
            FarcallError: The session was closed.
        """
        with contextlib.suppress(TimeoutError):
            await clock.within(max(_SHORTEST_S, moment - clock.now()), self._closed.wait())
        if self._closed.is_set():
            raise FarcallError(
                "the session was closed while a log was being followed. The job continues."
            )

    def close(self) -> None:
        """Notify all callers that follow output. Jobs continue."""
        self._closed.set()

    async def _find(self, job_id: str, *, follow: bool) -> JobDetail:
        """Return the description of a job; with ``follow``, wait for a new job.

        Raises:
            JobLostError: The platform does not know the job.
        """
        began = clock.now()
        while (detail := await self._detail(job_id)) is None:
            if not follow or clock.now() - began >= self.timing.lost_after_s:
                raise JobLostError(self.logs.backend.unknown(job_id), job_id=job_id)
            await self.sleep_until(clock.now() + self.timing.status_pause_s)
        return detail


class _JobReader:
    """The output of some nodes of one job, for one caller.

    Args:
        reader: The session's reader.
        job: The job and its nodes.
        nodes: Indexes of the nodes.
        attempts: Numbers of the attempts.
        attempt: The only attempt, if the caller named one.
        part: The requested part.
        kept: Returns the outcome that this process has taken from the bucket, if any.
    """

    def __init__(
        self,
        reader: LogReader,
        job: JobNodes,
        nodes: Sequence[int],
        attempts: range,
        attempt: int | None,
        part: Part,
        kept: Callable[[], Delivered | None],
    ) -> None:
        self._reader = reader
        self._timing = reader.timing
        self._job = job
        self._nodes = nodes
        self._attempts = attempts
        self._attempt = attempt
        self._part = part
        self._tasks: dict[int, TaskOutput] = {}
        if not job.is_command:
            submission, index = Submission.of(job.job)
            store = reader.stores.of(submission.where.bucket)
            for node in nodes:
                self._tasks[node] = TaskOutput(store, submission, node or index, kept)
        self._sources: dict[Hashable, Source] = {}
        self._describe_at = clock.now() + self._timing.attempts_pause_s  # its description is new
        self._unseen_since = math.inf
        self._update_sources()

    async def close(self) -> None:
        """Release the sources' resources."""
        await asyncio.gather(*(source.close() for source in self._sources.values()))

    # --- the lines up to now ------------------------------------------------------------------

    async def all(self) -> AsyncGenerator[list[LogLine], None]:
        """Yield all lines, one attempt after the other."""
        for sources in self._by_attempt():
            async for lines in _merged([_lines_of(source) for source in sources]):
                yield lines

    async def last(self, number: int) -> list[LogLine]:
        """Return up to ``number`` of the last lines; `follow` continues after them."""
        last_lines: list[LogLine] = []
        for sources in reversed(self._by_attempt()):
            wanted = number - len(last_lines)
            lines = _by_time(await asyncio.gather(*(source.last(wanted) for source in sources)))
            last_lines = lines[max(0, len(lines) - wanted) :] + last_lines
            if len(last_lines) >= number:
                self._attempts = range(sources[0].attempt.number, self._attempts.stop)
                break
        return last_lines

    def _by_attempt(self) -> list[list[Source]]:
        """Return the sources of each attempt, the first one first."""
        by_attempt: dict[int, list[Source]] = {}
        for source in self._sources.values():
            by_attempt.setdefault(source.attempt.number, []).append(source)
        return [by_attempt[attempt] for attempt in sorted(by_attempt)]

    # --- the lines from now on ----------------------------------------------------------------

    async def follow(self) -> AsyncGenerator[list[LogLine], None]:
        """Yield the lines that were not returned yet, until the nodes have ended."""
        budget = RetryBudget(self._reader.trouble, self._timing)
        try:
            while self._open or (self._left and not self._is_past()):
                lines, error = await self._poll_due()
                if lines:
                    yield lines
                due = self._due()
                if error is None:
                    budget.record_success()
                elif _may_pass(error) and budget.record_failure(error):
                    due = clock.now() + self._timing.node_log_rest_s
                else:
                    raise error
                await self._reader.sleep_until(due)
        finally:
            budget.end()

    async def _poll_due(self) -> tuple[list[LogLine], FarcallError | None]:
        """Make the requests that are due; return the new lines and the first error."""
        try:
            if self._left and clock.now() >= self._describe_at:
                await self._describe()
        except FarcallError as error:
            return [], error
        due = sorted(self._open, key=lambda source: source.due)[:_TOGETHER]
        polls = await asyncio.gather(
            *(self._poll(source) for source in due if source.due <= clock.now())
        )
        lines = _by_time([lines_read for lines_read, _ in polls])
        return lines, next((error for _, error in polls if error is not None), None)

    async def _poll(self, source: Source) -> tuple[list[LogLine], FarcallError | None]:
        """Return a source's new lines, and the error after them."""
        lines: list[LogLine] = []
        try:
            async with contextlib.aclosing(source.read()) as pages:
                async for page in pages:
                    lines += page
                    if len(lines) >= _MOST_LINES:
                        break
        except FarcallError as error:
            return lines, error
        if source.is_done and source.attempt.node in self._tasks:
            self._describe_at = clock.now()  # the platform may now know the next attempt
        return lines, None

    def _due(self) -> float:
        """Return the time at which the next request is due."""
        dues = [source.due for source in self._open]
        return min([*dues, *([self._describe_at] if self._left else [])], default=clock.now())

    @property
    def _open(self) -> list[Source]:
        """The first source of each node that was not read to its end."""
        by_node: dict[int, Source] = {}
        for source in sorted(self._sources.values(), key=lambda each: each.attempt.number):
            if not source.is_done and source.attempt.number in self._attempts:
                by_node.setdefault(source.attempt.node, source)
        return list(by_node.values())

    @property
    def _left(self) -> list[int]:
        """Indexes of the nodes that may write more."""
        return [node for node in self._nodes if self._is_left(node)]

    def _is_left(self, node: int) -> bool:
        if self._job.has_ended(node, self._attempt):
            return False
        last = self._last_attempt(node)
        return last is None or not any(
            source.is_done and source.attempt.node == node and source.attempt.number >= last
            for source in self._sources.values()
        )

    def _last_attempt(self, node: int) -> int | None:
        """Return the number of a node's last attempt, if it is known before the job's end."""
        task = self._tasks.get(node)
        return self._attempt or (task.last_attempt if task is not None else None)

    def _is_past(self) -> bool:
        return self._part.until is not None and self._part.until < datetime.now(UTC)

    async def _describe(self) -> None:
        """Update the state of the job, its nodes and their sources."""
        left, now = self._left, clock.now()
        ids = self._job.ids(left)
        pages = math.ceil(len(ids) / self._reader.logs.backend.capabilities.described_together)
        self._describe_at = now + self._timing.attempts_pause_s * max(1, pages / 2)
        details = await self._reader.describe(ids)
        self._job.update(details, left, now)
        is_known = self._job.job.job_id in details
        self._unseen_since = math.inf if is_known else min(self._unseen_since, now)
        self._job.is_forgotten = now - self._unseen_since >= self._timing.lost_after_s
        self._update_sources()

    def _update_sources(self) -> None:
        """Add new sources, and record which containers have ended."""
        listed = set()
        for attempt in (each for node in self._nodes for each in self._job.attempts(node)):
            key = self._key(attempt)
            listed.add(key)
            if key in self._sources:
                self._sources[key].update(self._ended_if_past(attempt))
            elif self._is_wanted(attempt):
                self._sources[key] = self._source(self._ended_if_past(attempt))
        # Kubernetes deletes the pods of the other nodes when the main node succeeds. Such a node
        # no longer has a log, and its container has ended.
        for key, source in self._sources.items():
            attempt = source.attempt
            if key not in listed and self._job.has_ended(attempt.node, self._attempt):
                source.update(attempt._replace(is_over=True))

    def _is_wanted(self, attempt: NodeAttempt) -> bool:
        if attempt.number not in self._attempts:
            return False
        if attempt.node not in self._tasks:
            return bool(attempt.stream)
        last = self._last_attempt(attempt.node)
        since, end = self._part.since, attempt.stopped_at
        is_before = since is not None and attempt.is_over and end is not None and end < since
        return not is_before and (last is None or attempt.number <= last)

    def _key(self, attempt: NodeAttempt) -> Hashable:
        return attempt[:2] if attempt.node in self._tasks else attempt.stream

    def _source(self, attempt: NodeAttempt) -> Source:
        task = self._tasks.get(attempt.node)
        if task is None:
            return LogSource(self._reader.logs, attempt, self._part)
        return TaskSource(self._reader.logs, task, attempt, self._part, self._describe)

    def _ended_if_past(self, attempt: NodeAttempt) -> NodeAttempt:
        return attempt._replace(is_over=True) if self._is_past() else attempt


async def _lines_of(source: Source) -> AsyncIterator[LogLine]:
    async for lines in source.read():
        for line in lines:
            yield line


async def _merged(sources: Sequence[AsyncIterator[LogLine]]) -> AsyncIterator[list[LogLine]]:
    """Yield the lines of several sources, each ordered by time, in the order of time."""
    firsts = await asyncio.gather(*(anext(source, None) for source in sources))
    heads = [
        (line.at or _EARLIEST, number, line)
        for number, line in enumerate(firsts)
        if line is not None
    ]
    heapq.heapify(heads)
    merged: list[LogLine] = []
    while heads:
        at, number, line = heads[0]
        merged.append(line)
        following = await anext(sources[number], None)
        if following is None:
            heapq.heappop(heads)
        else:  # a line that is slightly out of order keeps its position
            heapq.heapreplace(heads, (max(at, following.at or at), number, following))
        if len(merged) >= _PAGE or not heads:
            yield merged
            merged = []


def _by_time(pages: Iterable[list[LogLine]]) -> list[LogLine]:
    """Return the lines of several sources in the order of time; each keeps its own order."""
    dated: list[tuple[datetime, LogLine]] = []
    for lines in pages:
        at = _EARLIEST
        for line in lines:
            at = max(at, line.at or at)
            dated.append((at, line))
    return [line for _, line in sorted(dated, key=itemgetter(0))]


def _check(streams: Collection[str], tail: int | None) -> None:
    unknown = [stream for stream in streams if stream not in STREAMS]
    if unknown or not streams:
        raise ValueError(f"streams is {streams!r}; use {' or '.join(STREAMS)}")
    if tail is not None and tail < 0:
        raise ValueError(f"tail is {tail}; use a number of lines, at least 0")


def _may_pass(error: FarcallError) -> bool:
    if not isinstance(error, ServiceError):
        return False
    return error_translation.may_pass(error) or error_translation.is_of_credentials(error)


def _whole(moment: datetime) -> datetime:
    """Round a time down to the millisecond; without a time zone it is local time."""
    moment = moment.astimezone(UTC)
    return moment.replace(microsecond=moment.microsecond // 1000 * 1000)
