"""What `benchmarks.growth` and its companions measured, as a part of ``RESULTS.md``."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from benchmarks import report
from benchmarks.growth import FLOOR, MAP, PEER, SINGLES, SUBMIT, Growth
from benchmarks.measure import Run, Starts
from benchmarks.report import Row

TITLE = "What tasks cost their client"
_PLOT = "growth.svg"

_HEADINGS = (
    "tasks",
    "client",
    "CPU s",
    "CPU ms/task",
    "times the floor",
    "requests (S3, Batch)",
    "requests/task",
    "connections",
    "wall s",
    "MB grown at the peak (before)",
    "longest stall s",
)

_METHOD = """\
Every client ran in a fresh process; in each turn one after the other, then their floor. Its CPU is
that of all its threads, from the moment the executor was open to the moment it was closed with
everything deleted; opening it (imports, AWS's service models, the first look at queue and bucket)
is not a task's and is not counted. Wall time ends with the last result. Memory is how much the
largest resident size since that moment (VmHWM, reset) exceeds the resident size at it, which
follows in brackets.
Requests were counted by the server. Figures are medians of the turns, which follow in brackets;
times are medians of the ratios within each turn; the requests are those of the turn with the most.
Other programs share the machine, so CPU and counts are the figures to look at, and seconds are
not.

**Real:** the client; the bundles, the outcomes and their signatures; the runtime's code that
verifies, unpickles, calls, pickles and signs; in the container's start everything: the processes
are those of the local AWS emulator.

**Played:** S3, Batch and STS by one process in memory (`cloud.py`), over HTTP without TLS and
without distance; the containers by one process (`fleet.py`) that runs no process per task and
reads a bundle's index once instead of once per child. Jobs start at once and their outcomes come
as fast as the fleet makes them. A real endpoint adds TLS to every request and to every connection.

**Floor:** the S3 requests that the `map` of the same turn took, sent with bare obstore, 16 at a
time, and one cloudpickle and one unpickling per task. No signatures, no digests, no Batch, no
tracking.

**Peer:** covalent-awsbatch-plugin 0.42.0 from PyPI, `AWSBatchExecutor.run` driven directly, all
tasks at once, its calls to the dispatcher answered by nothing, on the same server. From 100 tasks
on it ran once."""


def part(growth: Growth, starts: Starts, latencies: list[float], *, options: str) -> report.Part:
    """Return the part of the page."""
    tables = [
        ("What tasks cost their client", _HEADINGS, _costs(growth)),
        ("Requests", ("tasks", "client", "requests in all"), _requests(growth)),
    ]
    pieces = [
        f"![CPU, requests, memory and wall time by the number of tasks]({_PLOT})",
        report.table(*tables[0][1:]),
        _comparison(growth),
        report.table(*tables[1][1:]),
        _start(starts),
        _arrival(latencies),
        "## How the clients were measured",
        _METHOD,
    ]
    found = rows(growth, starts, latencies)
    return report.part(TITLE, found, pieces, options=options, tables=tables)


def rows(growth: Growth, starts: Starts, latencies: list[float]) -> list[Row]:
    """Hold the measurements against the figures to be reached."""
    largest = max(growth.counts(MAP))
    few = max(count for count in growth.counts(SUBMIT) if count <= SINGLES)
    many, single = f"{largest:,} tasks by `map`", f"{few} separate concurrent `submit`"
    sweep, one = growth.most(MAP, largest), growth.most(SUBMIT, few)
    peer_ms = peer_requests = None
    if (PEER, few) in growth.runs:
        peer_ms = 1000 * growth.middle(PEER, few, _cpu_s) / few
        peer_requests = growth.most(PEER, few).count() / few
    return [
        Row(
            f"client CPU per task, {many}",
            1,
            1000 * growth.middle(MAP, largest, _cpu_s) / largest,
            "ms",
        ),
        Row("S3 requests per task, same", 1.2, sweep.count("s3") / largest),
        Row("Batch requests per task, same", 0.02, sweep.count("batch") / largest),
        Row(
            f"client CPU per task, {single}",
            2,
            1000 * growth.middle(SUBMIT, few, _cpu_s) / few,
            "ms",
            peer_ms,
        ),
        Row("requests per task in all, same", 2.2, one.count() / few, "", peer_requests),
        Row(
            "container as a process: CPU from interpreter start to the call of the function",
            0.12,
            statistics.median(starts.sums),
            "s",
        ),
        Row(
            "outcome stored to result in the caller's hands, median while jobs are running",
            0.5,
            statistics.median(latencies),
            "s",
        ),
    ]


def _cpu_s(run: Run) -> float:
    return run.cpu_s


def _costs(growth: Growth) -> list[Sequence[str]]:
    lines: list[Sequence[str]] = []
    for (name, count), runs in sorted(growth.runs.items(), key=lambda item: item[0][1]):
        cpu_s = growth.middle(name, count, _cpu_s)
        most = growth.most(name, count)
        stall_s = growth.middle(name, count, lambda run: run.stall_s)
        before = growth.middle(name, count, lambda run: run.before_bytes) / 1e6
        grown = growth.middle(name, count, lambda run: run.grown_bytes) / 1e6
        lines.append(
            (
                f"{count:,}",
                name,
                report.runs([run.cpu_s for run in runs], cpu_s),
                report.number(1000 * cpu_s / count),
                "" if name == FLOOR else f"{growth.ratio(name, FLOOR, count):.1f}",
                f"{most.count()} ({most.count('s3')}, {most.count('batch')})",
                report.number(most.count() / count),
                str(max(run.connections for run in runs)),
                f"{growth.middle(name, count, lambda run: run.wall_s):.2f}",
                f"{grown:.1f} ({before:.0f})",
                "" if name == FLOOR else f"{stall_s:.2f}",
            )
        )
    return lines


def _requests(growth: Growth) -> list[Sequence[str]]:
    """Say which requests the largest numbers took, and those that are to be compared."""
    shown = {max(growth.counts(MAP)), *growth.counts(PEER)[-1:], SINGLES}
    lines: list[Sequence[str]] = []
    for name, count in sorted(growth.runs, key=lambda key: key[1]):
        if count in shown and name != FLOOR:
            requests = sorted(growth.most(name, count).requests.items())
            lines.append((f"{count:,}", name, ", ".join(f"{what} {n}" for what, n in requests)))
    return lines


def _comparison(growth: Growth) -> str:
    told = []
    for count in growth.counts(PEER):
        ratios = [growth.ratio(PEER, name, count) for name in (SUBMIT, MAP)]
        wall = growth.ratio(PEER, SUBMIT, count, lambda run: run.wall_s)
        times = " and ".join(f"{ratio:.0f}" for ratio in ratios)
        told.append(
            f"* {count:,} tasks: the peer takes {times} times the CPU of farcall's `submit` and "
            f"`map`, and {wall:.0f} times the wall time of `submit`."
        )
    return "\n".join(told)


def _start(starts: Starts) -> str:
    supervisor, child, floor = map(
        statistics.median, (starts.supervisor, starts.child, starts.floor)
    )
    whole = statistics.median(starts.sums)
    return (
        f"The container's CPU is {supervisor:.3f} s of the supervisor and {child:.3f} s of the "
        f"child, median of {len(starts.sums)} starts, of which the least took "
        f"{min(starts.sums):.3f} s. An interpreter that only imports cloudpickle and obstore took "
        f"{floor:.3f} s on the same machine in the same run; the start is {whole / floor:.2f} "
        "times this floor."
    )


def _arrival(latencies: list[float]) -> str:
    ninth = statistics.quantiles(latencies, n=10)[-1]
    return (
        f"From outcome to hand, the median of {len(latencies)} stored after random gaps; nine in "
        f"ten within {ninth:.2f} s, all within {max(latencies):.2f} s."
    )
