"""The jobs there are, as the page shows them, in few requests.

Batch lists a hundred jobs in a request, the newest first, so nothing beyond a page of known jobs
is new. How a job is comes from its description, a request for a hundred: for jobs that are new,
that changed by what is listed, and that have not ended and were not listed. What has ended is not
asked for again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Container, Iterable, Iterator
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import NamedTuple

from farcall.engine.session import Session
from farcall.model import clock
from farcall.model.errors import FarcallError
from farcall.model.jobs import JobDetail, JobStatus
from farcall.operations.catalog import NOTHING, Catalog, Entry, Query, Why
from farcall.ui.account import Account
from farcall.ui.watchers import Feed, Watcher

# --- What the page's jobs were called with, and why they failed: read beside the rest -----------
#
# The texts are in the bucket, a request or two for a job and one for each that failed. So a
# browser is told of the jobs first and of these as they come, those of the newest jobs before
# the others.


_AT_ONCE = 50
"""Jobs of which they are read in one look."""

_ARRAY_S = 10.0
"""So often those of an array that goes on are read again."""


class Whys:
    """The texts of jobs, by ID."""

    def __init__(self, account: Account, get: Callable[[str], Entry | None]) -> None:
        self._account = account
        self._get = get
        self._known: dict[str, Why] = {}
        self._read: dict[str, tuple[object, float]] = {}
        self._left: dict[str, None] = {}

    def of(self, job_id: str) -> Why:
        """Return what is known of a job."""
        return self._known.get(job_id, NOTHING)

    def filled(self, entry: Entry) -> Entry:
        """Return a job with what is known of it."""
        return replace(entry, why=self.of(entry.detail.job_id))

    def note(self, job_ids: Iterable[str]) -> None:
        """Note that jobs are new or have changed."""
        self._left.update(dict.fromkeys(job_ids))

    def keep(self, job_ids: Iterable[str]) -> None:
        """Forget all jobs but these."""
        kept = set(job_ids)
        for known in (self._known, self._read, self._left):
            for job_id in [job_id for job_id in known if job_id not in kept]:
                del known[job_id]

    @property
    def are_left(self) -> bool:
        """Whether there is more to read."""
        return bool(self._left)

    async def read(self) -> list[str]:
        """Read some; return the jobs of which something else is known now.

        What cannot be read now is tried again at the next look.
        """
        entries = [entry for job_id in self._due() if (entry := self._get(job_id)) is not None]
        if not entries:
            return []
        try:
            filled = await (await self._account.reasons()).fill(entries)
        except FarcallError:  # of which the look itself tells, that asks the same of Batch
            return []
        changed = []
        for entry in filled:
            job_id = entry.detail.job_id
            self._left.pop(job_id, None)
            self._read[job_id] = (_state(entry), clock.now())
            if self._known.get(job_id, NOTHING) != entry.why:
                self._known[job_id] = entry.why
                changed.append(job_id)
        return changed

    def _due(self) -> list[str]:
        due = []
        for job_id in list(self._left):
            entry = self._get(job_id)
            state, read_at = self._read.get(job_id, (None, 0.0))
            if entry is None or state == _state(entry):
                del self._left[job_id]
            elif state is None or entry.detail.status.is_final or read_at + _ARRAY_S < clock.now():
                due.append(job_id)
        return sorted(due, key=self._age)[:_AT_ONCE]

    def _age(self, job_id: str) -> float:
        entry = self._get(job_id)
        created_at = entry.detail.created_at if entry is not None else None
        return -created_at.timestamp() if created_at is not None else 0.0


def _state(entry: Entry) -> object:
    """Return what has to change for the texts to change."""
    failed = entry.detail.status_summary.get(JobStatus.FAILED.value, 0)
    return entry.detail.status.is_final, failed


_LAG_S = 10.0
"""A job submitted so much earlier than another is listed when the other one is."""


_MOST_DESCRIBED = 500
"""Jobs not listed that are described in one look: five requests."""


class _Known(NamedTuple):
    """A job that was listed.

    Attributes:
        entry: What it is; None if it is not shown.
        settled_at: When no older job can come to light any more beside it.
        described_at: When it was described last.
    """

    entry: Entry | None
    settled_at: float
    described_at: float


class Jobs(Watcher[str]):
    """The jobs of some queues, by ID.

    Attributes:
        whys: What they were called with, and why they failed.
    """

    def __init__(
        self, account: Account, queues: Iterable[str], span: timedelta, *, everybody: bool
    ) -> None:
        super().__init__(account)
        self._span = span
        self._everybody = everybody
        self._queues = [_Queue(name) for name in queues]
        self._wanted: list[datetime] = []
        self.whys = Whys(account, self.get)

    @property
    def since(self) -> datetime:
        """The moment before which no job is shown."""
        return datetime.now(timezone.utc) - self._span

    @contextlib.contextmanager
    def listen_since(self, since: datetime) -> Iterator[Feed[str]]:
        """Lend a feed of what was submitted at some moment or later."""

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
        """The jobs that are shown, by ID."""
        shown = (queue.shown() for queue in self._queues)
        return {entry.detail.job_id: entry for entries in shown for entry in entries}

    def get(self, job_id: str) -> Entry | None:
        """Return what is known of a job."""
        known = (queue.known.get(job_id) for queue in self._queues)
        return next((each.entry for each in known if each is not None), None)

    def keys(self) -> Iterable[str]:
        """Return the IDs of all jobs that are shown, the newest of each queue first."""
        return list(self.entries)

    def is_active(self) -> bool:
        """Return whether a job has not ended, or there is more to be read of one."""
        return self.whys.are_left or any(
            not entry.detail.status.is_final for entry in self.entries.values()
        )

    async def look(self) -> None:
        """List what is new, and describe what is new, changed or active."""
        since = self._horizon()
        session = await self.account.session()
        query = Query(user=None if self._everybody else user(session))
        for queue in self._queues:
            await self._look_at(queue, session, query._replace(since=since))
        self.is_complete = self._is_read(self._horizon())

    async def look_beside(self) -> None:
        """Read what some jobs were called with, and why they failed."""
        self.tell(await self.whys.read())

    def _horizon(self) -> datetime:
        """Return how far back those who listen want to see."""
        return max(self.since, min(self._wanted, default=self.since))

    def _is_read(self, since: datetime) -> bool:
        return all(queue.has_read(since) for queue in self._queues)

    async def _look_at(self, queue: _Queue, session: Session, query: Query) -> None:
        catalog = Catalog(session.backend)
        met: set[str] = set()
        since = query.since or self.since
        async with contextlib.aclosing(session.backend.list_jobs(queue.name, since)) as pages:
            async for page in pages:
                met.update(job.job_id for job in page)
                is_settled = queue.has_read(since) and queue.has_settled(page)
                await self._learn(queue, catalog, query, queue.changed(page))
                queue.settle(page)
                if is_settled:
                    break
        queue.note_read(since)
        queue.forget(self.since)
        self.whys.keep(self.entries)
        await self._learn(queue, catalog, query, queue.due(met))

    async def _learn(
        self, queue: _Queue, catalog: Catalog, query: Query, jobs: list[JobDetail]
    ) -> None:
        """Describe jobs, and tell of those that changed."""
        if not jobs:
            return
        found = await catalog.describe(job.job_id for job in jobs)
        changed = []
        for job in jobs:
            if job.job_id not in found:  # Batch lists it earlier than it describes it, or later
                queue.known.pop(job.job_id, None)
                continue
            entry = found[job.job_id]
            if queue.note(job.job_id, entry if entry and query.fits(entry) else None):
                changed.append(job.job_id)
        self.whys.note(changed)
        self.tell(changed)


class _Queue:
    """What is known of a queue's jobs.

    Attributes:
        name: Its name or ARN.
        known: The jobs that were listed, by ID.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.known: dict[str, _Known] = {}
        self._read_since: datetime | None = None
        self._newest: datetime | None = None

    def has_read(self, since: datetime) -> bool:
        """Return whether all that was submitted since some moment was listed once."""
        return self._read_since is not None and self._read_since <= since

    def note_read(self, since: datetime) -> None:
        """Note that all was listed that was submitted since some moment."""
        if not self.has_read(since):
            self._read_since = since

    def forget(self, since: datetime) -> None:
        """Forget what ended and was submitted before some moment."""
        for job_id, known in list(self.known.items()):
            entry = known.entry
            created_at = entry.detail.created_at if entry else None
            if entry and entry.detail.status.is_final and created_at and created_at < since:
                del self.known[job_id]

    def note(self, job_id: str, entry: Entry | None) -> bool:
        """Take in what a job is; say whether it changed and is shown."""
        before = self.known.get(job_id)
        settled_at = before.settled_at if before else float("inf")
        self.known[job_id] = _Known(entry, settled_at, clock.now())
        return entry is not None and (before is None or before.entry != entry)

    def changed(self, page: list[JobDetail]) -> list[JobDetail]:
        """Return the jobs of a page that are to be described."""
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
            # Some regions list no counts of arrays.
            or (bool(before.array_size) and counts(listed) != counts(before))
        )

    def settle(self, page: list[JobDetail]) -> None:
        """Note when the jobs of a page settle.

        One that was submitted a little earlier than another may be listed a little later. By
        Batch's clock alone, because this machine's may be wrong.
        """
        times = [job.created_at for job in page if job.created_at is not None]
        self._newest = max(filter(None, (*times, self._newest)), default=None)
        now = clock.now()
        for job in page:
            known = self.known.get(job.job_id)
            if known is None or known.settled_at != float("inf"):
                continue
            wait_s = _LAG_S
            if job.created_at is not None and self._newest is not None:
                wait_s -= (self._newest - job.created_at).total_seconds()
            self.known[job.job_id] = known._replace(settled_at=now + max(0.0, wait_s))

    def has_settled(self, page: list[JobDetail]) -> bool:
        """Return whether nothing unknown can stand behind a page."""
        known = [self.known.get(job.job_id) for job in page]
        return all(each is not None and each.settled_at <= clock.now() for each in known)

    def shown(self) -> Iterator[Entry]:
        """Yield the jobs that are shown."""
        return (each.entry for each in self.known.values() if each.entry is not None)

    def due(self, met: Container[str]) -> list[JobDetail]:
        """Return the jobs to be described that have not ended and were not listed.

        Of very many those that run come first, and of those that wait some at each look.
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


def user(session: Session) -> str:
    """Return who looks, as `Entry.user` says it of those who submit."""
    return session.run.rsplit("-", 3)[0]


def counts(array: JobDetail) -> dict[str, int]:
    """Return how many children of an array have which status, without the zeros."""
    return {status: count for status, count in array.status_summary.items() if count}
