"""``farcall wait``: waits until jobs have finished, and prints each one."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Sequence

import click

from farcall.cli import exit_codes, references, tables
from farcall.cli.common import opened, seconds
from farcall.cli.printing import echo
from farcall.client.console import Console
from farcall.engine.session import Session, this_user
from farcall.model.errors import UnknownError
from farcall.model.jobs import JobStatus
from farcall.model.names import named
from farcall.operations.catalog import Catalog
from farcall.operations.finding import Finder

_POLL_S = (0.5, 5.0)
"""Minimum and maximum interval between polls in seconds: after a job's end, and idle."""


@click.command("wait")
@click.argument("arguments", nargs=-1, metavar="[JOB...]")
@click.option("--any", "is_any", is_flag=True, help="Wait only until the first job has finished.")
@click.option(
    "--timeout",
    "timeout_s",
    type=seconds,
    metavar="TIME",
    help="Maximum wait: 10m, 1h30m, or seconds. The jobs continue.",
)
def wait_for_jobs(arguments: tuple[str, ...], timeout_s: float | None, *, is_any: bool) -> None:
    """Wait until jobs have finished.

    \b
    Examples:
      farcall wait                       # for the newest job
      farcall wait fit score --timeout 1h30m

    JOB is an ID, the beginning of an ID, or a name, which means the newest job of
    that name; by default the newest job. Waiting for an array includes all of its
    tasks. Ctrl-C does not stop the jobs.

    Exits with 0 if all jobs have succeeded, with 1 if one failed or was cancelled,
    with 3 if one is unknown, and with 124 if the timeout has expired.
    """  # noqa: D301  # click's marker for preformatted lines
    sys.exit(asyncio.run(_within(arguments, timeout_s, is_any=is_any)))


async def _within(arguments: Sequence[str], timeout_s: float | None, *, is_any: bool) -> int:
    settings, session = await opened()
    if arguments:
        finder = Finder(session.backend, [settings.queue], this_user())
        job_ids, missing = await references.found(finder, arguments)
    else:
        job_ids, missing = [await references.job_id(settings, session, None)], {}
    for text in missing.values():
        echo(text, err=True)
    code, left = exit_codes.UNKNOWN if missing else 0, list(job_ids)
    deadline = float("inf") if timeout_s is None else time.monotonic() + timeout_s
    pause_s = _POLL_S[0]
    while left:
        ends = await _poll(session, left)
        code = max(code, *ends.values(), 0)
        left = [job_id for job_id in left if job_id not in ends]
        if not left or (is_any and len(left) < len(job_ids)):
            break
        if time.monotonic() >= deadline:
            echo(
                f"{named(left)} had not finished when the timeout expired. The jobs continue.",
                err=True,
            )
            return exit_codes.TIMED_OUT
        pause_s = _POLL_S[0] if ends else min(pause_s * 1.5, _POLL_S[1])
        await asyncio.sleep(min(pause_s, max(0.0, deadline - time.monotonic())))
    return code


async def _poll(session: Session, job_ids: Sequence[str]) -> dict[str, int]:
    """Print the jobs that have finished, and return their exit codes by ID."""
    known = await Catalog(session.backend).describe(job_ids)
    ends = {}
    for job_id in job_ids:
        try:
            entry = references.recognized(known, job_id, session)
        except UnknownError as error:
            echo(str(error), err=True)
            ends[job_id] = exit_codes.UNKNOWN
            continue
        if entry.detail.status.is_final:
            out = Console()
            out.print(tables.line(entry, whole_id=not out.is_terminal), soft_wrap=True)
            is_well = entry.detail.status is JobStatus.SUCCEEDED
            ends[job_id] = 0 if is_well else exit_codes.FAILED
    return ends
