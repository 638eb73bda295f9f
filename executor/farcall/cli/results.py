"""Results of jobs, for ``farcall result``, ``recover`` and ``run``.

A result is deleted from the bucket only after it was saved to a file.
"""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from farcall.cli import references
from farcall.cli.common import print_json
from farcall.cli.options import value_file
from farcall.cli.printing import Printer, echo
from farcall.client.executor import BatchExecutor
from farcall.client.job import Job
from farcall.client.recovery import Recovered
from farcall.config.settings import Settings
from farcall.engine.session import session_for
from farcall.filesystem import replacing
from farcall.model import failure_reasons
from farcall.model.errors import FarcallError
from farcall.model.names import counted
from farcall.model.terminal import in_a_line
from farcall.operations import json_view
from farcall_runtime import failures, pickles
from farcall_runtime.contract import STDERR

_PARALLEL = 16
"""Maximum number of results that are downloaded and saved at a time."""


@click.command("result")
@click.argument("reference", metavar="[JOB]", required=False)
@value_file
def get_result(reference: str | None, output: Path | None) -> None:
    """Wait until a job has finished, and print its result.

    \b
    Examples:
      farcall result                     # of the newest job
      farcall result 6f1c:7 --output value.pickle

    JOB is an ID, the beginning of an ID, or a name, which means the newest job of
    that name; by default the newest job. An array task is <array job>:<index>. A
    printed result stays in the bucket.

    Exits with 0 if the job returned a result, and with 1 if it failed.
    """  # noqa: D301  # click's marker for preformatted lines
    sys.exit(not asyncio.run(_get(reference, output)))


@click.command("recover")
@click.argument("run", required=False, metavar="[RUN]")
@click.option(
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="FOLDER",
    help="Save each result as <function>-<job>.pickle, and delete it from the bucket.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the list of runs as JSON.")
def recover_run(run: str | None, output: Path | None, *, as_json: bool) -> None:
    """Collect the results of a run whose client has died.

    \b
    Examples:
      farcall recover                          # runs with tasks in the bucket
      farcall recover RUN                      # wait for each task and print its state
      farcall recover RUN --output FOLDER      # also save the results

    File names contain a dash in place of the colon of an array task's ID. Nothing
    runs again, and Ctrl-C does not stop running tasks.

    Exits with 0 if each task has returned a result, now or before, otherwise
    with 1.
    """  # noqa: D301  # click's marker for preformatted lines
    if run is None:
        if output is not None:
            raise click.UsageError("--output requires a RUN")
        asyncio.run(_list_runs(as_json=as_json))
    elif as_json:
        raise click.UsageError("--json lists the runs and cannot be used with a RUN")
    else:
        sys.exit(not asyncio.run(_recover(run, output)))


async def stream(job: Job[Any], *, all_to_stderr: bool = False) -> None:
    """Print a job's output as it arrives, until the job finishes.

    Args:
        job: The job.
        all_to_stderr: Whether the job's stdout goes to stderr, too.
    """
    printer = Printer(only=STDERR if all_to_stderr else "")
    async for batch in job.lines(follow=True):
        printer.print(batch)


async def _get(reference: str | None, output: Path | None) -> bool:
    """Wait for a job, and print or save its result.

    Returns:
        Whether the job returned a result.
    """
    executor = _opened()
    session = await session_for(executor.settings)
    job_id = await references.job_id(executor.settings, session, reference)
    return await hand_over(executor.attach(job_id), output, keeps=_keeps())


async def hand_over(
    job: Job[Any],
    output: Path | None,
    *,
    keeps: bool,
    show: Callable[[Any], str] = repr,
) -> bool:
    """Wait until a job finishes; print or save its result, or show the failure.

    A saved result is deleted from the bucket; a printed result stays there.

    Args:
        job: The job, of an executor with ``keep_artifacts``.
        output: File for the pickled result.
        keeps: Whether the result stays in the bucket anyway.
        show: Converts the result to the printed text.

    Returns:
        Whether the job returned a result.
    """
    error = await job.exception()
    if error is not None:
        _show(error)
        return False
    value = await job.result()
    if output is None:
        echo(show(value))
    else:
        await asyncio.to_thread(_write, value, output)
        if not keeps:
            await job._delete_outcome()
    return True


async def _list_runs(*, as_json: bool) -> None:
    executor = _opened()
    runs = await executor.runs()
    if as_json:
        print_json(
            [
                {
                    "name": run.name,
                    "functions": run.functions,
                    "bundles": run.bundles,
                    "stored_at": json_view.moment(run.stored_at),
                }
                for run in runs
            ]
        )
        return
    for run in runs:
        bundles = counted(run.bundles, "bundle")
        first = f"the first of {run.stored_at:%Y-%m-%d %H:%M} UTC"
        echo(in_a_line(f"{run.name}  {', '.join(run.functions)}  {bundles}, {first}"))
    if not runs:
        settings = executor.settings
        echo(f"no run has stored data in s3://{settings.s3_bucket_name}/{settings.prefix}")


async def _recover(run: str, folder: Path | None) -> bool:
    """Print the result of each task of a run as it arrives, and save results.

    Returns:
        Whether each task returned a result, now or before.
    """
    executor = _opened()
    recovered = await executor.recover(run)
    echo(f"{recovered.run}: {len(recovered.jobs)} tasks to collect", err=True)
    places = asyncio.Semaphore(_PARALLEL)
    waits = []
    while recovered.jobs:  # keeps no reference to a finished job's result
        waits.append(_bring(recovered.jobs.pop(0), places, folder))
    all_well = all(await asyncio.gather(*waits))
    if folder is not None and not _keeps():
        await recovered.discard()
    return _print_rest(recovered) and all_well


async def _bring(job: Job[Any], places: asyncio.Semaphore, folder: Path | None) -> bool:
    """Wait for a job, save its result, and print its state.

    A failure of this job does not stop the recovery of the others.

    Returns:
        Whether the job returned a result, which was saved if requested.
    """
    error: BaseException | None
    outcome = "returned"
    try:
        await job.wait()
        async with places:
            error = await job.exception()
            if error is None and folder is not None:
                # The job's name comes from the platform, so it must not lead out of the folder.
                name = re.sub(r"\W", "_", job.name.rpartition("-")[0])
                path = folder / f"{name}-{job.id.replace(':', '-')}.pickle"
                await asyncio.to_thread(_write, await job.result(), path)
                outcome = f"saved as {path}"
                if not _keeps():
                    await job._delete_outcome()
    except FarcallError as trouble:
        error = trouble
    if error is not None:
        outcome = failure_reasons.in_a_line(type(error).__name__, failures.message(error))
    echo(f"{job.id}  {in_a_line(job.name.rpartition('-')[0])}  {outcome}")
    return error is None


def _print_rest(recovered: Recovered) -> bool:
    """Print the tasks without a job; return whether all of them returned a result."""
    if recovered.delivered:
        echo(f"{recovered.delivered} tasks were collected before")
    for bundle in recovered.unsubmitted:
        echo(f"{bundle}  was not submitted: none of its calls has run")
    for bundle in recovered.forgotten:
        echo(f"{bundle}  its job no longer exists: Batch deletes finished jobs after some days")
    return not recovered.unsubmitted and not recovered.forgotten


def _opened() -> BatchExecutor:
    """Return an executor outside of a block, which checks only required resources."""
    return BatchExecutor(keep_artifacts=True)


def _keeps() -> bool:
    return Settings().keep_artifacts


def _show(error: BaseException) -> None:
    """Show a failure; for the function's own error, also its source location."""
    if isinstance(error, FarcallError):
        echo(f"farcall: {error}", fg="red", err=True)
    else:
        text = failures.with_traceback(error, error.__traceback__)
        echo(text.rstrip("\n"), err=True)


# A thread instead of aiofiles writes a pickle to its file without holding it in memory.


def _write(value: object, path: Path) -> None:
    """Pickle a result into a file that appears only when it is complete."""
    try:
        with replacing(path) as file:
            pickles.dump_to(value, file)
    except Exception as error:  # from the result's own pickling code, or the disk
        raise FarcallError(
            f"cannot save the result as {path} ({failures.in_words(error)}). The result is "
            "still in the bucket."
        ) from error
