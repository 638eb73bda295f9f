"""``farcall retry``: run failed tasks again."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import click

from farcall.cli import references
from farcall.cli.common import confirm, opened, print_json
from farcall.cli.options import given, resource_options
from farcall.cli.printing import echo
from farcall.engine.retry_plan import Plan
from farcall.engine.session import this_user
from farcall.model.errors import NothingToRetryError, UnknownError
from farcall.model.names import counted, in_queues
from farcall.model.terminal import in_a_line
from farcall.operations import retry
from farcall.operations.catalog import CLIENT, Entry
from farcall.operations.retry import Again


@click.command("retry")
@click.argument("reference", metavar="JOB|RUN")
@click.option(
    "--failed", is_flag=True, help="Only tasks that failed, not tasks that were cancelled."
)
@resource_options
@click.option("--dry-run", is_flag=True, help="Print what would run, and exit.")
@click.option("-y", "--yes", is_flag=True, help="Submit several jobs without a prompt.")
@click.option("--json", "as_json", is_flag=True, help="Print the submitted jobs as JSON.")
def retry_job(
    reference: str,
    assignments: tuple[str, ...],
    *,
    failed: bool,
    dry_run: bool,
    yes: bool,
    as_json: bool,
    **short: str | None,
) -> None:
    """Run the failed tasks of a job again, as a new job.

    \b
    Examples:
      farcall retry JOB                    # the failed and the cancelled tasks
      farcall retry JOB:INDEX --memory 8   # one array task, with more memory
      farcall retry RUN --failed           # the failed tasks of all jobs of a run

    JOB is an ID, the beginning of an ID, or a name, which means the newest job of
    that name. The function, arguments, image and options are the original ones,
    except for options that you give. A task with several calls (chunksize) runs
    all of them again. Tasks that an earlier retry has run are not included: retry
    that job. Covalent retries its electrons itself.
    """  # noqa: D301  # click's marker for preformatted lines
    options = given(assignments, short)
    whole = CLIENT.fullmatch(reference) is not None
    plans = asyncio.run(_plans(reference, options, failed=failed, whole=whole))
    if dry_run:
        if as_json:
            print_json([_row(each, options) for each in plans])
        return
    if whole and not yes:
        confirm(f"Submit {counted(len(plans), 'job')}?", refused="nothing was submitted")
    done = asyncio.run(_run(plans, options))
    if as_json:
        print_json([each._asdict() for each in done])
        return
    for each in done:
        echo(each.job_id)
    echo(f"farcall wait {' '.join(each.job_id for each in done)}", err=True)


def _row(plan: Plan, options: dict[str, Any]) -> dict[str, Any]:
    return {
        "retry_of": plan.submission.job_id,
        "tasks": len(plan.tasks),
        "message": plan.summary(plan.with_options(options)),
    }


async def _plans(
    reference: str, options: dict[str, Any], *, failed: bool, whole: bool
) -> list[Plan]:
    settings, session = await opened()
    if not whole:
        job_id = await references.job_id(settings, session, reference)
        plans = [await retry.plan(session, settings, job_id, failed=failed)]
    else:
        entries = await retry.jobs_of(session, [settings.queue], reference)
        if not entries:
            raise UnknownError(
                f"no job of run {reference} has failed{in_queues([settings.queue])}. Run "
                f"`farcall list --run {reference}` to list its jobs."
            )
        plans = []
        for entry in entries:
            plans += await _of_one(entry, failed=failed)
        if not plans:
            raise NothingToRetryError(f"run {reference} has no tasks to retry")
    for plan in plans:
        summary = plan.summary(plan.with_options(options))
        echo(f"{_whose(plan)}{in_a_line(summary)}", err=True)
    return plans


async def _of_one(entry: Entry, *, failed: bool) -> list[Plan]:
    """Return the plan of a run's job; print the reason if no task can be retried."""
    settings, session = await opened()
    try:
        return [await retry.plan(session, settings, entry.detail.job_id, failed=failed)]
    except NothingToRetryError as error:
        echo(str(error), err=True)
        return []


def _whose(plan: Plan) -> str:
    """Return a prefix with the job's owner if it is another user."""
    entry = Entry.of(plan.detail)
    user = entry.user if entry is not None else ""
    return f"a job of {in_a_line(user)}: " if user and user != this_user() else ""


async def _run(plans: Sequence[Plan], options: dict[str, Any]) -> list[Again]:
    _, session = await opened()
    done: list[Again] = []
    for plan in plans:
        done += await retry.run(session, plan, options)
    return done
