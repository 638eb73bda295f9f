"""What the demos have in common."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime

from rich.panel import Panel
from rich.table import Table


def seconds(start: datetime | None, end: datetime | None) -> str:
    """Return how long something took; a dash where it has not begun or not ended."""
    return f"{(end - start).total_seconds():.1f} s" if start and end else "-"


def next_steps(commands: Iterable[tuple[str, str]]) -> Panel:
    """Return a panel of commands to be tried next, each with what it is for."""
    following = Table.grid(padding=(0, 3))
    for command, purpose in commands:
        following.add_row(f"[bold]{command}[/]", purpose)
    return Panel(following, title="What to type next", border_style="green")


@contextmanager
def environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Have these environment variables and no others for as long as the block lasts."""
    before = dict(os.environ)
    os.environ.clear()
    os.environ.update(variables)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
