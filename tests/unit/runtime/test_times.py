"""Times at which the container stops a function, kills it, and gives up its outcome."""

from __future__ import annotations

import math
import signal
import subprocess
import sys
from types import SimpleNamespace

import pytest

from farcall_runtime import times
from tests.unit.fakes import RUNTIME_ROOT


class Story:
    """Attempt that began at 1000, with a manual clock."""

    def __init__(self, monkeypatch, limit_s=None):
        self.now = 1000.0
        monkeypatch.setattr(times, "time", SimpleNamespace(monotonic=lambda: self.now))
        monkeypatch.setattr(times, "process_age_s", lambda: 0.0)
        self.times = times.Times()
        self.times.limit_s = limit_s

    def signals(self, until):
        """Let seconds pass; return the signals to the task with their times."""
        got = []
        while self.now < 1000 + until:
            self.now += 0.5
            number = self.times.due()
            if number is not None and (not got or got[-1][1] != number):
                got.append((self.now - 1000, number))
        return got

    def terminate(self):
        self.times.terminated_at = self.now

    def left(self):
        """Return the seconds that are left to store the outcome."""
        return self.times.give_up_at() - self.now


@pytest.fixture
def story(monkeypatch):
    return lambda *args: Story(monkeypatch, *args)


@pytest.mark.parametrize(
    ("limit", "stopped", "killed"),
    [(60, 54, 57), (100, 90, 95), (300, 270, 285), (3600, 3570, 3585)],
)
def test_function_is_stopped_then_killed_early(story, limit, stopped, killed):
    run = story(limit)

    assert [(stopped + 0.5, signal.SIGTERM), (killed + 0.5, signal.SIGKILL)] == run.signals(limit)
    assert run.times.timed_out


def test_waiting_wakes_when_action_is_due(story):
    run = story(60)
    assert run.times.until_due(0.5) == 0.5
    run.signals(53.5)
    assert run.times.until_due(0.6) == 0.5
    run.signals(54.5)
    assert (run.times.timed_out, run.times.until_due(9)) == (True, 2.5)
    run.now += 60
    assert run.times.until_due(9) == 0
    assert story().times.until_due(9) == 9


def test_terminated_function_has_twenty_seconds(story):
    run = story(300)
    run.signals(100)
    run.terminate()

    assert [(100.5, signal.SIGTERM), (120.5, signal.SIGKILL)] == run.signals(125)
    assert not run.times.timed_out


def test_sigterm_after_timeout_changes_nothing(story):
    run = story(60)
    run.signals(55)
    run.terminate()

    assert [(57.5, signal.SIGKILL)] == run.signals(60)
    assert run.times.timed_out


def test_timeout_after_sigterm_changes_nothing(story):
    run = story(60)
    run.signals(50)
    run.terminate()
    run.signals(51)

    assert [(70.5, signal.SIGKILL)] == run.signals(75)
    assert not run.times.timed_out


@pytest.mark.parametrize(
    ("limit", "done", "killed"), [(None, 100, 110), (300, 100, 110), (300, 265, 270), (60, 50, 54)]
)
def test_finished_function_may_stay_briefly(story, limit, done, killed):
    """The kill leaves time to store the outcome."""
    run = story(limit)
    run.signals(done)
    run.times.done()
    run.signals(1)
    run.times.done()  # repeated calls

    assert [(killed + 0.5, signal.SIGKILL)] == run.signals(killed + 1)
    run.terminate()
    assert not run.times.was_stopped


def test_result_after_stop_counts_as_stopped(story):
    run = story()
    run.signals(100)
    run.terminate()
    assert run.times.was_stopped
    run.signals(110)
    run.times.done()

    assert [(120.5, signal.SIGKILL)] == run.signals(130)
    run.times.end()
    assert run.times.was_stopped


def test_sigterm_after_exit_stops_nothing(story):
    run = story()
    run.signals(100)
    run.times.end()
    run.signals(101)
    run.terminate()

    assert not run.times.was_stopped


def test_outcome_has_ten_minutes_if_possible(story):
    run = story(3600)
    run.signals(100)
    run.times.end()

    assert 600 == run.left()
    assert 300 == run.times.give_up_streams_at() - run.now


def test_timed_out_outcome_uses_batch_grace(story):
    run = story(60)
    run.signals(57.5)
    run.times.end()
    assert 27.5 == run.left()

    run.signals(60)
    run.terminate()
    assert 25 == run.left()


def test_only_sigterm_limits_start(story):
    run = story()
    assert math.inf == run.left()

    run.terminate()
    assert 0 == run.left()


def test_time_counts_from_process_start():
    source = (
        "import time; time.sleep(1); from farcall_runtime.times import Times; "
        "print(Times().started - time.monotonic())"
    )
    age = subprocess.run(
        [sys.executable, "-c", source],
        env={"PYTHONPATH": str(RUNTIME_ROOT)},
        capture_output=True,
        check=True,
        text=True,
    ).stdout

    assert -60 < float(age) <= -1
