"""Jobs that the web UI shows, read with few requests.

Batch lists 100 jobs per request, newest first, so new jobs come before the first page of known
jobs. A job's state comes from its description, one request per 100 jobs. New jobs, jobs whose list
entry has changed, and unfinished jobs that were not listed are described. Finished jobs are not
requested again.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from farcall.backends.base import Backend
from farcall.engine.session import Session, this_user
from farcall.model import clock
from farcall.model.errors import FarcallError
from farcall.model.jobs import JobDetail, JobStatus
from farcall.operations.catalog import NOTHING, Catalog, Entry, Query, Why
from farcall.ui.watchers import Account, Feed, Watcher

# --- Call and error texts of the jobs, read in the background -----------------------------------
#
# The texts are in the bucket and take one or two requests per job, and another for a failed job.
# Browsers get the jobs first and the texts as they arrive, the newest jobs' texts first.


_AT_ONCE = 50
"""Maximum number of jobs whose texts one poll reads."""

_ARRAY_S = 10.0
"""Interval in seconds between reads of a running array's texts."""


class FailureSummaries:
    """Call and error texts of jobs, by job ID."""

    def __init__(self, account: Account) -> None:
        self._account = account
        self._read: dict[str, tuple[object, float, Why]] = {}

    def filled(self, entry: Entry) -> Entry:
        """Return a job with its known texts."""
        return replace(entry, why=self._read.get(entry.detail.job_id, _UNREAD)[2])

    def due(self, entries: Iterable[Entry]) -> list[Entry]:
        """Return the jobs whose texts may have changed, the newest first."""
        return sorted(filter(self._is_due, entries), key=_age)

    async def read(self, entries: Mapping[str, Entry]) -> list[str]:
        """Read some texts, and forget all other jobs.

        A text that cannot be read is retried at the next poll.

        Returns:
            The jobs whose texts have changed.
        """
        for job_id in self._read.keys() - entries.keys():
            del self._read[job_id]
        due = self.due(entries.values())[:_AT_ONCE]
        try:
            filled = await (await self._account.reasons()).fill(due) if due else []
        except FarcallError:  # the poll itself reports it, because it makes the same Batch request
            return []
        changed = [e.detail.job_id for e in filled if e != self.filled(e)]
        for entry in filled:
            self._read[entry.detail.job_id] = (_state(entry), clock.now(), entry.why)
        return changed

    def _is_due(self, entry: Entry) -> bool:
        state, read_at, _ = self._read.get(entry.detail.job_id, _UNREAD)
        if state == _state(entry):
            return False
        return state is None or entry.detail.status.is_final or read_at + _ARRAY_S < clock.now()


_UNREAD = (None, 0.0, NOTHING)


def _age(entry: Entry) -> float:
    created_at = entry.detail.created_at
    return -created_at.timestamp() if created_at is not None else 0.0


def _state(entry: Entry) -> object:
    """Return the values that change whenever a job's texts may change."""
    failed = entry.detail.status_summary.get(JobStatus.FAILED.value, 0)
    return entry.detail.status.is_final, failed


_LAG_S = 10.0
"""Maximum listing lag in seconds: jobs older than a listed one by more are listed."""


_POSITIONS_S = 10.0
"""Interval in seconds between reads of the waiting jobs' positions, one request per queue."""


_MOST_DESCRIBED = 500
"""Maximum number of unlisted jobs that one poll describes: five requests."""


class _Known(NamedTuple):
    """Listed job.

    Attributes:
        entry: The job's data; None if it is not shown.
        seen_at: Time of its first description.
        described_at: Time of its last description.
    """

    entry: Entry | None
    seen_at: float
    described_at: float


class Jobs(Watcher[str]):
    """Poller of the jobs of some queues, by ID.

    Attributes:
        summaries: The jobs' call and error texts.
    """

    def __init__(
        self, account: Account, queues: Iterable[str], span: timedelta, *, everybody: bool
    ) -> None:
        super().__init__(account)
        self._span = span
        self._everybody = everybody
        self._queues = [_Queue(name) for name in queues]
        self._wanted: list[datetime] = []
        self.summaries = FailureSummaries(account)

    @property
    def since(self) -> datetime:
        """Earliest submission time of the jobs that are shown."""
        return datetime.now(UTC) - self._span

    @contextlib.contextmanager
    def listen_since(self, since: datetime) -> Iterator[Feed[str]]:
        """Yield a feed of the jobs submitted since a time."""

        def wants(job_id: str) -> bool:
            entry = self.get(job_id)
            created_at = entry.detail.created_at if entry is not None else None
            return created_at is None or created_at >= since

        self._wanted.append(since)
        self.is_complete = self._is_read(self._horizon())
        try:
            with self.listen(wants) as feed:
                yield feed
        finally:
            self._wanted.remove(since)

    @property
    def entries(self) -> dict[str, Entry]:
        """Shown jobs by ID."""
        shown = (queue.shown() for queue in self._queues)
        return {entry.detail.job_id: entry for entries in shown for entry in entries}

    def get(self, job_id: str) -> Entry | None:
        """Return a job's data."""
        known = (queue.known.get(job_id) for queue in self._queues)
        return next((each.entry for each in known if each is not None), None)

    def keys(self) -> Iterable[str]:
        """Return the IDs of all shown jobs, newest first in each queue."""
        return list(self.entries)

    def is_active(self) -> bool:
        """Return whether a job is unfinished or has texts left to read."""
        entries = self.entries.values()
        is_unfinished = any(not entry.detail.status.is_final for entry in entries)
        return is_unfinished or bool(self.summaries.due(entries))

    async def poll(self) -> None:
        """List new jobs, and describe new, changed and active jobs."""
        since = self._horizon()
        session = await self.account.session()
        query = Query(user=None if self._everybody else this_user())
        for queue in self._queues:
            await self._poll_queue(queue, session, query._replace(since=since))
        self.is_complete = self._is_read(self._horizon())

    async def poll_details(self) -> None:
        """Read waiting jobs' positions, and some jobs' call and error texts."""
        session = await self.account.session()
        for queue in self._queues:
            self.notify(await queue.read_positions(session.backend))
        self.notify(await self.summaries.read(self.entries))

    def waits_for(self, job: JobDetail) -> str:
        """Return what a job waits for, with its position in the queue if that is known."""
        known = (queue.positions.get(job.job_id) for queue in self._queues)
        return waits_for(job, next(filter(None, known), None))

    def _horizon(self) -> datetime:
        """Return the earliest submission time that a listener needs."""
        return max(self.since, min(self._wanted, default=self.since))

    def _is_read(self, since: datetime) -> bool:
        return all(queue.has_read(since) for queue in self._queues)

    async def _poll_queue(self, queue: _Queue, session: Session, query: Query) -> None:
        catalog = Catalog(session.backend)
        met: set[str] = set()
        since = query.since or self.since
        async with contextlib.aclosing(session.backend.list_jobs(queue.name, since)) as pages:
            async for page in pages:
                met.update(job.job_id for job in page)
                is_settled = queue.has_read(since) and queue.has_settled(page)
                await self._learn(queue, catalog, query, queue.changed(page))
                if is_settled:
                    break
        queue.record_read(since)
        queue.forget(self.since)
        await self._learn(queue, catalog, query, queue.due(met))

    async def _learn(
        self, queue: _Queue, catalog: Catalog, query: Query, jobs: list[JobDetail]
    ) -> None:
        """Describe jobs, and notify listeners of the changed ones."""
        if not jobs:
            return
        entries = await catalog.describe(job.job_id for job in jobs)
        changed = []
        for job in jobs:
            if job.job_id not in entries:  # DescribeJobs may lag behind ListJobs
                queue.known.pop(job.job_id, None)
                continue
            entry = entries[job.job_id]
            if queue.note(job.job_id, entry if entry and query.fits(entry) else None):
                changed.append(job.job_id)
        self.notify(changed)


class _Queue:
    """Known jobs of a queue.

    Attributes:
        name: The queue's name or ARN.
        known: The listed jobs, by ID.
        positions: Positions in the queue of waiting jobs, by ID.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.known: dict[str, _Known] = {}
        self.positions: dict[str, int] = {}
        self._positions_at = -math.inf
        self._read_since: datetime | None = None
        self._newest: datetime | None = None

    def has_read(self, since: datetime) -> bool:
        """Return whether all jobs submitted since a time were listed once."""
        return self._read_since is not None and self._read_since <= since

    def record_read(self, since: datetime) -> None:
        """Record that all jobs submitted since a time were listed."""
        if not self.has_read(since):
            self._read_since = since

    def forget(self, since: datetime) -> None:
        """Forget finished jobs submitted before a time."""
        for job_id, known in list(self.known.items()):
            entry = known.entry
            created_at = entry.detail.created_at if entry else None
            if entry and entry.detail.status.is_final and created_at and created_at < since:
                del self.known[job_id]

    def note(self, job_id: str, entry: Entry | None) -> bool:
        """Store a job's data; return whether it changed and is shown."""
        before = self.known.get(job_id)
        seen_at = before.seen_at if before else clock.now()
        self.known[job_id] = _Known(entry, seen_at, clock.now())
        return entry is not None and (before is None or before.entry != entry)

    def changed(self, page: list[JobDetail]) -> list[JobDetail]:
        """Return the jobs of a page that need a description."""
        return [job for job in page if self._has_changed(job)]

    def _has_changed(self, listed: JobDetail) -> bool:
        if listed.job_id not in self.known:
            return True
        entry = self.known[listed.job_id].entry
        if entry is None or entry.detail.status.is_final:
            return False
        before = entry.detail
        return (
            listed.status is not before.status
            or listed.status_reason not in ("", before.status_reason)
            or listed.started_at not in (None, before.started_at)
            # In some regions, ListJobs returns no counts of array tasks.
            or (bool(before.array_size) and counts(listed) != counts(before))
        )

    def has_settled(self, page: list[JobDetail]) -> bool:
        """Return whether no unknown job can follow after a page.

        Batch may list a job a little later than one that was submitted after it. Ages come only
        from Batch's clock, because this machine's clock may be wrong.
        """
        times = [job.created_at for job in page]
        self._newest = max(filter(None, (*times, self._newest)), default=None)
        return all(map(self._has_settled, page))

    def _has_settled(self, job: JobDetail) -> bool:
        known = self.known.get(job.job_id)
        if known is None:
            return False
        age_s = 0.0
        if self._newest is not None and job.created_at is not None:
            age_s = (self._newest - job.created_at).total_seconds()
        return max(age_s, clock.now() - known.seen_at) >= _LAG_S

    def shown(self) -> Iterator[Entry]:
        """Yield the shown jobs."""
        return (each.entry for each in self.known.values() if each.entry is not None)

    async def read_positions(self, backend: Backend) -> list[str]:
        """Read the waiting jobs' positions; return the jobs whose position has changed."""
        waiting = [e.detail.job_id for e in self.shown() if e.detail.status is JobStatus.RUNNABLE]
        if not waiting or clock.now() < self._positions_at + _POSITIONS_S:
            return []
        self._positions_at = clock.now()
        before, positions = self.positions, await backend.positions(self.name)
        self.positions = {each: positions[each] for each in waiting if each in positions}
        return [each for each in waiting if self.positions.get(each) != before.get(each)]

    def due(self, met: Container[str]) -> list[JobDetail]:
        """Return the unfinished and unlisted jobs to describe.

        If there are very many, running jobs come first, and each poll adds some of the waiting
        jobs.
        """
        left = [
            known
            for job_id, known in self.known.items()
            if job_id not in met and known.entry and not known.entry.detail.status.is_final
        ]
        left.sort(key=lambda known: (not _is_moving(known.entry), known.described_at))
        return [known.entry.detail for known in left[:_MOST_DESCRIBED] if known.entry]


def _is_moving(entry: Entry | None) -> bool:
    return entry is not None and (
        entry.detail.array_size > 0
        or entry.detail.status in (JobStatus.STARTING, JobStatus.RUNNING)
    )


def waits_for(job: JobDetail, position: int | None = None) -> str:
    """Return what a job that has not started, or an array's RUNNABLE tasks, wait for."""
    status = JobStatus.RUNNABLE if counts(job).get(JobStatus.RUNNABLE.value) else job.status
    # Batch reports PENDING for an array until all of its tasks have finished.
    is_unknown = bool(job.array_size) and status is JobStatus.PENDING
    if is_unknown or status is JobStatus.RUNNING or status.is_final:
        return ""
    place = f"position {position} in the queue; " if position else ""
    return place + replace(job, status=status).waiting()[0]


def counts(array: JobDetail) -> dict[str, int]:
    """Return the number of array tasks per status, without zeros."""
    return {status: count for status, count in array.status_summary.items() if count}
