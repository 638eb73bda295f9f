"""Progress display of a sweep: a bar on a terminal or in a notebook, elsewhere single lines."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any

from farcall.model import terminal

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.live import Live

    from farcall.client.console import Console

_log = logging.getLogger("farcall")

_STEP_S = 0.25
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
    """

    running: int = 0
    done: int = 0
    failed: int = 0

    @property
    def ended(self) -> int:
        """Calls that will not be run again."""
        return self.done + self.failed


class Progress:
    """Shows how far some calls are, for as long as the ``with`` block lasts.

    It never fails: what cannot be shown is not shown.

    Args:
        name: What they are calls of.
        total: Their number.
        count: Tells how far they are.
        trouble: Tells what keeps that from being known, and what to do; empty where nothing does.
    """

    def __init__(
        self,
        name: str,
        total: int,
        count: Callable[[], Counts],
        trouble: Callable[[], str] = lambda: "",
    ) -> None:
        self._report = Report(name, total)
        self._count = count
        self._trouble = trouble
        self._view: Bar | Lines | None = None
        self._showing: asyncio.Task[None] | None = None

    def __enter__(self) -> None:
        with _harmless():
            self._report.take(self._count())
            console = _live_console()
            self._view = Lines(self._report) if console is None else Bar(self._report, console)
            self._showing = asyncio.ensure_future(self._show())
            self._view.show()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        stack: TracebackType | None,
    ) -> None:
        if self._showing is not None:
            self._showing.cancel()
        with _harmless():
            if self._view is not None:
                self._report.take(self._count())
                self._view.close()

    async def _show(self) -> None:
        with _harmless():
            while self._view is not None:
                await asyncio.sleep(_STEP_S)
                self._report.take(self._count())
                self._report.trouble = self._trouble()
                self._view.show()


@contextlib.contextmanager
def _harmless() -> Any:
    """Keep a terminal's trouble from a sweep."""
    try:
        yield
    except Exception as error:
        _log.debug("progress cannot be shown: %r", error)


class Report:
    """Counts, and how fast they grow.

    Args:
        name: What they are calls of.
        total: Their number.

    Attributes:
        trouble: What keeps them from being known any better; else empty.
    """

    def __init__(self, name: str, total: int) -> None:
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
        counts = self.counts
        queued = self.total - counts.ended - counts.running
        parts = [f"{counts.done} of {self.total} done", f"{counts.failed} failed"]
        parts += [f"{counts.running} running", f"{queued} queued"]
        pace = f"{self._per_s:.1f} calls/s"
        if 0 < self._per_s < 1:
            pace = f"{60 * self._per_s:.1f} calls/min"
        parts += [pace, _duration(time.monotonic() - self._began)]
        left = self.total - counts.ended
        if left and self._per_s:
            parts.append(f"{_duration(left / self._per_s)} left")
        return ", ".join(parts)


def _duration(seconds: float) -> str:
    return str(timedelta(seconds=round(seconds)))


class Lines:
    """A line on stderr at each tenth of the way, and where that takes long now and then."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._said_at = time.monotonic()
        self._said: Counts | None = None
        self._tenth = 0
        self._was_in_trouble = False

    def show(self) -> None:
        """Say a line if it is time for one."""
        tenth = _LINES * self._report.counts.ended // self._report.total
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


def _live_console() -> Console | None:
    """Return what a bar can be drawn on, or None where it would only leave control codes."""
    from farcall.client.console import Console  # which has rich, here and below: slow to import

    console = Console(stderr=True)
    if console.is_jupyter or (console.is_interactive and sys.stderr.isatty()):
        return console
    return None


class Bar:
    """A row of the live display that all sweeps of a process share: rich draws one at a time."""

    _lock = threading.RLock()  # sweeps may run on several event loops
    _rows: list[Bar] = []  # noqa: RUF012  # of the whole process
    _live: Live | None = None

    def __init__(self, report: Report, console: Console) -> None:
        self._report = report
        with self._lock:
            if Bar._live is None:
                Bar._live = _start(console)
            self._rows.append(self)

    def show(self) -> None:
        """Draw."""
        with self._lock:
            if self._live is not None:
                self._live.refresh()

    def close(self) -> None:
        """Leave the row as it is now: with the last one the display ends."""
        with self._lock:
            live = self._live
            if live is None:
                return
            if len(self._rows) == 1:
                Bar._live = None
                with contextlib.ExitStack() as last:
                    last.callback(self._rows.clear)
                    last.callback(live.stop)
                    live.refresh()  # stopping draws on terminals alone
            else:
                self._rows.remove(self)
                live.console.print(self.draw())

    def draw(self) -> RenderableType:
        """Return the row."""
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        row = Table.grid(padding=(0, 1), expand=True)
        row.add_column(no_wrap=True, max_width=30)
        row.add_column(ratio=1)
        bar = ProgressBar(total=self._report.total, completed=self._report.counts.ended)
        row.add_row(Text(self._report.name), bar)
        lines = [Text(f"  {self._report}")]
        if self._report.trouble:
            lines.append(Text(f"  {self._report.trouble}", style="yellow"))
        return Group(row, *lines)


def _start(console: Console) -> Live:
    from rich.console import Group
    from rich.live import Live

    live = Live(
        console=console,
        auto_refresh=False,
        # What goes elsewhere must not come here; what comes here anyway is to stand above.
        redirect_stdout=sys.stdout.isatty(),
        get_renderable=lambda: Group(*(row.draw() for row in Bar._rows)),
    )
    live.start()
    return live
