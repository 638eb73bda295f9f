"""Cancellation of jobs: ``farcall cancel``."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from typing import Any

import click

from farcall.cli import exit_codes, references, tables
from farcall.cli.common import confirm, opened, print_json
from farcall.cli.options import chosen_user, owner, queue_names
from farcall.cli.printing import echo
from farcall.config.settings import Settings
from farcall.covalent.cancel import CovalentCompanion
from farcall.model.errors import FarcallError, UnknownError
from farcall.model.names import counted, in_queues
from farcall.model.terminal import in_a_line
from farcall.operations import cancel
from farcall.operations.cancel import Cancelled
from farcall.operations.catalog import Catalog, Entry, Query
from farcall.operations.finding import Finder

_CODES = {
    "cancelling": 0,
    "finished": 0,
    "unknown": exit_codes.UNKNOWN,
    "not_farcall": exit_codes.UNKNOWN,
    "refused": exit_codes.REFUSED,
    cancel.OTHER_USER: exit_codes.FAILED,
    cancel.NODE: exit_codes.FAILED,
}


@click.command("cancel")
@click.argument("job_ids", nargs=-1, metavar="[JOB...]")
@click.option("--workflow", metavar="NAME", help="Cancel all jobs of this workflow.")
@click.option("--run", metavar="RUN", help="Cancel all jobs of this run or dispatch.")
@owner
@queue_names
@click.option(
    "--reason",
    default="cancelled by farcall cancel",
    show_default=True,
    help="Reason stored with the job.",
)
@click.option("--dry-run", is_flag=True, help="Print the jobs that would be cancelled, and exit.")
@click.option("-y", "--yes", is_flag=True, help="Cancel without a prompt.")
@click.option(
    "--covalent",
    "address",
    metavar="URL",
    help="URL of the Covalent server that cancels electrons; by default the configured one.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the result for each job as JSON.")
def cancel_jobs(
    job_ids: tuple[str, ...],
    workflow: str | None,
    run: str | None,
    user: str | None,
    queues: tuple[str, ...],
    reason: str,
    address: str | None,
    *,
    all_users: bool,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Cancel jobs, or all jobs of a workflow or a run.

    \b
    Examples:
      farcall cancel 6f1c
      farcall cancel 6f1c:7              # one array task
      farcall cancel --workflow nightly

    JOB is an ID, the beginning of an ID, or the name of exactly one unfinished
    job. An array task is <array job>:<index>. Tasks have 20 seconds to clean up
    after the stop signal. Before the jobs of a workflow or a run are cancelled,
    they are listed and you are prompted.
    """  # noqa: D301  # click's marker for preformatted lines
    whole = bool(workflow or run)
    if whole == bool(job_ids):
        raise click.UsageError("specify either jobs (JOB...), or --workflow or --run")
    whose = chosen_user(user, all_users=all_users, run=None)
    server = _server(address)
    if whole:
        entries, idle = asyncio.run(_find(queues, Query(whose, workflow, run), server))
        if not (yes or dry_run) and (idle or cancel.unfinished(entries)):
            _prompt(entries, idle)
        cancelled = asyncio.run(_cancel_all(entries, reason, server, dry_run=dry_run))
    else:
        cancelled = asyncio.run(_cancel(queues, job_ids, whose, reason, server, dry_run=dry_run))
    if as_json:
        print_json(
            [{"id": one.job_id, "outcome": one.outcome, "text": one.text} for one in cancelled]
        )
    else:
        for one in cancelled:
            # Only farcall's own text has several lines: the jobs that match a name.
            text = one.text if one.outcome == "unknown" else in_a_line(one.text)
            echo(text, err=_CODES[one.outcome] != 0)
    sys.exit(max((_CODES[one.outcome] for one in cancelled), default=0))


def _server(address: str | None) -> CovalentCompanion | None:
    """Return Covalent's server; None if its configuration is broken."""
    try:
        return CovalentCompanion.configured(address)
    except FarcallError as error:
        if address:
            raise
        echo(f"cannot notify Covalent: {error}", err=True)
        return None


async def _cancel(
    queues: Sequence[str],
    named: Sequence[str],
    user: str | None,
    reason: str,
    covalent: CovalentCompanion | None,
    *,
    dry_run: bool,
) -> list[Cancelled]:
    settings, session = await opened()
    finder = Finder(session.backend, _where(queues, settings), user)
    job_ids, missing = await references.found(finder, named, to_end=True)
    done = await cancel.cancel(session, job_ids, reason, covalent, user, dry_run=dry_run)
    return done + [Cancelled(name, "unknown", text) for name, text in missing.items()]


def _where(queues: Sequence[str], settings: Settings) -> list[str]:
    return list(dict.fromkeys(queues)) or [settings.queue]


async def _find(
    queues: Sequence[str], query: Query, covalent: CovalentCompanion | None
) -> tuple[list[Entry], list[str]]:
    """Return the requested jobs, and unfinished dispatches without a job."""
    settings, session = await opened()
    where = _where(queues, settings)
    entries = [entry async for entry in Catalog(session.backend).find(where, query)]
    if not entries:
        raise _unknown(query, where)
    idle = await cancel.idle(entries, covalent)
    if not idle and not cancel.unfinished(entries):
        echo(f"nothing to cancel: all {len(entries)} jobs have finished", err=True)
    return entries, idle


async def _cancel_all(entries: Sequence[Entry], *how: Any, dry_run: bool) -> list[Cancelled]:
    _, session = await opened()
    return await cancel.cancel_all(session, entries, *how, dry_run=dry_run)


def _prompt(entries: Sequence[Entry], idle: Sequence[str]) -> None:
    """Show the jobs, and prompt before they are cancelled."""
    left = cancel.unfinished(entries)
    if left:
        tables.show(left, err=True)
    for dispatch in idle:
        echo(f"dispatch {dispatch}, which has no jobs at the moment", err=True)
    jobs = counted(len(left), "job")
    dispatches = counted(len(idle), "dispatch", "es")
    many = " and ".join([jobs] * bool(left) + [dispatches] * bool(idle))
    confirm(f"Cancel {many}?", refused="nothing was cancelled")


def _unknown(query: Query, queues: Sequence[str]) -> UnknownError:
    filters = (("workflow", query.workflow), ("run", query.run))
    named = " and ".join(f"{what} {name}" for what, name in filters if name)
    whose = f" of {query.user}" if query.user else ""
    hint = "" if query.user is None else ", or use --all-users to include other users' jobs"
    return UnknownError(
        f"no jobs{whose} in {named}{in_queues(queues)}. Choose another queue with --queue{hint}."
    )
