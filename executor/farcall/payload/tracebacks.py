"""Tracebacks of jobs, with the lines of source that only this machine has."""

from __future__ import annotations

import linecache
import re
from itertools import zip_longest

# Before the indentation Python draws the lines of an exception group.
_FRAME = re.compile(r'(?P<margin>[ |]*)File "(?P<file>[^"]+)", line (?P<line>\d+), in ')


def with_source(text: str) -> str:
    """Add lines of source to a traceback where the image has not got the file.

    A function that travels by value leaves its file behind, so Python finds no source there. As
    in any traceback, the lines are those the file has now.
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
