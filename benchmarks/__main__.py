"""``python -m benchmarks``: measures, and writes ``benchmarks/RESULTS.md``."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import click
from rich.console import Console

from benchmarks import cache, containers, covalent, kubernetes, large, report, tasks, warm
from benchmarks.harness import Settings, peer_python

RESULTS = Path(__file__).with_name("RESULTS.md")
_BENCHMARKS = {
    "tasks": tasks,
    "cache": cache,
    "large": large,
    "kubernetes": kubernetes,
    "containers": containers,
    "covalent": covalent,
    "warm": warm,
}
"""Benchmarks in the order of the page."""
_HISTORY = "What was measured once"


@click.command()
@click.option("--only", multiple=True, type=click.Choice(list(_BENCHMARKS)), help="Benchmark.")
@click.option(
    "--tasks",
    default=10_000,
    show_default=True,
    help="Tasks of a map; separate submits at most 300, Kubernetes 1,000, Covalent 50.",
)
@click.option("--size", default=1024, show_default=True, help="Large value in MiB.")
@click.option("--repeats", default=3, show_default=True, help="Runs of each client.")
@click.option("--starts", default=10, show_default=True, help="Starts of each container.")
@click.option("--peer", is_flag=True, help="Measure the peer (installs 140 MB; 10 minutes).")
@click.option("--output", default=RESULTS, type=click.Path(path_type=Path), help="Page to write.")
def main(only: tuple[str, ...], size: int, output: Path, *, peer: bool, **counts: int) -> None:
    """Measure the cost of tasks, large values, containers and Covalent lattices.

    Linux only. Each benchmark's part of the page is written when it ends; the other parts stay
    as they are. The containers need a docker engine; BENCHMARK_BASE_IMAGE replaces Docker Hub's
    Python as their base image.
    """
    command = shlex.join(["python", "-m", "benchmarks", *sys.argv[1:]])
    order = [*(each.TITLE for each in _BENCHMARKS.values()), _HISTORY]
    say = Console(stderr=True, highlight=False).print
    with peer_python(wanted=peer) as python:
        settings = Settings(size=size << 20, peer=python, say=say, **counts)
        for name in only or _BENCHMARKS:
            try:
                part = _BENCHMARKS[name].measure(settings)
            except containers.NoEngineError as error:
                if only:
                    raise click.ClickException(str(error)) from None
                say(f"Skipped containers. {error}")
                continue
            report.publish(output, part, order, command)


if __name__ == "__main__":
    main()
