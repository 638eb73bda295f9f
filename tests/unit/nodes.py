"""Scripted platform with logs of nodes."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace
from datetime import datetime, timedelta, timezone

from farcall.backends.base import Capabilities, LogEvent, LogMissingError
from farcall.engine.logs.nodes import NodeLogs
from farcall.engine.packer import Batcher
from farcall.engine.tracked_job import Trouble
from farcall.model.jobs import JobDetail, JobStatus, NodeGroup

STARTED = datetime(2026, 11, 12, 10, tzinfo=timezone.utc)
GROUP = "a-group"


def moment(seconds):
    """Return the time that is a number of seconds after the job's start."""
    return STARTED + timedelta(seconds=seconds)


def job(nodes=1, status=JobStatus.RUNNING, **more):
    """Return a job on a number of nodes."""
    groups = (NodeGroup(0, nodes - 1),) if nodes > 1 else ()
    return JobDetail(
        "job", "a-job", status, groups=groups, created_at=STARTED, log_group=GROUP, **more
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
        reads: Streams, since and until of each log request.
        describes: Job IDs of each describe request.
        errors: Errors raised by the next log requests.
        page: Number of events per page.
        empty: Number of empty pages before each page.
        on_read: Called before each log request.
    """

    capabilities = Capabilities(10_000, 100, 1000, 100)

    def __init__(self, *details):
        self.jobs = {}
        self.update(*details)
        self.logs = {}
        self.reads = []
        self.describes = []
        self.errors = []
        self.page = 10_000
        self.empty = 0
        self.on_read = lambda: None

    def update(self, *details):
        """Replace the descriptions of jobs."""
        self.jobs.update({detail.job_id: detail for detail in details})

    def write(self, stream, *texts, at=0.0, taken_at=None):
        """Add lines with the same time to a log."""
        taken = moment(at if taken_at is None else taken_at)
        log = self.logs.setdefault(stream, [])
        for text in texts:
            log.append(LogEvent(moment(at), text, f"{stream}/{len(log)}", stream, taken))

    async def describe(self, job_ids):
        ids = list(job_ids)
        self.describes.append(ids)
        return {job_id: self.jobs[job_id] for job_id in ids if job_id in self.jobs}

    def unknown(self, job_id):
        return f"job {job_id} is not known here"

    async def log_events(self, group, streams, since=None, until=None):
        assert group == GROUP
        assert 0 < len(streams) <= self.capabilities.logs_read_together
        given = 0
        while True:
            self.reads.append((tuple(streams), since, until))
            self.on_read()
            if self.errors:
                raise self.errors.pop(0)
            if any(stream not in self.logs for stream in streams):
                raise LogMissingError("one is not there")
            events = [
                event
                for stream in streams
                for event in self.logs[stream]
                if (since is None or event.at >= since) and (until is None or event.at <= until)
            ]
            events.sort(key=lambda event: (event.at, event.taken_at))
            for _ in range(self.empty):
                yield []
            yield events[given : given + self.page]
            given += self.page
            if given >= len(events):
                return


def node_logs(platform, timing):
    """Return a reader of the platform's logs."""

    async def answer(job_ids):
        found = await platform.describe(job_ids)
        return [found.get(job_id) for job_id in job_ids]

    details = Batcher(answer, platform.capabilities.described_together, 0.01)  # like the tracker's

    def detail(job_id):
        return asyncio.shield(details.ask(job_id))

    return NodeLogs(platform, detail, Trouble(), timing)


async def lines_of(logs, job_id, nodes=None, **how):
    """Yield the output of a job's nodes, line by line."""
    async with contextlib.aclosing(logs.batches(job_id, nodes, **how)) as batches:
        async for batch in batches:
            for line in batch:
                yield line


async def collect(found):
    """Return all items as a list."""
    return [line async for line in found]


def texts(lines):
    return [line.text for line in lines]
