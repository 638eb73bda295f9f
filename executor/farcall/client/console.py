"""Rich console that escapes what its terminal must not execute or cannot encode."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import rich.console
from rich.segment import Segment

from farcall.model import terminal


class Console(rich.console.Console):
    """Console that ignores control characters, markup and emoji codes in texts.

    Args:
        **options: Options of `rich.console.Console`.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"markup": False, "emoji": False, "highlight": False, **options})

    def render(self, *arguments: Any, **options: Any) -> Iterable[Segment]:
        """Render, and escape characters in everything that is not rich's own."""
        for segment in super().render(*arguments, **options):
            is_own = segment.control is not None
            text = segment.text if is_own else terminal.shown(segment.text)
            text = terminal.encodable(text, self.encoding)
            yield Segment(text, segment.style, segment.control)

    def on_broken_pipe(self) -> None:
        """Exit successfully, because the reader, such as ``head``, needs no more."""
        try:
            super().on_broken_pipe()
        except SystemExit:
            raise SystemExit(0) from None
