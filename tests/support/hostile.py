"""Texts of tasks and names with terminal sequences."""

from __future__ import annotations

import re

MARK = "HOSTILE"
"""What is to be seen of it."""

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
"""One line that has them all, except the carriage return."""

OVERWRITE = "\rowned"

_OWN = re.compile(r"\x1b\[[0-9;]*m|\x1b\[\?25[hl]|\x1b\[1A|\x1b\[2K|\r(?=\x1b\[2K)")
"""What rich sends: colours, and what a spinner needs."""

_OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def obeyed(text: str) -> set[str]:
    """Return what a terminal would obey in a text, colours and the ends of lines excepted."""
    return set(_OBEYED.findall(_OWN.sub("", text)))
