"""``farcall list`` and ``farcall describe``."""

from __future__ import annotations

import asyncio
import contextlib
import re
import sys
from collections.abc import (
    Iterable,
    Iterator,
    Sequence,
)
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, NoReturn

import click
from rich.console import Group
from rich.live import Live
from rich.text import Text

from farcall.backends.base import platform_of
from farcall.cli import references, tables
from farcall.cli.common import moment, opened, pattern, print_json, reporting_wait
from farcall.cli.options import chosen_user, owner, queue_names
from farcall.cli.printing import echo
from farcall.client.console import Console
from farcall.config.settings import Settings
from farcall.engine.session import Session, this_user
from farcall.model.errors import FarcallError, UnknownError
from farcall.model.jobs import JobDetail, JobStatus
from farcall.model.names import counted
from farcall.operations import explain, json_view
from farcall.operations.catalog import Catalog, Entry, Query
from farcall.operations.finding import Finder
from farcall.operations.reasons import Reasons, child_of

_PAUSE_S = 2.0
_ACTIVE = "active"
_STATES = (*dict.fromkeys(word.lower() for word in json_view.WORDS.values()), _ACTIVE)
_BLOCK = 100
"""Number of jobs that are searched together."""

_MOST_TROUBLES = 3
_UNFINISHED = frozenset(status for status in JobStatus if not status.is_final)


@click.command("list")
@click.argument("arrays", nargs=-1, metavar="[JOB...]")
@owner
@click.option("--workflow", metavar="NAME", help="Only jobs of this workflow.")
@click.option("--run", metavar="RUN", help="Only jobs of this run or dispatch.")
@click.option(
    "--state",
    "states",
    multiple=True,
    type=click.Choice(_STATES, case_sensitive=False),
    help="Only jobs in this state; repeatable.",
)
@click.option(
    "--since",
    type=moment,
    metavar="WHEN",
    default="1d",
    show_default=True,
    help="Only jobs submitted since: 12h, 2d, 2026-11-20.",
)
@queue_names
@click.option(
    "--limit",
    metavar="N",
    type=click.IntRange(min=1),
    default=100,
    show_default=True,
    help="Maximum number of rows, including tasks and nodes.",
)
@click.option("--children", is_flag=True, help="Also list array tasks and nodes.")
@click.option(
    "--grep",
    type=pattern,
    metavar="REGEX",
    help="Only jobs whose name, call or error matches.",
)
@click.option("-w", "--watch", is_flag=True, help="Refresh every 2 s until Ctrl-C.")
@click.option("--json", "as_json", is_flag=True, help="Print all details as JSON.")
@click.option(
    "--usage",
    is_flag=True,
    help="With --json: add each finished task's time, CPU and peak memory, from its log.",
)
def list_jobs(
    arrays: tuple[str, ...],
    user: str | None,
    workflow: str | None,
    run: str | None,
    states: tuple[str, ...],
    since: datetime,
    queues: tuple[str, ...],
    limit: int,
    *,
    grep: re.Pattern[str] | None,
    all_users: bool,
    children: bool,
    watch: bool,
    as_json: bool,
    usage: bool,
) -> None:
    """List jobs, the newest first.

    \b
    Examples:
      farcall list --state failed --since 2d
      farcall list --watch
      farcall list fit                   # the array tasks of the newest job `fit`

    JOB is an ID, the beginning of an ID, or a name, which means the newest job of
    that name. If JOB is an array or a multi-node job, its tasks or nodes are
    listed. Until all tasks have finished, an array has the state of its most
    advanced task, and --state also matches the states of its tasks. A map that was
    stopped by a call's error is Failed. Command jobs have a $ before their name.

    A task is listed with its arguments, and a failed task with its error; an array
    with the number of failed tasks per error. --grep searches these, names, IDs
    and workflows, and the arguments of all tasks of an array.

    On a terminal --watch keeps the table up to date; otherwise it prints a line
    for each new or changed job.
    """  # noqa: D301  # click's marker for preformatted lines
    whose = chosen_user(user, all_users=all_users, run=run)
    query = Query(whose, workflow, run, _wanted(states), since)
    if watch and as_json:
        raise click.UsageError("--watch and --json cannot be used together")
    if usage and not as_json:
        raise click.UsageError("--usage requires --json")
    listing = _Listing(queues, arrays, query, limit, children, grep)
    if watch:
        asyncio.run(_watch(listing, whole_ids=bool(queues)))
    if as_json:
        print_json(asyncio.run(_as_json(listing, usage=usage)))
        return
    entries = asyncio.run(listing.again())
    # A prefix of an ID is searched in one queue.
    tables.show(entries, whole_ids=bool(queues))
    _print_troubles(entries)
    echo(_footer(len(entries), limit, None if arrays else query), err=True)


async def _watch(listing: _Listing, *, whole_ids: bool) -> NoReturn:
    """Keep a table up to date on a terminal's second screen; otherwise print changed jobs."""
    out = Console()
    shown: dict[str, str] = {}
    live = Live(console=out, screen=True, auto_refresh=False, vertical_overflow="crop")
    with live if out.is_terminal else contextlib.nullcontext():
        while True:
            entries = await listing.again()
            if out.is_terminal:
                at = tables.clock(datetime.now(UTC))
                head = f"{counted(len(entries), 'job')} at {at}; press Ctrl-C to stop"
                table = tables.table(entries, out.width, whole_ids=whole_ids)
                live.update(Group(Text(head, "dim"), Text(), table), refresh=True)
            else:
                lines = {entry.detail.job_id: tables.line(entry).plain for entry in entries}
                for job_id, line in lines.items():
                    if shown.get(job_id) != line:
                        echo(line)
                shown |= lines
            await asyncio.sleep(_PAUSE_S)


async def _as_json(listing: _Listing, *, usage: bool) -> list[dict[str, Any]]:
    entries = await listing.again()
    listed = [json_view.job(entry) for entry in entries]
    if usage:
        _, session = await opened()
        usages = await explain.logged_usages(session, [entry.detail for entry in entries])
        for each in listed:
            used = usages.get(each["id"])
            each["usage"] = None if used is None else asdict(used)
    return listed


def _wanted(states: Iterable[str]) -> frozenset[str]:
    """Return the requested states; empty for any."""
    names = {name for name, word in json_view.WORDS.items() if word.lower() in states}
    if _ACTIVE in states:
        names |= {status.value for status in _UNFINISHED}
    return frozenset(names)


@dataclass
class _Listing:
    """Filter of ``farcall list``, and the state kept between polls.

    Attributes:
        queues: The queues, if they differ from the options'.
        arrays: Jobs whose array tasks or nodes are listed, if given.
        query: Filter of jobs; if ``arrays`` is given, only its states apply.
        limit: Maximum number of jobs.
        children: Whether array tasks and nodes are listed, too.
        grep: Expression that the shown texts must match; None for no filter.
    """

    queues: Sequence[str]
    arrays: Sequence[str]
    query: Query
    limit: int
    children: bool
    grep: re.Pattern[str] | None = None
    _catalog: Catalog | None = None
    _reasons: Reasons | None = None
    _job_ids: Sequence[str] = ()

    async def again(self) -> list[Entry]:
        """Return the current jobs; all polls use one event loop."""
        settings, session = await opened()
        with reporting_wait(platform_of(session.backend)):
            return await self._read(settings, session)

    async def _read(self, settings: Settings, session: Session) -> list[Entry]:
        self._catalog = self._catalog or Catalog(session.backend)
        self._reasons = self._reasons or Reasons(session)
        queues = list(dict.fromkeys(self.queues)) or [settings.queue]
        if not self.arrays:
            return await self._shown(
                self._reasons, await self._find(self._catalog, session, queues)
            )
        if not self._job_ids:
            finder = Finder(session.backend, queues, this_user())
            self._job_ids, missing = await references.found(finder, self.arrays)
            if missing:
                raise UnknownError("\n".join(missing.values()))
        return await self._shown(self._reasons, await self._parts_of(self._catalog, session))

    @property
    def _most(self) -> int:
        """Maximum number of jobs to read; unlimited for a search."""
        return self.limit if self.grep is None else sys.maxsize

    async def _shown(self, reasons: Reasons, entries: Sequence[Entry]) -> list[Entry]:
        """Return the matching jobs with their call and error texts."""
        if self.grep is None:
            return await reasons.fill(entries)
        shown: list[Entry] = []
        for start in range(0, len(entries), _BLOCK):
            for entry in await reasons.fill(entries[start : start + _BLOCK]):
                calls = await reasons.calls(entry.detail) if entry.detail.array_size else ()
                if any(map(self.grep.search, _searched(entry, calls))):
                    shown.append(entry)
            if len(shown) >= self.limit:
                break
        return shown[: self.limit]

    async def _find(self, catalog: Catalog, session: Session, queues: list[str]) -> list[Entry]:
        entries: list[Entry] = []
        for queue in queues:
            before = len(entries)
            async for entry in catalog.find([queue], self.query):
                entries.append(entry)
                if len(entries) - before == self._most:
                    break
        entries.sort(key=lambda entry: entry.detail.created_at or _NEVER, reverse=True)
        if not self.children:
            return entries[: self._most]
        shown: list[Entry] = []
        for entry in entries:
            shown.append(entry)
            if len(shown) < self._most:
                shown += await self._parts(session, entry, self._most - len(shown))
        return shown[: self._most]

    async def _parts_of(self, catalog: Catalog, session: Session) -> list[Entry]:
        known = await catalog.describe(self._job_ids)
        entries: list[Entry] = []
        for job_id in self._job_ids:
            whole = references.recognized(known, job_id, session)
            if not whole.detail.array_size and not whole.detail.nodes:
                raise FarcallError(
                    f"job {job_id} is neither an array nor a multi-node job. Run `farcall "
                    f"describe {job_id}` to see it."
                )
            entries += await self._parts(session, whole, self._most)
        return entries[: self._most]

    async def _parts(self, session: Session, whole: Entry, limit: int) -> list[Entry]:
        """Return a job's array tasks or nodes; empty for other jobs."""
        if whole.detail.array_size:
            details = await self._children(session, whole.detail)
        else:
            nodes = await explain.nodes_of(session, whole.detail)
            details = [nodes[number] for number in sorted(nodes)]
        return [replace(whole, detail=d) for d in details if self.query.has_state(d)][:limit]

    async def _children(self, session: Session, parent: JobDetail) -> list[JobDetail]:
        """Return an array's tasks in order: one request per status and 1000 tasks."""
        counts, wanted = parent.status_summary, self.query.states
        children: list[JobDetail] = []
        for status in JobStatus:
            is_failed = status is JobStatus.FAILED and json_view.CANCELLED in wanted
            if wanted and status.value not in wanted and not is_failed:
                continue
            if counts.get(status.value) or not counts:
                async for page in session.backend.list_children(parent.job_id, status):
                    children += [child_of(parent, listed) for listed in page]
        return sorted(children, key=lambda child: child.index)


_NEVER = datetime.min.replace(tzinfo=UTC)


def _searched(entry: Entry, calls: Iterable[str]) -> Iterator[str]:
    yield from (entry.detail.job_id, entry.detail.name, entry.function, entry.workflow.name)
    yield from filter(None, (entry.why.call, entry.why.error, entry.detail.reason))
    yield from (group["text"] for group in entry.why.errors)
    yield from calls


def _print_troubles(entries: Sequence[Entry]) -> None:
    """Print the reason for missing calls and errors, if the user can fix it."""
    troubles = dict.fromkeys(entry.why.trouble for entry in entries if entry.why.trouble)
    for text in list(troubles)[:_MOST_TROUBLES]:
        echo(text, err=True)
    if len(troubles) > _MOST_TROUBLES:
        echo(f"... and {len(troubles) - _MOST_TROUBLES} similar messages", err=True)


def _footer(count: int, limit: int, query: Query | None) -> str:
    heading = counted(count, "job")
    if count == limit:
        heading = f"the first {limit} jobs (--limit shows more)"
    if query is None:
        return heading
    hints = []
    if query.user:
        heading += f" of {query.user}"
        hints.append("--all-users includes other users' jobs")
    if query.since is not None:
        heading += f" since {tables.clock(query.since)}"
        week = datetime.now(UTC) - timedelta(days=7) < query.since
        hints.append(f"--since {'7d' if week else '30d'} includes older jobs")
    return f"{heading}; {', '.join(hints)}" if hints else heading
