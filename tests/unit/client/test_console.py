"""A console that shows what it is given."""

from __future__ import annotations

import io

from farcall.client.console import Console
from tests.support import hostile


def test_a_console_shows_what_it_is_given_and_draws_its_own():
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=200)
    console.print(f"[bold]{hostile.TEXT}[/]", style="red")
    assert hostile.obeyed(out.getvalue()) == set()
    assert f"[bold]{hostile.MARK}" in out.getvalue()
    assert "\x1b[31m" in out.getvalue()
