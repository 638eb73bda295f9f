"""Output of a task, followed until its end."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from farcall.backends.batch.backend import BatchBackend
from farcall.engine.logs.reader import LogReader
from farcall.engine.tracked_job import Trouble
from farcall.model.errors import ServiceError
from farcall.model.jobs import Attempt, JobDetail, JobStatus, NodeGroup
from farcall_runtime import contract
from tests.unit.fakes import TIMING, Clock, store_in_memory
from tests.unit.transcripts import KEY, WHERE, access, page, put

ENVIRONMENT = {
    contract.ENV_BUNDLE: WHERE.url,
    contract.ENV_OUTCOME_KEY: KEY.hex(),
    contract.ENV_DIGEST: "",
}


def job(status, tried=(), **more):
    return JobDetail(
        "job-1",
        "n",
        JobStatus(status),
        tried=tried,
        attempts_allowed=3,
        log_group="a-group",
        environment=ENVIRONMENT,
        **more,
    )


class Service:
    """A bucket, and descriptions that are returned one after the other, the last one repeatedly.

    Attributes:
        store: The bucket.
        described: Number of description requests.
        waits: Number of repetitions of the first description.
    """

    def __init__(self, *details, waits=0, replies=()):
        self.store = store_in_memory()
        self.described = 0
        self._details = [details[0]] * waits + list(details)
        opened, self.cloudwatch = access(list(replies))
        self.reader = LogReader(BatchBackend(opened), self, self._detail, Trouble(), TIMING)

    def of(self, _bucket):
        return self.store

    async def _detail(self, job_id):
        if job_id != "job-1":
            return replace(self._details[0], job_id=job_id, groups=())
        self.described += 1
        return self._details.pop(0) if len(self._details) > 1 else self._details[0]

    async def follow(self, **how):
        """Return the followed lines."""
        lines = self.reader.lines("job-1", follow=True, **how)
        return [line async for batch in lines for line in batch]


def texts(lines):
    return [line.text for line in lines if not line.goes_on]


@pytest.fixture(autouse=True)
async def clock(monkeypatch):
    return Clock(asyncio.get_running_loop(), monkeypatch)


async def test_each_attempt_has_its_own_log():
    tried = (Attempt(log_stream="first"), Attempt(log_stream="second"))
    replies = [page("a", token="1"), page(token="1"), page("b", token="2"), page(token="2")]
    service = Service(job("FAILED", tried, log_stream="second"), replies=replies * 2)
    lines = [line async for batch in service.reader.lines("job-1") for line in batch]
    assert [(line.attempt, line.text) for line in lines] == [(1, "a"), (2, "b")]
    streams = [call["logStreamName"] for _, call in service.cloudwatch.calls]
    assert streams == ["first", "first", "second", "second"]


async def test_waiting_job_is_polled_slowly():
    replies = [page("late", token="1"), *[page(token="1")] * 9]
    ended = job("FAILED", (Attempt(log_stream="first"),))
    service = Service(job("RUNNABLE"), ended, waits=49, replies=replies)
    assert texts(await service.follow()) == ["late"]
    assert 50 <= service.described <= 53  # every two seconds, and once more to locate the log
    assert len(service.cloudwatch.calls) <= 4


async def test_late_lines_of_the_log_are_awaited():
    replies = [page("a", token="1"), page(token="1"), page("b", token="2"), page(token="2")]
    ended = job("FAILED", (Attempt(log_stream="first"),))
    service = Service(job("RUNNING"), ended, replies=[*replies, *[page(token="2")] * 9])
    assert texts(await service.follow()) == ["a", "b"]


async def test_forgotten_job_has_ended():
    service = Service(job("RUNNING"), None)
    await put(service.store, "stdout", 0, b"a\nb")
    assert texts(await service.follow()) == ["a", "b"]


async def test_existing_output_is_read_once_in_batches():
    service = Service(job("RUNNING"), job("FAILED"), waits=5)
    for number in range(4):
        await put(service.store, "stdout", number, b"%d\n" % number * 10_000)
    batches = [batch async for batch in service.reader.lines("job-1", follow=True)]
    assert [len(batch) for batch in batches] == [10_000] * 4


async def test_retried_task_is_followed():
    first = (Attempt(log_stream=""),)
    service = Service(job("RUNNING"), job("RUNNING", first), job("FAILED", first * 2), waits=3)
    await put(service.store, "stdout", 0, b"a\n", attempt=1)
    await put(service.store, "stdout", 0, b"b\n", attempt=2)
    assert [line.attempt for line in await service.follow()] == [1, 2]


async def test_throttled_bucket_is_tolerated(monkeypatch):
    service = Service(job("RUNNING"), job("FAILED", (Attempt(),)), waits=40)
    get, left = service.store.get_dated, [3, 2, 1]
    await put(service.store, "stdout", 0, b"a\n")
    await put(service.store, "stdout", 1, b"b\n")

    async def throttled(key, **options):
        if "/1" in key and left:
            left.pop()
            raise ServiceError("slow down", operation="GetObject", code="SlowDown", status=503)
        return await get(key, **options)

    monkeypatch.setattr(service.store, "get_dated", throttled)
    assert texts(await service.follow()) == ["a", "b"]
    assert left == []


@pytest.mark.parametrize(("nodes", "found"), [(None, [0]), ([1], [1]), ([0, 1], [0, 1])])
async def test_nodes_of_function_are_read_together(nodes, found):
    groups = (NodeGroup(0, 1),)
    service = Service(job("RUNNING", groups=groups), job("FAILED", groups=groups), waits=3)
    for index in range(2):
        await put(service.store, "stdout", 0, b"a\n", index=index)
    lines = await service.follow(nodes=nodes)
    assert sorted((line.node, line.text) for line in lines) == [(node, "a") for node in found]


async def test_tail_skips_earlier_attempts():
    tried = (Attempt(), Attempt())
    service = Service(job("RUNNING", tried), job("FAILED", tried * 2), waits=5)
    for attempt in (1, 2, 3):
        await put(service.store, "stdout", 0, b"%d\n" % attempt, attempt=attempt)
    assert texts(await service.follow(tail=1)) == ["3"]


async def test_poll_costs_four_small_requests(monkeypatch):
    """An hour of polls costs about a cent, https://aws.amazon.com/s3/pricing/."""
    service = Service(job("RUNNING"), job("FAILED", (Attempt(),)), waits=9)
    requests = []
    get = service.store.get_dated

    async def counted(key, **options):
        requests.append(key)
        return await get(key, **options)

    monkeypatch.setattr(service.store, "get_dated", counted)
    await service.follow()
    seconds = TIMING.attempts_pause_s * service.described
    assert len(requests) <= 4 * (seconds / TIMING.log_pause_s) + 8
