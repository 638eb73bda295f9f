"""The container's own streams: writers never block, and lines are complete."""

from __future__ import annotations

import os
import select
import threading
import time

import pytest

from farcall_runtime import container_output
from farcall_runtime.container_output import ContainerStream
from tests.support.patience import until


class Pipe:
    """Pipe with its reading end and an outlet."""

    def __init__(self):
        self.reader, self.writer = os.pipe()
        os.set_blocking(self.reader, False)
        self.stream = ContainerStream(self.writer)

    def room(self):
        """Return whether the pipe accepts data."""
        poll = select.poll()
        poll.register(self.writer, select.POLLOUT)
        return bool(poll.poll(0))

    def read(self, size=1 << 30):
        """Read up to a number of bytes."""
        data = b""
        while len(data) < size:
            try:
                piece = os.read(self.reader, size - len(data))
            except BlockingIOError:
                break
            data += piece
        return data

    def close(self):
        os.close(self.reader)  # ends an unread write
        until(lambda: not self.stream._waiting)
        os.close(self.writer)


@pytest.fixture
def pipe():
    made = Pipe()
    yield made
    made.close()


def fill(pipe):
    """Fill the pipe, and queue as much as may wait."""
    data = os.urandom(container_output._MOST_WAITING_BYTES + (1 << 20))
    pipe.stream.write(data)
    until(lambda: not pipe.room())
    return data


def test_all_data_arrives_in_order(pipe):
    pieces = [os.urandom(size) for size in (1, 100_000, 5, 300_000)]
    found = b""
    for piece in pieces:
        pipe.stream.write(piece)
    while len(found) < sum(map(len, pieces)):
        found += pipe.read()
    assert found == b"".join(pieces)
    pipe.stream.flush(time.monotonic() + 60)
    assert not pipe.stream.holds()


def test_writer_waits_while_stream_is_read(pipe, monkeypatch):
    monkeypatch.setattr(container_output, "_STALL_S", 1e9)
    fill(pipe)
    assert pipe.stream.holds()
    while pipe.stream.holds():
        pipe.read(100_000)


def test_unread_stream_does_not_block_writer(pipe, monkeypatch):
    data = fill(pipe)
    monkeypatch.setattr(container_output, "_STALL_S", 0.0)
    until(lambda: not pipe.stream.holds())
    pipe.stream.write(b"left out")
    pipe.stream.flush(time.monotonic() + 1e9)

    monkeypatch.setattr(container_output, "_STALL_S", 1e9)
    found = b""
    while len(found) < len(data):
        found += pipe.read()
    assert found == data
    until(lambda: not pipe.stream._waiting)
    pipe.stream.write(b"and later")
    until(lambda: pipe.stream._waiting == b"")
    assert pipe.read() == b"and later"


def test_non_blocking_pipe_is_waited_for(pipe):
    os.set_blocking(pipe.writer, False)
    data = fill(pipe)
    found = b""
    while len(found) < len(data):
        found += pipe.read()
    assert found == data


def test_missing_or_closed_stream_is_harmless():
    reader, writer = os.pipe()
    os.close(reader)
    gone = ContainerStream(writer)
    gone.write(b"x" * 100_000)
    gone.flush(time.monotonic() + 60)
    os.close(writer)
    closed = ContainerStream(1 << 20)
    closed.write(b"x")
    closed.flush(time.monotonic() + 60)
    assert not gone._waiting + closed._waiting


def test_without_thread_fitting_data_is_written(pipe, monkeypatch):
    def refuse(_self):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    pipe.stream.write(b"line")
    assert pipe.read() == b"line"
    data = fill(pipe)
    found = pipe.read()
    assert data.startswith(found)
    assert found
    assert not pipe.stream._waiting
