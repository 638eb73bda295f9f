"""Calls of a task, in this process."""

from __future__ import annotations

import signal
import time

import pytest

from farcall_runtime import task
from farcall_runtime.contract import CallStatus


@pytest.fixture
def sigterm(monkeypatch):
    """Handle SIGTERM as a task does."""
    monkeypatch.setattr(task, "_stopping", False)
    before = signal.signal(signal.SIGTERM, task._terminate)
    yield
    signal.signal(signal.SIGTERM, before)


def test_a_signal_right_before_a_call_stops_it(sigterm, monkeypatch):
    """A job that is cancelled while it starts: the function must not run on for 20 s."""
    clock = time.perf_counter

    def terminate_first():
        monkeypatch.setattr(time, "perf_counter", clock)
        signal.raise_signal(signal.SIGTERM)
        return clock()

    monkeypatch.setattr(time, "perf_counter", terminate_first)
    called = []

    record, _ = task._call(called.append, (1,), {})

    assert called == []
    assert record["status"] == CallStatus.RAISED
    assert "TaskTerminated" in str(record)
