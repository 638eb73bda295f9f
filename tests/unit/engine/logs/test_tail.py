"""The last lines of a task, read from the end."""

from __future__ import annotations

from datetime import timedelta

import pytest

from farcall.backends.batch.cloudwatch import LARGEST_EVENT_BYTES, CloudWatchLog
from farcall.engine.logs.reader import Part, prepare
from farcall.engine.logs.transcript import Transcript
from farcall.storage.chunks import Chunks
from tests.unit.fakes import TIMING, store_in_memory
from tests.unit.transcripts import SUBMISSION, access, ended, every, log, page, put, texts


@pytest.fixture
def store():
    return store_in_memory()


class Course:
    """Attempts of a task, scripted."""

    def __init__(self, store, endings, logs=()):
        self.chunks = Chunks(store, SUBMISSION, 0)
        self.read = []
        get = self.chunks.get

        async def counted(*place):
            self.read.append(place)
            return await get(*place)

        self.chunks.get = counted
        self._endings, self._logs = endings, dict(logs)

    async def is_over(self, number):
        return number in self._endings

    async def ending(self, number):
        return self._endings.get(number)

    def transcript(self, number):
        return Transcript(self.chunks, number, TIMING, LARGEST_EVENT_BYTES)

    def tried(self, _number):
        return _Tried

    def log(self, number):
        return self._logs[number]


class _Tried:
    started_at = None


async def test_tail_reads_only_last_chunks(store):
    for number in range(50):
        await put(store, "stdout", number, b"%d a\n%d b\n%d " % (number, number, number))
    course = Course(store, {1: ended((50, 0, b"the end\n"))})

    prepared = await prepare(course, 1, 1, Part(tail=4))

    assert course.read == [(1, "stdout", n) for n in (49, 48, 47)]
    attempt = prepared[1].transcript
    lines = await every(attempt.catch_up()) + texts(await attempt.close(course._endings[1]))
    assert lines == ["47 48 a", "48 b", "48 49 a", "49 b", "49 the end"]


async def test_tail_reads_only_needed_attempts(store):
    for attempt in (1, 2):
        await put(store, "stdout", 0, b"%d a\n%d b\n" % (attempt, attempt), attempt=attempt)
    course = Course(store, {1: ended((1, 8, b"")), 2: ended((1, 8, b""))})

    assert sorted(await prepare(course, 1, 2, Part(tail=2))) == [2]
    assert sorted(await prepare(course, 1, 2, Part(tail=3))) == [1, 2]


async def test_omitted_lines_stay_omitted_in_cloudwatch(store):
    for number in range(3):
        await put(store, "stdout", number, b"%d\n" % number)
    course = Course(store, {})
    prepared = await prepare(course, 1, 1, Part(tail=1))
    attempt = prepared[1].transcript
    assert await every(attempt.catch_up()) == ["2"]

    stored = {p.sequence: p.at for p in await course.chunks.places(1)}
    before = log("0", "1", at=stored[1] - timedelta(seconds=1))
    after = log("2", "3", at=stored[2] + timedelta(seconds=1))
    assert await every(attempt.from_log(before, settle=False)) == []
    assert await every(attempt.from_log(after, settle=False)) == ["3"]


async def test_missing_output_comes_from_cloudwatch(store):
    await put(store, "stdout", 0, b"a\n")
    opened, _ = access([{**page("a", "b", token="1"), "nextBackwardToken": "1"}])
    course = Course(store, {1: None}, {1: CloudWatchLog(opened, "g", "s")})

    prepared = await prepare(course, 1, 1, Part(tail=1))
    assert [line[:2] for line in prepared[1].lines] == [("b", "log")]


async def test_progress_bar_reads_only_last_state(store):
    for number in range(50):
        await put(store, "stderr", number, b"\r%d of 50" % number)
    await put(store, "stderr", 50, b", done\n")
    course = Course(store, {})
    found = await prepare(course, 1, 1, Part(tail=1))
    assert [sequence for *_, sequence in course.read] == [50, 49]
    assert await every(found[1].transcript.catch_up()) == ["49 of 50, done"]
