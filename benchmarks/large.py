"""Large arguments and results, of a client and of a real container, as a part of the page."""

from __future__ import annotations

import contextlib
import os
import statistics
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks import report
from benchmarks.processes import descendants, memory_bytes
from benchmarks.report import Row
from benchmarks.stage import Stage

if TYPE_CHECKING:
    from typing_extensions import Self

TITLE = "What large values take"

_MIB = 1 << 20
_TURNS = 3
_SAMPLE_S = 0.005
_BLOCK = 512  # of st_blocks
_FLOORS = {"argument": "put", "result": "get"}
_COPIES = {"argument": 1, "result": 2}
"""Copies that a container may hold, the function's own included."""

_HEADINGS = (
    "what",
    "wall s",
    "floor's wall s",
    "times the floor",
    "CPU s",
    "times the floor's",
    "client's MiB beside the array",
    "floor's",
    "container's MiB (empty)",
    "copies in it",
)

_METHOD = """\
A NumPy array of {size:,} bytes as the argument of a task, and such an array as its result. Each
client is a fresh process with a first task behind it; in each of {turns} turns, whose figures
follow in brackets, it comes beside its floor.

**An argument's time** is from the call of `submit` to the moment Batch has accepted the job, which
is when the array is in the bucket; the 0.1 s in which a submission waits for others are in it. **A
result's time** is from the moment the container has stored the outcome to the array at hand. CPU
is all of the client's, for a result since the submission.

**The client's memory** is its largest resident size (VmHWM, begun again) above the one before; for
an argument the array was there before, for a result its size is taken off.

**The container** is the real one as a process: `python -m farcall_runtime`, supervisor and child.
Its memory is the anonymous memory of both and what lies in their anonymous files (memfd), 200
times a second; empty is the same for an array of one byte. For a result one of the copies is the
function's own.

**Floor:** the array stored by obstore as it does by default, or fetched by obstore into memory,
8 MiB at a time and 6 parts at once, and hashed meanwhile (SHA-256), in a fresh process.

**Played:** S3, Batch and STS by one process in memory on the same processors, over HTTP without
TLS and without distance: the network, which takes most of the time on AWS, takes little here."""


@dataclass
class _Turn:
    told: dict[str, Any]
    floor: dict[str, Any]
    wall_s: float
    container_bytes: int


def part(say: Callable[[str], object], place: Stage, size: int, *, options: str) -> report.Part:
    """Measure, and return the part of the page.

    Args:
        say: Told what comes next.
        place: The played cloud.
        size: Bytes of the array.
        options: Those the command was given.
    """
    name = f"{size / _MIB:,.0f} MiB"
    empty = _run(place, "argument", 1).container_bytes
    rows, lines = [], []
    for shape in _FLOORS:
        turns = []
        for turn in range(_TURNS):
            say(f"{name} as {shape}, turn {turn + 1} ...")
            turns.append(_run(place, shape, size))
        beside = statistics.median(turn.told["memory_bytes"] for turn in turns) / _MIB
        held = max(turn.container_bytes for turn in turns) - empty
        container = (held - _COPIES[shape] * size) / _MIB
        own = " and the function's own" if shape == "result" else ""
        rows += [
            Row(f"client's memory beside a NumPy {shape} of {name}", 128, beside, "MiB"),
            Row(f"container's memory beside one copy of it{own}", 128, container, "MiB"),
        ]
        lines.append((f"{name} {shape}", *_cells(turns, empty), f"{held / size:.2f}"))
    pieces = [
        report.table(_HEADINGS, lines),
        "## How the large values were measured",
        _METHOD.format(size=size, turns=_TURNS),
    ]
    return report.part(TITLE, rows, pieces, options=options, tables=[(TITLE, _HEADINGS, lines)])


def _cells(turns: list[_Turn], empty: int) -> tuple[str, ...]:
    def middle(value: Callable[[_Turn], float], say: str) -> str:
        values = [value(turn) for turn in turns]
        return report.runs(values, statistics.median(values), say)

    return (
        middle(lambda turn: turn.wall_s, ".2f"),
        middle(lambda turn: turn.floor["wall_s"], ".2f"),
        middle(lambda turn: turn.wall_s / turn.floor["wall_s"], ".2f"),
        middle(lambda turn: turn.told["cpu_s"], ".2f"),
        middle(lambda turn: turn.told["cpu_s"] / turn.floor["cpu_s"], ".2f"),
        middle(lambda turn: turn.told["memory_bytes"] / _MIB, ".0f"),
        middle(lambda turn: turn.floor["memory_bytes"] / _MIB, ".0f"),
        f"{max(turn.container_bytes for turn in turns) / _MIB:,.0f} ({empty / _MIB:,.0f})",
    )


def _run(place: Stage, shape: str, size: int) -> _Turn:
    with _Containers() as containers:
        told = place.run("-m", "benchmarks.large_client", shape, str(size))
    stored = [at for name, at in place.ask("stored").items() if "/outcomes/" in name]
    wall_s = told["wall_s"] if shape == "argument" else told["at_hand"] - max(stored)
    place.ask("reset")
    if shape == "result":
        place.run("-m", "benchmarks.large_client", "put", str(size))
    floor = place.run("-m", "benchmarks.large_client", _FLOORS[shape], str(size))
    place.ask("reset")
    return _Turn(told, floor, wall_s, containers.peak_bytes)


class _Containers:
    """Watches the memory of the containers that are processes below this one."""

    def __init__(self) -> None:
        self.peak_bytes = 0
        self._ended = threading.Event()
        self._sampler = threading.Thread(target=self._sample)

    def __enter__(self) -> Self:
        self._sampler.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._sampler.join()

    def _sample(self) -> None:
        while not self._ended.wait(_SAMPLE_S):
            self.peak_bytes = max(self.peak_bytes, _containers_bytes())


def _containers_bytes() -> int:
    files: dict[tuple[int, int], int] = {}
    anonymous = 0
    for pid in descendants(os.getpid()):
        with contextlib.suppress(OSError, KeyError):  # it has just ended
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
