"""Requests and CPU of this checkout against an older one's, in turns, as a part of the page."""

from __future__ import annotations

import contextlib
import statistics
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from benchmarks import measure, report
from benchmarks.measure import Run
from benchmarks.report import Row
from benchmarks.stage import ROOT, stage

TITLE = "What changed since an older commit"

_WORKS = {"sweep": "`map`", "singles": "separate `submit`"}
_REQUESTS = 1.0
_TIMES = 1.05
_HEADINGS = (
    "tasks",
    "client",
    "commit",
    "CPU ms/task",
    "times the older one",
    "requests (S3, Batch)",
    "requests/task",
    "MB grown at the peak",
    "wall s",
)

_METHOD = """\
The same as [above](#how-the-clients-were-measured), by the clients of two commits in turns, the
older one first in each second turn. Each has a cloud and a fleet of its own, of its own commit,
both running all the time; the packages are the same. CPU is compared turn by turn, and the figure
is the median of the ratios. Requests are those of the turn with the most. One commit is the one
that this page belongs to, the older one is
{older}."""


@contextlib.contextmanager
def checkout(commit: str) -> Iterator[Path]:
    """Have the files of a commit in a folder, for as long as a block lasts."""
    with tempfile.TemporaryDirectory(prefix="farcall-before-") as folder:
        tree = Path(folder, "tree")
        tree.mkdir()
        archive = Path(folder, "tree.tar")
        subprocess.run(["git", "archive", "--output", archive, commit], cwd=ROOT, check=True)
        subprocess.run(["tar", "-xf", archive, "-C", tree], check=True)
        yield tree


def part(
    say: Callable[[str], object], commit: str, tasks: int, turns: int, *, options: str
) -> report.Part:
    """Measure, and return the part of the page."""
    runs: dict[tuple[str, str], list[Run]] = {}
    with checkout(commit) as tree, stage() as now, stage(root=tree) as before:
        places = {"this": now, "older": before}
        for turn in range(turns):
            names = list(places)[:: -1 if turn % 2 else 1]
            for work, called in _WORKS.items():
                say(f"{tasks:,} tasks, {called}, turn {turn + 1} of {turns} ...")
                for name in names:
                    run = measure.client(places[name], work, tasks)
                    runs.setdefault((work, name), []).append(run)
    rows = [row for work in _WORKS for row in _rows(work, runs, tasks)]
    lines = [
        _line(called, name, runs[work, name], runs[work, "older"], tasks)
        for work, called in _WORKS.items()
        for name in ("this", "older")
    ]
    pieces = [
        report.table(_HEADINGS, lines),
        "## How the commits were compared",
        _METHOD.format(older=_described(commit)),
    ]
    return report.part(TITLE, rows, pieces, options=options, tables=[(TITLE, _HEADINGS, lines)])


def _rows(work: str, runs: dict[tuple[str, str], list[Run]], tasks: int) -> list[Row]:
    this, older = runs[work, "this"], runs[work, "older"]
    more = (_most(this).count() - _most(older).count()) / tasks
    what = f"{tasks:,} tasks by {_WORKS[work]}"
    return [
        Row(f"requests per task more than before, {what}", _REQUESTS, more),
        Row("client CPU, times what it was, same", _TIMES, _times(this, older)),
    ]


def _line(
    called: str, name: str, each: Sequence[Run], older: Sequence[Run], tasks: int
) -> tuple[str, ...]:
    cpu_ms = [1000 * run.cpu_s / tasks for run in each]
    most = _most(each)
    return (
        f"{tasks:,}",
        called,
        name,
        report.runs(cpu_ms, statistics.median(cpu_ms)),
        "" if each is older else f"{_times(each, older):.3f}",
        f"{most.count()} ({most.count('s3')}, {most.count('batch')})",
        report.number(most.count() / tasks),
        f"{statistics.median(run.grown_bytes / 1e6 for run in each):.1f}",
        f"{statistics.median(run.wall_s for run in each):.2f}",
    )


def _most(each: Sequence[Run]) -> Run:
    return max(each, key=lambda run: run.count())


def _times(this: Sequence[Run], older: Sequence[Run]) -> float:
    """Return the median of the turns' ratios."""
    return statistics.median(a.cpu_s / b.cpu_s for a, b in zip(this, older, strict=True))


def _described(commit: str) -> str:
    """Return the hash of a commit, its day and its subject."""
    command = ["git", "show", "--no-patch", "--format=%h of %cs (%s)", f"{commit}^{{commit}}"]
    return subprocess.run(
        command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True
    ).stdout.strip()
