"""Relay of the output of running tasks: each line once, with few requests."""

from __future__ import annotations

import dataclasses
import time
from types import SimpleNamespace

import pytest

from farcall.engine.delivered import Delivered
from farcall.engine.logs.relay import Relay
from farcall.model.submission import Submission
from farcall.storage.chunks import Written
from farcall_runtime import envelope
from tests.support.patience import until_async
from tests.unit.fakes import TIMING, store_in_memory
from tests.unit.transcripts import KEY, WHERE

SIZE = 40
PAUSE_S = 0.01
OFTEN = dataclasses.replace(TIMING, log_pause_s=PAUSE_S, outcome_pause_s=PAUSE_S)
JOB = Submission("job-1", "n", WHERE, KEY, SIZE)
NOTHING = {"chunks": 0, "stored": 0, "dropped": 0}


class Bucket:
    """Bucket that counts its requests."""

    def __init__(self):
        self.bucket, self.lists, self.gets = "bucket", 0, 0
        self._store = store_in_memory()

    async def list_keys(self, prefix):
        self.lists += 1
        return await self._store.list_keys(prefix)

    async def get_dated(self, key, **options):
        self.gets += 1
        return await self._store.get_dated(key, **options)

    async def put(self, index, sequence, data, attempt=1, stream="stdout"):
        name = WHERE.chunk_key(index, attempt, stream, sequence)
        await self._store.put(name, envelope.seal_chunk(KEY, name, data), quick=True)

    async def put_anything(self, name):
        await self._store.put(f"{WHERE.streams_prefix(0)}{name}", [b"x"], quick=True)


class Reader:
    """Records the lines that are shown."""

    def __init__(self):
        self.shown, self.left_out, self.settled = [], 0, 0

    def write(self, label, run, lines, left_out_bytes=0):
        assert run == "run"
        self.shown += [(label, line.text) for line in lines]
        self.left_out += left_out_bytes

    def settle(self):
        self.settled += 1

    async def until(self, *texts):
        """Wait until these are the last lines shown."""
        await until_async(lambda: [text for _, text in self.shown][-len(texts) :] == [*texts])


@pytest.fixture
def bucket():
    return Bucket()


@pytest.fixture
async def relay(bucket):
    made = Relay(SimpleNamespace(of=lambda _: bucket), OFTEN)
    yield made
    await made.close()


async def look(bucket):
    """Wait until the bucket was polled completely."""
    before = bucket.lists
    await until_async(lambda: bucket.lists >= before + 3)


def delivered(chunks, stored, tail=b"", attempt=1):
    """Return an outcome whose output is in chunks, except the last part."""
    sizes = {"stdout": {"chunks": chunks, "stored": stored, "dropped": 0}, "stderr": NOTHING}
    written = Written(JOB, 0, attempt, sizes, {"stdout": tail, "stderr": b""})
    is_whole = not chunks
    meta = {**sizes, "attempt": attempt}
    return Delivered([], tail, b"", attempt=attempt, is_whole=is_whole, written=written, meta=meta)


async def test_each_line_is_shown_once(bucket, relay):
    reader = Reader()
    relay.follow(JOB, {0: "fit[0]", 1: "fit[1]"}, reader)
    await bucket.put(0, 0, b"a\nbeg")
    await bucket.put(1, 0, b"c\n")
    await bucket.put(2, 0, b"of one that is not followed\n")
    await until_async(lambda: len(reader.shown) == 2)
    assert sorted(reader.shown) == [("fit[0]", "a"), ("fit[1]", "c")]
    await bucket.put(0, 1, b"un\n")
    await reader.until("begun")
    assert reader.shown[2:] == [("fit[0]", "begun")]

    await bucket.put(0, 2, b"d\n")
    await relay.finish(JOB, 0, delivered(3, 10, b"end"))
    assert reader.shown[3:] == [("fit[0]", "d"), ("fit[0]", "end")]
    await relay.finish(JOB, 0, delivered(3, 10, b"end"))  # a second call has no effect
    assert reader.settled == 0
    relay.leave(JOB, range(SIZE))
    assert (len(reader.shown), reader.settled) == (5, 1)
    await until_async(relay._looking.done)  # ends without followers


async def test_poll_lists_once_and_reads_chunks(bucket, relay):
    """The cost does not depend on the number of followed tasks."""
    reader, began = Reader(), time.monotonic()
    relay.follow(JOB, {index: f"fit[{index}]" for index in range(SIZE)}, reader)
    for index in range(SIZE):
        await bucket.put(index, 0, b"a\n")
    await until_async(lambda: len(reader.shown) == SIZE)
    await look(bucket)
    assert bucket.gets == SIZE
    assert bucket.lists <= (time.monotonic() - began) / PAUSE_S


async def test_next_attempt_ends_unfinished_line(bucket, relay):
    reader = Reader()
    relay.follow(JOB, {0: "fit"}, reader)
    await bucket.put(0, 0, b"a\nhalf")
    await reader.until("a")
    await bucket.put(0, 0, b"b\n", attempt=2)
    await reader.until("half", "b")
    await relay.finish(JOB, 0, delivered(0, 0, b"short\n", attempt=3))
    assert [text for _, text in reader.shown] == ["a", "half", "b", "short"]


async def test_excess_output_shows_end_and_count(bucket, relay):
    reader = Reader()
    large = b"x" * 800_000 + b"\n"
    for sequence in range(4):
        await bucket.put(0, sequence, large)
    relay.follow(JOB, {0: "fit"}, reader)
    await until_async(lambda: reader.shown)
    assert [len(text) for _, text in reader.shown] == [800_000]
    assert (reader.left_out, bucket.gets) == (3 * len(large), 1)
    relay._looking.cancel()  # stops the relay, so that later output is not shown
    for sequence in range(4, 8):
        await bucket.put(0, sequence, large)
    await relay.finish(JOB, 0, delivered(8, 8 * len(large), b"the end\n"))
    assert [text for _, text in reader.shown[1:]] == ["the end"]
    assert reader.left_out == 7 * len(large)


async def test_small_output_comes_from_outcome(bucket, relay):
    reader = Reader()
    relay.follow(JOB, {0: "fit"}, reader)
    await relay.finish(JOB, 0, delivered(0, 0, b"\r10%\r100%\nall\n"))
    assert [text for _, text in reader.shown] == ["100%", "all"]
    assert bucket.gets == 0


async def test_output_without_outcome_comes_from_chunks(bucket, relay):
    reader = Reader()
    relay.follow(JOB, {0: "fit"}, reader)
    await bucket.put(0, 0, b"a\nlast words")
    await relay.finish(JOB, 0, Delivered([], attempt=1))
    assert [text for _, text in reader.shown] == ["a", "last words"]


@pytest.mark.parametrize(
    "name", ["followed", "1/stdout/x", "1/other/0", "0/stdout/0", "1/stdout/0/more", "x"]
)
async def test_foreign_objects_are_ignored(bucket, relay, name):
    reader = Reader()
    relay.follow(JOB, {0: "fit"}, reader)
    await bucket.put_anything(name)
    await look(bucket)
    assert (reader.shown, bucket.gets) == ([], 0)


async def test_forged_chunk_is_not_shown(bucket, relay, caplog):
    reader = Reader()
    relay.follow(JOB, {0: "fit"}, reader)
    await bucket._store.put(WHERE.chunk_key(0, 1, "stdout", 0), [b"forged\n"], quick=True)
    await until_async(lambda: bucket.gets)
    await relay.finish(JOB, 0, delivered(1, 7, b"own\n"))
    assert reader.shown == []
    assert "cannot show output" in caplog.text
