"""A million calls of one `map`, as a part of the page."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

from benchmarks import measure, report
from benchmarks.client import CHUNK
from benchmarks.measure import Run
from benchmarks.report import Row
from benchmarks.stage import Stage

TITLE = "What a million calls cost"

CALLS = 1_000_000
_CPU_US = 60
_GROWN_MB = 150
_FLOOR = "floor: bare requests and pickles"
_INPUTS = {"chunked": "a `range`", "generated": "a generator"}
_HEADINGS = (
    "calls of",
    "CPU us/call",
    "times the floor",
    "MB grown at the peak",
    "jobs",
    "requests (S3, Batch)",
    "wall s",
)

_METHOD = """\
`await double.map(..., chunksize={chunk})` in a fresh client: {calls:,} calls of a trivial function
in {tasks:,} tasks, and every value checked. CPU is that of all threads of the client, from the
moment the executor was open to the moment it was closed with everything deleted. Memory is how
much the largest resident size (VmHWM, begun anew) was above that at the beginning; the list of
values is in it. S3, Batch and the containers are played, as in the first part. Medians of the
turns, which follow in brackets; times the floor within each turn.

**Floor:** the S3 requests that the `range` took, of as many bytes, sent with bare obstore, 16 at a
time; one cloudpickle for the arguments of a task, one unpickling for the value of a call. No
signatures, no digests, no Batch, no tracking, no list of values."""


def part(
    say: Callable[[str], object], place: Stage, calls: int, turns: int, *, options: str
) -> report.Part:
    """Measure, and return the part of the page."""
    tasks = calls // CHUNK
    runs: dict[str, list[Run]] = {name: [] for name in (*_INPUTS, _FLOOR)}
    for turn in range(turns):
        for name, of in _INPUTS.items():
            say(f"{calls:,} calls of {of}, turn {turn + 1} ...")
            runs[name].append(measure.client(place, name, calls))
        runs[_FLOOR].append(measure.floor(place, runs["chunked"][-1], tasks, CHUNK))
    figures = {name: [_us(run, calls) for run in each] for name, each in runs.items()}
    ranges = runs["chunked"]
    what = f"client's CPU for each of {calls:,} calls by `map`, {CHUNK} in a task"
    grown = statistics.median(run.grown_bytes / 1e6 for run in ranges)
    rows = [
        Row(what, _CPU_US, statistics.median(figures["chunked"]), "us"),
        Row("its memory grown meanwhile, the values in it", _GROWN_MB, grown, "MB"),
    ]
    lines = [
        _line(_INPUTS.get(name, name), each, figures[name], figures[_FLOOR])
        for name, each in runs.items()
    ]
    pieces = [
        report.table(_HEADINGS, lines),
        "## How a million calls were measured",
        _METHOD.format(calls=calls, tasks=tasks, chunk=CHUNK),
    ]
    return report.part(TITLE, rows, pieces, options=options, tables=[(TITLE, _HEADINGS, lines)])


def _us(run: Run, calls: int) -> float:
    return run.cpu_s / calls * 1e6


def _line(
    name: str, runs: Sequence[Run], figures: Sequence[float], floors: Sequence[float]
) -> tuple[str, ...]:
    grown = [run.grown_bytes / 1e6 for run in runs]
    walls = [run.wall_s for run in runs]
    most = max(runs, key=lambda run: run.count())
    return (
        name,
        report.runs(figures, statistics.median(figures)),
        report.number(statistics.median(a / b for a, b in zip(figures, floors, strict=True))),
        report.runs(grown, statistics.median(grown), ".0f"),
        str(most.requests.get("batch SubmitJob", 0)),
        f"{most.count()} ({most.count('s3')}, {most.count('batch')})",
        report.runs(walls, statistics.median(walls), ".0f"),
    )
