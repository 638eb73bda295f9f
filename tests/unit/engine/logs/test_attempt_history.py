"""Attempts of a job, and the location of each attempt's log."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from farcall.backends.batch import cloudwatch
from farcall.backends.batch.backend import BatchBackend
from farcall.engine.logs.reader import AttemptHistory, LogReader
from farcall.model.errors import FarcallError
from farcall.model.jobs import Attempt, JobDetail, JobStatus
from tests.unit.fakes import TIMING, Clock, store_in_memory
from tests.unit.transcripts import SUBMISSION, access, page, put

TRIED = (Attempt(log_stream="first"), Attempt(log_stream="second"))


def job(status, tried=(), **more):
    return JobDetail(
        "job-1",
        "n",
        JobStatus(status),
        tried=tried,
        attempts_allowed=3,
        log_group="a-group",
        **more,
    )


class Session:
    """Session that returns one description after the other, and repeats the last one."""

    def __init__(self, *details, aws=None):
        self.timing = TIMING
        self.backend = BatchBackend(aws or SimpleNamespace(batch=None, timing=TIMING))
        self.asked = 0
        self._details = list(details)
        self._store = store_in_memory()
        self.stores = self

    def of(self, _bucket):
        return self._store

    async def detail(self, _job_id):
        self.asked += 1
        return self._details.pop(0) if len(self._details) > 1 else self._details[0]


def course(detail, session=None):
    session = session or Session(detail)

    async def find():
        return session

    return AttemptHistory(find, session, SUBMISSION, 0, detail)


async def follow(detail, session):
    found = []
    async for batch in LogReader(course(detail, session), follow=True).read():
        found += [line.text for line in batch or ()]
    return found


async def test_each_attempt_has_its_own_log(monkeypatch):
    made = []
    monkeypatch.setattr(cloudwatch, "CloudWatchLog", lambda *place: made.append(place[1:3]))
    running = course(job("RUNNING", TRIED, log_stream="third"))
    between = course(job("RUNNABLE", TRIED, log_stream="second"))
    # Batch still reports the previous log stream
    starting = course(job("RUNNING", TRIED, log_stream="second"))
    for attempt in (1, 2, 3):
        running.log(attempt)
    between.log(3)
    starting.log(3)
    assert made == [("a-group", name) for name in ("first", "second", "third", "", "")]


@pytest.mark.parametrize(
    ("detail", "attempt", "follow", "words"),
    [
        (job("FAILED", TRIED), 3, True, "has had 2 attempts"),
        (job("SUCCEEDED", TRIED[:1]), 2, False, "has had 1 attempt$"),
        (job("RUNNING", TRIED), 4, True, "has had 3 attempts"),
        (job("RUNNABLE"), 4, True, "may have 3 attempts"),
        (job("RUNNABLE"), 2, False, "has had 1 attempt$"),
    ],
)
async def test_missing_attempt_is_rejected(detail, attempt, follow, words):
    with pytest.raises(FarcallError, match=words):
        course(detail).check(attempt, follow=follow)


async def test_waiting_job_is_polled_slowly(monkeypatch):
    Clock(asyncio.get_running_loop(), monkeypatch)
    opened, client = access([page("late", token="1"), page(token="1")])
    waiting = job("RUNNABLE")
    ended = job("FAILED", TRIED[:1])
    session = Session(*[waiting] * 50, ended, aws=opened)

    assert await follow(waiting, session) == ["late"]
    assert session.asked == 52  # every two seconds, and once more to locate the log
    assert len(client.calls) == 2


async def test_following_ends_when_job_is_forgotten(monkeypatch):
    Clock(asyncio.get_running_loop(), monkeypatch)
    session = Session(None)
    await put(session.stores.of("bucket"), "stdout", 0, b"a\nb")
    assert await follow(job("RUNNING"), session) == ["a", "b"]


async def test_poll_costs_four_small_requests(monkeypatch):
    """An hour of polls costs about a cent, https://aws.amazon.com/s3/pricing/."""
    Clock(asyncio.get_running_loop(), monkeypatch)
    session = Session(*[job("RUNNING")] * 10, job("FAILED", (Attempt(),)))
    asked = []
    get = session.stores.of("bucket").get_dated

    async def counted(key, **options):
        asked.append(key)
        return await get(key, **options)

    monkeypatch.setattr(session.stores.of("bucket"), "get_dated", counted)
    await follow(job("RUNNING"), session)
    seconds = TIMING.attempts_pause_s * session.asked
    assert len(asked) <= 4 * (seconds / TIMING.log_pause_s) + 8
