"""``python -m benchmarks``: measure, print tables and write ``benchmarks/RESULTS.md``."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from pathlib import Path

import click
from rich.console import Console

from benchmarks import (
    containers,
    containers_report,
    covalent_door,
    covalent_report,
    growth,
    growth_plot,
    growth_report,
    kubernetes,
    large,
    measure,
    report,
)
from benchmarks.images import NoContainersError
from benchmarks.stage import stage

RESULTS = Path(__file__).with_name("RESULTS.md")
_TITLES = {
    "tasks": growth_report.TITLE,
    "large": large.TITLE,
    "kubernetes": kubernetes.TITLE,
    "containers": containers_report.TITLE,
    "covalent": covalent_report.TITLE,
}
"""The parts, in the order of the page."""

_ONCE = "What was measured once"

_LONG = {"kubernetes"}
"""Those that are measured only where they are named."""


@click.command()
@click.option("--only", multiple=True, type=click.Choice([*_TITLES]), help="These parts.")
@click.option("--tasks", default=10_000, show_default=True, help="The most tasks at once.")
@click.option("--repeats", default=5, show_default=True, help="Turns of most measurements.")
@click.option("--sweeps", default=3, show_default=True, help="Turns of the most tasks.")
@click.option("--starts", default=20, show_default=True, help="Starts of the container side.")
@click.option("--size", default=1024, show_default=True, help="MiB of the large values.")
@click.option("--containers", "count", default=10, show_default=True, help="Starts of real ones.")
@click.option(
    "--kubernetes",
    "emulated",
    default=2000,
    show_default=True,
    help="Tasks of the part kubernetes, 20 a second.",
)
@click.option("--peer", is_flag=True, help="Install and measure the peer, too (140 MB, minutes).")
@click.option("--long", is_flag=True, help="Have the peer run the longest lattice (minutes).")
@click.option("--large", "values", is_flag=True, help="Large values through Covalent, too (8 GB).")
@click.option(
    "--output", "page", default=RESULTS, type=click.Path(path_type=Path), help="Page to write."
)
def main(
    *,
    only: tuple[str, ...],
    tasks: int,
    repeats: int,
    sweeps: int,
    starts: int,
    size: int,
    count: int,
    emulated: int,
    peer: bool,
    long: bool,
    values: bool,
    page: Path,
) -> None:
    """Measure what tasks cost their client and their container, and a Covalent server.

    Linux. Each part is written as soon as it is measured, the plot beside the page, and the parts
    that are not measured stay as they are. Real containers take a docker engine; their base image
    is BENCHMARK_BASE_IMAGE, otherwise Docker Hub's python.
    """
    given = shlex.join(sys.argv[1:]) if page == RESULTS else "..."
    say = Console(stderr=True, highlight=False).print
    plot = page.with_name("growth.svg")
    parts: dict[str, Callable[[], report.Part]] = {
        "tasks": lambda: _tasks(say, plot, tasks, repeats, sweeps, starts, given, peer=peer),
        "large": lambda: _large(say, size, given),
        "kubernetes": lambda: kubernetes.part(say, emulated, options=given),
        "containers": lambda: containers_report.part(
            containers.measure(say, count, peers=peer), options=given
        ),
        "covalent": lambda: covalent_report.part(
            covalent_door.measure(say, repeats, peers=peer, long=long, large=values), options=given
        ),
    }
    wanted = set(only) or set(parts) - _LONG
    for name, measured in parts.items():
        if name not in wanted:
            continue
        try:
            told = measured()
        except NoContainersError as error:
            if only:
                raise click.ClickException(str(error)) from None
            say(f"Left out, real containers: {error}")
            continue
        report.show(told)
        report.write(page, [told], [*_TITLES.values(), _ONCE])


def _tasks(
    say: Callable[[str], object],
    plot: Path,
    tasks: int,
    repeats: int,
    sweeps: int,
    starts: int,
    given: str,
    *,
    peer: bool,
) -> report.Part:
    with stage() as place:
        say("from outcome to hand ...")
        latencies = measure.latencies(place)
        say(f"{starts} starts of the container side ...")
        started = measure.starts(place, starts)
        grown = growth.run(
            say, place, most=tasks, repeats=repeats, long_repeats=sweeps, peers=peer
        )
    growth_plot.draw(grown, plot)
    return growth_report.part(grown, started, latencies, options=given)


def _large(say: Callable[[str], object], size: int, given: str) -> report.Part:
    with stage() as place:
        return large.part(say, place, size << 20, options=given)


if __name__ == "__main__":
    main()
