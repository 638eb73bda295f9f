"""Output that nobody asked for, and output that somebody did, as a part of the page."""

from __future__ import annotations

from collections.abc import Callable

import farcall.local
from benchmarks import report
from benchmarks.report import Row
from benchmarks.stage import Stage, environment

TITLE = "What much output takes"

_MIB = 1 << 20
_HEADINGS = ("what", "wall s", "CPU s", "longest stall s", "MiB grown", "times the output")
_NAMES = {"value": "`result()`, output not asked for", "stdout": "`stdout()`"}

_METHOD = """\
A task that prints {size:,} bytes, in lines of 128, on the embedded AWS. Its outcome is there when
the measurement begins; each client is a fresh process with a first task behind it. A stall is the
longest time for which the event loop did not turn, memory the largest resident size (VmHWM, begun
anew) above the one before."""


def part(say: Callable[[str], object], size: int, *, options: str) -> report.Part:
    """Measure, and return the part of the page.

    Args:
        say: Told what comes next.
        size: Bytes that are printed.
        options: Those the command was given.
    """
    rows, lines = [], []
    name = f"{size / _MIB:,.0f} MiB printed"
    for work, what in _NAMES.items():
        say(f"{name}, {work} ...")
        with farcall.local.start() as aws:
            place = Stage("", {**environment(""), **aws.environment})
            told = place.run("-m", "benchmarks.output_client", work, str(size))
        grown = told["memory_bytes"]
        if work == "value":
            rows += [
                Row(f"client's memory, {name} and not asked for", 128, grown / _MIB, "MiB"),
                Row("longest stall of its event loop, same", 0.05, told["stall_s"], "s"),
            ]
        figures = (told["wall_s"], told["cpu_s"], told["stall_s"], grown / _MIB, grown / size)
        lines.append((f"{name}: {what}", *(f"{figure:.2f}" for figure in figures)))
    pieces = [
        report.table(_HEADINGS, lines),
        "## How the output was measured",
        _METHOD.format(size=size),
    ]
    return report.part(TITLE, rows, pieces, options=options, tables=[(TITLE, _HEADINGS, lines)])
