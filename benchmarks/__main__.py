"""``python -m benchmarks``: measure, print tables and write ``benchmarks/RESULTS.md``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import click
from rich.console import Console

from benchmarks import covalent_door, covalent_report, measure, report
from benchmarks.stage import stage

RESULTS = Path(__file__).with_name("RESULTS.md")


@click.command()
@click.option("--only", type=click.Choice(["tasks", "covalent"]), help="Measure this part alone.")
@click.option("--tasks", default=10_000, show_default=True, help="Tasks of the map.")
@click.option("--singles", default=300, show_default=True, help="Separate concurrent submissions.")
@click.option("--starts", default=20, show_default=True, help="Starts of the container side.")
@click.option("--repeats", default=5, show_default=True, help="Runs of all but the map, the peer.")
@click.option("--sweeps", default=1, show_default=True, help="Runs of the map.")
@click.option("--peer", is_flag=True, help="Install and measure the peer, too (140 MB).")
@click.option("--long", is_flag=True, help="Have the peer run the longest lattice (minutes).")
@click.option("--large", is_flag=True, help="Put large values through Covalent (minutes, 8 GB).")
@click.option("--output", default=RESULTS, type=click.Path(path_type=Path), help="Page to write.")
def main(
    *,
    only: str | None,
    tasks: int,
    singles: int,
    starts: int,
    repeats: int,
    sweeps: int,
    peer: bool,
    long: bool,
    large: bool,
    output: Path,
) -> None:
    """Measure what tasks cost their client and their container, and a Covalent server."""
    say = Console(stderr=True).print
    parts = {report.TITLE: "", covalent_report.TITLE: ""}
    if only != "covalent":
        parts[report.TITLE] = _tasks(say, tasks, singles, starts, repeats, sweeps, peer=peer)
    if only != "tasks":
        runs = covalent_door.measure(say, repeats, peers=peer, long=long, large=large)
        found = [row.cells for row in covalent_report.rows(runs)]
        report.show_table("Figures", report.HEADINGS, found)
        for told in covalent_report.tables(runs):
            report.show_table(*told)
        parts[covalent_report.TITLE] = covalent_report.page(runs)
    report.write(output, parts)


def _tasks(
    say: Callable[[str], object],
    tasks: int,
    singles: int,
    starts: int,
    repeats: int,
    sweeps: int,
    *,
    peer: bool,
) -> str:
    with stage() as place:
        say(f"{singles} separate submissions ...")
        single = measure.client(place, "farcall, separate `submit`", "singles", singles, repeats)
        costs = [single, measure.floor(place, single, repeats)]
        say(f"{tasks:,} tasks by map ...")
        sweep = measure.client(place, "farcall, `map`", "sweep", tasks, sweeps)
        costs = [sweep, measure.floor(place, sweep, sweeps), *costs]
        say("from outcome to hand ...")
        latencies = measure.latencies(place)
        say(f"{starts} starts of the container side ...")
        started = measure.starts(place, starts)
        if peer:
            say("the peer ...")
            costs += [
                *(
                    measure.client(place, f"farcall, {n} at once", "singles", n, repeats)
                    for n in measure.PEER_COUNTS
                ),
                *measure.peers(place, repeats),
            ]
    found = report.rows(sweep, single, started, latencies)
    report.show(found, costs)
    return report.page(found, costs, started, latencies)


if __name__ == "__main__":
    main()
