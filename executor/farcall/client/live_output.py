"""Job output on the caller's stdout and stderr, each line prefixed with its task.

One writer per process writes everything, line by line. Hundreds of lines per second are
unreadable, so faster output is dropped, and the number of dropped lines is reported.
"""

from __future__ import annotations

import contextlib
import itertools
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import TextIO

from farcall.model import terminal
from farcall.model.names import counted
from farcall.model.output import LogLine
from farcall_runtime.contract import STDERR

_LINES_PER_S = 200
_NOTE_S = 5.0


class LiveOutput:
    """Writer of all jobs' lines, with a limited rate.

    Args:
        now: Returns the time in seconds.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._lock = threading.Lock()  # event loops may run in several threads
        self._room = float(_LINES_PER_S)
        self._at = now()
        self._reported_at = self._at
        self._lines = self._bytes = 0
        self._jobs: set[str] = set()
        self._run = ""

    def write(self, label: str, run: str, lines: list[LogLine], left_out_bytes: int = 0) -> None:
        """Write a task's lines up to the limit; stderr goes to stderr."""
        with self._lock:
            now = self._now()
            self._room = min(_LINES_PER_S, self._room + (now - self._at) * _LINES_PER_S)
            self._at = now
            written, rest = lines[: int(self._room)], lines[int(self._room) :]
            self._room -= len(written)
            if self._jobs and written and now - self._reported_at >= _NOTE_S:
                self._report()
            begin = f"{terminal.in_a_line(label)} | "
            for stream, group in itertools.groupby(written, key=lambda line: line.stream):
                texts = [f"{begin}{terminal.output(line.text)}\n" for line in group]
                _print(sys.stderr if stream == STDERR else sys.stdout, "".join(texts))
            if rest or left_out_bytes:
                self._lines += len(rest)
                self._bytes += left_out_bytes
                self._jobs.add(label)
                self._run = run

    def settle(self) -> None:
        """Report the dropped lines."""
        with self._lock:
            if self._jobs:
                self._report()

    def _report(self) -> None:
        left = [f"{self._lines:,} lines"] if self._lines else []
        left += [f"{self._bytes / 1e6:,.1f} MB"] if self._bytes else []
        jobs = counted(len(self._jobs), "job")
        run = terminal.in_a_line(self._run)
        text = f"... {' and '.join(left)} of {jobs} omitted; see farcall logs --run {run}\n"
        _print(sys.stderr, text)
        self._lines = self._bytes = 0
        self._jobs.clear()
        self._reported_at = self._now()


writer = LiveOutput()
"""The process's writer."""


def label_of(name: str, calls: Sequence[int]) -> str:
    """Return the prefix of the lines of a map's task.

    Args:
        name: The function's name.
        calls: Numbers of the task's calls in the map.
    """
    last = f"-{calls[-1]}" if len(calls) > 1 else ""
    return f"{name}[{calls[0]}{last}]"


def _print(stream: TextIO, text: str) -> None:
    encoding = getattr(stream, "encoding", None) or "utf-8"  # a text-only stream has no encoding
    with contextlib.suppress(
        OSError, ValueError, AttributeError
    ):  # the stream is closed or missing
        stream.write(text.encode(encoding, "backslashreplace").decode(encoding))
        stream.flush()
