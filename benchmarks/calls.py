"""One call on the embedded AWS, an executor opened and left, a map; a part of the page."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

import farcall.local
from benchmarks import report
from benchmarks.report import Row
from benchmarks.stage import Stage, environment

TITLE = "How soon the embedded AWS answers"

TURNS = 20
_CALL_S = _OPEN_S = 0.12
_TASKS_A_SECOND = 63
_HEADINGS = ("what", "first s", "median s", "least s", "most s", "tasks/s")

_METHOD = """\
A fresh client and a fresh `farcall local`, whose jobs are real container sides in processes of
their own. First an executor's `async with` was entered and left, {turns} times after a first one,
in which AWS's service models are read; then, in one block, a trivial function was called and
awaited, {turns} times after a first one, in which a job definition is registered and the process
begins that forks jobs; then `map` of {tasks:,} calls of it. Waits and limits are those that users
have. Every value was checked."""


def part(say: Callable[[str], object], tasks: int, *, options: str) -> report.Part:
    """Measure, and return the part of the page."""
    say(f"{TURNS} calls and a map of {tasks:,} on the embedded AWS ...")
    with farcall.local.start() as aws:
        place = Stage("", {**environment(""), **aws.environment})
        told = place.run("-m", "benchmarks.calls_client", str(TURNS), str(tasks))
    called, opened, mapped_s = told["called_s"], told["opened_s"], told["mapped_s"]
    name = f"{tasks:,} trivial tasks by `map`, all values in the caller's hands"
    rows = [
        Row("one call on the embedded AWS to its value", _CALL_S, _middle(called), "s"),
        Row("open and leave an executor, same", _OPEN_S, _middle(opened), "s"),
        Row(f"{name}, same", tasks / _TASKS_A_SECOND, mapped_s, "s"),
    ]
    lines = [
        _line("one call to its value", called),
        _line("open and leave an executor", opened),
        (name, f"{mapped_s:.2f}", "", "", "", f"{tasks / mapped_s:.1f}"),
    ]
    pieces = [
        report.table(_HEADINGS, lines),
        "## How the calls were measured",
        _METHOD.format(turns=TURNS, tasks=tasks),
    ]
    return report.part(TITLE, rows, pieces, options=options, tables=[(TITLE, _HEADINGS, lines)])


def _middle(seconds: Sequence[float]) -> float:
    return statistics.median(seconds[1:])


def _line(what: str, seconds: Sequence[float]) -> tuple[str, ...]:
    first, *others = seconds
    figures = (first, _middle(seconds), min(others), max(others))
    return (what, *(f"{figure:.3f}" for figure in figures), "")
