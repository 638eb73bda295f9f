"""Logs of jobs on several nodes, which the embedded AWS runs, by FilterLogEvents alone."""

from __future__ import annotations

import uuid
from collections import Counter

import pytest

import farcall.local
from farcall import JobStatus, Settings
from farcall.aws.paced_client import Ticket
from farcall.backends.base import JobSpec
from farcall.engine.session import open_session
from farcall.model.commands import ENV_RUN, Nodes
from tests.support.patience import until_async


class Jobs:
    """Command jobs of one session, and what their nodes write.

    Attributes:
        session: The session.
        logs: What reads it.
        asked: How often each operation of CloudWatch Logs was asked for.
    """

    def __init__(self, session):
        self.session = session
        self.logs = session.node_logs
        self.asked = Counter()

    async def count(self):
        """Count the requests to CloudWatch Logs that read, tries of the client's own too."""
        client = await self.session.aws.client("logs")

        def note(request, **_):
            name = request.headers["X-Amz-Target"].decode().rpartition(".")[2]
            if name != "DescribeLogGroups":  # by which a submission begins
                self.asked[name] += 1

        client.meta.events.register("before-send.logs", note)

    async def start(self, *scripts, nodes=1, **options):
        """Submit a job whose groups of so many nodes run a shell script each; return its ID."""
        groups = tuple(
            Nodes(nodes, "any", command=["sh", "-c", script], vcpu=1, memory=0.1)
            for script in scripts
        )
        options = {"retry_attempts": 1, **options}
        spec = JobSpec(
            f"node-logs-{uuid.uuid4().hex}", 1, {ENV_RUN: "a-run"}, Settings(**options), groups
        )
        await self.session.backend.prepare(spec)
        return await self.session.backend.submit(spec, Ticket())

    async def until(self, job_id, *statuses):
        async def look():
            detail = await self.session.detail(job_id)
            return detail if detail is not None and detail.status in statuses else None

        return await until_async(look)

    async def ended(self, *args, **options):
        """Start a job, and wait for its end."""
        job_id = await self.start(*args, **options)
        return await self.until(job_id, JobStatus.SUCCEEDED, JobStatus.FAILED)

    async def lines(self, job_id, *args, **how):
        return [line async for line in self.logs.lines(job_id, *args, **how)]


@pytest.fixture(scope="module")
def wide():
    """An embedded AWS with room for many nodes."""
    with farcall.local.start(cpus=20) as aws:
        yield aws


@pytest.fixture
async def jobs(wide, monkeypatch):
    for name, value in wide.environment.items():
        monkeypatch.setenv(name, value)
    session = await open_session(Settings())
    found = Jobs(session)
    await found.count()
    yield found
    await session.close()


LAST = '; [ "$AWS_BATCH_JOB_NODE_INDEX" != 0 ] || sleep 2'
"""The main node ends last: with it all others are stopped."""

SAY = 'for i in $(seq 1 5); do echo "$AWS_BATCH_JOB_NODE_INDEX says $i"; done'


def said(*nodes):
    return {node: [f"{node} says {i}" for i in range(1, 6)] for node in nodes}


def by_node(lines):
    found = {}
    for line in lines:
        found.setdefault(line.node, []).append(line.text)
    return found


async def test_the_lines_of_all_nodes_are_read_with_one_request(jobs):
    job = await jobs.ended(SAY + LAST, nodes=3)
    lines = await jobs.lines(job.job_id)
    assert by_node(lines) == said(0, 1, 2)
    assert [line.at for line in lines] == sorted(line.at for line in lines)
    assert {line.attempt for line in lines} == {1}
    assert jobs.asked == {"FilterLogEvents": 1}


async def test_who_follows_has_every_line_once_and_ends_with_the_job(jobs):
    job_id = await jobs.start(SAY + "; sleep 1; " + SAY + LAST, nodes=3)
    assert by_node(await jobs.lines(job_id, follow=True)) == {
        node: lines * 2 for node, lines in said(0, 1, 2).items()
    }


FAIL_ONCE = 'echo "$AWS_BATCH_JOB_ATTEMPT of $AWS_BATCH_JOB_NODE_INDEX"; sleep 1; '
FAIL_ONCE += '[ "$AWS_BATCH_JOB_NODE_INDEX" != 0 ] || [ "$AWS_BATCH_JOB_ATTEMPT" = 2 ]'


"""Requests for each pause between two looks, where all nodes write: 130 in a minute."""
