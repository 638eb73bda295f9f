"""Many tasks on the embedded AWS with its limits, each a real process; a part of the page."""

from __future__ import annotations

from collections.abc import Callable

import farcall.local
from benchmarks import report
from benchmarks.counting import counted
from benchmarks.report import Row
from benchmarks.stage import Stage, environment

TITLE = "What a map asks of a Batch with limits"

_BUDGET = 5  # Batch requests a second, however many tasks there are
_HEADINGS = (
    "tasks",
    "failed",
    "wall s",
    "tasks/s",
    "client's CPU s",
    "MB grown at the peak (before)",
    "longest stall s",
    "Batch requests",
    "of them answered with 429",
)

_METHOD = """\
`map` of a trivial function with `farcall local`, the embedded AWS, whose Batch refuses more than
50 calls a second of each operation with HTTP 429, as AWS does for its account. Every task is a
real container side in a process of its own, as many at once as the machine has processors, so
nearly all of the time is theirs. Requests to Batch were counted on their way, from the first look
at the queue to the end."""


def part(say: Callable[[str], object], count: int, *, options: str) -> report.Part:
    """Measure, and return the part of the page."""
    say(f"{count:,} tasks by map on the embedded AWS (minutes) ...")
    with farcall.local.start() as aws, counted(aws.endpoint_url) as batch:
        place = {**environment(""), **aws.environment, "AWS_ENDPOINT_URL_BATCH": batch.url}
        told = Stage("", place).run("-m", "benchmarks.embedded_client", str(count))
    name = f"{count:,} tasks by `map` on the embedded AWS"
    asked = batch.requests.total()
    rows = [
        Row(f"tasks that failed, of {name}", 0, told["failed"]),
        Row("SubmitJob requests, same", 1 + (count - 1) // 10_000, batch.requests["SubmitJob"]),
        Row("Batch requests a second, same", _BUDGET, asked / told["wall_s"]),
    ]
    grown, before = told["peak_bytes"] - told["before_bytes"], told["before_bytes"]
    line = (
        f"{count:,}",
        str(told["failed"]),
        f"{told['wall_s']:.0f}",
        f"{count / told['wall_s']:.1f}",
        f"{told['cpu_s']:.1f}",
        f"{grown / 1e6:.0f} ({before / 1e6:.0f})",
        f"{told['stall_s']:.2f}",
        f"{asked}: " + ", ".join(f"{what} {n}" for what, n in sorted(batch.requests.items())),
        str(batch.refused.total()),
    )
    errors = [f"* `{error}`" for error in told["errors"]]
    pieces = [
        report.table(_HEADINGS, [line]),
        "\n".join(errors),
        "## How the map was measured",
        _METHOD,
    ]
    return report.part(TITLE, rows, pieces, options=options, tables=[(TITLE, _HEADINGS, [line])])
