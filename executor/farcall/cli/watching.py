"""Watch of jobs: ``farcall list --watch``, a table on a terminal's second screen, or lines."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator, Sequence
from datetime import datetime, timezone
from typing import NoReturn

from rich.console import Group
from rich.live import Live
from rich.text import Text

from farcall.cli import tables
from farcall.cli.printing import say
from farcall.client.console import Console
from farcall.model.wording import counted
from farcall.operations.catalog import Entry

_PAUSE_S = 2.0

Show = Callable[[Sequence[Entry]], None]


async def watch(look: Callable[[], Awaitable[Sequence[Entry]]], *, whole_ids: bool) -> NoReturn:
    """Show some jobs again and again.

    Args:
        look: Returns them as they are.
        whole_ids: Do not shorten IDs on a terminal either.

    Raises:
        ServiceError: AWS refused a call.
    """
    out = Console()
    with _on_screen(out, whole_ids=whole_ids) if out.is_terminal else _in_lines() as show:
        while True:
            show(await look())
            await asyncio.sleep(_PAUSE_S)


@contextlib.contextmanager
def _on_screen(out: Console, *, whole_ids: bool) -> Iterator[Show]:
    """Show them as a table, the newest first, as many as there is room for."""
    with Live(console=out, screen=True, auto_refresh=False, vertical_overflow="crop") as live:

        def show(entries: Sequence[Entry]) -> None:
            at = tables.clock(datetime.now(timezone.utc))
            head = f"{counted(len(entries), 'job')} at {at}; Ctrl-C ends this"
            table = tables.table(entries, out.width, whole_ids=whole_ids)
            live.update(Group(Text(head, "dim"), Text(), table), refresh=True)

        yield show


@contextlib.contextmanager
def _in_lines() -> Iterator[Show]:
    """Print a line for each that is new or has changed."""
    shown: dict[str, str] = {}

    def show(entries: Sequence[Entry]) -> None:
        for entry in entries:
            job_id, line = entry.detail.job_id, tables.line(entry).plain
            if shown.get(job_id) != line:
                say(line)
            shown[job_id] = line

    yield show
