"""What is shown of a sweep: numbers, lines and bars."""

from __future__ import annotations

import asyncio
import io
import re
import sys
import threading
import types
from concurrent.futures import ThreadPoolExecutor

import pytest
from rich.console import Console

from farcall.client import progress, sweep_state
from farcall.client.bars import Bar
from farcall.client.progress import Counts, Lines, Progress, Report
from farcall.model.jobs import JobDetail, JobStatus
from farcall.model.submission import Submission
from farcall.payload.results import Result
from farcall_runtime.contract import Location
from tests.support.patience import PATIENCE_S


class Now:
    """The time, which passes when it is told to."""

    def __init__(self):
        self.seconds = 1000.0

    def monotonic(self):
        return self.seconds


@pytest.fixture
def now(monkeypatch):
    made = Now()
    monkeypatch.setattr(progress, "time", made)
    return made


# --- counts -----------------------------------------------------------------------------------


def job(job_id, size):
    return Submission(job_id, "n", Location("b", "p/v1/run", job_id), b"key", size)


def array(job_id, **summary):
    return JobDetail(job_id, "n", status=JobStatus.PENDING, array_size=9, status_summary=summary)


def fetched(*errors):
    results = sweep_state.deque(Result(error=error) for error in errors)
    return sweep_state.Fetched(0, "job", results, types.SimpleNamespace(leave=lambda: None), print)


@pytest.fixture
def waiting():
    """A wait for 25 calls, two in a task, in an array of 10, one of 2, and a plain job."""
    made = sweep_state.Wait(25, 2)
    for first, submission in ((0, job("a", 10)), (10, job("b", 2)), (12, job("c", 1))):
        made.arrays[submission.job_id] = sweep_state.Array(submission, first, submission.size)
    return made


def test_calls_of_tasks_are_numbered_through(waiting):
    first, second, last = waiting.arrays.values()
    assert waiting.calls_of(first, 9) == range(18, 20)
    assert waiting.calls_of(second, 0, 2) == range(20, 24)
    assert waiting.calls_of(last, 0) == range(24, 25)


def test_what_batch_said_nothing_of_is_queued(waiting):
    assert waiting.count(lambda _: None) == Counts(0, 0, 0)
    assert sweep_state.Wait(25, 2).count(lambda _: None) == Counts(0, 0, 0)


def test_calls_are_counted_over_all_jobs(waiting):
    said = {
        "a": array("a", RUNNABLE=3, STARTING=1, RUNNING=2, SUCCEEDED=3, FAILED=1),
        "b": array("b", PENDING=2),
        "c": JobDetail("c", "n", status=JobStatus.RUNNING),
    }
    assert waiting.count(said.get) == Counts(running=6 + 1, done=8, failed=0)


def test_what_has_arrived_counts_though_batch_does_not_know_it_yet(waiting):
    waiting.arrays["a"].ended = 18
    waiting.arrays["c"].ended = 1
    said = {"a": array("a", RUNNING=4, SUCCEEDED=1), "c": JobDetail("c", "n", JobStatus.RUNNING)}
    assert waiting.count(said.get) == Counts(running=2, done=19, failed=0)


def test_what_batch_knows_counts_though_it_was_not_looked_for_yet(waiting):
    waiting.arrays["a"].ended = 2
    said = {
        "a": array("a", SUCCEEDED=10),
        "c": JobDetail("c", "n", status=JobStatus.FAILED),
    }
    assert waiting.count(said.get) == Counts(running=0, done=21, failed=0)


def test_calls_that_have_an_error_are_not_done(waiting):
    waiting.arrays["a"].ended = 6
    waiting.put(fetched(None, ValueError()))
    waiting.put(fetched(ValueError(), ValueError()))
    assert waiting.count(lambda _: None) == Counts(running=0, done=3, failed=3)


# --- how fast ---------------------------------------------------------------------------------


def test_a_report_has_all_numbers_and_when_the_rest_will_be_done(now):
    report = Report("work", 1000)
    report.take(Counts())
    now.seconds += 100  # in the queue, which says nothing of the tasks
    report.take(Counts())
    for ended in range(0, 400, 20):
        now.seconds += 1
        report.take(Counts(running=10, done=ended, failed=1))

    told = str(report)
    assert told.startswith("380 of 1000 done, 1 failed, 10 running, 609 queued, ")
    assert told.endswith(" calls/s, 0:02:00, 0:00:32 left")
    assert 18 < float(re.search(r"([\d.]+) calls/s", told)[1]) < 20


def test_what_happened_long_ago_does_not_count(now):
    report = Report("work", 100_000)
    ended = 0
    for per_second in (100, 10):
        for _ in range(120):
            now.seconds += 1
            ended += per_second
            report.take(Counts(running=1, done=ended))
    assert "10.0 calls/s" in str(report)


def test_slow_calls_are_counted_by_the_minute(now):
    report = Report("work", 10)
    for ended in range(3):
        report.take(Counts(running=2, done=ended))
        now.seconds += 600
    assert "0.1 calls/min" in str(report)


def test_a_report_keeps_little_of_the_past(now):
    report = Report("work", 10_000_000)
    for second in range(20_000):
        now.seconds += 1
        report.take(Counts(running=1, done=second))
    assert len(report._seen) < 200
    assert "1.0 calls/s" in str(report)


def test_at_the_end_nothing_is_left(now):
    report = Report("work", 4)
    report.take(Counts(running=4))
    now.seconds += 2
    report.take(Counts(done=3, failed=1))
    assert str(report) == "3 of 4 done, 1 failed, 0 running, 0 queued, 2.0 calls/s, 0:00:02"


# --- lines ------------------------------------------------------------------------------------


def test_lines_come_at_each_tenth_and_at_the_end(now, capsys):
    report = Report("work", 1000)
    lines = Lines(report)
    for ended in range(0, 1001, 7):
        now.seconds += 0.01
        report.take(Counts(done=ended))
        lines.show()
    report.take(Counts(done=1000))
    lines.close()

    said = capsys.readouterr().err.splitlines()
    assert [int(re.search(r"work: (\d+) of", line)[1]) // 100 for line in said] == list(
        range(1, 11)
    )


def test_lines_come_now_and_then_where_it_takes_long(now, capsys):
    report = Report("work", 1000)
    lines = Lines(report)
    for _ in range(100):
        now.seconds += 1
        report.take(Counts(running=5))
        lines.show()
    lines.close()
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 3
    assert "0 of 1000 done, 0 failed, 5 running, 995 queued" in said[-1]


# --- bars -------------------------------------------------------------------------------------


class Screen(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def screen(monkeypatch):
    """Put a terminal of 100 columns in the place of stderr, whatever the environment says."""
    for name in ("NO_COLOR", "FORCE_COLOR", "TERM", "COLUMNS", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COLUMNS", "100")

    def install(made=None):  # in the test itself: pytest sets stderr before it
        made = Screen() if made is None else made
        monkeypatch.setattr(sys, "stderr", made)
        return made

    monkeypatch.setattr(Bar, "_shared", None)
    yield install
    assert Bar._shared is None


HIDE, SHOW = "\x1b[?25l", "\x1b[?25h"


def test_a_bar_is_drawn_and_leaves_the_terminal_as_it_was(screen, now):
    screen = screen()
    report = Report("work", 4)
    streams = sys.stdout, sys.stderr
    bar = Bar(report, Console(stderr=True))
    report.take(Counts(running=2, done=1, failed=1))
    bar.show()
    bar.close()

    text = screen.getvalue()
    assert text.count(HIDE) == text.count(SHOW) == 1
    assert "1 of 4 done, 1 failed, 2 running, 0 queued" in text.rpartition(HIDE)[2]
    assert text.endswith(SHOW)
    assert (sys.stdout, sys.stderr) == streams


def test_two_bars_share_the_screen(screen, now):
    screen = screen()
    one, two = (Report(name, 4) for name in ("first", "second"))
    bars = [Bar(report, Console(stderr=True)) for report in (one, two)]
    one.take(Counts(done=4))
    bars[0].show()
    both = screen.getvalue()
    last = both.rpartition("\x1b[2K")[2]
    assert "first" in last
    assert "second" in last

    bars[0].close()
    assert SHOW not in screen.getvalue()
    two.take(Counts(done=2))
    bars[1].show()
    alone = screen.getvalue()[len(both) :]
    assert "4 of 4 done" in alone
    assert "first" not in alone.rpartition("\x1b[2K")[2]
    bars[1].close()
    bars[1].close()  # once more changes nothing

    text = screen.getvalue()
    assert text.count(HIDE) == text.count(SHOW) == 1


def test_a_name_is_no_markup(screen, now):
    screen = screen()
    bar = Bar(Report("[bold]<lambda>", 1), Console(stderr=True))
    bar.close()
    assert "[bold]<lambda>" in screen.getvalue()


@pytest.mark.parametrize(("stdout", "redirected"), [(Screen, True), (io.StringIO, False)])
def test_what_is_printed_goes_where_it_went(screen, monkeypatch, now, stdout, redirected):
    """Above the bar where both are the same terminal, else past it."""
    screen = screen()
    monkeypatch.setattr(sys, "stdout", made := stdout())
    bar = Bar(Report("work", 1), Console(stderr=True))
    print("printed")
    bar.close()
    assert ("printed" in screen.getvalue(), "printed" in made.getvalue()) == (
        redirected,
        not redirected,
    )


# --- all of it --------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["terminal", "dumb", "file"])
async def test_what_stderr_is_decides(screen, monkeypatch, kind):
    if kind == "dumb":
        monkeypatch.setenv("TERM", "dumb")
    screen = screen(io.StringIO() if kind == "file" else None)
    if kind == "file":
        monkeypatch.setenv("FORCE_COLOR", "1")  # as some CI systems do
    counts = iter([Counts(running=2)] + [Counts(done=2)] * 1000)
    with Progress("work", 2, lambda: next(counts)):
        await asyncio.sleep(0)

    assert "2 of 2 done" in screen.getvalue()
    assert (HIDE in screen.getvalue()) == (kind == "terminal")
    if kind != "terminal":
        assert "\x1b" not in screen.getvalue()
        assert screen.getvalue().startswith("farcall: work: 2 of 2 done")


async def test_an_error_leaves_the_terminal_as_it_was(screen):
    screen = screen()
    with pytest.raises(LookupError), Progress("work", 2, Counts):
        raise LookupError
    assert screen.getvalue().endswith(SHOW)


def test_sweeps_on_several_event_loops_share_the_screen(screen, monkeypatch):
    screen = screen()
    monkeypatch.setattr(progress, "_STEP_S", 0)
    both_are_shown = threading.Barrier(2, timeout=PATIENCE_S)

    async def sweep(name):
        counts = Counts()
        with Progress(name, 9, lambda: counts):
            both_are_shown.wait()
            for done in range(10):
                counts = Counts(done=done)
                await asyncio.sleep(0)

    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda name: asyncio.run(sweep(name)), ("first", "second")))

    text = screen.getvalue()
    assert text.count("9 of 9 done") >= 2
    assert text.count(HIDE) == text.count(SHOW) == 1
    assert text.endswith(SHOW)


class Broken(io.StringIO):
    def write(self, _text):
        raise OSError("no space left")

    def isatty(self):
        return True


@pytest.mark.parametrize("stderr", [None, Broken(), "closed"])
async def test_what_cannot_be_shown_breaks_nothing(screen, monkeypatch, stderr):
    if stderr == "closed":
        stderr = io.StringIO()
        stderr.close()
    monkeypatch.setattr(progress, "_STEP_S", 0)
    if stderr is None:
        monkeypatch.setattr(sys, "stderr", None)
    else:
        screen(stderr)
    with Progress("work", 2, lambda: Counts(done=1)):
        for _ in range(10):
            await asyncio.sleep(0.001)
    with Progress("work", 2, lambda: 1 // 0):
        await asyncio.sleep(0.001)
