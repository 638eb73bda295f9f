"""Hostile texts with terminal sequences, for names and output of tasks."""

from __future__ import annotations

import re

MARK = "HOSTILE"
"""The part of a hostile text that must be visible."""

SEQUENCES = {
    "title": "\x1b]0;owned\x07",
    "clipboard": "\x1b]52;c;b3duZWQ=\x07",
    "clear": "\x1b[2J\x1b[1;1H",
    "answer": "\x1b[6n\x1bP$qm\x1b\\",
    "hidden colour": "\x1b[0\x1b[0m;8m",
    "C1": "\x9d0;owned\x9c\x9b2J",
    "direction": "\u202edenwo\u2066",
    "surrogate": "\ud800",
    "backspace": "\b\b\b\b",
    "lines": "\x85\u2028\v\f",
}
TEXT = f"{MARK}{''.join(SEQUENCES.values())}end"
"""One line with all sequences, except the carriage return."""

OVERWRITE = "\rowned"

_OWN = re.compile(r"\x1b\[[0-9;]*m|\x1b\[\?25[hl]|\x1b\[1A|\x1b\[2K|\r(?=\x1b\[2K)")
"""Sequences of rich: colors and spinners."""

_OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def obeyed(text: str) -> set[str]:
    """Return the control characters in a text, except colors and line ends."""
    return set(_OBEYED.findall(_OWN.sub("", text)))
