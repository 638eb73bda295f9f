"""Progress reports: counts, rates, and the choice between lines and bars."""

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

# --- reports ----------------------------------------------------------------------------------


def test_report_has_counts_rate_and_eta(now):
    report = Report("work", 1000)
    report.take(Counts())
    now.seconds += 100  # in the queue, which does not count towards the rate
    report.take(Counts())
    for ended in range(0, 400, 20):
        now.seconds += 1
        report.take(Counts(running=10, done=ended, failed=1))

    summary = str(report)
    assert summary.startswith("380 of 1000 done, 1 failed, 10 running, 609 queued, ")
    assert summary.endswith(" calls/s, 0:02:00, 0:00:32 left")
    assert 18 < float(re.search(r"([\d.]+) calls/s", summary)[1]) < 20


def test_rate_ignores_distant_past(now):
    report = Report("work", 100_000)
    ended = 0
    for per_second in (100, 10):
        for _ in range(120):
            now.seconds += 1
            ended += per_second
            report.take(Counts(running=1, done=ended))
    assert "10.0 calls/s" in str(report)


def test_finished_report_has_no_eta(now):
    report = Report("work", 4)
    report.take(Counts(running=4))
    now.seconds += 2
    report.take(Counts(done=3, failed=1))
    assert str(report) == "3 of 4 done, 1 failed, 0 running, 0 queued, 2.0 calls/s, 0:00:02"


def test_failures_are_counted_by_error(now):
    report = Report("work", 20)
    report.take(Counts(done=3, failed=15, errors="ValueError x14, \x1bKeyError x1"))
    assert "15 failed (ValueError x14, ^[KeyError x1), " in str(report)


def test_unknown_total_is_omitted(now):
    report = Report("work", None)
    report.take(Counts(running=2, done=3, failed=1))
    assert str(report).startswith("3 done, 1 failed, 2 running, 0.0 calls/s, ")
    report.take(Counts(running=2, done=3, failed=1, total=9))
    assert str(report).startswith("3 of 9 done, 1 failed, 2 running, 3 queued, ")


@pytest.mark.parametrize(("total", "of_all"), [(9000, " of 9000"), (None, "")])
def test_upload_progress_is_shown(now, total, of_all):
    report = Report("work", total)
    report.take(Counts(packed=340, sent_bytes=24_200_000))
    assert f", uploading (340{of_all} packed, 24.2 MB sent), " in str(report)
    report.take(Counts(running=1, sent_bytes=24_200_000))
    assert "uploading" not in str(report)


# --- lines ------------------------------------------------------------------------------------


def test_line_is_printed_at_each_tenth(now, capsys):
    report = Report("work", 1000)
    lines = LineReport(report)
    for ended in range(0, 1001, 7):
        now.seconds += 0.01
        report.take(Counts(done=ended))
        lines.show()
    report.take(Counts(done=1000))
    lines.close()

    printed = capsys.readouterr().err.splitlines()
    assert [int(re.search(r"work: (\d+) of", line)[1]) // 100 for line in printed] == list(
        range(1, 11)
    )


def test_unknown_total_prints_lines_by_time(now, capsys):
    report = Report("work", None)
    lines = LineReport(report)
    for ended in range(0, 1000, 10):
        now.seconds += 1
        report.take(Counts(done=ended))
        lines.show()
    report.take(Counts(done=1000, total=1000))
    lines.close()

    printed = capsys.readouterr().err.splitlines()
    assert len(printed) == 4
    assert printed[-1].startswith("farcall: work: 1000 of 1000 done, ")


# --- Progress ---------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["terminal", "dumb", "file"])
async def test_stderr_kind_selects_bar_or_lines(screen, monkeypatch, kind):
    if kind == "dumb":
        monkeypatch.setenv("TERM", "dumb")
    screen = screen(io.StringIO() if kind == "file" else None)
    if kind == "file":
        monkeypatch.setenv("FORCE_COLOR", "1")  # some CI systems set it
    counts = iter([Counts(running=2)] + [Counts(done=2)] * 1000)
    with Progress("work", 2, lambda: next(counts), Timing()):
        await asyncio.sleep(0)

    assert "2 of 2 done" in screen.getvalue()
    assert (HIDE in screen.getvalue()) == (kind == "terminal")
    if kind != "terminal":
        assert "\x1b" not in screen.getvalue()
        assert screen.getvalue().startswith("farcall: work: 2 of 2 done")


async def test_error_restores_terminal(screen):
    screen = screen()
    with pytest.raises(LookupError), Progress("work", 2, Counts, Timing()):
        raise LookupError
    assert screen.getvalue().endswith(SHOW)


def test_concurrent_sweeps_share_the_screen(screen):
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
async def test_display_error_does_not_break_sweep(screen, monkeypatch, stderr):
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
