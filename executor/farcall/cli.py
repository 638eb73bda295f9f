"""The command line: ``farcall``."""

from __future__ import annotations

import asyncio
import sys

import click

from farcall import __version__, demo, local
from farcall.errors import FarcallError


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="farcall")
def cli() -> None:
    """Run Python functions as AWS Batch jobs, as if the call were local."""


@cli.command("local", context_settings={"ignore_unknown_options": True})
@click.option("--cpus", type=click.IntRange(min=1), help="Processors the jobs share.")
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="0 takes a free one.")
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def run_local(cpus: int | None, port: int, command: tuple[str, ...]) -> None:
    """Run COMMAND against an embedded AWS, or serve one until Ctrl-C.

    \b
    farcall local -- python my_workflow.py     a fresh AWS for one command
    farcall local                              prints the export lines, then serves
    """  # noqa: D301  # click's mark for lines to be left as they are
    if command:
        sys.exit(local.run_command(command, cpus=cpus, port=port))
    local.serve(cpus=cpus, port=port)


@cli.command("demo")
@click.option(
    "--tasks",
    type=click.IntRange(2, 10_000),
    default=200,
    show_default=True,
    help="Size of the sweep.",
)
def run_demo(tasks: int) -> None:
    """Train a model as a Batch job and run a sweep, without an AWS account."""
    asyncio.run(demo.run(tasks))


def main() -> None:
    """Run the command line; errors that farcall explains come without a traceback."""
    try:
        cli()
    except (FarcallError, ModuleNotFoundError) as error:
        click.secho(f"farcall: {error}", fg="red", err=True)
        sys.exit(1)
