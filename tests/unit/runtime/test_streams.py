"""A task's output with a failing bucket: names and bytes of chunks, and dropped bytes."""

from __future__ import annotations

import os
import threading

import pytest

from farcall_runtime import container_output, envelope, streams
from farcall_runtime.contract import FOLLOWED_S, SOON_CHUNKS, STREAMS, Location
from farcall_runtime.storage import DeniedError, NotFoundError, StorageError, UnfitError
from farcall_runtime.streams import INLINE_BYTES, Limits, Streams
from tests.support.patience import until

WHERE = Location("bucket", "v1/run", "bundle")
KEY = b"k" * 32


class Bucket:
    """Accepts the bytes of every PUT, and loses the first responses.

    Attributes:
        seen: Name and bytes of each PUT.
        failures: Number of PUTs from now on without a response.
        mark: Version of the follower's marker, or the error raised instead.
        looks: Number of requests for the marker.
    """

    def __init__(self, failures=0):
        self.seen = []
        self.failures = failures
        self.mark = NotFoundError("none")
        self.looks = 0

    def version(self, name):
        assert name == WHERE.followed_key(0)
        self.looks += 1
        if isinstance(self.mark, Exception):
            raise self.mark
        return self.mark

    def put(self, name, pieces):
        self.seen.append((name, b"".join(pieces)))
        if self.failures > 0:
            self.failures -= 1
            raise StorageError("no answer")

    def chunks(self):
        """Return the contents by name; fail if a name has more than one content."""
        found = {}
        for name, data in self.seen:
            opened = bytes(envelope.open_chunk(KEY, name, data))
            assert found.setdefault(name, opened) == opened
        return list(found.values())


class Passed:
    """Accepts the data passed to one of the container's own streams.

    Attributes:
        data: All data.
        is_full: Whether it accepts no more for now.
    """

    def __init__(self):
        self.data = b""
        self.is_full = False

    def write(self, data):
        self.data += data

    def holds(self):
        return self.is_full


@pytest.fixture
def made(monkeypatch):
    """Streams with small chunks that are stored at once; their pipes end with the test."""
    for name in STREAMS:
        monkeypatch.setattr(container_output, name, Passed())
    both = Streams(WHERE, 0, 1, KEY, Limits(soon_s=0.0))
    yield both
    for stream in both.both:
        os.close(stream.read_fd)
        os.close(stream.write_fd)


def write(made, data):
    """Write to stdout, and let the streams read it."""
    view = memoryview(data)
    while view:
        view = view[os.write(made.stdout.write_fd, view[:65536]) :]
        made.pump(made.stdout)


def test_failed_chunk_is_retried_unchanged(made):
    bucket = Bucket(failures=1)
    write(made, b"first ")
    made.start(bucket)
    until(lambda: not bucket.failures)
    write(made, b"second")  # before or after the next attempt

    until(lambda: not made.stdout.pending)
    made.finish()

    assert bucket.chunks()[0] == b"first "
    assert b"".join(bucket.chunks()) == b"first second"
    assert len(bucket.chunks()) == made.stdout.chunks


def test_unread_output_is_counted(made):
    write(made, b"read")
    os.write(made.stdout.write_fd, b" and unread")
    os.write(made.stderr.write_fd, b"unread")

    assert made.written() == [15, 6]
    assert bytes(made.stdout.pending) == b"read"


def test_chunk_being_retried_is_not_dropped(made):
    made.limits = Limits(soon_s=0.0, chunk_bytes=4, pending_bytes=20)
    bucket = Bucket(failures=1)
    write(made, b"0123456789abcdefgh")  # ten bytes may stay
    made.start(bucket)

    until(lambda: not made.stdout.pending)
    made.finish()

    assert b"".join(bucket.chunks()) == b"0123cdefgh"
    assert made.stdout.describe() == {"chunks": 3, "stored": 10, "dropped": 8, "gaps": [(4, 8)]}
    assert made.written() == [18, 0]


def test_unstored_output_fits_the_outcome(made):
    bucket = Bucket()
    made.start(bucket)
    write(made, b"start")
    until(lambda: not made.stdout.pending)
    bucket.failures = 1_000_000
    write(made, b"x" * INLINE_BYTES)
    until(lambda: len(bucket.seen) > 1)
    write(made, b"y" * INLINE_BYTES)

    made.finish()

    assert made.stdout.describe() == {
        "chunks": 1,
        "stored": 5,
        "dropped": INLINE_BYTES,
        "gaps": [(5, INLINE_BYTES)],
    }
    assert bytes(made.stdout.pending) == b"y" * INLINE_BYTES
    assert len(bucket.chunks()) == 2  # the second one does not count


def test_task_waits_for_full_buffers(made):
    made.limits = Limits(soon_s=0.0, pending_bytes=8)
    write(made, b"0123")
    assert not made.holds(made.stdout)
    container_output.stdout.is_full = True
    assert (made.holds(made.stdout), made.holds(made.stderr)) == (True, False)
    container_output.stdout.is_full = False
    write(made, b"4567")
    assert made.holds(made.stdout)  # until it is stored
    assert container_output.stdout.data == b"01234567"


def test_hanging_request_is_not_awaited(made):
    """Its chunk no longer counts, whatever the result of the request."""
    bucket = Bucket()
    under_way, goes_on = threading.Event(), threading.Event()
    put = bucket.put

    def hang(name, pieces):
        under_way.set()
        goes_on.wait()
        put(name, pieces)

    bucket.put = hang
    made.start(bucket)
    write(made, b"x" * INLINE_BYTES + b"y" * 10)
    assert under_way.wait(60)
    thread = made._thread

    made.finish(lambda: 0.0)

    assert thread.is_alive()
    described = made.stdout.describe()
    left = bytes(made.stdout.pending)
    assert described == {"chunks": 0, "stored": 0, "dropped": 10, "gaps": [(0, 10)]}
    goes_on.set()
    thread.join()
    assert bucket.seen
    assert (made.stdout.describe(), bytes(made.stdout.pending)) == (described, left)


def test_without_thread_output_blocks_nothing(made, monkeypatch):
    made.limits = Limits(soon_s=0.0, pending_bytes=8)
    start = threading.Thread.start

    def refuse(_self):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    bucket = Bucket()
    made.start(bucket)
    write(made, b"01234567")
    assert not made.holds(made.stdout)
    assert bytes(made.stdout.pending) == b"4567"
    assert (
        b"output cannot be stored while the task runs: cannot start a thread: can't start"
        in container_output.stderr.data
    )

    write(made, b"89ab")
    monkeypatch.setattr(threading.Thread, "start", start)
    assert made.holds(made.stdout)
    until(lambda: not made.stdout.pending)
    made.finish()
    assert bucket.chunks() == [b"456789ab"]


# --- intervals --------------------------------------------------------------------------------


@pytest.fixture
def paced(monkeypatch):
    """Streams, and a function that returns the seconds until written data is due."""
    now = [1000.0]
    monkeypatch.setattr(streams.time, "monotonic", lambda: now[0])
    both = Streams(WHERE, 0, 1, KEY)

    def waited(bucket, chunks, seconds=0.0):
        now[0] += seconds
        stream = both.stdout
        stream.chunks, stream.since = chunks, now[0]
        stream.pending = bytearray(b"line")
        while not both._is_due(bucket, stream):
            now[0] += 0.25
        return now[0] - stream.since

    yield waited
    for stream in both.both:
        os.close(stream.read_fd)
        os.close(stream.write_fd)


def test_steady_output_is_stored_less_often(paced):
    """The marker of a follower shortens the interval."""
    bucket = Bucket()
    assert [paced(bucket, chunks) for chunks in (0, SOON_CHUNKS - 1)] == [2, 2]
    assert bucket.looks == 0
    assert [paced(bucket, SOON_CHUNKS) for _ in range(10)] == [10] * 10
    assert bucket.looks <= 13  # about one for each chunk

    bucket.mark = "first"
    paced(bucket, SOON_CHUNKS)  # it is seen within this time
    assert [paced(bucket, SOON_CHUNKS) for _ in range(10)] == [2] * 10
    bucket.mark = "renewed"
    assert paced(bucket, SOON_CHUNKS, FOLLOWED_S) == 2
    assert paced(bucket, SOON_CHUNKS, FOLLOWED_S) == 10  # a marker that is not renewed


@pytest.mark.parametrize(
    ("error", "looks"),
    [
        (DeniedError("no"), 1),
        (UnfitError("no"), 1),
        (StorageError("no"), 10),
        (MemoryError("no"), 10),
    ],
)
def test_unreadable_marker_keeps_slow_pace(paced, error, looks):
    bucket = Bucket()
    bucket.mark = error
    assert [paced(bucket, SOON_CHUNKS) for _ in range(10)] == [10] * 10
    assert looks <= bucket.looks <= 1.3 * looks
