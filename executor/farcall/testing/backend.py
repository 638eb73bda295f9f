"""Backend protocol of the fake: what one session asks of its platform."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Mapping,
    Sequence,
)
from datetime import datetime
from typing import Any, TypeVar

from farcall.aws.access import Access
from farcall.aws.findings import OK, Finding
from farcall.aws.paced_client import Meter, Ticket
from farcall.backends.base import (
    Backend,
    Capabilities,
    JobSpec,
    Log,
    LogEvent,
    LogLine,
    LogMissingError,
)
from farcall.backends.batch.documents import LARGEST_ARRAY
from farcall.backends.batch.resubmission import options_of
from farcall.model.endings import OWN_REASON
from farcall.model.errors import ServiceError, SubmissionError
from farcall.model.jobs import JobDetail, JobStatus
from farcall.model.settings import Settings
from farcall.testing.bucket import FakeAccess
from farcall.testing.platform import FakePlatform, listed, request_of

_JOBS_IN_PAGE, _CHILDREN_IN_PAGE = 100, 1000
_DESCRIBED = 100
_LOG_LINE_BYTES = 256 * 1024
_LOGS_TOGETHER = 100

_NOT_ACCEPTED = "ClientException"
_THROTTLED = "TooManyRequestsException"

T = TypeVar("T")


class FakeBackend:
    """One session's side of it; see `farcall.backends.base.Backend` for the methods."""

    name = "fake"
    capabilities = Capabilities(
        largest_array=LARGEST_ARRAY,
        described_together=_DESCRIBED,
        longest_log_line_bytes=_LOG_LINE_BYTES,
        logs_read_together=_LOGS_TOGETHER,
    )

    def __init__(self, platform: FakePlatform) -> None:
        self._platform = platform
        self.meter = Meter()

    async def _ask(self, function: Callable[[], T]) -> T:
        self.meter.note_sent()
        return await asyncio.wrap_future(self._platform.call(function))

    # --- before a job is paid for -------------------------------------------------------------

    async def check(self, settings: Settings) -> None:
        """Do nothing: whatever the options name is there."""

    async def reach(self) -> list[Finding]:
        """Tell that there is a cloud."""
        return [Finding("backend", OK, "a fake one, in this process")]

    def examine(
        self, settings: Settings, *, answers: bool
    ) -> Mapping[str, Awaitable[Iterable[Finding]]]:
        """Check nothing: whatever the options name is there."""
        return {}

    async def needs_runtime(self, settings: Settings, *, offline: bool = False) -> bool:
        """Tell that tasks need nothing that they do not have: they run in this process."""
        return False

    async def plan(self, job: JobSpec, *, offline: bool = False) -> dict[str, Any]:
        """Return the SubmitJob request that Batch would get."""
        return {"SubmitJob": request_of(job)}

    # --- jobs ---------------------------------------------------------------------------------

    async def prepare(self, job: JobSpec) -> None:
        """See that the request is within Batch's limits."""
        request_of(job)

    async def submit(self, job: JobSpec, ticket: Ticket) -> str:
        """Hand a job over, and return its ID."""
        ticket.note_sent()
        try:
            return await self._ask(functools.partial(self._platform.submit, job))
        except SubmissionError:
            ticket.note_refused()
            raise
        except ServiceError as error:
            if error.code == _THROTTLED:
                self.meter.note_throttled()
            raise

    async def find(self, name: str, queue: str) -> list[str]:
        """Return the IDs of a queue's jobs of one name."""
        return await self._ask(lambda: self._platform.find(name, queue))

    async def describe(self, job_ids: Iterable[str]) -> dict[str, JobDetail]:
        """Return what is known of jobs."""
        wanted = list(job_ids)
        found = await self._ask(lambda: {each: self._platform.describe(each) for each in wanted})
        return {job_id: detail for job_id, detail in found.items() if detail is not None}

    async def requests_of(self, job_id: str) -> dict[str, Any] | None:
        """Return the SubmitJob request that Batch would get."""
        job = await self._ask(lambda: self._platform.job(job_id))
        return {"SubmitJob": request_of(job.spec)} if job is not None else None

    async def options_of(self, job_id: str) -> dict[str, Any]:
        """Return Batch's options of a job."""
        detail = (await self.describe([job_id])).get(job_id)
        requests = await self.requests_of(job_id)
        if detail is None or requests is None:
            return {}
        return options_of(detail, {**requests, "RegisterJobDefinition": {}})

    async def terminate(self, job_ids: Sequence[str], reason: str) -> dict[str, ServiceError]:
        """End jobs; none is refused."""
        wanted = list(job_ids)

        def end() -> None:
            for job_id in wanted:
                self._platform.terminate(job_id, f"{OWN_REASON}{reason}")

        await self._ask(end)
        return {}

    async def forget(self, detail: JobDetail) -> None:
        """Do nothing: a job goes with the cloud."""

    def note_ended(self, job_ids: Iterable[str], reason: str) -> None:
        """Do nothing: the cloud keeps the reasons."""

    def unknown(self, job_id: str) -> str:
        """Say that the cloud does not know a job."""
        return f"the fake cloud does not know job {job_id}; did another one run it?"

    # --- lists --------------------------------------------------------------------------------

    async def queues(self) -> list[str]:
        """Return the queues that jobs were submitted to: there is any that one names."""
        return await self._ask(self._platform.queues)

    async def list_named(self, name: str, queue: str) -> list[JobDetail]:
        """Return a queue's jobs of one name, the newest first."""

        def look() -> list[JobDetail]:
            jobs = (job.detail() for job in self._platform.jobs_of(queue))
            return [listed(job) for job in jobs if job.name == name]

        return await self._ask(look)

    async def list_jobs(
        self,
        queue: str,
        since: datetime | None = None,
        *,
        named: str = "",
        foreign: bool = False,
    ) -> AsyncGenerator[list[JobDetail], None]:
        """Yield the jobs of a queue, in pages of up to 100; all are farcall's."""

        def look() -> list[JobDetail]:
            jobs = (job.detail() for job in self._platform.jobs_of(queue))
            return [listed(job) for job in jobs if job.name.startswith(named)]

        found = await self._ask(look)
        if since is not None:
            found = [job for job in found if job.created_at and job.created_at >= since]
        for start in range(0, len(found), _JOBS_IN_PAGE):
            yield found[start : start + _JOBS_IN_PAGE]

    async def list_children(
        self, job_id: str, status: JobStatus
    ) -> AsyncIterator[list[JobDetail]]:
        """Yield the children of an array that have a status, in pages of up to 1000."""

        def look() -> list[JobDetail]:
            job = self._platform.job(job_id)
            children = job.tasks if job is not None and job.is_array else []
            return [listed(each.detail()) for each in children if each.status is status]

        found = await self._ask(look)
        for start in range(0, len(found), _CHILDREN_IN_PAGE):
            yield found[start : start + _CHILDREN_IN_PAGE]

    async def position(self, detail: JobDetail) -> int | None:
        """Return the place of a RUNNABLE job in its queue."""
        if detail.status is not JobStatus.RUNNABLE:
            return None

        def look() -> list[str]:
            waiting = reversed(self._platform.jobs_of(detail.queue))
            return [j.job_id for j in waiting if j.detail().status is JobStatus.RUNNABLE]

        front = await self._ask(look)
        return front.index(detail.job_id) + 1 if detail.job_id in front else None

    # --- beside -------------------------------------------------------------------------------

    def links(self, detail: JobDetail) -> dict[str, str]:
        """Return nothing: it has no pages."""
        return {}

    def log(self, detail: JobDetail, stream: str) -> Log:
        """Return what an attempt's container has written."""
        return _FakeLog(functools.partial(self._ask, lambda: self._platform.log(stream)))

    async def log_events(
        self,
        group: str,
        streams: Sequence[str],
        since: datetime | None = None,
        until: datetime | None = None,
    ) -> AsyncGenerator[list[LogEvent], None]:
        """Yield in one page what several attempts' containers have written."""

        def look() -> list[list[LogLine] | None]:
            found = [self._platform.log(stream) for stream in streams]
            return [None if lines is None else list(lines) for lines in found]

        events = []
        for stream, lines in zip(streams, await self._ask(look), strict=True):
            if lines is None:
                raise LogMissingError(f"the fake cloud has no log {stream}")
            events += [
                LogEvent(f"{stream}/{number}", stream, _whole(at), at, text)
                for number, (at, text) in enumerate(lines)
                if _is_within(at, since, until)
            ]
        yield sorted(events, key=lambda event: event.at)

    async def close(self) -> None:
        """Do nothing: jobs go on."""


class _FakeLog:
    """The log of one attempt; see `farcall.backends.base.Log`."""

    def __init__(self, look: Callable[[], Awaitable[list[LogLine] | None]]) -> None:
        self._look = look
        self._read = 0
        self.exists: bool | None = None

    async def read(self) -> AsyncIterator[list[LogLine]]:
        lines = await self._lines()
        if new := lines[self._read :]:
            self._read = len(lines)
            yield new

    async def last(self, number: int) -> list[LogLine]:
        return (await self._lines())[-number:] if number else []

    async def _lines(self) -> list[LogLine]:
        found = await self._look()
        self.exists = found is not None
        return list(found or ())


def _is_within(at: datetime, since: datetime | None, until: datetime | None) -> bool:
    """Return whether a moment is in a range, to the millisecond."""
    begin, end = since and _whole(since), until and _whole(until)
    return (begin is None or _whole(at) >= begin) and (end is None or _whole(at) <= end)


def _whole(at: datetime) -> datetime:
    """Return a moment to the millisecond, as logs have it."""
    return at.replace(microsecond=at.microsecond // 1000 * 1000)


async def open_fake(platform: FakePlatform, settings: Settings) -> tuple[Access, Backend]:
    """Open one session's side of a platform."""
    return FakeAccess(platform, settings.region), FakeBackend(platform)
