"""Progress bars, which restore the terminal."""

import io
import sys

import pytest
from rich.console import Console

from farcall.client.bars import Bar
from farcall.client.progress import Counts, Report
from tests.unit.terminals import HIDE, SHOW, Screen


def test_bar_is_drawn_and_terminal_restored(screen, now):
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
    bars[1].close()  # a second close() has no effect

    text = screen.getvalue()
    assert text.count(HIDE) == text.count(SHOW) == 1


def test_bar_gains_total_once_known(screen, now):
    screen = screen()
    report = Report("work", None)
    bar = Bar(report, Console(stderr=True))
    for counts in (Counts(running=2, packed=7, sent_bytes=10**6), Counts(done=7, total=7)):
        report.take(counts)
        bar.show()
    bar.close()
    text = screen.getvalue()
    assert "0 done, 0 failed, 2 running, uploading (7 packed, 1.0 MB sent)" in text
    assert "7 of 7 done, 0 failed, 0 running, 0 queued" in text


def test_name_is_not_parsed_as_markup(screen, now):
    screen = screen()
    bar = Bar(Report("[bold]<lambda>", 1), Console(stderr=True))
    bar.close()
    assert "[bold]<lambda>" in screen.getvalue()


@pytest.mark.parametrize(("stdout", "redirected"), [(Screen, True), (io.StringIO, False)])
def test_printed_text_keeps_its_destination(screen, monkeypatch, now, stdout, redirected):
    """If both streams are the same terminal, print above the bar."""
    screen = screen()
    monkeypatch.setattr(sys, "stdout", made := stdout())
    bar = Bar(Report("work", 1), Console(stderr=True))
    print("printed")
    bar.close()
    assert ("printed" in screen.getvalue(), "printed" in made.getvalue()) == (
        redirected,
        not redirected,
    )
