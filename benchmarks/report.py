"""Figures to a table on the terminal and to ``RESULTS.md``."""

from __future__ import annotations

import os
import platform
import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.measure import Cost, Starts

_PACKAGES = ("farcall", "obstore", "cloudpickle", "aioboto3", "aiobotocore", "botocore", "moto")

_METHOD = """\
Every client ran in a fresh process. Its CPU is that of all its threads, from the moment the
executor was open to the moment it was closed with everything deleted; opening it (imports, AWS's
service models, the first look at queue and bucket) is not a task's and is not counted. Requests
were counted by the server. Figures are medians of the runs, whose CPU follows in brackets; the
requests are those of the run with the most. Other programs share the machine, so CPU and counts
are the figures to look at, and seconds are not.

**Real:** the client; the bundles, the outcomes and their signatures; the runtime's code that
verifies, unpickles, calls, pickles and signs; in the row of the container's start everything: the
processes are those of the embedded AWS.

**Played:** S3, Batch and STS by one process in memory (`cloud.py`), over HTTP without TLS and
without distance; the containers of all other rows by one process (`fleet.py`) that runs no process
per task and reads a bundle's index once instead of once per child. Jobs start at once and their
outcomes come as fast as the fleet makes them. A real endpoint adds TLS to every request and
to every connection.

**Floor:** the S3 requests that the row above it took, sent with bare obstore, 16 at a time, and
one cloudpickle and one unpickling per task. No signatures, no digests, no Batch, no tracking.

**Peer:** covalent-awsbatch-plugin 0.42.0 from PyPI, `AWSBatchExecutor.run` driven directly, its
calls to the dispatcher answered by nothing, on the same server and machine in the same run.
"""


@dataclass(frozen=True)
class Row:
    """A figure and what it should be.

    Attributes:
        what: What was measured.
        wanted: The most it should be.
        found: What it is.
        unit: Of both.
    """

    what: str
    wanted: float
    found: float
    unit: str = ""

    @property
    def cells(self) -> tuple[str, str, str, str]:
        """What a table shows."""
        unit = f" {self.unit}" if self.unit else ""
        reached = "yes" if self.found <= self.wanted else "**no**"
        return self.what, f"{self.wanted:g}{unit}", f"{self.found:.3g}{unit}", reached


TITLE = "# What farcall costs"
HEADINGS = ("what", "at most", "measured", "reached")
COST_HEADINGS = (
    "client",
    "tasks",
    "CPU ms/task",
    "requests/task (S3, Batch)",
    "connections",
    "wall s",
    "peak MB (before)",
    "longest stall s",
)


def rows(sweep: Cost, singles: Cost, starts: Starts, latencies: list[float]) -> list[Row]:
    """Hold the measurements against the figures to be reached."""
    start_s = statistics.median(starts.sums)
    many, few = f"{sweep.tasks:,} tasks by `map`", f"{singles.tasks} separate concurrent `submit`"
    return [
        Row(f"client CPU per task, {many}", 1, sweep.cpu_ms, "ms"),
        Row("S3 requests per task, same", 1.2, sweep.per_task("s3")),
        Row("Batch requests per task, same", 0.02, sweep.per_task("batch")),
        Row(f"client CPU per task, {few}", 2, singles.cpu_ms, "ms"),
        Row("requests per task in all, same", 2.2, singles.per_task()),
        Row("container: CPU up to the call of the function", 0.12, start_s, "s"),
        Row("outcome stored to result in hand", 0.5, statistics.median(latencies), "s"),
    ]


def show(found: Sequence[Row], costs: Sequence[Cost]) -> None:
    """Print both tables."""
    show_table("Figures", HEADINGS, [row.cells for row in found])
    cells = [_cells(cost) for cost in costs]
    show_table("What tasks cost their client", COST_HEADINGS, cells)


def show_table(title: str, headings: Sequence[str], lines: Sequence[Sequence[str]]) -> None:
    """Print a table."""
    shown = Table(*headings, title=title)
    for line in lines:
        shown.add_row(*(cell.replace("**", "").replace("`", "") for cell in line))
    Console(width=max(Console().width, 140)).print(shown)


def write(path: Path, parts: Mapping[str, str]) -> None:
    """Write parts of the page, each by its title, and leave the others as they are.

    Args:
        path: The page.
        parts: For each title, in the order of the page, its part; empty where it was not measured.
    """
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    kept = {
        piece.partition("\n")[0]: piece.strip() for piece in re.split(r"^(?=# )", text, flags=re.M)
    }
    whole = [part.strip() or kept.get(title, "") for title, part in parts.items()]
    path.write_text("\n\n".join(filter(None, whole)) + "\n", encoding="utf-8")


def page(
    found: Sequence[Row],
    costs: Sequence[Cost],
    starts: Starts,
    latencies: list[float],
) -> str:
    """Return the part of the page."""
    supervisor, child, floor = map(
        statistics.median, (starts.supervisor, starts.child, starts.floor)
    )
    whole = statistics.median(starts.sums)
    ninth = statistics.quantiles(latencies, n=10)[-1]
    operations = [
        (cost.name, ", ".join(f"{name} {n}" for name, n in sorted(cost.requests.items())))
        for cost in costs
    ]
    details = (
        f"The container's CPU is {supervisor:.3f} s of the supervisor and {child:.3f} s of the "
        f"child, median of {len(starts.sums)} starts, of which the least took "
        f"{min(starts.sums):.3f} s. An interpreter that only imports cloudpickle and obstore took "
        f"{floor:.3f} s on the same machine in the same run; the start is {whole / floor:.2f} "
        "times this floor.\n\n"
        f"From outcome to hand, the median of {len(latencies)} stored after random gaps; nine in "
        f"ten within {ninth:.2f} s, all within {max(latencies):.2f} s."
    )
    parts = [
        TITLE,
        f"Written by `python -m benchmarks` on {today()}. {machine()}",
        table(HEADINGS, [row.cells for row in found]),
        details,
        "## What tasks cost their client",
        table(COST_HEADINGS, [_cells(cost) for cost in costs]),
        *_ratios(costs),
        table(("client", "requests in all"), operations),
        "## How it was measured",
        _METHOD,
    ]
    return "\n\n".join(parts).rstrip() + "\n"


def _ratios(costs: Sequence[Cost]) -> list[str]:
    """Say how farcall compares with the floor and with the peer, in CPU per task."""
    cpu = {cost.name: cost.cpu_ms for cost in costs}
    told = []
    for name, own in cpu.items():
        floor, other = f"floor of {name}", name.replace("farcall,", "peer,")
        if floor in cpu:
            told.append(f"{name}: {own / cpu[floor]:.1f} times its floor.")
        if other != name and other in cpu:
            told.append(f"{name}: the peer takes {cpu[other] / own:.0f} times as much CPU.")
    return ["\n".join(f"* {line}" for line in told)]


def _cells(cost: Cost) -> tuple[str, ...]:
    runs = ", ".join(map(_number, cost.runs))
    before = f" ({cost.before_bytes / 1e6:.0f})" if cost.before_bytes else ""
    requests = f"{cost.per_task():.3g}"
    if len(cost.requests) > 1:
        requests += f" ({cost.per_task('s3'):.4g}, {cost.per_task('batch'):.2g})"
    return (
        cost.name,
        f"{cost.tasks:,}",
        f"{_number(cost.cpu_ms)} ({runs})",
        requests,
        str(cost.connections),
        f"{cost.wall_s:.1f}",
        f"{cost.peak_bytes / 1e6:.0f}{before}",
        f"{cost.stall_s:.2f}" if cost.stall_s else "",
    )


def _number(value: float) -> str:
    return f"{value:.3g}" if value < 1000 else f"{value:.0f}"


def table(headings: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Return a table of the page."""
    bars = ["| " + " | ".join(line) + " |" for line in (headings, ["---"] * len(headings), *lines)]
    return "\n".join(bars)


def today() -> str:
    """Return the date."""
    return str(datetime.now(timezone.utc).date())


def machine(more: Sequence[str] = ()) -> str:
    """Say what it was measured on and with."""
    versions = []
    for name in (*_PACKAGES, *more):
        try:
            versions.append(f"{name} {version(name)}")
        except PackageNotFoundError:  # a checkout on the path is not an installed distribution
            versions.append(f"{name} from a checkout" if name == "farcall" else f"no {name}")
    return (
        f"Machine: {os.cpu_count()} CPUs ({_model()}), {platform.system()} "
        f"{platform.machine()}, Python {platform.python_version()}; {', '.join(versions)}."
    )


def _model() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return platform.processor() or "unknown model"
    names = [line.partition(":")[2].strip() for line in text.splitlines() if "model name" in line]
    return names[0] if names else "unknown model"
