"""Lines of an attempt, each once, from chunks, the outcome and CloudWatch."""

from __future__ import annotations

import asyncio

import pytest

from farcall.backends.batch.cloudwatch import LARGEST_EVENT_BYTES
from farcall.engine.logs.transcript import Transcript
from farcall.model.output import LogLine
from farcall.storage.chunks import Chunks
from tests.unit.fakes import Clock, store_in_memory
from tests.unit.transcripts import SUBMISSION, ended, every, log, put, texts


@pytest.fixture
def store():
    return store_in_memory()


@pytest.fixture
def attempt(store):
    return Transcript(Chunks(store, SUBMISSION, 0), 1, LARGEST_EVENT_BYTES)


async def test_line_continues_across_chunks_and_outcome(store, attempt):
    await put(store, "stdout", 0, b"a\nb\xc3")
    assert await every(attempt.catch_up()) == ["a"]
    await put(store, "stdout", 1, b"\xbc")
    assert await every(attempt.read_new()) == []
    await put(store, "stderr", 0, b"e\n")
    assert await every(attempt.read_new()) == ["e"]

    closed = await attempt.close(ended((2, 5, b"c\nlast"), (1, 2, b"")))
    assert [line[:2] for line in closed] == [("b\u00fcc", "stdout"), ("last", "stdout")]


async def test_unstored_bytes_leave_note_in_place(store, attempt):
    await put(store, "stdout", 0, b"0123\n")
    await every(attempt.catch_up())
    await put(store, "stdout", 1, b"4567\n")
    gaps = {"gaps": [(2, 7), (6, 8)]}  # the first gap was not known when its chunk was shown

    closed = await attempt.close(ended((2, 10, b"end\n"), stdout=gaps))
    assert [text for text in texts(closed) if text] == [
        "[farcall: 7 bytes could not be stored]",
        "4",
        "[farcall: 8 bytes could not be stored]",
        "567",
        "end",
    ]


async def test_missing_chunks_leave_note_if_requested(store, attempt):
    await put(store, "stdout", 0, b"a\n")
    await every(attempt.catch_up())
    await put(store, "stdout", 2, b"c\n")

    ending = ended((3, 6, b"d\n"))
    assert await attempt.close(ending) is None
    closed = await attempt.close(ending, with_notes=True)
    assert texts(closed) == ["", "[farcall: 2 bytes were deleted from the bucket]", "c", "d"]


async def test_cloudwatch_adds_only_new_lines(store, attempt):
    await put(store, "stdout", 0, b"same\n\nb\nbegun")
    await put(store, "stderr", 0, b"e\n" + b"x" * (LARGEST_EVENT_BYTES + 1) + b"\n\xff\xfe\n")
    await every(attempt.catch_up())
    pieces = ["x" * LARGEST_EVENT_BYTES, "x", "\ufffd"]

    found = await every(log(attempt, "e", "same", *pieces, "b", "same", "begun and ended"))
    assert found == ["same", "begun and ended"]


# --- progress bars ------------------------------------------------------------------------------


async def test_progress_bar_states_are_throttled(store, attempt, monkeypatch):
    """The last state is kept as a line."""
    Clock(asyncio.get_running_loop(), monkeypatch)
    shown = []
    for number in range(40):
        await put(store, "stderr", number, b"\r%d of 40" % (number + 1))
        assert await every(attempt.read_new()) == []
        shown += [(number, line) for line in attempt.states()]
        await asyncio.sleep(0.1)
    assert [number for number, _ in shown] == [0, 3, 6, 9, 12, 15, 18, 21, 24, 27, 30, 33, 36, 39]
    assert shown[-1][1] == LogLine("40 of 40", "stderr", 1, None, goes_on=True)
    assert attempt.states() == []  # no new state

    await put(store, "stderr", 40, b"\nagain: \r1 of 2")
    assert await every(attempt.read_new()) == ["40 of 40"]
    await asyncio.sleep(1)
    assert texts(attempt.states()) == ["1 of 2"]
    closed = await attempt.close(ended(err=(41, 0, b"\r     \r")))
    assert closed == [LogLine("", "stderr", 1, None, goes_on=True)]  # the bar erased itself


async def test_progress_bar_is_recognized_in_cloudwatch(store, attempt):
    await put(store, "stderr", 0, b"a\r\nx\r10%\r100%\nb\rgoes on")
    assert await every(attempt.catch_up()) == ["a", "100%"]
    assert texts(attempt.states()) == ["goes on"]

    cut = "\r" + "1%\r" * LARGEST_EVENT_BYTES
    there = ["a\r", "x\r10%\r100%", cut[:LARGEST_EVENT_BYTES], "b\rgoes on\rend", "y\r  \r"]
    found = [(line.text, line.goes_on) async for lines in log(attempt, *there) for line in lines]
    assert found == [("", True), ("end", False)]
