"""Tracebacks of jobs, with source lines that only this machine has."""

from __future__ import annotations

import linecache
import re
from itertools import zip_longest

# Python draws the lines of an exception group before the indentation.
_FRAME = re.compile(r'(?P<margin>[ |]*)File "(?P<file>[^"]+)", line (?P<line>\d+), in ')


def with_source(text: str) -> str:
    """Add source lines to a traceback if the image lacks the file.

    A function that is pickled by value is sent without its file, so Python finds no source in the
    job. As in any traceback, the lines are the file's current ones.
    """
    lines = text.splitlines()
    shown = []
    for line, following in zip_longest(lines, lines[1:], fillvalue=""):
        shown.append(line)
        frame = _FRAME.match(line)
        if frame is None or following.startswith(frame["margin"] + "  "):
            continue
        source = linecache.getline(frame["file"], int(frame["line"])).strip()
        if source:
            shown.append(f"{frame['margin']}  {source}")
    return "\n".join(shown)
