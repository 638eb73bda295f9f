"""Calls of a task, within this process."""

from __future__ import annotations

import signal
import time

import pytest

from farcall_runtime import task
from farcall_runtime.contract import ENV_THREADS, THREAD_COUNTS, CallStatus


@pytest.fixture
def sigterm(monkeypatch):
    """Handle SIGTERM like a task."""
    monkeypatch.setattr(task, "_stopping", False)
    before = signal.signal(signal.SIGTERM, task._terminate)
    yield
    signal.signal(signal.SIGTERM, before)


def test_signal_before_call_stops_it(sigterm, monkeypatch):
    """If a job is cancelled while it starts, the function must not run for another 20 s."""
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


COUNTS = dict.fromkeys(THREAD_COUNTS, "4")


@pytest.mark.parametrize(
    ("given", "set_"),
    [
        ({}, COUNTS),
        ({"MKL_NUM_THREADS": "1"}, {**COUNTS, "MKL_NUM_THREADS": "1"}),
        ({"OMP_NUM_THREADS": "1"}, {"OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "4"}),
    ],
)
def test_thread_counts_are_the_vcpus(given, set_):
    environment = {ENV_THREADS: "4", **given}
    task.set_thread_counts(environment)
    assert environment == {ENV_THREADS: "4", **set_}
