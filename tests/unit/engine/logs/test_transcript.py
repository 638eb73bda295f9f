"""An attempt's lines, each once, from chunks, the outcome's rest and CloudWatch."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from farcall.backends.batch.cloudwatch import LARGEST_EVENT_BYTES, CloudWatchLog
from farcall.engine.logs import transcript
from farcall.engine.logs.tail import Part, prepare
from farcall.engine.logs.transcript import Ending, Transcript
from farcall.storage.chunks import Chunks
from tests.unit.fakes import Clock, store_in_memory
from tests.unit.transcripts import NOW, SUBMISSION, access, page, put, texts


@pytest.fixture
def store():
    return store_in_memory()


@pytest.fixture
def attempt(store):
    return Transcript(Chunks(store, SUBMISSION, 0), 1, LARGEST_EVENT_BYTES)


def log(*lines, at=NOW):
    """A log with these lines and no more."""
    opened, _ = access([page(*lines, token="1", at=at), page(token="1")])
    return CloudWatchLog(opened, "g", "s")


def ended(out=(0, 0, b""), err=(0, 0, b""), **more):
    """An outcome: for either stream chunks, bytes in them, and the rest."""
    meta = {
        name: {"chunks": chunks, "stored": stored, "dropped": 0, **more.get(name, {})}
        for name, (chunks, stored, _) in (("stdout", out), ("stderr", err))
    }
    return Ending(1, meta, {"stdout": out[2], "stderr": err[2]}, NOW)


async def every(batches):
    return texts([line async for batch in batches for line in batch])


async def test_a_line_goes_on_from_chunk_to_chunk_to_the_outcome(store, attempt):
    await put(store, "stdout", 0, b"a\nb\xc3")
    assert await every(attempt.catch_up()) == ["a"]
    await put(store, "stdout", 1, b"\xbc")
    assert await attempt.look() == []
    await put(store, "stderr", 0, b"e\n")
    assert texts(await attempt.look()) == ["e"]

    closed = await attempt.close(ended((2, 5, b"c\nlast"), (1, 2, b"")))
    assert [line[:2] for line in closed] == [("b\u00fcc", "stdout"), ("last", "stdout")]


async def test_bytes_that_were_given_up_leave_a_note_where_they_were(store, attempt):
    await put(store, "stdout", 0, b"0123\n")
    await every(attempt.catch_up())
    await put(store, "stdout", 1, b"4567\n")
    gaps = {"gaps": [(2, 7), (6, 8)]}  # the first of which was not known when it was shown

    closed = await attempt.close(ended((2, 10, b"end\n"), stdout=gaps))
    assert [text for text in texts(closed) if text] == [
        "[farcall: 7 bytes could not be stored]",
        "4",
        "[farcall: 8 bytes could not be stored]",
        "567",
        "end",
    ]


async def test_chunks_that_are_gone_leave_a_note_only_where_it_is_asked_for(store, attempt):
    await put(store, "stdout", 0, b"a\n")
    await every(attempt.catch_up())
    await put(store, "stdout", 2, b"c\n")

    ending = ended((3, 6, b"d\n"))
    assert await attempt.close(ending) is None
    closed = await attempt.close(ending, with_notes=True)
    assert texts(closed) == ["", "[farcall: 2 bytes were deleted from the bucket]", "c", "d"]


async def test_of_cloudwatch_only_what_was_not_given_before_is_given(store, attempt):
    await put(store, "stdout", 0, b"same\n\nb\nbegun")
    await put(store, "stderr", 0, b"e\n" + b"x" * (LARGEST_EVENT_BYTES + 1) + b"\n\xff\xfe\n")
    await every(attempt.catch_up())
    pieces = ["x" * LARGEST_EVENT_BYTES, "x", "\ufffd"]

    found = await every(
        attempt.from_log(log("e", "same", *pieces, "b", "same", "begun and ended"), settle=False)
    )
    assert found == ["same", "begun and ended"]


async def test_lines_may_come_to_cloudwatch_a_moment_later(attempt, monkeypatch):
    Clock(asyncio.get_running_loop(), monkeypatch)
    replies = [page("a", token="1"), page(token="1"), page("b", token="2"), page(token="2")]
    opened, client = access([*replies, page(token="2")])

    assert await every(attempt.from_log(CloudWatchLog(opened, "g", "s"), settle=True)) == [
        "a",
        "b",
    ]
    assert len(client.calls) == 5  # the third look brought nothing


async def test_beyond_a_million_lines_it_is_said_where_the_rest_is(store, attempt, monkeypatch):
    monkeypatch.setattr(transcript, "_MOST_REMEMBERED", 2)
    await put(store, "stdout", 0, b"a\nb\nc\n")
    await every(attempt.catch_up())

    (text,) = await every(attempt.from_log(log("a", "b", "c", "d"), settle=False))
    assert text.startswith("[farcall: attempt 1: after 3 lines the result was taken")


# --- only the end -------------------------------------------------------------------------------


class Course:
    """What is known of a task's attempts, scripted."""

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
        return Transcript(self.chunks, number, LARGEST_EVENT_BYTES)

    def tried(self, _number):
        return _Tried

    def log(self, number):
        return self._logs[number]


class _Tried:
    started_at = None


async def test_the_last_lines_are_found_without_reading_the_rest(store):
    for number in range(50):
        await put(store, "stdout", number, b"%d a\n%d b\n%d " % (number, number, number))
    course = Course(store, {1: ended((50, 0, b"the end\n"))})

    prepared = await prepare(course, 1, 1, Part(tail=4))

    assert course.read == [(1, "stdout", n) for n in (49, 48, 47)]
    attempt = prepared[1].transcript
    lines = await every(attempt.catch_up()) + texts(await attempt.close(course._endings[1]))
    assert lines == ["47 48 a", "48 b", "48 49 a", "49 b", "49 the end"]


async def test_only_attempts_that_are_wanted_are_read(store):
    for attempt in (1, 2):
        await put(store, "stdout", 0, b"%d a\n%d b\n" % (attempt, attempt), attempt=attempt)
    course = Course(store, {1: ended((1, 8, b"")), 2: ended((1, 8, b""))})

    assert sorted(await prepare(course, 1, 2, Part(tail=2))) == [2]
    assert sorted(await prepare(course, 1, 2, Part(tail=3))) == [1, 2]


async def test_what_was_left_out_is_not_given_by_cloudwatch_either(store):
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


async def test_the_end_of_an_attempt_that_s3_lacks_is_cloudwatchs(store):
    await put(store, "stdout", 0, b"a\n")
    opened, _ = access([{**page("a", "b", token="1"), "nextBackwardToken": "1"}])
    course = Course(store, {1: None}, {1: CloudWatchLog(opened, "g", "s")})

    prepared = await prepare(course, 1, 1, Part(tail=1))
    assert [line[:2] for line in prepared[1].lines] == [("b", "log")]
