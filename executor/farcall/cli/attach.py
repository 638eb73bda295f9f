"""Jobs joined again: ``farcall attach``, ``farcall result``, ``farcall recover``."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import click

from farcall.cli import reattach
from farcall.cli.common import print_json
from farcall.cli.options import value_file
from farcall.cli.printing import say
from farcall.model.terminal import in_a_line
from farcall.model.wording import counted
from farcall.operations import json_view


@click.command("attach")
@click.argument("job_id", metavar="JOB")
def attach_job(job_id: str) -> None:
    """Follow a job: print what it writes as it comes, and how it ends.

    What it writes to stderr goes to stderr. An array job's child is <parent>:<index>. Ctrl-C
    leaves the job running, and its value stays in the bucket.

    Exits with 0 if the function returned, and with 1 otherwise.
    """
    sys.exit(not asyncio.run(reattach.follow(job_id)))


@click.command("result")
@click.argument("job_id", metavar="JOB")
@value_file
def get_result(job_id: str, output: Path | None) -> None:
    """Wait for a job's end and print its value.

    An array job's child is <parent>:<index>. What is printed stays in the bucket.

    Exits with 0 if there is a value, and with 1 if there is an error.
    """
    sys.exit(not asyncio.run(reattach.get(job_id, output)))


@click.command("recover")
@click.argument("run", required=False, metavar="[RUN]")
@click.option(
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="FOLDER",
    help="Save each value as <job>.pickle, and delete it from the bucket.",
)
@click.option("--json", "as_json", is_flag=True, help="The list of runs, as JSON.")
def recover_run(run: str | None, output: Path | None, *, as_json: bool) -> None:
    """Bring back the tasks of a run whose client was killed.

    \b
    farcall recover                          runs that have left something in the bucket
    farcall recover RUN                      waits for each task: job, function, what came of it
    farcall recover RUN --output FOLDER      saves the values, too

    In a file's name the colon of a child's ID is a dash. Nothing is run again, and Ctrl-C leaves
    running tasks alone.

    Exits with 0 if each task has given a value, now or before, and with 1 otherwise.
    """  # noqa: D301  # click's mark for lines to be left as they are
    if run is None:
        if output is not None:
            raise click.UsageError("--output needs a RUN")
        asyncio.run(_list_runs(as_json=as_json))
    elif as_json:
        raise click.UsageError("--json is for the list of runs, without RUN")
    else:
        sys.exit(not asyncio.run(reattach.recover(run, output)))


async def _list_runs(*, as_json: bool) -> None:
    """Print the runs that have left something in the bucket."""
    place, runs = await reattach.list_runs()
    if as_json:
        rows = [(run.name, run.bundles, json_view.moment(run.stored_at)) for run in runs]
        print_json([dict(zip(("name", "bundles", "stored_at"), row, strict=True)) for row in rows])
        return
    for run in runs:
        bundles = counted(run.bundles, "bundle")
        say(f"{in_a_line(run.name)}  {bundles}, the first of {run.stored_at:%Y-%m-%d %H:%M} UTC")
    if not runs:
        say(f"no run has left anything in {place}")
