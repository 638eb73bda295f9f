"""Several client processes at once on one account's limit; a part of the page."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import farcall.local
from benchmarks import report
from benchmarks.report import Row
from benchmarks.stage import ROOT, environment

TITLE = "What several clients of one account get"

CLIENTS, TASKS = 4, 250
_CALLS_PER_S = 50
_BURST_S = 5
"""What is left over of the first second's allowance, and of the pace the clients begin with."""

_WINDOW_S = 5
_OK, _THROTTLED = 200, 429
_UNFAIRNESS = 0.05

_HEADINGS = (
    "client",
    "tasks",
    "failed",
    "SubmitJob accepted",
    "answered with 429",
    "accepted while all submitted",
    "a second",
)

_METHOD = f"""\
{CLIENTS} processes on `farcall local`, the embedded AWS, whose Batch refuses more than
{_CALLS_PER_S} SubmitJob calls a second with HTTP 429, as AWS does for its account. Each submits
{TASKS} tasks at the same moment, and each task is a SubmitJob of its own: `map` would take one for
all. The jobs are real container sides in processes of their own; they begin half a minute after
their submission, so that the processors are the clients' for so long. Each client noted when which
call was answered how. The share of a client is what was accepted of it from {_BURST_S} s after the
beginning, when the burst that the limit allows is over, until the first had no more to submit.
Jain's index of the shares is 1 where all are the same and {1 / CLIENTS:g} where one client gets
everything; [source](https://en.wikipedia.org/wiki/Fairness_measure)."""


@dataclass(frozen=True)
class Sharing:
    """What the clients noted.

    Attributes:
        tasks: Tasks of each.
        failed: Of each client, tasks without the right value.
        errors: What they failed with.
        calls: Of each client, seconds since the beginning and HTTP status of each SubmitJob.
    """

    tasks: int
    failed: list[int]
    errors: list[str]
    calls: list[list[tuple[float, int]]]

    def answered(self, status: int) -> list[int]:
        """Return how many calls of each client were answered in one way."""
        return [sum(found == status for _, found in calls) for calls in self.calls]

    @property
    def together_s(self) -> float:
        """When the first client had no more to submit."""
        return min(max(moment for moment, _ in calls) for calls in self.calls)

    def shares(self, begin_s: float, end_s: float) -> list[int]:
        """Return how many calls of each client were accepted between two moments."""
        return [
            sum(begin_s <= moment < end_s and status == _OK for moment, status in calls)
            for calls in self.calls
        ]

    @property
    def fairness(self) -> float:
        """Jain's index of the shares while all submitted."""
        return jain(self.shares(_BURST_S, self.together_s))

    @property
    def least_fair(self) -> float:
        """The least Jain's index of any window of the same time."""
        begins = range(_BURST_S, int(self.together_s) - _WINDOW_S + 1, _WINDOW_S)
        return min((jain(self.shares(at, at + _WINDOW_S)) for at in begins), default=self.fairness)

    @property
    def goodput(self) -> float:
        """What was accepted while all submitted, as a part of the limit."""
        accepted = sum(self.shares(_BURST_S, self.together_s))
        return accepted / (self.together_s - _BURST_S) / _CALLS_PER_S


def jain(shares: Sequence[float]) -> float:
    """Return Jain's index: 1 where all shares are the same, 1/n where one has all."""
    return sum(shares) ** 2 / (len(shares) * sum(share**2 for share in shares))


def measure(say: Callable[[str], object], clients: int = CLIENTS, tasks: int = TASKS) -> Sharing:
    """Have some clients submit their tasks at the same moment, and wait for their ends."""
    say(f"{clients} clients with {tasks:,} tasks each on one limit (minutes) ...")
    with farcall.local.start() as aws:
        aws.configure(delays={"SUBMITTED": 30})
        place = {**environment(""), **aws.environment}
        with contextlib.ExitStack() as stack:
            running = [stack.enter_context(_client(place, tasks)) for _ in range(clients)]
            for process in running:
                process.stdin.write("\n")
                process.stdin.flush()
            told = [json.loads(process.stdout.readline()) for process in running]
    begin = min(moment for each in told for moment, _ in each["calls"])
    return Sharing(
        tasks,
        [each["failed"] for each in told],
        sorted({error for each in told for error in each["errors"]}),
        [[(moment - begin, status) for moment, status in each["calls"]] for each in told],
    )


@contextlib.contextmanager
def _client(place: dict[str, str], tasks: int) -> Iterator[Any]:
    """Start a client, and wait until it is ready."""
    command = [sys.executable, "-m", "benchmarks.sharing_client", str(tasks)]
    process: Any = subprocess.Popen(
        command, env=place, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with process:
        try:
            process.stdout.readline()
            yield process
        except BaseException:
            process.kill()
            raise


def lines(found: Sharing) -> list[tuple[str, ...]]:
    """Return the lines of the table: each client, and all."""
    together_s = found.together_s - _BURST_S
    shares = found.shares(_BURST_S, found.together_s)
    columns = (found.failed, found.answered(_OK), found.answered(_THROTTLED), shares)
    named = [
        (str(number + 1), found.tasks, *values)
        for number, values in enumerate(zip(*columns, strict=True))
    ]
    named.append(("all", found.tasks * len(named), *map(sum, columns)))
    return [
        (name, *(f"{value:,}" for value in values), f"{values[-1] / together_s:.1f}")
        for name, *values in named
    ]


def rows(found: Sharing) -> list[Row]:
    """Hold the measurements against what they should be."""
    clients = f"{len(found.calls)} clients with {found.tasks:,} tasks each on one limit"
    return [
        Row(f"tasks that failed, {clients}", 0, sum(found.failed)),
        Row("1 - Jain's index of their shares, same", _UNFAIRNESS, 1 - found.fairness),
    ]


def part(say: Callable[[str], object], *, options: str) -> report.Part:
    """Measure, and return the part of the page."""
    found = measure(say)
    table = lines(found)
    accepted, refused = sum(found.answered(_OK)), sum(found.answered(_THROTTLED))
    fairness = (
        f"Jain's index of the shares is {found.fairness:.3f}, and at least {found.least_fair:.3f} "
        f"in windows of {_WINDOW_S} s. Of the limit {100 * found.goodput:.0f} % were used, and "
        f"{100 * refused / (accepted + refused):.0f} % of all calls were answered with 429; a "
        "machine whose processors are taken uses less and sends more at once."
    )
    pieces = [
        report.table(_HEADINGS, table),
        fairness,
        "\n".join(f"* `{error}`" for error in found.errors),
        "## How the sharing was measured",
        _METHOD,
    ]
    tables = [(TITLE, _HEADINGS, table)]
    return report.part(TITLE, rows(found), pieces, options=options, tables=tables)
