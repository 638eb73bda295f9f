"""The command line: ``farcall``."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import click

from farcall import __version__, covalent_resume, demo, local, reattach
from farcall.errors import FarcallError, JobLostError
from farcall.executor import BatchExecutor


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="farcall")
def cli() -> None:
    """Run Python functions as AWS Batch jobs, as if the call were local."""


@cli.command("local", context_settings={"ignore_unknown_options": True})
@click.option("--cpus", type=click.IntRange(min=1), help="Processors the jobs share.")
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="0 takes a free one.")
@click.option("--docker", is_flag=True, help="Run jobs as containers of their image.")
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def run_local(cpus: int | None, port: int, *, docker: bool, command: tuple[str, ...]) -> None:
    """Run COMMAND against an embedded AWS, or serve one until Ctrl-C.

    \b
    farcall local -- python my_workflow.py     a fresh AWS for one command
    farcall local                              prints the export lines, then serves

    With --docker a job runs in a container of the image that container_image_uri names, with a
    docker engine of this machine.
    """  # noqa: D301  # click's mark for lines to be left as they are
    try:
        if command:
            sys.exit(local.run_command(command, cpus=cpus, port=port, docker=docker))
        local.serve(cpus=cpus, port=port, docker=docker)
    except RuntimeError as error:
        raise FarcallError(str(error)) from error


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


@cli.command("cancel")
@click.argument("job_ids", nargs=-1, required=True, metavar="JOB...")
@click.option("--reason", default="cancelled by farcall cancel", help="Kept by Batch.")
def cancel_jobs(job_ids: tuple[str, ...], reason: str) -> None:
    """End jobs; an array job's child is <parent>:<index>.

    Exits with 1 if one of them is unknown.
    """
    said = asyncio.run(_cancel(job_ids, reason))
    for line, known in said:
        click.echo(line, err=not known)
    sys.exit(not all(known for _, known in said))


async def _cancel(job_ids: tuple[str, ...], reason: str) -> list[tuple[str, bool]]:
    """Return for each job what is to be said of it, and whether Batch knows it."""
    executor = BatchExecutor()
    said = []
    for job_id in job_ids:
        job = executor.attach(job_id)
        try:
            status = await job.status()
        except JobLostError as error:
            said.append((str(error), False))
            continue
        if status.is_final:
            said.append((f"{job_id} has ended: {status.value}", True))
            continue
        await job.cancel(reason)
        said.append((f"{job_id} was {status.value} and is being ended", True))
    return said


@cli.command("attach")
@click.argument("job_id", metavar="JOB")
def attach_job(job_id: str) -> None:
    """Follow a job: print what it writes as it comes, and how it ends.

    What it writes to stderr goes to stderr. An array job's child is <parent>:<index>. Ctrl-C
    leaves the job running, and its value stays in the bucket.

    Exits with 0 if the function returned, and with 1 otherwise.
    """
    sys.exit(not asyncio.run(reattach.follow(job_id)))


@cli.command("result")
@click.argument("job_id", metavar="JOB")
@click.option(
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Save the value as a pickle, and delete it from the bucket.",
)
def get_result(job_id: str, output: Path | None) -> None:
    """Wait for a job's end and print its value.

    An array job's child is <parent>:<index>. What is printed stays in the bucket.

    Exits with 0 if there is a value, and with 1 if there is an error.
    """
    sys.exit(not asyncio.run(reattach.get(job_id, output)))


@cli.command("recover")
@click.argument("run", required=False, metavar="[RUN]")
@click.option(
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="FOLDER",
    help="Save each value as <job>.pickle, and delete it from the bucket.",
)
def recover_run(run: str | None, output: Path | None) -> None:
    """Bring back the tasks of a RUN whose client was killed; without RUN list the runs.

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
        asyncio.run(reattach.list_runs())
    else:
        sys.exit(not asyncio.run(reattach.recover(run, output)))


@cli.group("covalent")
def covalent() -> None:
    """For workflows on a Covalent server."""


@covalent.command("resume")
@click.argument("dispatch_ids", nargs=-1, metavar="[DISPATCH...]")
@click.option("--server", help="URL of Covalent's server; by default the configured one.")
def resume_dispatches(dispatch_ids: tuple[str, ...], server: str | None) -> None:
    """Bring dispatches to their end after Covalent's server was ended and started again.

    Jobs that went on meanwhile are received, and what had no job yet is started. It may be called
    at any time: what is under way is left alone.
    """
    count = 0
    for found in covalent_resume.resume(dispatch_ids, server):
        count += 1
        click.echo(f"{found.dispatch_id} ({found.name}): {len(found.asked)} unfinished tasks")
        if found.foreign:
            nodes = ", ".join(map(str, found.foreign))
            click.echo(f"  nodes {nodes} ran on other executors, which do not bring them back")
    if not count:
        click.echo("no dispatch is running there")


@covalent.command("demo")
@click.option("--keep", is_flag=True, help="Serve Covalent's page until Ctrl-C.")
def run_covalent_demo(*, keep: bool) -> None:
    """Run the SVM experiment on a real Covalent server of its own, without an AWS account."""
    from farcall import covalent_demo

    covalent_demo.run(keep=keep)


def main() -> None:
    """Run the command line; errors that farcall explains come without a traceback."""
    try:
        cli()
    except (FarcallError, ModuleNotFoundError) as error:
        click.secho(f"farcall: {error}", fg="red", err=True)
        sys.exit(1)
