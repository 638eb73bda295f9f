"""Lines of tasks, written as they are, or so that a terminal shows them and does nothing else."""

from __future__ import annotations

import itertools
import os
import re
import sys
from collections.abc import Callable, Iterable

from farcall.transcript import Line
from farcall_runtime.contract import STDERR

_COLOURS = re.compile(r"\x1b\[[0-9;:]*m")
_RESET = "\x1b[0m"
_CONTROLS = re.compile(r"[\x00-\x08\x0a-\x0c\x0e-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")
"""Everything that is no text but tab and carriage return, by which a progress bar rewrites its own
line. The last two ranges turn the direction of writing."""


def harmless(text: str) -> str:
    """Return a line whose control characters are shown instead of obeyed, colours excepted.

    An escape sequence can move the cursor over what was shown before, set the window's title, fill
    the clipboard, or have the terminal type an answer. A task may write what others gave it.
    """
    pieces = []
    start = 0
    for colour in _COLOURS.finditer(text):
        pieces += [_shown(text[start : colour.start()]), colour[0]]
        start = colour.end()
    end = _RESET if start else ""
    return "".join([*pieces, _shown(text[start:]), end])


def _shown(text: str) -> str:
    return _CONTROLS.sub(lambda found: _name(found[0]), text)


def _name(character: str) -> str:
    """Return ``^[`` for ESC, as ``cat -v`` does, and the number of what has no such name."""
    number = ord(character)
    if number < 0x80:
        return f"^{chr(number ^ 0x40)}"
    return f"<{number:02X}>" if number < 0x100 else f"<U+{number:04X}>"


class Printer:
    """Writes lines where their task wrote them, in UTF-8.

    To a terminal harmless ones are written, elsewhere they are as they are. What CloudWatch does
    not tell apart goes to stdout.

    Args:
        layout: Makes of a line what is written for it.
        only: ``"stdout"`` or ``"stderr"`` where everything goes there.
    """

    def __init__(
        self, layout: Callable[[Line], str] = lambda line: line.text, *, only: str = ""
    ) -> None:
        self._layout = layout
        self._only = only

    def print(self, lines: Iterable[Line]) -> None:
        """Write lines.

        Raises:
            BrokenPipeError: Whoever read them is gone.
        """
        for to_stderr, group in itertools.groupby(lines, self._goes_to_stderr):
            stream = sys.stderr if to_stderr else sys.stdout
            texts = map(self._layout, group)
            if stream.isatty():
                texts = map(harmless, texts)
            data = "".join(f"{text}\n" for text in texts)
            stream.buffer.write(data.encode(errors="backslashreplace"))
            stream.flush()

    def _goes_to_stderr(self, line: Line) -> bool:
        return (self._only or line.stream) == STDERR


def give_up_stdout() -> None:
    """Let nothing more be written to stdout, whose reader is gone, at this process's end either.

    Source:
        https://docs.python.org/3/library/signal.html#note-on-sigpipe
    """
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
