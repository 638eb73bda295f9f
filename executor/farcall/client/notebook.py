"""Notebook's bar: an output of the cell, which is replaced as its sweep goes on.

IPython's own display is enough for it, so nothing needs to be installed beside it. The output is
kept in the notebook's file as it was last.
"""

from __future__ import annotations

import html
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from farcall.client.progress import Report


def is_here() -> bool:
    """Tell whether this is a notebook's kernel, and no terminal."""
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
