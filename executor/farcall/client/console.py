"""Console of rich's on which a terminal shows what is printed, and obeys nothing of it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import rich.console
from rich.segment import Segment

from farcall.model import terminal


class Console(rich.console.Console):
    """A console that takes nothing in a text for its own: controls, markup or emojis.

    Args:
        **options: Those of `rich.console.Console`.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"markup": False, "emoji": False, "highlight": False, **options})

    def render(self, *arguments: Any, **options: Any) -> Iterable[Segment]:
        """Render, and show the controls in what does not come from rich itself."""
        for segment in super().render(*arguments, **options):
            is_own = segment.control is not None
            text = segment.text if is_own else terminal.shown(segment.text)
            yield Segment(text, segment.style, segment.control)
