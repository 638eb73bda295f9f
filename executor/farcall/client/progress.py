"""Progress display of a sweep: a bar on a terminal or in a notebook, elsewhere single lines."""

from __future__ import annotations

import asyncio
import contextlib
import html
import logging
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from farcall.model import terminal
from farcall.model.timing import Timing

if TYPE_CHECKING:
    from farcall.client.bars import Bar


# --- Notebook's bar: an output of the cell, which is replaced as its sweep goes on --------------
#
# IPython's own display is enough for it, so nothing needs to be installed beside it. The output is
# kept in the notebook's file as it was last.


def is_here() -> bool:
    """Return whether this is a notebook's kernel, and no terminal."""
    ipython: Any = sys.modules.get("IPython")
    return ipython is not None and hasattr(ipython.get_ipython(), "kernel")


class NotebookBar:
    """A sweep's output.

    Args:
        report: How far it is.
    """

    def __init__(self, report: Report) -> None:
        from IPython.display import display

        self._report = report
        self._shown = self._picture()
        self._output: Any = display(self._shown, raw=True, display_id=True)  # type: ignore[no-untyped-call]

    def show(self) -> None:
        """Draw."""
        picture = self._picture()
        if picture != self._shown:
            self._output.update(picture, raw=True)
            self._shown = picture

    def close(self) -> None:
        """Leave it as it is now."""
        self.show()

    def _picture(self) -> dict[str, str]:
        report = self._report
        trouble = f"; {report.trouble}" if report.trouble else ""
        name, text = html.escape(report.name), html.escape(f"{report}{trouble}")
        # Without a value it says that something goes on.
        value = f' value="{report.counts.ended}" max="{report.total}"' if report.total else ""
        bar = f'<progress style="width: 20em"{value}></progress>'
        return {
            "text/plain": f"{report.name}: {report}{trouble}",
            "text/html": f"<div>{name} {bar} {text}</div>",
        }


_log = logging.getLogger("farcall")

_LINE_S = 30.0
_LINES = 10
_PACE_S = 30.0
_PACE_SHARE = 0.25
_SAMPLES = 100


@dataclass(frozen=True)
class Counts:
    """How many calls are how far.

    Attributes:
        running: In tasks that run, or are being started.
        done: Returned, as far as is known: a task that has ended and was not fetched counts here.
        failed: Have an error.
        total: How many there are; None as long as it is not known, or was known before.
        packed: How many are pickled, while some are uploaded; None where none are.
        sent_bytes: How much was uploaded so far.
        errors: How many of those that failed have which error: ``ValueError x14, KeyError x1``.
    """

    running: int = 0
    done: int = 0
    failed: int = 0
    total: int | None = None
    packed: int | None = None
    sent_bytes: int = 0
    errors: str = ""

    @property
    def ended(self) -> int:
        """Calls that will not be run again."""
        return self.done + self.failed


class Progress:
    """Shows how far some calls are, for as long as the ``with`` block lasts.

    It never fails: what cannot be shown is not shown.

    Args:
        name: What they are calls of.
        total: Their number; None where it is not known yet.
        count: Tells how far they are.
        timing: How often it is looked.
        trouble: Tells what keeps that from being known, and what to do; empty where nothing does.
        failures: Tells at the end in some lines which calls failed, and why.
    """

    def __init__(
        self,
        name: str,
        total: int | None,
        count: Callable[[], Counts],
        timing: Timing,
        trouble: Callable[[], str] = lambda: "",
        failures: Callable[[], Sequence[str]] = lambda: (),
    ) -> None:
        self._report = Report(name, total)
        self._count = count
        self._trouble = trouble
        self._failures = failures
        self._step_s = timing.progress_s
        self._view: Bar | NotebookBar | LineReport | None = None
        self._showing: asyncio.Task[None] | None = None

    def __enter__(self) -> None:
        with _harmless():
            self._view = _view_of(self._report)
            self._showing = asyncio.ensure_future(self._show(self._view))

    def __exit__(self, *_: object) -> None:
        if self._showing is not None:
            self._showing.cancel()
        with _harmless():
            self._report.take(self._count())
        with _harmless():
            if self._view is not None:
                self._view.close()
        with _harmless():
            for line in self._failures():
                sys.stderr.write(f"farcall: {self._report.name}: {terminal.in_a_line(line)}\n")
            sys.stderr.flush()

    async def _show(self, view: Bar | NotebookBar | LineReport) -> None:
        with _harmless():
            while True:
                self._report.take(self._count())
                self._report.trouble = self._trouble()
                view.show()
                await asyncio.sleep(self._step_s)


@contextlib.contextmanager
def _harmless() -> Iterator[None]:
    """Keep a terminal's trouble from a sweep."""
    try:
        yield
    except Exception as error:
        _log.debug("progress cannot be shown: %r", error)


class Report:
    """Counts, and how fast they grow.

    Args:
        name: What they are calls of.
        total: Their number; None where it is not known yet.

    Attributes:
        trouble: What keeps them from being known any better; else empty.
    """

    def __init__(self, name: str, total: int | None) -> None:
        self.name = terminal.in_a_line(name)
        self.total = total
        self.trouble = ""
        self.counts = Counts()
        self._began = time.monotonic()
        self._seen: deque[tuple[float, int]] = deque()
        self._per_s = 0.0

    def take(self, counts: Counts) -> None:
        """Take in how far they are now."""
        self.counts = counts
        self.total = self.total if counts.total is None else counts.total
        now = time.monotonic()
        # What passed before the first task began says nothing of how long the others will take.
        if not self._seen or not (counts.running or counts.ended):
            self._seen = deque([(now, counts.ended)])
            return
        span_s = max(_PACE_S, _PACE_SHARE * (now - self._began))
        if now - self._seen[-1][0] >= span_s / _SAMPLES:
            self._seen.append((now, counts.ended))
        while len(self._seen) > 1 and now - self._seen[1][0] >= span_s:
            self._seen.popleft()
        then, before = self._seen[0]
        self._per_s = (counts.ended - before) / (now - then) if now > then else 0.0

    def __str__(self) -> str:
        counts, total = self.counts, self.total
        of_all = "" if total is None else f" of {total}"
        why = f" ({terminal.in_a_line(counts.errors)})" if counts.errors else ""
        parts = [f"{counts.done}{of_all} done", f"{counts.failed} failed{why}"]
        parts += [f"{counts.running} running"]
        if total is not None:
            parts.append(f"{total - counts.ended - counts.running} queued")
        if counts.packed is not None:
            sent = f"{counts.sent_bytes / 1e6:.1f} MB sent"
            parts.append(f"uploading ({counts.packed}{of_all} packed, {sent})")
        pace = f"{self._per_s:.1f} calls/s"
        if 0 < self._per_s < 1:
            pace = f"{60 * self._per_s:.1f} calls/min"
        parts += [pace, _duration(time.monotonic() - self._began)]
        left = 0 if total is None else total - counts.ended
        if left and self._per_s:
            parts.append(f"{_duration(left / self._per_s)} left")
        return ", ".join(parts)


def _duration(seconds: float) -> str:
    return str(timedelta(seconds=round(seconds)))


class LineReport:
    """A line on stderr at each tenth of the way, and where that takes long now and then."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._said_at = time.monotonic()
        self._said: Counts | None = None
        self._tenth = 0
        self._was_in_trouble = False

    def show(self) -> None:
        """Say a line if it is time for one."""
        tenth = _LINES * self._report.counts.ended // (self._report.total or sys.maxsize)
        is_new = self._report.trouble != "" and not self._was_in_trouble
        if tenth > self._tenth or is_new or time.monotonic() - self._said_at >= _LINE_S:
            self._say()
            self._tenth = tenth
        self._was_in_trouble = self._report.trouble != ""

    def close(self) -> None:
        """Say how it ended."""
        if self._said != self._report.counts:
            self._say()

    def _say(self) -> None:
        self._said_at, self._said = time.monotonic(), self._report.counts
        trouble = f"; {self._report.trouble}" if self._report.trouble else ""
        sys.stderr.write(f"farcall: {self._report.name}: {self._report}{trouble}\n")
        sys.stderr.flush()


def _view_of(report: Report) -> Bar | NotebookBar | LineReport:
    """Return a bar, or lines where it would only leave control codes."""
    if is_here():
        return NotebookBar(report)
    from farcall.client.console import Console  # which has rich, as bars: slow to import

    console = Console(stderr=True)
    if not (console.is_interactive and sys.stderr.isatty()):
        return LineReport(report)
    from farcall.client.bars import Bar

    return Bar(report, console)
