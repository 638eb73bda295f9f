"""Time of calls on warm workers."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys

from benchmarks.harness import ROOT, Settings, emulated
from benchmarks.report import Part, Row

TITLE = "How soon warm workers answer"

_CALLS, _MAPPED = 200, 300
_HEADINGS = (
    *("repeat", "median s", "95th percentile s", "slowest s"),
    *(f"map of {_MAPPED} on 4 workers, s", f"map of {_MAPPED} as jobs, s"),
)


def measure(settings: Settings) -> Part:
    """Measure single calls, and a map against the same map as jobs."""
    runs = []
    with emulated() as stage:
        for number in range(settings.repeats):
            settings.say(f"{_CALLS} calls on warm workers, repeat {number + 1} ...")
            command = [sys.executable, "-m", "benchmarks.warm_client", str(_CALLS), str(_MAPPED)]
            done = subprocess.run(
                command, cwd=ROOT, env=stage.environment, check=True, stdout=subprocess.PIPE
            )
            runs.append(json.loads(done.stdout))
    lines, medians, highs, ratios = [], [], [], []
    for number, run in enumerate(runs, 1):
        times = sorted(run["times"])
        medians.append(statistics.median(times))
        highs.append(times[int(0.95 * len(times))])
        ratios.append(run["workers_s"] / run["jobs_s"])
        cells = [medians[-1], highs[-1], times[-1], run["workers_s"], run["jobs_s"]]
        lines.append((str(number), *(f"{cell:.2f}" for cell in cells)))
    ratio = statistics.median(ratios)
    rows = [
        Row(
            "call on a warm worker, from submit to result, median",
            0.3,
            statistics.median(medians),
            "s",
        ),
        Row("the same, 95th percentile", 0.8, statistics.median(highs), "s"),
        Row(f"map of {_MAPPED} calls on 4 workers, times the same map as jobs", 1 / 3, ratio),
    ]
    text = (
        "All processes share this machine. The emulator starts a job in milliseconds, so the last "
        "row compares CPU times; on AWS, a job starts in seconds to minutes."
    )
    return Part(TITLE, rows, _HEADINGS, lines, text)
