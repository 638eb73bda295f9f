"""Queue order, rate limits, retry patterns and log lines of emulated Batch.

Starts nothing.
"""

from __future__ import annotations

import builtins

from hypothesis import given
from hypothesis import strategies as st

from farcall_local.batch.engine import Processors
from farcall_local.batch.limits import Bucket
from farcall_local.runners import logs


@given(st.lists(st.sampled_from([0.25, 0.5, 1, 2, 3, 4, 9]), max_size=30), st.data())
def test_jobs_start_in_queue_order(needs, data):
    """No job waits forever, in whichever order jobs end."""
    processors = Processors(4, lambda _: True)
    for item, need in enumerate(needs):
        processors.add(item, need)
    started, running = [], []
    while True:
        while (item := processors.take()) is not None:
            started.append(item)
            running.append(item)
            assert sum(min(needs[item], 4) for item in running) <= 4
        if not running:
            break
        ended = data.draw(st.sampled_from(running))
        running.remove(ended)
        processors.give_back(needs[ended])
    assert started == list(range(len(needs)))


def test_cancelled_jobs_drop_retries_go_first():
    """A cancelled job does not block others; a retry is added at the front."""
    waiting = {"b", "c"}
    processors = Processors(1, waiting.__contains__)
    for item in "abc":
        processors.add(item, 1)
    assert list(processors) == ["b", "c"]
    assert processors.take() == "b"
    processors.add("b", 1, front=True)
    processors.give_back(1)
    assert [processors.take(), processors.take()] == ["b", None]


def test_bucket_refills_with_time():
    """A bucket holds one second's worth of calls."""
    clock = iter([0.0, 0.0, 0.0, 0.0, 0.4, 0.5, 9.0, 9.0, 9.0]).__next__
    bucket = Bucket(2, clock)
    assert [bucket.take() for _ in range(8)] == [
        True,
        True,
        False,
        False,
        True,
        True,
        True,
        False,
    ]


def test_split_lines_are_joined():
    """A line is one event, even if it arrives in several reads."""
    events = []
    stream = logs.LogStream("s", events.extend)
    for piece in (b"on", b"e\ntwo\nthr", b"ee"):
        stream.write(piece)
    assert [event["message"] for event in events] == ["one", "two"]
    stream.close()
    assert [event["message"] for event in events] == ["one", "two", "three"]
    assert all(isinstance(event["timestamp"], builtins.int) for event in events)
