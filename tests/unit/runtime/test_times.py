"""When the container tells a function to stop, kills it, and gives its outcome up."""

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
    """An attempt that began at 1000, whose clock is moved by hand."""

    def __init__(self, monkeypatch, limit_s=None):
        self.now = 1000.0
        monkeypatch.setattr(times, "time", SimpleNamespace(monotonic=lambda: self.now))
        monkeypatch.setattr(times, "process_age_s", lambda: 0.0)
        self.times = times.Times()
        self.times.limit_s = limit_s

    def signals(self, until):
        """Let time pass by seconds; return what the task got, and when."""
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
        """Seconds to store the outcome in, from now."""
        return self.times.give_up_at() - self.now


@pytest.fixture
def story(monkeypatch):
    return lambda *args: Story(monkeypatch, *args)


@pytest.mark.parametrize(
    ("limit", "told", "killed"), [(60, 54, 57), (100, 90, 95), (300, 270, 285), (3600, 3570, 3585)]
)
def test_a_function_is_told_then_killed_before_its_time_is_up(story, limit, told, killed):
    run = story(limit)

    assert [(told + 0.5, signal.SIGTERM), (killed + 0.5, signal.SIGKILL)] == run.signals(limit)
    assert run.times.timed_out


def test_who_waits_wakes_when_something_is_due(story):
    run = story(60)
    assert run.times.until_due(0.5) == 0.5
    run.signals(53.5)
    assert run.times.until_due(0.6) == 0.5
    run.signals(54.5)
    assert (run.times.timed_out, run.times.until_due(9)) == (True, 2.5)
    run.now += 60
    assert run.times.until_due(9) == 0
    assert story().times.until_due(9) == 9


def test_a_terminated_function_has_twenty_seconds(story):
    run = story(300)
    run.signals(100)
    run.terminate()

    assert [(100.5, signal.SIGTERM), (120.5, signal.SIGKILL)] == run.signals(125)
    assert not run.times.timed_out


def test_sigterm_after_the_time_was_up_tells_nothing_new(story):
    run = story(60)
    run.signals(55)
    run.terminate()

    assert [(57.5, signal.SIGKILL)] == run.signals(60)
    assert run.times.timed_out


def test_time_that_is_up_after_sigterm_tells_nothing_new(story):
    run = story(60)
    run.signals(50)
    run.terminate()
    run.signals(51)

    assert [(70.5, signal.SIGKILL)] == run.signals(75)
    assert not run.times.timed_out


@pytest.mark.parametrize(
    ("limit", "done", "killed"), [(None, 100, 110), (300, 100, 110), (300, 265, 270), (60, 50, 54)]
)
def test_what_has_its_value_may_stay_for_a_while_and_leaves_the_outcome_its_time(
    story, limit, done, killed
):
    run = story(limit)
    run.signals(done)
    run.times.done()
    run.signals(1)
    run.times.done()  # said again and again

    assert [(killed + 0.5, signal.SIGKILL)] == run.signals(killed + 1)
    run.terminate()
    assert not run.times.was_stopped


def test_what_was_told_to_stop_and_has_its_value_then_was_stopped(story):
    run = story()
    run.signals(100)
    run.terminate()
    assert run.times.was_stopped
    run.signals(110)
    run.times.done()

    assert [(120.5, signal.SIGKILL)] == run.signals(130)
    run.times.end()
    assert run.times.was_stopped


def test_sigterm_after_the_process_has_ended_stopped_nothing(story):
    run = story()
    run.signals(100)
    run.times.end()
    run.signals(101)
    run.terminate()

    assert not run.times.was_stopped


def test_an_outcome_has_ten_minutes_where_the_limit_leaves_them(story):
    run = story(3600)
    run.signals(100)
    run.times.end()

    assert 600 == run.left()
    assert 300 == run.times.give_up_streams_at() - run.now


def test_an_outcome_of_a_function_out_of_time_may_use_batchs_grace(story):
    run = story(60)
    run.signals(57.5)
    run.times.end()
    assert 27.5 == run.left()

    run.signals(60)
    run.terminate()
    assert 25 == run.left()


def test_before_the_function_begins_there_is_no_deadline_but_sigterm(story):
    run = story()
    assert math.inf == run.left()

    run.terminate()
    assert 0 == run.left()


def test_time_counts_from_the_process_start():
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
