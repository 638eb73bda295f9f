"""A console that escapes control sequences."""

import io

from farcall.client.console import Console
from tests.support import hostile


def test_control_sequences_are_escaped():
    """Text is shown literally; the console's own styles are kept."""
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=200)
    console.print(f"[bold]{hostile.TEXT}[/]", style="red")
    assert hostile.obeyed(out.getvalue()) == set()
    assert f"[bold]{hostile.MARK}" in out.getvalue()
    assert "\x1b[31m" in out.getvalue()


def test_unencodable_character_is_escaped():
    out = io.TextIOWrapper(io.BytesIO(), encoding="cp1252")
    Console(file=out, width=200).print("gr\xf6\xdfer \u2717")
    out.flush()
    assert out.buffer.getvalue() == b"gr\xf6\xdfer \\u2717\n"
