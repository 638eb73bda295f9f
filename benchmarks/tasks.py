"""Cost of many trivial tasks: farcall's clients, the floor and the peer's client."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from benchmarks import report
from benchmarks.harness import PEER, Run, Settings, Stage, played
from benchmarks.report import Part, Row

TITLE = "What tasks cost their client"
MAP, FLOOR, SUBMIT = "farcall, `map`", "floor of the `map`", "farcall, separate `submit`"

_SUBMITTED = 300  # maximum, because the peer takes six minutes for 300 tasks

_HEADINGS = (
    *("client", "tasks", "CPU s", "CPU ms/task", "times the floor", "requests/task", "wall s"),
    *("MB grown at the peak (before)", "longest stall s", "requests by operation"),
)


def measure(settings: Settings) -> Part:
    """Measure farcall's clients, the floor and the peer."""
    submitted = min(_SUBMITTED, settings.tasks)
    runs: dict[str, list[Run]] = {MAP: [], FLOOR: [], SUBMIT: []}
    counts = {MAP: settings.tasks, FLOOR: settings.tasks, SUBMIT: submitted, PEER: submitted}
    with played() as stage:
        for number in range(settings.repeats):
            settings.say(f"{settings.tasks:,} tasks, {submitted} submits, repeat {number + 1} ...")
            runs[MAP].append(stage.measure("map", settings.tasks, jobs={}))
            runs[FLOOR].append(_floor(stage, runs[MAP][-1], settings.tasks))
            runs[SUBMIT].append(stage.measure("submit", submitted, jobs={}))
        if settings.peer:
            settings.say(f"{submitted} tasks by the peer (minutes) ...")
            runs[PEER] = [stage.measure("submit", submitted, python=settings.peer)]
    lines = [_line(name, counts[name], each, runs[FLOOR]) for name, each in runs.items()]
    return Part(TITLE, _rows(runs, counts), _HEADINGS, lines)


def _floor(stage: Stage, above: Run, tasks: int) -> Run:
    """Measure a map's requests and pickles without farcall."""
    sizes = [size for name, (_, size) in stage.ask("stored").items() if "/outcomes/" in name]
    outcome_bytes = round(statistics.mean(sizes))
    return stage.measure("floor", tasks, requests=above.requests, outcome_bytes=outcome_bytes)


def _line(name: str, count: int, runs: list[Run], floors: list[Run]) -> Sequence[str]:
    def median(value: str) -> float:
        values: list[float] = [getattr(run, value) for run in runs]
        return statistics.median(values)

    ratios = [run.cpu_s / floor.cpu_s for run, floor in zip(runs, floors, strict=False)]
    most = max(runs, key=Run.count)
    return (
        name,
        f"{count:,}",
        report.runs([run.cpu_s for run in runs]),
        report.number(1000 * median("cpu_s") / count),
        f"{statistics.median(ratios):.1f}" if name == MAP else "",
        report.number(most.count() / count),
        f"{median('wall_s'):.2f}",
        f"{median('grown_bytes') / 1e6:.1f} ({median('before_bytes') / 1e6:.0f})",
        "" if name == FLOOR else f"{median('stall_s'):.2f}",
        report.requests(most.requests),
    )


def _rows(runs: dict[str, list[Run]], counts: dict[str, int]) -> list[Row]:
    def cpu_ms(name: str) -> float:
        return 1000 * statistics.median(run.cpu_s for run in runs[name]) / counts[name]

    def requests(name: str, service: str = "") -> float:
        return max(run.count(service) for run in runs[name]) / counts[name]

    peer = PEER in runs
    single = f"client CPU per task, {counts[SUBMIT]} separate concurrent `submit`"
    return [
        Row(f"client CPU per task, {counts[MAP]:,} tasks by `map`", 1, cpu_ms(MAP), "ms"),
        Row("S3 requests per task, same", 1.2, requests(MAP, "s3")),
        Row("Batch requests per task, same", 0.02, requests(MAP, "batch")),
        Row(single, 2, cpu_ms(SUBMIT), "ms", cpu_ms(PEER) if peer else None),
        Row(
            "requests per task, same", 2.2, requests(SUBMIT), "", requests(PEER) if peer else None
        ),
    ]
