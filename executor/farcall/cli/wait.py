"""``farcall wait``: waits until jobs have finished, and prints each one."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence

import click

from farcall.cli import exit_codes, references, tables
from farcall.cli.common import opened, seconds
from farcall.cli.printing import say
from farcall.engine.session import Session, this_user
from farcall.model.errors import UnknownError
from farcall.model.jobs import JobStatus
from farcall.model.names import named
from farcall.operations.catalog import Catalog
from farcall.operations.finding import Finder

_LOOK_S = (0.5, 5.0)
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
        say(text, err=True)
    waiting = _Waiting(session, job_ids, exit_codes.UNKNOWN if missing else 0)
    await waiting.look()  # poll at least once, even with a short timeout
    try:
        if not waiting.is_over(is_any=is_any):
            await asyncio.wait_for(waiting.until_ended(is_any=is_any), timeout_s)
    except asyncio.TimeoutError:
        say(
            f"{named(waiting.left)} had not finished when the timeout expired. The jobs continue.",
            err=True,
        )
        return exit_codes.TIMED_OUT
    return waiting.code


class _Waiting:
    """Poller for some jobs, one request per 100 jobs, until they have finished.

    Args:
        session: The event loop's session.
        job_ids: The jobs.
        code: Exit code if all jobs succeed.

    Attributes:
        left: Unfinished jobs.
        code: Exit code according to the jobs finished so far.
    """

    def __init__(self, session: Session, job_ids: Sequence[str], code: int) -> None:
        self._session = session
        self._count = len(job_ids)
        self.left = list(job_ids)
        self.code = code

    async def until_ended(self, *, is_any: bool) -> None:
        """Wait until all jobs have finished, or the first one."""
        pause_s = _LOOK_S[0]
        while not self.is_over(is_any=is_any):
            await asyncio.sleep(pause_s)
            before = len(self.left)
            await self.look()
            has_news = len(self.left) < before
            pause_s = _LOOK_S[0] if has_news else min(pause_s * 1.5, _LOOK_S[1])

    def is_over(self, *, is_any: bool) -> bool:
        """Return whether all jobs have finished, or the first one."""
        return not self.left or (is_any and len(self.left) < self._count)

    async def look(self) -> None:
        """Print the jobs that have finished since the last poll."""
        known = await Catalog(self._session.backend).describe(self.left)
        for job_id in list(self.left):
            try:
                entry = references.recognized(known, job_id, self._session)
            except UnknownError as error:
                say(str(error), err=True)
                self._record_end(job_id, exit_codes.UNKNOWN)
                continue
            if entry.detail.status.is_final:
                tables.show_lines([entry])
                is_well = entry.detail.status is JobStatus.SUCCEEDED
                self._record_end(job_id, 0 if is_well else exit_codes.FAILED)

    def _record_end(self, job_id: str, code: int) -> None:
        self.left.remove(job_id)
        self.code = max(self.code, code)
