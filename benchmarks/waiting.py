"""Memory per waiting task: many fresh clients whose jobs are held back, as a part of the page."""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable
from typing import Any

from benchmarks import report
from benchmarks.report import Row
from benchmarks.stage import ROOT, Stage

TITLE = "What a waiting task holds"

_KB = 1024
_TURNS = 3
_LINES = 8
_SHAPES = {
    "map": "one `map`",
    "jobs": "separate `submit`, their `Job`s at hand",
    "results": "separate `submit`, `await job.result()` in an asyncio task each",
    "nothing": "no farcall: asyncio tasks that wait for a future each",
}
_HEADINGS = ("what waits", "KB/task", "at the peak, KB/task", "of it Python's objects, KB/task")
_LINE_HEADINGS = ("what waits", "bytes/task", "objects/task", "line")

_METHOD = """\
A fresh client, a first task behind it, submitted {count:,} trivial tasks, whose jobs the played
cloud held back. When they had been submitted and three seconds more had passed, the process's
anonymous memory (RssAnon) was read, and after a garbage collection; the figure is how much it had
grown since before the first call, by task. The peak is that of the resident size (VmHWM). Then the
jobs were let run and every value was checked. Medians of {turns} runs, which follow in brackets.
1 KB is 1024 bytes. What Python's objects hold was followed in another run (tracemalloc); the
rest is what the submission left behind in the allocators, free for the next. The last line is
what the caller's own asyncio tasks take, and is not taken off the others."""


def part(say: Callable[[str], object], place: Stage, count: int, *, options: str) -> report.Part:
    """Measure, and return the part of the page."""
    rows, lines, held = [], [], []
    for shape, name in _SHAPES.items():
        runs = []
        for turn in range(_TURNS):
            say(f"memory of {count:,} waiting tasks, turn {turn + 1}: {name} ...")
            runs.append(place.run("-m", "benchmarks.waiting_client", shape, str(count)))
        traced = place.run("-m", "benchmarks.waiting_client", shape, str(count), str(_LINES))
        settled = [_grown(run, "anonymous", "anonymous") / count for run in runs]
        peak = statistics.median(_grown(run, "rss", "peak") / count for run in runs)
        middle = statistics.median(settled)
        lines.append(
            (
                name,
                report.runs([each / _KB for each in settled], middle / _KB),
                report.number(peak / _KB),
                report.number(traced["traced_bytes"] / count / _KB),
            )
        )
        if shape != "nothing":
            rows.append(Row(f"client's memory per waiting task, {name}", 4, middle / _KB, "KB"))
            held += [
                (name, f"{size / count:.0f}", f"{number / count:.1f}", f"`{_short(place)}`")
                for place, size, number in traced["lines"]
            ]
    pieces = [
        report.table(_HEADINGS, lines),
        "## Which lines hold it",
        report.table(_LINE_HEADINGS, held),
        "## How the memory was measured",
        _METHOD.format(count=count, turns=_TURNS),
    ]
    tables = [(TITLE, _HEADINGS, lines), ("Which lines hold it", _LINE_HEADINGS, held)]
    return report.part(TITLE, rows, pieces, options=options, tables=tables)


def _grown(run: dict[str, Any], before: str, after: str) -> int:
    return int(run["waiting"][after] - run["before"][before])


def _short(place: str) -> str:
    """Name a file from its package on, not from the machine's root."""
    installed = re.sub(r"^.*/(?:executor|runtime_image|site-packages|python3\.\d+)/", "", place)
    return installed.removeprefix(f"{ROOT}/")
