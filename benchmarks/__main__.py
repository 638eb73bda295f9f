"""``python -m benchmarks``: measure, print tables and write ``benchmarks/RESULTS.md``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import click
from rich.console import Console

from benchmarks import (
    containers,
    containers_report,
    covalent_door,
    covalent_report,
    measure,
    report,
)
from benchmarks.images import NoContainersError
from benchmarks.stage import stage

RESULTS = Path(__file__).with_name("RESULTS.md")


@click.command()
@click.option("--only", type=click.Choice(["tasks", "covalent", "containers"]), help="One part.")
@click.option("--tasks", default=10_000, show_default=True, help="Tasks of the map.")
@click.option("--singles", default=300, show_default=True, help="Separate concurrent submissions.")
@click.option("--starts", default=20, show_default=True, help="Starts of the container side.")
@click.option("--containers", "count", default=10, show_default=True, help="Starts of real ones.")
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
    count: int,
    repeats: int,
    sweeps: int,
    peer: bool,
    long: bool,
    large: bool,
    output: Path,
) -> None:
    """Measure what tasks cost their client and their container, and a Covalent server.

    Real containers take a docker engine; their base image is BENCHMARK_BASE_IMAGE, otherwise
    Docker Hub's python.
    """
    say = Console(stderr=True).print
    parts = {report.TITLE: "", containers_report.TITLE: "", covalent_report.TITLE: ""}
    if only in (None, "containers"):
        try:
            parts[containers_report.TITLE] = _containers(say, count, peer=peer)
        except NoContainersError as error:
            if only:
                raise click.ClickException(str(error)) from None
            say(f"Left out, real containers: {error}")
    if only in (None, "tasks"):
        parts[report.TITLE] = _tasks(say, tasks, singles, starts, repeats, sweeps, peer=peer)
    if only in (None, "covalent"):
        runs = covalent_door.measure(say, repeats, peers=peer, long=long, large=large)
        found = [row.cells for row in covalent_report.rows(runs)]
        report.show_table("Figures", report.HEADINGS, found)
        for told in covalent_report.tables(runs):
            report.show_table(*told)
        parts[covalent_report.TITLE] = covalent_report.page(runs)
    report.write(output, parts)


def _containers(say: Callable[[str], object], count: int, *, peer: bool) -> str:
    found = containers.measure(say, count, peers=peer)
    cells = [row.cells for row in containers_report.rows(found)]
    report.show_table("Figures", report.HEADINGS, cells)
    for told in containers_report.tables(found):
        report.show_table(*told)
    return containers_report.page(found)


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
