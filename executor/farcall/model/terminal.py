"""Escaping of others' text for terminals: it is shown, and never obeyed. No I/O.

An escape sequence can move the cursor over what was shown before, set the window's title, fill
the clipboard, or have the terminal type an answer; an override of the direction makes a text read
as another one. A task's output and errors, AWS's words, names of files and keys in the bucket may
hold any of that. What farcall prints, logs and raises has gone through here.

Source:
    https://invisible-island.net/xterm/ctlseqs/ctlseqs.html
"""

from __future__ import annotations

import logging
import re

_COLOURS = re.compile(r"\x1b\[[0-9;:]*m")
_RESET = "\x1b[0m"

_BLANKS = "\t\n\v\f\r\x1c-\x1e\x85\u2028\u2029"
CONTROLS = "\x00-\x08\x0a-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff"
"""Members of a regular expression's class: what is no text but a tab. The last ranges turn the
direction of writing, and are halves of a character, which no encoding has bytes for."""

_BUT_LINES = re.compile(f"(?!\n)[{CONTROLS}]")
_ANY = re.compile(f"[{CONTROLS}]")
_SPACES = re.compile(f"\r\n|[{_BLANKS}]")


def shown(text: str) -> str:
    """Return a text of several lines with its control characters shown, without its colours."""
    return _BUT_LINES.sub(_name, _COLOURS.sub("", text).replace("\r\n", "\n"))


def in_a_line(text: str) -> str:
    """Return the same with blanks for the ends of lines, and for tabs."""
    return shown(_SPACES.sub(" ", text))


def output(text: str) -> str:
    """Return a line of a task's output, with its colours, which end with the line."""
    pieces = []
    start = 0
    for colour in _COLOURS.finditer(text):
        pieces += [_ANY.sub(_name, text[start : colour.start()]), colour[0]]
        start = colour.end()
    end = _RESET if start else ""
    return "".join([*pieces, _ANY.sub(_name, text[start:]), end])


def _name(found: re.Match[str]) -> str:
    """Return ``^[`` for ESC, as ``cat -v`` does, and the number of what has no such name."""
    number = ord(found[0])
    if number < 0x80:
        return f"^{chr(number ^ 0x40)}"
    return f"<{number:02X}>" if number < 0x100 else f"<U+{number:04X}>"


class Shown(logging.Filter):
    """Has farcall's lines in a log hold no control characters, wherever they are written to.

    A logger's filter does not see what loggers below it are told, so farcall has this one alone.
    """

    _formatter = logging.Formatter()

    def filter(self, record: logging.LogRecord) -> bool:
        """Change a line, and let it pass."""
        try:
            text = record.getMessage()
        except Exception:  # a wrong format: its handlers tell of it
            return True
        if shown(text) != text:
            record.msg, record.args = shown(text), None
        if record.exc_info and not record.exc_text:  # which formatters take before they make it
            record.exc_text = shown(self._formatter.formatException(record.exc_info))
        return True


logging.getLogger("farcall").addFilter(Shown())
