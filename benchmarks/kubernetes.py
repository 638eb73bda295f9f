"""A map on Kubernetes against the same map on Batch, both on the local emulators.

``python -m benchmarks.kubernetes BACKEND COUNT`` runs the map in a fresh process and prints a line
of JSON.
"""

from __future__ import annotations

import asyncio
import collections
import json
import sys
from collections.abc import Callable
from typing import Any

import farcall_local
from benchmarks import report
from benchmarks.client import double
from benchmarks.meter import Meter
from benchmarks.report import Row
from benchmarks.stage import Stage, environment
from farcall import BatchExecutor
from farcall.storage.bucket import Bucket

TITLE = "What a map costs on Kubernetes"

_MORE = 1.1
_API_REQUESTS = 0.02
_SYNC_S = 1.0
"""Least time between two changes of a Job's status, as of the real controller:
https://github.com/kubernetes/kubernetes/blob/v1.36.0/pkg/controller/job/job_controller.go"""

_HEADINGS = (
    *("backend", "tasks", "failed", "wall s", "client's CPU s", "CPU ms/task"),
    *("S3 requests/task", "API requests/task"),
)
_METHOD = """\
`map` of a trivial function with `farcall local --kubernetes`, first on its Batch and then on its
Kubernetes, each in a fresh client process. Every task is a process with the real container side,
as many at once as the machine has processors, so nearly all of the time is theirs, and the CPU
time is that of a client that waits. S3 requests are those of the client. API requests are those
that the emulated API server counted, the watches among them. A Job's status changes at most once
a second, as of the real controller."""


def part(say: Callable[[str], object], count: int, *, options: str) -> report.Part:
    """Measure, and return the part of the page."""
    say(f"{count:,} tasks by map on the emulated Batch and Kubernetes (minutes) ...")
    with farcall_local.start(kubernetes=True) as aws:
        aws.kubernetes.configure(sync_s=_SYNC_S)
        place = Stage("", {**environment(""), **aws.environment})
        batch = place.run("-m", "benchmarks.kubernetes", "batch", str(count))
        before = sum(aws.kubernetes.requests().values())
        own = place.run("-m", "benchmarks.kubernetes", "kubernetes", str(count))
        asked = sum(aws.kubernetes.requests().values()) - before
    name = f"{count:,} tasks by `map` on the emulated Kubernetes"
    rows = [
        Row(f"tasks that failed, of {name}", 0, own["failed"]),
        Row("client CPU per task, times Batch's, same", _MORE, own["cpu_s"] / batch["cpu_s"]),
        Row("S3 requests per task, times Batch's, same", _MORE, own["s3"] / batch["s3"]),
        Row("API requests per task, same", _API_REQUESTS, asked / count),
    ]
    lines = [_line("Batch", count, batch, ""), _line("Kubernetes", count, own, asked / count)]
    pieces = [report.table(_HEADINGS, lines), "## How the maps were measured", _METHOD]
    return report.part(TITLE, rows, pieces, options=options, tables=[(TITLE, _HEADINGS, lines)])


def _line(name: str, count: int, told: dict[str, Any], asked: float | str) -> tuple[str, ...]:
    return (
        name,
        f"{count:,}",
        str(told["failed"]),
        f"{told['wall_s']:.0f}",
        f"{told['cpu_s']:.2f}",
        f"{told['cpu_s'] / count * 1000:.3f}",
        f"{told['s3'] / count:.3f}",
        asked if isinstance(asked, str) else f"{asked:.4f}",
    )


async def _main(backend: str, count: int) -> dict[str, Any]:
    requests = _counted()
    async with BatchExecutor(backend=backend, vcpu=1) as executor:
        meter = Meter()
        values = await executor.task(double).map(range(count), return_exceptions=True)
        meter.note_last()
    right = sum(value == 2 * number for number, value in enumerate(values))
    return {**meter.told(), "failed": count - right, "s3": requests.total()}


def _counted() -> collections.Counter[str]:
    """Count the client's S3 requests, by operation."""
    found: collections.Counter[str] = collections.Counter()
    ask = Bucket.ask

    async def counted(self: Bucket, operation: str, *more: Any, **named: Any) -> Any:
        found[operation] += 1
        return await ask(self, operation, *more, **named)

    Bucket.ask = counted  # type: ignore[method-assign]
    return found


if __name__ == "__main__":
    print(json.dumps(asyncio.run(_main(sys.argv[1], int(sys.argv[2])))))
