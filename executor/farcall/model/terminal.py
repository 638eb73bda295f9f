"""Escaping of untrusted text for terminals: shown, and never executed. No I/O.

An escape sequence can move the cursor over earlier output, set the window's title, fill the
clipboard, or make the terminal type a response; a direction override makes a text read as another
one. A task's output and errors, AWS's messages, file names and keys in the bucket may contain such
sequences. Everything that farcall prints, logs and raises is escaped here.

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
"""Members of a regular expression's character class: control characters except tabs.

The last ranges change the writing direction, and are surrogates, which no encoding supports.
"""

_BUT_LINES = re.compile(f"(?!\n)[{CONTROLS}]")
_ANY = re.compile(f"[{CONTROLS}]")
_SPACES = re.compile(f"\r\n|[{_BLANKS}]")


def shown(text: str) -> str:
    """Return a text of several lines with visible control characters, without colors."""
    return _BUT_LINES.sub(_name, _COLOURS.sub("", text).replace("\r\n", "\n"))


def in_a_line(text: str) -> str:
    """Return the same on one line, with spaces instead of line ends and tabs."""
    return shown(_SPACES.sub(" ", text))


def encodable(text: str, encoding: str) -> str:
    """Return a text with escapes for characters that an encoding lacks."""
    return text.encode(encoding, "backslashreplace").decode(encoding)


def output(text: str) -> str:
    """Return a line of a task's output with its colors, which are reset at its end."""
    pieces = []
    start = 0
    for colour in _COLOURS.finditer(text):
        pieces += [_ANY.sub(_name, text[start : colour.start()]), colour[0]]
        start = colour.end()
    end = _RESET if start else ""
    return "".join([*pieces, _ANY.sub(_name, text[start:]), end])


def _name(match: re.Match[str]) -> str:
    """Return ``^[`` for ESC, as ``cat -v`` does, and a code for unnamed characters."""
    number = ord(match[0])
    if number < 0x80:
        return f"^{chr(number ^ 0x40)}"
    return f"<{number:02X}>" if number < 0x100 else f"<U+{number:04X}>"


class Shown(logging.Filter):
    """Log filter that escapes control characters in all farcall records.

    A logger's filter does not see the records of child loggers, so farcall has only one logger.
    """

    _formatter = logging.Formatter()

    def filter(self, record: logging.LogRecord) -> bool:
        """Escape a record, and let it pass."""
        try:
            text = record.getMessage()
        except Exception:  # an invalid format, which the handlers report
            return True
        if shown(text) != text:
            record.msg, record.args = shown(text), None
        if record.exc_info and not record.exc_text:  # used by formatters
            record.exc_text = shown(self._formatter.formatException(record.exc_info))
        return True


logging.getLogger("farcall").addFilter(Shown())
