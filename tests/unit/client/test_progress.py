"""What is shown of a sweep: numbers, lines, and which of them or bars."""

from __future__ import annotations

import asyncio
import io
import re
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from farcall.client.progress import Counts, LineReport, Progress, Report
from farcall.model.timing import Timing
from tests.support.patience import PATIENCE_S
from tests.unit.terminals import HIDE, SHOW

AT_ONCE = Timing(progress_s=0.0)

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


def test_at_the_end_nothing_is_left(now):
    report = Report("work", 4)
    report.take(Counts(running=4))
    now.seconds += 2
    report.take(Counts(done=3, failed=1))
    assert str(report) == "3 of 4 done, 1 failed, 0 running, 0 queued, 2.0 calls/s, 0:00:02"


def test_what_failed_is_told_by_its_errors(now):
    report = Report("work", 20)
    report.take(Counts(done=3, failed=15, errors="ValueError x14, \x1bKeyError x1"))
    assert "15 failed (ValueError x14, ^[KeyError x1), " in str(report)


def test_where_the_number_of_calls_is_not_known_counts_have_no_total(now):
    report = Report("work", None)
    report.take(Counts(running=2, done=3, failed=1))
    assert str(report).startswith("3 done, 1 failed, 2 running, 0.0 calls/s, ")
    report.take(Counts(running=2, done=3, failed=1, total=9))
    assert str(report).startswith("3 of 9 done, 1 failed, 2 running, 3 queued, ")


@pytest.mark.parametrize(("total", "of_all"), [(9000, " of 9000"), (None, "")])
def test_an_upload_says_how_far_it_is(now, total, of_all):
    report = Report("work", total)
    report.take(Counts(packed=340, sent_bytes=24_200_000))
    assert f", uploading (340{of_all} packed, 24.2 MB sent), " in str(report)
    report.take(Counts(running=1, sent_bytes=24_200_000))
    assert "uploading" not in str(report)


# --- lines ------------------------------------------------------------------------------------


def test_lines_come_at_each_tenth_and_at_the_end(now, capsys):
    report = Report("work", 1000)
    lines = LineReport(report)
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


def test_without_a_total_lines_come_now_and_then_and_at_the_end(now, capsys):
    report = Report("work", None)
    lines = LineReport(report)
    for ended in range(0, 1000, 10):
        now.seconds += 1
        report.take(Counts(done=ended))
        lines.show()
    report.take(Counts(done=1000, total=1000))
    lines.close()

    said = capsys.readouterr().err.splitlines()
    assert len(said) == 4
    assert said[-1].startswith("farcall: work: 1000 of 1000 done, ")


# --- all of it --------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["terminal", "dumb", "file"])
async def test_what_stderr_is_decides(screen, monkeypatch, kind):
    if kind == "dumb":
        monkeypatch.setenv("TERM", "dumb")
    screen = screen(io.StringIO() if kind == "file" else None)
    if kind == "file":
        monkeypatch.setenv("FORCE_COLOR", "1")  # as some CI systems do
    counts = iter([Counts(running=2)] + [Counts(done=2)] * 1000)
    with Progress("work", 2, lambda: next(counts), Timing()):
        await asyncio.sleep(0)

    assert "2 of 2 done" in screen.getvalue()
    assert (HIDE in screen.getvalue()) == (kind == "terminal")
    if kind != "terminal":
        assert "\x1b" not in screen.getvalue()
        assert screen.getvalue().startswith("farcall: work: 2 of 2 done")


async def test_an_error_leaves_the_terminal_as_it_was(screen):
    screen = screen()
    with pytest.raises(LookupError), Progress("work", 2, Counts, Timing()):
        raise LookupError
    assert screen.getvalue().endswith(SHOW)


def test_sweeps_on_several_event_loops_share_the_screen(screen):
    screen = screen()
    both_are_shown = threading.Barrier(2, timeout=PATIENCE_S)

    async def sweep(name):
        counts = Counts()
        with Progress(name, 9, lambda: counts, AT_ONCE):
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
    if stderr is None:
        monkeypatch.setattr(sys, "stderr", None)
    else:
        screen(stderr)
    with Progress("work", 2, lambda: Counts(done=1), AT_ONCE):
        for _ in range(10):
            await asyncio.sleep(0.001)
    with Progress("work", 2, lambda: 1 // 0, AT_ONCE):
        await asyncio.sleep(0.001)
