"""Scripted platform with logs of nodes."""

import asyncio
import contextlib
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from farcall.backends.base import Capabilities, LogEvent
from farcall.engine.batcher import Batcher
from farcall.engine.logs.reader import LogReader
from farcall.engine.tracked_job import Trouble
from farcall.model.jobs import JobDetail, JobStatus, NodeGroup

STARTED = datetime(2026, 11, 12, 10, tzinfo=UTC)
GROUP = "a-group"


def moment(seconds):
    """Return the time that is a number of seconds after the job's start."""
    return STARTED + timedelta(seconds=seconds)


def job(nodes=1, status=JobStatus.RUNNING, **more):
    """Return a job on a number of nodes."""
    groups = (NodeGroup(0, nodes - 1),) if nodes > 1 else ()
    return JobDetail(
        "job",
        "a-job",
        status,
        groups=groups,
        created_at=STARTED,
        log_group=GROUP,
        **{"is_command": True, **more},
    )


def node(index, status=JobStatus.RUNNING, stream=None, **more):
    """Return a node of the job, which writes to the stream of its number."""
    return replace(
        job(status=status),
        **{
            "job_id": f"job#{index}",
            "log_stream": f"s{index}" if stream is None else stream,
            "started_at": STARTED,
            **more,
        },
    )


class Platform:
    """Jobs, and logs by stream.

    Attributes:
        jobs: Descriptions by job ID.
        logs: Events by stream, in the order of their arrival.
        reads: Stream of each log request.
        open: Number of open logs.
        describes: Job IDs of each describe request.
        errors: Errors raised by the next log requests.
        page: Number of events per page.
    """

    capabilities = Capabilities(10_000, 100, 1000, 10.0)

    def __init__(self, *details):
        self.jobs = {}
        self.update(*details)
        self.logs = {}
        self.reads = []
        self.describes = []
        self.errors = []
        self.page = 10_000
        self.open = 0

    def update(self, *details):
        """Replace the descriptions of jobs."""
        self.jobs.update({detail.job_id: detail for detail in details})

    def write(self, stream, *texts, at=0.0):
        """Add lines with the same time to a log."""
        self.logs.setdefault(stream, []).extend(LogEvent(moment(at), text) for text in texts)

    async def describe(self, job_ids):
        ids = list(job_ids)
        self.describes.append(ids)
        return {job_id: self.jobs[job_id] for job_id in ids if job_id in self.jobs}

    def unknown(self, job_id):
        return f"job {job_id} is not known here"

    def log(self, group, stream, since=None):
        assert group == GROUP
        return Log(self, stream, since)


class Log:
    """One log of a platform; see `farcall.backends.base.Log`."""

    def __init__(self, platform, stream, since):
        self._platform = platform
        self._stream = stream
        self._since = since
        self._given = 0
        self._is_open = False

    def _lines(self):
        self._platform.reads.append(self._stream)
        if self._platform.errors:
            raise self._platform.errors.pop(0)
        return self._platform.logs.get(self._stream, [])

    async def read(self, *, follow=False):
        if follow and not self._is_open:
            self._is_open = True
            self._platform.open += 1
        lines = self._lines()
        while self._given < len(lines):
            page = lines[self._given :][: self._platform.page]
            self._given += len(page)
            yield [event for event in page if self._since is None or event.at >= self._since]

    async def last(self, number):
        lines = self._lines()
        self._given = len(lines)
        return lines[max(0, len(lines) - number) :]

    async def close(self):
        self._platform.open -= self._is_open
        self._is_open = False


def node_logs(platform, timing, stores=None):
    """Return a reader of the platform's logs."""

    async def answer(job_ids):
        found = await platform.describe(job_ids)
        return [found.get(job_id) for job_id in job_ids]

    details = Batcher(answer, platform.capabilities.described_together, 0.01)  # like the tracker's

    def detail(job_id):
        return asyncio.shield(details.add(job_id))

    return LogReader(platform, stores, detail, Trouble(), timing)


async def lines_of(logs, job_id, nodes=None, **how):
    """Yield the output of a job's nodes, line by line."""
    async with contextlib.aclosing(logs.lines(job_id, nodes, **how)) as batches:
        async for batch in batches:
            for line in batch:
                yield line


async def collect(found):
    """Return all items as a list."""
    return [line async for line in found]


def texts(lines):
    return [line.text for line in lines]
