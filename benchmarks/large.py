"""Memory of the client and the container for a large argument and a large result."""

from __future__ import annotations

import contextlib
import os
import statistics
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks import report
from benchmarks.harness import Run, Settings, Stage, played
from benchmarks.meter import descendants, memory_bytes
from benchmarks.report import Part, Row

TITLE = "What large values take"

_MIB = 1 << 20
_SAMPLE_S = 0.005
_BLOCK = 512  # of st_blocks
_COPIES = {"argument": 1, "result": 2}  # in a container, including the function's own copy

_HEADINGS = (
    *("what", "wall s", "client's CPU s", "client's MiB beyond the array"),
    *("container's MiB (empty)", "copies in it"),
)


def measure(settings: Settings) -> Part:
    """Measure a large argument and a large result."""
    size = settings.size
    name = f"{size / _MIB:,.0f} MiB"
    rows: list[Row] = []
    lines: list[Sequence[str]] = []
    with played() as stage:
        _, _, empty = _run(stage, "argument", 1)
        for shape, copies in _COPIES.items():
            settings.say(f"{name} as {shape} ...")
            runs, walls, containers = zip(
                *(_run(stage, shape, size) for _ in range(settings.repeats)), strict=True
            )
            extra = [(run.grown_bytes - (copies - 1) * size) / _MIB for run in runs]
            held = max(containers) - empty
            own = " and the function's own" if shape == "result" else ""
            client = f"client's memory beyond a NumPy {shape} of {name}"
            container = f"container's memory beyond one copy of it{own}"
            rows += [
                Row(client, 128, statistics.median(extra), "MiB"),
                Row(container, 128, (held - copies * size) / _MIB, "MiB"),
            ]
            cells = (
                report.runs(walls, ".2f"),
                report.runs([run.cpu_s for run in runs], ".2f"),
                report.runs(extra, ".0f"),
                f"{(held + empty) / _MIB:,.0f} ({empty / _MIB:,.0f})",
            )
            lines.append((f"{name} {shape}", *cells, f"{held / size:.2f}"))
    return Part(TITLE, rows, _HEADINGS, lines)


def _run(stage: Stage, shape: str, size: int) -> tuple[Run, float, int]:
    """Return a client's run, its wall time and the container's peak memory in bytes."""
    samples: list[int] = []
    ended = threading.Event()

    def sample() -> None:
        while not ended.wait(_SAMPLE_S):
            samples.append(_containers_bytes())

    with ThreadPoolExecutor(1) as thread:
        sampling = thread.submit(sample)
        try:
            run = stage.measure(shape, size, jobs={"process": True})
        finally:
            ended.set()
        sampling.result()
    stored = [at for name, (at, _) in stage.ask("stored").items() if "/outcomes/" in name]
    wall_s = run.wall_s if shape == "argument" else run.result - max(stored)
    stage.ask("reset")
    return run, wall_s, max(samples)


def _containers_bytes() -> int:
    """Return the memory of all containers, which are descendants of this process."""
    files: dict[tuple[int, int], int] = {}
    anonymous = 0
    for pid in descendants(os.getpid()):
        with contextlib.suppress(OSError, KeyError):  # the process has just exited
            if b"farcall_runtime" in Path(f"/proc/{pid}/cmdline").read_bytes():
                anonymous += memory_bytes(pid)["anonymous"]
                files |= _anonymous_files(pid)
    return anonymous + sum(files.values())


def _anonymous_files(pid: int) -> dict[tuple[int, int], int]:
    """Return the memory of a process's anonymous files, by device and inode."""
    found = {}
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            if str(link.readlink()).startswith("/memfd:"):
                status = link.stat()
                found[status.st_dev, status.st_ino] = status.st_blocks * _BLOCK
    return found
