"""The container's own streams: writers never wait, and lines are whole."""

from __future__ import annotations

import os
import select
import threading
import time

import pytest

from farcall_runtime import container_output
from farcall_runtime.container_output import Outlet
from tests.support.patience import until


class Pipe:
    """A pipe, its reading end, and an outlet into it."""

    def __init__(self):
        self.reader, self.writer = os.pipe()
        os.set_blocking(self.reader, False)
        self.outlet = Outlet(self.writer)

    def room(self):
        """Return whether it takes anything."""
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
        os.close(self.reader)  # which ends an unread write
        until(lambda: not self.outlet._waiting)
        os.close(self.writer)


@pytest.fixture
def pipe():
    made = Pipe()
    yield made
    made.close()


def fill(pipe):
    """Write until the pipe is full, and as much more as may wait."""
    data = os.urandom(container_output._MOST_WAITING_BYTES + (1 << 20))
    pipe.outlet.write(data)
    until(lambda: not pipe.room())
    return data


def test_all_of_it_arrives_in_order(pipe):
    pieces = [os.urandom(size) for size in (1, 100_000, 5, 300_000)]
    found = b""
    for piece in pieces:
        pipe.outlet.write(piece)
    while len(found) < sum(map(len, pieces)):
        found += pipe.read()
    assert found == b"".join(pieces)
    pipe.outlet.flush(time.monotonic() + 60)
    assert not pipe.outlet.holds()


def test_who_writes_is_held_while_the_stream_is_read(pipe, monkeypatch):
    monkeypatch.setattr(container_output, "_STALL_S", 1e9)
    fill(pipe)
    assert pipe.outlet.holds()
    while pipe.outlet.holds():
        pipe.read(100_000)


def test_what_nobody_reads_holds_nobody_and_is_left_out(pipe, monkeypatch):
    data = fill(pipe)
    monkeypatch.setattr(container_output, "_STALL_S", 0.0)
    until(lambda: not pipe.outlet.holds())
    pipe.outlet.write(b"left out")
    pipe.outlet.flush(time.monotonic() + 1e9)

    monkeypatch.setattr(container_output, "_STALL_S", 1e9)
    found = b""
    while len(found) < len(data):
        found += pipe.read()
    assert found == data
    until(lambda: not pipe.outlet._waiting)
    pipe.outlet.write(b"and later")
    until(lambda: pipe.outlet._waiting == b"")
    assert pipe.read() == b"and later"


def test_a_pipe_that_does_not_block_is_waited_for(pipe):
    os.set_blocking(pipe.writer, False)
    data = fill(pipe)
    found = b""
    while len(found) < len(data):
        found += pipe.read()
    assert found == data


def test_a_stream_without_a_reader_or_at_all_harms_nothing():
    reader, writer = os.pipe()
    os.close(reader)
    gone = Outlet(writer)
    gone.write(b"x" * 100_000)
    gone.flush(time.monotonic() + 60)
    os.close(writer)
    closed = Outlet(1 << 20)
    closed.write(b"x")
    closed.flush(time.monotonic() + 60)
    assert not gone._waiting + closed._waiting


def test_without_a_thread_what_fits_is_written(pipe, monkeypatch):
    def refuse(_self):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    pipe.outlet.write(b"line")
    assert pipe.read() == b"line"
    data = fill(pipe)
    found = pipe.read()
    assert data.startswith(found)
    assert found
    assert not pipe.outlet._waiting
