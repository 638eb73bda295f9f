"""Cost of a map on Kubernetes compared with Batch, both on local emulators."""

from __future__ import annotations

from benchmarks.harness import Run, Settings, emulated
from benchmarks.report import Part, Row

TITLE = "What a map costs on Kubernetes"

_MAX_TASKS = 1000
_SYNC_S = 1.0
"""Minimum time in seconds between two changes of a Job's status:
https://github.com/kubernetes/kubernetes/blob/v1.36.0/pkg/controller/job/job_controller.go
"""

_HEADINGS = (
    *("backend", "tasks", "wall s", "client's CPU s", "CPU ms/task"),
    *("S3 requests/task", "API requests/task"),
)


def measure(settings: Settings) -> Part:
    """Measure a map on both backends."""
    count = min(_MAX_TASKS, settings.tasks)
    settings.say(f"{count:,} tasks on the emulated Batch and Kubernetes ...")
    with emulated(kubernetes=True) as stage:
        assert stage.emulator is not None
        api = stage.emulator.kubernetes
        api.configure(sync_s=_SYNC_S)
        batch = stage.measure("map", count, backend="batch", queue="farcall-local", vcpu=1)
        before = sum(api.requests().values())
        own = stage.measure("map", count, backend="kubernetes", vcpu=1)
        sent = (sum(api.requests().values()) - before) / count
    name = f"client CPU per task, times Batch's, {count:,} tasks by `map` on Kubernetes"
    rows = [
        Row(name, 1.1, own.cpu_s / batch.cpu_s),
        Row("S3 requests per task, times Batch's, same", 1.1, own.count() / batch.count()),
        Row("API requests per task, same", 0.02, sent),
    ]
    lines = [_line("Batch", count, batch, ""), _line("Kubernetes", count, own, f"{sent:.4f}")]
    return Part(TITLE, rows, _HEADINGS, lines)


def _line(name: str, count: int, run: Run, sent: str) -> tuple[str, ...]:
    cpu = f"{run.cpu_s:.2f}", f"{1000 * run.cpu_s / count:.3f}"
    return name, f"{count:,}", f"{run.wall_s:.0f}", *cpu, f"{run.count() / count:.3f}", sent
