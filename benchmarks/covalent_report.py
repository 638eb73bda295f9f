"""What `benchmarks.covalent_door` measured, as tables and as a part of ``RESULTS.md``."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence

from benchmarks import report
from benchmarks.covalent_door import (
    BARE_FLOOR,
    COUNTS,
    FARCALL,
    LARGE_BYTES,
    PEER,
    Lattice,
    Runs,
)

TITLE = "What farcall costs a Covalent server"

_HEADINGS = (
    "electrons",
    "run by",
    "wall s",
    "server CPU s",
    "children CPU s",
    "above the floor: wall s",
    "above the floor: CPU s",
    "above no copies: CPU s",
    "requests (S3, Batch, STS)",
    "peak MB (before)",
    "anonymous MB",
)
_LARGE_HEADINGS = (
    "what",
    "run by",
    "wall s",
    "of it in the client's dispatch",
    "server CPU s",
    "children CPU s",
    "server's peak MB (before)",
    "anonymous MB",
    "client's peak MB",
)

_METHOD = """\
A real Covalent server (0.240, no Dask, its SQLite database on disk) ran lattices of independent
electrons, given to it by a fresh client process each time. Wall time is from the call of
`dispatch` to the moment that the server itself noted as the lattice's end. CPU is the server
process's, and apart from it that of all its children (Covalent's own `local` executor, which puts
a lattice's value together); both up to one second after the client saw the end, so that the
deletion of what was stored is in it. The client asks for the state twice a second, whoever runs
the electrons. Figures are medians of the runs, which follow in brackets; the requests are those of
the run with the most. Above the floor: medians of the differences between the runs of one turn; in
the next turn another executor begins. The values of every first turn's lattices were checked,
outside of the measurement. The server had run one electron of each kind before; what that cost is
in the rows of the first electron. Peak memory is the largest resident size (VmHWM, begun again
before each lattice); anonymous is the largest RssAnon, seen 50 times a second. Other programs
share the machine, so CPU is the figure to look at.

**Floor, `run`:** an executor whose `run` returns None at once: what the lattice costs Covalent
with nothing behind it. It stands for the floor in the columns above. **Floor, managed:** the same
by `send`, `poll` and `receive`, the values being copied from a file, and the functions and
arguments to files, by Covalent. **Floor, managed, no copies:** Covalent copies nothing, and the
value is put straight into its store. farcall goes this way as well, so it does not pay for what
the first two floors make Covalent do, and can lie below them; this floor is the one to hold it
against. For a large result all have it in a file beforehand.

**Peer:** covalent-awsbatch-plugin 0.42.0 from PyPI, `poll_freq=1`, in a server of its own venv
with a floor of its own, on the same played AWS in the same run. Its lattices of 50 ran once, and
the longest only with `--long`.

**Played:** S3, Batch, STS and the containers, as above. Jobs start at once, one after the other; a
large value is hashed, unpickled and pickled by the jobs on the same processors, which is in the
wall times of farcall and of the peer and not in those of the floors.
"""


def rows(runs: Runs) -> list[report.Row]:
    """Hold the measurements against the figures to be reached."""
    found = runs.get(("trivial", COUNTS[-1]), [])

    def middle(
        name: str, value: Callable[[Lattice], float], floor: str | None = None
    ) -> float | None:
        above = _above(found, name, value, floor)
        return statistics.median(above) if above else None

    many = f"one lattice of {COUNTS[-1]} trivial electrons"
    told = [
        (f"{many}: time above the floor", 1, _wall_s, None),
        (f"{many}: server's CPU above the floor", 0.5, _cpu_s, None),
        ("same, above the floor without copies", 0.5, _cpu_s, BARE_FLOOR),
    ]
    return [
        report.Row(what, wanted, middle(FARCALL, value, floor) or 0, "s", middle(PEER, value))
        for what, wanted, value, floor in told
    ] + [row for shape in ("argument", "result") for row in _large(runs, shape)]


def _large(runs: Runs, shape: str) -> Iterator[report.Row]:
    """Yield what a server holds of a large value that Covalent itself does not."""
    held = {each.executor: each.anonymous_bytes for (each,) in runs.get((shape, LARGE_BYTES), [])}
    if held:
        above = {name: (held[name] - held[BARE_FLOOR]) / 1e6 for name in held}
        what = f"{shape} of {LARGE_BYTES // 1_000_000} MB: server's memory above the same floor"
        yield report.Row(f"{what} (no copy)", 128, above[FARCALL], "MB", above.get(PEER))


def tables(runs: Runs) -> list[tuple[str, Sequence[str], list[Sequence[str]]]]:
    """Return title, headings and lines of each table."""
    trivial = [
        line
        for shape in ("first", "trivial")
        for (kind, count), found in runs.items()
        if kind == shape
        for line in _trivial(shape, count, found)
    ]
    large = [
        (
            f"{count // 1_000_000} MB {shape}",
            each.executor,
            f"{each.wall_s:.1f}",
            f"{each.dispatch_s:.1f}",
            f"{each.cpu_s:.1f}",
            f"{each.children_s:.1f}",
            f"{each.peak_bytes / 1e6:.0f} ({each.before_bytes / 1e6:.0f})",
            f"{each.anonymous_bytes / 1e6:.0f}",
            f"{each.client_bytes / 1e6:.0f}",
        )
        for (shape, count), found in runs.items()
        if shape in ("argument", "result")
        for (each,) in found
    ]
    told = [("Trivial electrons", _HEADINGS, trivial)]
    return [*told, ("Large values", _LARGE_HEADINGS, large)] if large else told


def part(runs: Runs, *, options: str) -> report.Part:
    """Return the part of the page."""
    requests = [
        (str(count), name, ", ".join(f"{what} {n}" for what, n in sorted(asked.items())))
        for (shape, count), found in runs.items()
        if shape == "trivial"
        for name, asked in _requests(found)
        if asked
    ]
    told = tables(runs)
    pieces = []
    for title, headings, lines in told:
        pieces += [f"## {title}", report.table(headings, lines)]
    pieces += [
        report.table(("electrons", "run by", "requests in all"), requests),
        "## How the server was measured",
        _METHOD,
    ]
    return report.part(TITLE, rows(runs), pieces, options=options, more=("covalent",), tables=told)


def _trivial(shape: str, count: int, found: list[list[Lattice]]) -> Iterator[Sequence[str]]:
    asked = dict(_requests(found))
    for name in dict.fromkeys(each.executor for turn in found for each in turn):
        mine = [each for turn in found for each in turn if each.executor == name]
        walls, cpus = (_above(found, name, value) for value in (_wall_s, _cpu_s))
        bare = _above(found, name, _cpu_s, BARE_FLOOR) if name == FARCALL else []
        services = [
            sum(n for what, n in asked[name].items() if what.startswith(service))
            for service in ("s3", "batch", "sts")
        ]
        before = statistics.median(each.before_bytes for each in mine) / 1e6
        yield (
            "the first" if shape == "first" else str(count),
            name,
            _runs([each.wall_s for each in mine]),
            _runs([each.cpu_s for each in mine]),
            f"{statistics.median(each.children_s for each in mine):.2f}",
            _runs(walls) if walls else "",
            _runs(cpus) if cpus else "",
            _runs(bare) if bare else "",
            f"{sum(services)} ({', '.join(map(str, services))})" if any(services) else "0",
            f"{max(each.peak_bytes for each in mine) / 1e6:.0f} ({before:.0f})",
            f"{max(each.anonymous_bytes for each in mine) / 1e6:.0f}",
        )


def _wall_s(each: Lattice) -> float:
    return each.wall_s


def _cpu_s(each: Lattice) -> float:
    return each.cpu_s


def _above(
    found: list[list[Lattice]],
    name: str,
    value: Callable[[Lattice], float],
    floor: str | None = None,
) -> list[float]:
    """Return, for each turn, the difference to a floor of the same turn, by default the first."""
    differences = []
    for turn in found:
        by_name = {each.executor: each for each in turn}
        base = by_name.get(floor or turn[0].executor)
        if base is not None and name in by_name and by_name[name] is not base:
            differences.append(value(by_name[name]) - value(base))
    return differences


def _requests(found: list[list[Lattice]]) -> Iterator[tuple[str, dict[str, int]]]:
    for name in dict.fromkeys(each.executor for turn in found for each in turn):
        counts = [each.requests for turn in found for each in turn if each.executor == name]
        yield name, max(counts, key=lambda count: sum(count.values()))


def _runs(values: Sequence[float]) -> str:
    middle = f"{statistics.median(values):.2f}"
    return f"{middle} ({', '.join(f'{each:.2f}' for each in values)})" if values[1:] else middle
