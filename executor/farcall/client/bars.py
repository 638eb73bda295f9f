"""Progress bars of sweeps: rows of one live display per process."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterable
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.progress import BarColumn, Progress, Task, TextColumn
from rich.table import Column
from rich.text import Text

if TYPE_CHECKING:
    from farcall.client.console import Console
    from farcall.client.progress import Report


class _Display(Progress):
    def get_renderables(self) -> Iterable[RenderableType]:
        return map(self.draw, self.tasks)

    def draw(self, task: Task) -> RenderableType:
        """Return a row: a name and a bar, with the report below."""
        report: Report = task.fields["report"]
        trouble = f"\n  {report.trouble}" if report.trouble else ""
        text = Text.assemble(f"  {report}", (trouble, "yellow"))
        return Group(self.make_tasks_table([task]), text)

    def refresh(self) -> None:
        """Do nothing: only `Bar.show` draws, so a new row exists if drawing fails."""


class Bar:
    """Row of one sweep in the display."""

    _lock = threading.RLock()  # sweeps may run on several event loops
    _shared: _Display | None = None  # rich draws one at a time

    def __init__(self, report: Report, console: Console) -> None:
        self._report = report
        with self._lock:
            self._display = Bar._shared = self._shared or _start(console)
            self._row = self._display.add_task(report.name, total=report.total, report=report)

    def show(self) -> None:
        """Draw the current progress."""
        report = self._report
        self._display.update(self._row, completed=report.counts.ended, total=report.total)
        self._display.live.refresh()

    def close(self) -> None:
        """Freeze the row; the display ends with the last row."""
        with self._lock:
            display, rows = self._display, {task.id: task for task in self._display.tasks}
            if self._row not in rows:
                return
            try:
                self.show()  # stopping draws only on terminals
            finally:
                if len(rows) == 1:
                    Bar._shared = None
                    display.live.stop()
                display.remove_task(self._row)
            if len(rows) > 1:
                display.console.print(display.draw(rows[self._row]))


def _start(console: Console) -> _Display:
    name = Column(no_wrap=True, max_width=30)
    display = _Display(
        TextColumn("{task.description}", markup=False, table_column=name),
        BarColumn(bar_width=None),
        console=console,
        auto_refresh=False,
        expand=True,
        # Redirected output must not appear here; other output is printed above the bars.
        redirect_stdout=sys.stdout.isatty(),
    )
    display.live.start()
    return display
