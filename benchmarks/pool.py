"""What calls without ``async`` cost above those with it, as a part of the page."""

from __future__ import annotations

import statistics
from collections.abc import Callable

from benchmarks import report
from benchmarks.report import Row
from benchmarks.stage import Stage

TITLE = "What calls without async cost"

CALLS = 1000
_ABOVE_MS = 0.1
_NAMES = {
    "pool": "`pool.submit(...)`, `future.result()`",
    "coroutines": "`await task.submit(...)`, `await job.result()`",
    "floor": "no farcall: coroutines that only return, on a loop in a thread",
}
_HEADINGS = (
    "calls",
    "client",
    "CPU ms/call, least",
    "median",
    "requests (S3, Batch)",
    "wall s, median",
)

_METHOD = """\
{calls:,} calls at once, {turns} turns of a fresh process for each client, one after the other, on
the same played cloud as the tasks above. CPU is that of all threads from the end of a first call
to the moment everything is closed and deleted. What the pool costs above coroutines is less than
what other programs on the machine add to a turn, by the caches that they take: so the figures are
those of the turns with the least.

**Floor:** handing as many coroutines that return at once to an event loop in a thread by
`asyncio.run_coroutine_threadsafe`, and waiting for each one's future."""


def part(say: Callable[[str], object], place: Stage, turns: int, *, options: str) -> report.Part:
    """Measure, and return the part of the page."""
    cpu_ms: dict[str, list[float]] = {name: [] for name in _NAMES}
    wall_s: dict[str, list[float]] = {name: [] for name in _NAMES}
    requests: dict[str, str] = {}
    for turn in range(turns):
        say(f"{CALLS:,} calls without async, turn {turn + 1} of {turns} ...")
        for name in _NAMES:
            place.ask("reset")
            told = place.run("-m", "benchmarks.pool_client", name, str(CALLS))
            cpu_ms[name].append(1000 * told["cpu_s"] / CALLS)
            wall_s[name].append(told["wall_s"])
            requests[name] = _requests(place.ask("counts")["client"])
    least = {name: min(turns_ms) for name, turns_ms in cpu_ms.items()}
    above = least["pool"] - least["coroutines"]
    name = f"client CPU per call of `pool.submit` above the async side's, {CALLS:,} at once"
    rows = [Row(name, _ABOVE_MS, above, "ms")]
    lines = [
        (
            f"{CALLS:,}",
            what,
            f"{least[name]:.3f}",
            f"{statistics.median(cpu_ms[name]):.3f}",
            requests[name],
            f"{statistics.median(wall_s[name]):.2f}",
        )
        for name, what in _NAMES.items()
    ]
    pieces = [
        report.table(_HEADINGS, lines),
        "## How the calls without async were measured",
        _METHOD.format(calls=CALLS, turns=turns),
    ]
    return report.part(TITLE, rows, pieces, options=options, tables=[(TITLE, _HEADINGS, lines)])


def _requests(counts: dict[str, int]) -> str:
    kinds = ("s3 ", "batch ")
    s3, batch = (sum(n for what, n in counts.items() if what.startswith(kind)) for kind in kinds)
    return f"{s3 + batch} ({s3}, {batch})"
