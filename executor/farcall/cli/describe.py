"""One job in detail: ``farcall describe``."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import click

from farcall.cli import job_detail_view, references
from farcall.cli.common import opened, print_json
from farcall.config.settings import Settings
from farcall.operations import costs, describe
from farcall.operations.catalog import Entry


@click.command("describe")
@click.argument("reference", metavar="[JOB]", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print all details as JSON.")
def describe_job(reference: str | None, *, as_json: bool) -> None:
    """Show everything about a job, and why it failed.

    \b
    Examples:
      farcall describe                   # the newest job
      farcall describe fit
      farcall describe 6f1c:7            # one array task

    Shows requested and used resources, the attempts, and why the job failed or
    what it waits for, with what to do. JOB is an ID, the beginning of an ID, or a
    name, which means the newest job of that name; by default the newest job. An
    array task is <array job>:<index>, a node <job>#<index>.
    """  # noqa: D301  # click's marker for preformatted lines
    settings, entry, view = asyncio.run(_overview(reference))
    if as_json:
        print_json(view)
    else:
        cost = costs.cost(entry.detail, settings, datetime.now(UTC))
        job_detail_view.show(entry, view, cost)


async def _overview(reference: str | None) -> tuple[Settings, Entry, dict[str, object]]:
    settings, session = await opened()
    job_id = await references.job_id(settings, session, reference)
    entry = await references.described(session, job_id)
    return settings, entry, await describe.of(session, entry)
