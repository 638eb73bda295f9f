"""One array shared by the calls of several maps, as a part of the page."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks import report
from benchmarks.report import Row
from benchmarks.stage import Stage

TITLE = "What shared data takes"

CALLS, MAPS = 1000, 3

_MIB = 1 << 20
_BOUNDS_S = {"bare": 1.5, "put": 0.5}
"""For a GiB; of less they hold all the more."""

_HEADINGS = (
    "passed as",
    "MiB uploaded",
    "of them beside the array",
    "put s",
    "submit of map 1, 2, ... s",
    "submit to values s",
    "CPU s",
    "client's MiB beside the array",
)

_METHOD = """\
A NumPy array of {size:,} bytes that each of {calls:,} calls gets, in {maps} maps one after the
other: passed as it is, and passed as what `put` returned. Each client is a fresh process with a
first task behind it.

**Uploaded** is what the bucket took in bodies of requests, of all maps together, from the first
submission until the executor is closed: the array, functions, arguments, markers and receipts.

**Submit** is from the call of `map` to the moment Batch has accepted its job; the calls begin
after that. An array that is passed as it is has to be hashed for each map.

**The client's memory** is its largest resident size above the one before; the array was there.

**Floor:** the array stored once by obstore as it does by default, and hashed meanwhile (SHA-256),
in a fresh process.

**Played:** S3, Batch, STS and the containers by processes in memory on the same processors, over
HTTP without TLS and without distance; the containers are threads of one process, which fetches the
array once for each job."""


def part(
    say: Callable[[str], object], place: Stage, size: int, calls: int, *, options: str
) -> report.Part:
    """Measure, and return the part of the page.

    Args:
        say: Told what comes next.
        place: The played cloud.
        size: Bytes of the array.
        calls: Calls of each map.
        options: Those the command was given.
    """
    name = f"{size / _MIB:,.0f} MiB"
    rows, lines = [], []
    for shape in ("bare", "put"):
        say(f"{name} x {calls:,} calls x {MAPS} maps, {shape} ...")
        told, uploaded = _run(place, shape, size, calls)
        second_s = max(told["submits_s"][1:])
        beside = told["memory_bytes"] / _MIB
        rows += [
            Row(f"submit of a later map of {name}, {shape}", _BOUNDS_S[shape], second_s, "s"),
            Row(f"client's memory beside the array, {shape}", 128, beside, "MiB"),
            Row(f"uploads of the array, {shape}", 1.01, uploaded / size, "times"),
        ]
        lines.append((shape, *_cells(told, uploaded, size)))
    say(f"{name}, floor ...")
    told, uploaded = _run(place, "floor", size, calls)
    lines.append(("floor: stored once by obstore", *_cells(told, uploaded, size)))
    pieces = [
        report.table(_HEADINGS, lines),
        "## How shared data was measured",
        _METHOD.format(size=size, calls=calls, maps=MAPS),
    ]
    return report.part(TITLE, rows, pieces, options=options, tables=[(TITLE, _HEADINGS, lines)])


def _run(place: Stage, shape: str, size: int, calls: int) -> tuple[dict[str, Any], int]:
    place.ask("reset")
    told = place.run("-m", "benchmarks.shared_client", shape, str(size), str(calls), str(MAPS))
    uploaded = place.ask("taken")
    place.ask("reset")
    return told, uploaded


def _cells(told: dict[str, Any], uploaded: int, size: int) -> tuple[str, ...]:
    def several(name: str) -> str:
        return ", ".join(f"{value:.2f}" for value in told.get(name, [])) or "-"

    return (
        f"{uploaded / _MIB:,.1f}",
        f"{(uploaded - size) / _MIB:,.2f}",
        f"{told.get('put_s', told['wall_s']):.2f}",
        several("submits_s"),
        several("values_s"),
        f"{told['cpu_s']:.2f}",
        f"{told['memory_bytes'] / _MIB:.0f}",
    )
