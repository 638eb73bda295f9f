"""``farcall run``: runs a function as a job and prints its result."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import json
import sys
from collections.abc import AsyncIterator, Awaitable
from pathlib import Path
from typing import Any

import click
from pydantic_core import to_jsonable_python
from rich.markup import escape

from farcall.cli import plan, results, tables
from farcall.cli.options import given, job_options, value_file
from farcall.cli.printing import echo
from farcall.cli.signatures import Call
from farcall.cli.targets import Target, find
from farcall.client.command_job import CommandJob
from farcall.client.console import Console
from farcall.client.executor import BatchExecutor
from farcall.client.job import Job
from farcall.client.task import Task
from farcall.config.settings import Settings
from farcall.model.errors import JobLostError
from farcall.model.jobs import JobDetail
from farcall.model.terminal import in_a_line

_POLL_S = (0.5, 5.0)
"""Minimum and maximum interval in seconds between two polls of the job's state."""


@click.command("run", context_settings={"allow_interspersed_args": False})
@job_options
@click.option(
    "--packages", metavar="SOURCE", help="Packages to send: auto, local, or a requirements file."
)
@click.option("--detach", is_flag=True, help="Print the job's ID after submission, and exit.")
@value_file
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@click.option(
    "--dry-run", "is_plan", is_flag=True, help="Print the requests without sending them."
)
@click.option("--offline", is_flag=True, help="With --dry-run: make no API requests.")
@click.argument("target", metavar="MODULE:FUNCTION")
@click.argument("args", nargs=-1, type=click.UNPROCESSED, metavar="[ARGS]...")
@click.pass_context
def run(
    ctx: click.Context,
    /,
    target: str,
    args: tuple[str, ...],
    assignments: tuple[str, ...],
    output: Path | None,
    *,
    detach: bool,
    as_json: bool,
    is_plan: bool,
    offline: bool,
    **short: str | None,
) -> None:
    """Run a function as a job and print its result.

    \b
    Examples:
      farcall run train:fit data.csv --epochs 3
      farcall run --vcpu 8 -o retry_attempts=1 path/train.py:fit data.csv
      farcall run train:fit --help       # the function's own arguments

    MODULE is a file, or is imported from the working directory. Options before
    MODULE:FUNCTION belong to farcall; everything after it belongs to the function.
    Parameters become arguments, and parameters with a default or keyword-only
    parameters become --options. Values are converted according to the annotations;
    without an annotation they are parsed as JSON if possible, otherwise they are
    strings. A function that an executor decorated keeps its own options.

    The job's output is copied to stdout and stderr, and the result is the last
    line on stdout. With --json or --output the job's output goes to stderr. --json
    prints objects that JSON cannot represent as their repr. A printed result stays
    in the bucket, for `farcall result`.

    --dry-run prints the requests that would be sent (RegisterJobDefinition and
    SubmitJob) as JSON, with the files and packages that would be uploaded and
    their sizes. The suffix of the job's name and the signing key differ each time.
    With --offline, and without AWS credentials, ARNs contain ACCOUNT.

    Ctrl-C cancels the job. Exits with 0 if the function returned, otherwise
    with 1.
    """  # noqa: D301  # click's marker for preformatted lines
    if detach + as_json + is_plan + (output is not None) > 1:
        raise click.UsageError("--detach, --output, --json and --dry-run cannot be used together")
    if offline and not is_plan:
        raise click.UsageError("--offline requires --dry-run, because submitting a job calls AWS")
    named = find(target)
    options = given(assignments, short)
    bound = Call(target, named.function).bind(args, ctx)
    settings = named.callee.executor.settings if isinstance(named.callee, Task) else Settings()
    # The running script is farcall, so the workflow is named after the user's module.
    options = {"workflow": settings.workflow or named.workflow, **options}
    executor = BatchExecutor(settings, **options)
    if is_plan:

        def planned(is_offline: bool) -> Awaitable[dict[str, Any]]:
            return plan.of_call(executor.settings, named.function, bound, offline=is_offline)

        plan.show(asyncio.run(plan.with_account(planned, offline=offline)))
    elif detach:
        asyncio.run(_leave(executor, named, bound))
    else:
        show = _in_json if as_json else repr
        is_alone = as_json or output is not None
        done = _run(executor, named, bound, output, show=show, is_alone=is_alone)
        sys.exit(not asyncio.run(done))


async def _leave(executor: BatchExecutor, target: Target, bound: inspect.BoundArguments) -> None:
    job = await executor.submit(target.function, *bound.args, **bound.kwargs)
    echo(job.id)
    echo(
        f"Run `farcall logs -f {job.id}` to follow the output, `farcall result {job.id}` to "
        "get the result.",
        err=True,
    )


async def _run(
    executor: BatchExecutor,
    target: Target,
    bound: inspect.BoundArguments,
    output: Path | None,
    *,
    show: Any,
    is_alone: bool,
) -> bool:
    keeps = executor.settings.keep_artifacts
    async with executor.with_options(keep_artifacts=True) as opened:
        job = await opened.submit(target.function, *bound.args, **bound.kwargs)
        async with telling_states(job):
            await results.stream(job, all_to_stderr=is_alone)
        return await results.hand_over(job, output, keeps=keeps, show=show)


@contextlib.asynccontextmanager
async def telling_states(job: Job[Any] | CommandJob) -> AsyncIterator[None]:
    """Print a job's states to stderr during the block."""
    telling = asyncio.ensure_future(_print_states(job))
    try:
        yield
    finally:
        telling.cancel()
        await asyncio.gather(telling, return_exceptions=True)


async def _print_states(job: Job[Any] | CommandJob) -> None:
    """Print a job's states to stderr until it finishes."""
    echo(f"job {job.id} ({job.name})", err=True)
    printed, wait_s = "", _POLL_S[0]
    waiting = Console(stderr=True).status("")
    with contextlib.ExitStack() as shown:
        if sys.stderr.isatty():
            shown.enter_context(waiting)
        while not job.done():
            with contextlib.suppress(JobLostError):  # the job may not be listed yet
                detail = await job.detail()
                text = _state(detail)
                if text != printed:
                    printed, wait_s = text, _POLL_S[0]
                    waiting.update(escape(text))
                    if detail.started_at is not None:
                        shown.close()  # the job's own output follows
                    echo(text, err=True)
            await asyncio.sleep(wait_s)
            wait_s = min(wait_s * 1.5, _POLL_S[1])


def _state(detail: JobDetail) -> str:
    reason = detail.status_reason
    parts = [tables.word(detail), reason and f"({in_a_line(reason)})", detail.remedy]
    return " ".join(part for part in parts if part)


def _in_json(value: object) -> str:
    """Return JSON; values that JSON cannot represent become their repr, and NaN null."""
    try:
        plain = to_jsonable_python(value, fallback=repr, inf_nan_mode="null", bytes_mode="base64")
    except ValueError:  # a circular reference
        plain = repr(value)
    return json.dumps(plain, separators=(",", ":"))
