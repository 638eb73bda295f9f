"""Progress display of a sweep: a bar in terminals and notebooks, or lines."""

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


# --- Notebook bar: an output of the cell that is replaced during the sweep ----------------------
#
# It needs only IPython's own display. The notebook's file keeps the last output.


def is_here() -> bool:
    """Return whether the process is a notebook's kernel without a terminal."""
    ipython: Any = sys.modules.get("IPython")
    return ipython is not None and hasattr(ipython.get_ipython(), "kernel")


class NotebookBar:
    """Progress bar in a sweep's output cell."""

    def __init__(self, report: Report) -> None:
        from IPython.display import display

        self._report = report
        self._shown = self._picture()
        self._output: Any = display(self._shown, raw=True, display_id=True)  # type: ignore[no-untyped-call]

    def show(self) -> None:
        """Draw the bar."""
        picture = self._picture()
        if picture != self._shown:
            self._output.update(picture, raw=True)
            self._shown = picture

    def close(self) -> None:
        """Keep the bar in its current state."""
        self.show()

    def _picture(self) -> dict[str, str]:
        report = self._report
        trouble = f"; {report.trouble}" if report.trouble else ""
        name, text = html.escape(report.name), html.escape(f"{report}{trouble}")
        # Without a value, the bar shows that work is in progress.
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
    """Number of calls by state.

    Attributes:
        running: Calls in tasks that are running or starting.
        done: Calls that have returned, as far as is known: finished tasks count before they are
            fetched.
        failed: Calls with an error.
        total: Number of calls; None if it is not known yet, or was given before.
        packed: Number of pickled calls during an upload; None without an upload.
        sent_bytes: Number of uploaded bytes.
        errors: Number of failed calls by error: ``ValueError x14, KeyError x1``.
        cached: Number of finished calls whose results were cached.
    """

    running: int = 0
    done: int = 0
    failed: int = 0
    total: int | None = None
    packed: int | None = None
    sent_bytes: int = 0
    errors: str = ""
    cached: int = 0

    @property
    def ended(self) -> int:
        """Calls that do not run again."""
        return self.done + self.failed


class Progress:
    """Progress display for the duration of a ``with`` block.

    It never fails: display errors are ignored.

    Args:
        name: Name of the function.
        total: Number of calls; None if it is not known yet.
        count: Returns the current counts.
        timing: Intervals of the display.
        trouble: Returns why the counts cannot be updated, and a remedy; empty if they can.
        failures: Returns lines about failed calls and their errors, for the end.
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
    """Ignore errors of the terminal during a block."""
    try:
        yield
    except Exception as error:
        _log.debug("progress cannot be shown: %r", error)


class Report:
    """Counts, and their rate of growth.

    Args:
        name: Name of the function.
        total: Number of calls; None if it is not known yet.

    Attributes:
        trouble: Why the counts cannot be updated; otherwise empty.
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
        """Update the counts."""
        self.counts = counts
        self.total = self.total if counts.total is None else counts.total
        now = time.monotonic()
        # The time before the first task began does not predict the duration of the others.
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
        if counts.cached:
            parts.append(f"{counts.cached}{of_all} from the cache")
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
    """Report as lines on stderr: at each tenth of the calls, or at maximum intervals."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._printed_at = time.monotonic()
        self._printed: Counts | None = None
        self._tenth = 0
        self._was_in_trouble = False

    def show(self) -> None:
        """Print a line if it is due."""
        tenth = _LINES * self._report.counts.ended // (self._report.total or sys.maxsize)
        is_new = self._report.trouble != "" and not self._was_in_trouble
        if tenth > self._tenth or is_new or time.monotonic() - self._printed_at >= _LINE_S:
            self._print()
            self._tenth = tenth
        self._was_in_trouble = self._report.trouble != ""

    def close(self) -> None:
        """Print the result."""
        if self._printed != self._report.counts:
            self._print()

    def _print(self) -> None:
        self._printed_at, self._printed = time.monotonic(), self._report.counts
        trouble = f"; {self._report.trouble}" if self._report.trouble else ""
        sys.stderr.write(f"farcall: {self._report.name}: {self._report}{trouble}\n")
        sys.stderr.flush()


def _view_of(report: Report) -> Bar | NotebookBar | LineReport:
    """Return a bar, or lines if stderr does not interpret control codes."""
    if is_here():
        return NotebookBar(report)
    from farcall.client.console import Console  # rich is slow to import

    console = Console(stderr=True)
    if not (console.is_interactive and sys.stderr.isatty()):
        return LineReport(report)
    from farcall.client.bars import Bar

    return Bar(report, console)
