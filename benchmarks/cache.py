"""Cost of a map whose results are cached, compared with the same map without the cache."""

from __future__ import annotations

import statistics
from collections.abc import Callable

from benchmarks import report
from benchmarks.harness import Run, Settings, Stage, played
from benchmarks.report import Part, Row

TITLE = "What cached calls cost"

_COMPUTED = 0.01
"""Share of the calls that are not cached."""

_PLAIN, _FIRST, _CACHED = "`map`", "`map`, results are cached", "`map`, 99 % from the cache"
_HEADINGS = ("client", "calls", "computed", "CPU s", "wall s", "requests by operation")


def measure(settings: Settings) -> Part:
    """Measure a map without the cache, one that fills it, and one that uses it."""
    count = settings.tasks
    new = round(count * _COMPUTED)
    runs: dict[str, list[Run]] = {_PLAIN: [], _FIRST: [], _CACHED: []}
    with played() as stage:
        for number in range(settings.repeats):
            settings.say(f"{count:,} calls, {count - new:,} of them cached, {number + 1} ...")
            runs[_PLAIN].append(stage.measure("map", count, jobs={}))
            runs[_FIRST].append(_cached(stage, count - new))
            runs[_CACHED].append(_cached(stage, count, keeps_objects=True))
    computed = {_PLAIN: count, _FIRST: count - new, _CACHED: new}
    calls = {**computed, _CACHED: count}
    lines = [_line(name, calls[name], computed[name], each) for name, each in runs.items()]
    return Part(TITLE, _rows(runs, count, new), _HEADINGS, lines)


def _cached(stage: Stage, count: int, *, keeps_objects: bool = False) -> Run:
    return stage.measure("map", count, jobs={}, cache=True, keeps_objects=keeps_objects)


def _line(name: str, calls: int, computed: int, runs: list[Run]) -> tuple[str, ...]:
    most = max(runs, key=Run.count)
    return (
        name,
        f"{calls:,}",
        f"{computed:,}",
        report.runs([run.cpu_s for run in runs]),
        f"{statistics.median(run.wall_s for run in runs):.2f}",
        report.requests(most.requests),
    )


def _rows(runs: dict[str, list[Run]], count: int, new: int) -> list[Row]:
    def ratio(above: str, below: str, value: Callable[[Run], float]) -> float:
        pairs = zip(runs[above], runs[below], strict=True)
        return statistics.median(value(one) / value(other) for one, other in pairs)

    def hits(run: Run) -> int:
        """Return the requests for the hits: all but those of the computed calls."""
        return run.count("s3") - new

    name = f"{count:,} calls, {count - new:,} of them cached"
    of_calls = (count - new) / count
    return [
        Row(
            f"S3 requests in addition to one per computed call, {name}",
            25,
            max(map(hits, runs[_CACHED])),
        ),
        Row(
            "SubmitJob requests, same",
            1,
            max(r.requests["batch SubmitJob"] for r in runs[_CACHED]),
        ),
        Row("wall time, same", 3, statistics.median(r.wall_s for r in runs[_CACHED]), "s"),
        Row("CPU, times that without the cache", 1, ratio(_CACHED, _PLAIN, lambda r: r.cpu_s)),
        Row(
            "wall time, times that without the cache",
            1,
            ratio(_CACHED, _PLAIN, lambda r: r.wall_s),
        ),
        Row(
            "CPU of the first map with the cache, times that without",
            1.5,
            ratio(_FIRST, _PLAIN, lambda r: r.cpu_s) / of_calls,
        ),
    ]
