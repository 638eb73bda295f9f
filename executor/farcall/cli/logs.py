"""What jobs print: ``farcall logs``."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import re
import sys
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from datetime import datetime, timezone
from typing import NamedTuple

import click

from farcall.cli import exit_codes, references
from farcall.cli.common import moment, opened
from farcall.cli.printing import Printer, give_up_stdout, say
from farcall.engine.logs import reader
from farcall.engine.session import Session, this_user
from farcall.model.errors import FarcallError, UnknownError
from farcall.model.jobs import JobDetail
from farcall.model.names import in_queues
from farcall.model.output import LogLine
from farcall.model.terminal import in_a_line
from farcall.operations.catalog import Catalog, Entry, Query
from farcall.operations.finding import short
from farcall.operations.json_view import moment as iso
from farcall_runtime.contract import STDERR, STDOUT, STREAMS

_TOGETHER = 32
"""Jobs that are read at a time."""


def _pattern(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as error:
        raise click.BadParameter(
            f"{text!r} is no regular expression of Python's: {error}"
        ) from None


@click.command("logs")
@click.argument("reference", metavar="[JOB]", required=False)
@click.option("--workflow", metavar="NAME", help="Show all your jobs of this workflow.")
@click.option("--run", metavar="RUN", help="Show all jobs of this run or dispatch.")
@click.option(
    "--node",
    "nodes",
    type=click.IntRange(min=0),
    multiple=True,
    metavar="N",
    help="Index of a node, from 0; repeatable for command jobs.",
)
@click.option("-f", "--follow", is_flag=True, help="Continue until the job has finished.")
@click.option("--stdout", "only", flag_value=STDOUT, help="Only the job's stdout.")
@click.option("--stderr", "only", flag_value=STDERR, help="Only the job's stderr.")
@click.option(
    "--attempt",
    type=click.IntRange(min=1),
    metavar="N",
    help="Only this attempt, from 1; by default all attempts.",
)
@click.option(
    "--since",
    type=moment,
    metavar="WHEN",
    help="Only output since: 90s, 1h30m, or a date such as 2026-11-22T10:00.",
)
@click.option(
    "--tail",
    type=click.IntRange(min=0),
    metavar="N",
    help="Only the last N lines of each job; -f adds new lines.",
)
@click.option("--grep", type=_pattern, metavar="REGEX", help="Only lines that match.")
@click.option("--timestamps", is_flag=True, help="Prefix each line with its upload time in UTC.")
@click.option(
    "-q",
    "--quiet",
    is_flag=True,
    help="Print only the output, without names and attempt messages.",
)
@click.option(
    "--json", "as_json", is_flag=True, help="Print each line as a JSON object to stdout."
)
def show_logs(
    reference: str | None,
    workflow: str | None,
    run: str | None,
    nodes: tuple[int, ...],
    only: str | None,
    attempt: int | None,
    since: datetime | None,
    tail: int | None,
    grep: re.Pattern[str] | None,
    *,
    follow: bool,
    timestamps: bool,
    quiet: bool,
    as_json: bool,
) -> None:
    """Show the output of a job, an array, a run or a workflow.

    \b
    Examples:
      farcall logs -f                    # follow the newest job
      farcall logs fit --grep ERROR
      farcall logs --workflow nightly --since 1h

    JOB is an ID, the beginning of an ID, or a name, which means the newest job of
    that name; by default the newest job. An array task is <array job>:<index>, a
    node <job>#<index>. If several jobs are shown, each line is prefixed with its
    job's name (`fit[3] | `). Jobs are shown one after the other; -f mixes the
    lines of up to 32 jobs as they arrive. The start of another attempt is reported
    on stderr.

    The job's stderr goes to stderr. CloudWatch has the output if a container died
    before it uploaded its output, or if the result was collected. CloudWatch
    merges both streams, so this output goes to stdout and --stdout and --stderr do
    not filter it.

    The output of a command is only in CloudWatch, and all nodes are shown by
    default, each line prefixed with the node's index. Multi-node functions show
    the main node, 0, unless --node names another one.

    If a progress bar rewrites a line, its last state is shown; with -f and without
    --grep, a terminal also shows the earlier states in its last row.

    On a terminal, control characters except colors are escaped. Ctrl-C does not
    stop the jobs. The exit code is 0 even if the job failed.
    """  # noqa: D301  # click's marker for preformatted lines
    if (reference is not None) + (workflow is not None) + (run is not None) > 1:
        raise click.UsageError("JOB, --workflow and --run exclude each other")
    streams = STREAMS if only is None else (only,)
    part = _Part(nodes, follow, streams, attempt, since, tail, grep)
    layout = _Layout(timestamps=timestamps, quiet=quiet, as_json=as_json)

    async def show() -> int:
        if workflow is None and run is None:
            session, entry = await _one(reference, quiet=quiet)
            if not entry.detail.array_size:
                await _print(session, _Source(entry.detail), part, layout)
                return 0
            entries = [entry]
        else:
            session, entries = await _all_of(Query(None if run else this_user(), workflow, run))
        if nodes:
            raise click.UsageError("--node is for a job alone, not for an array or several jobs")
        return await _print_all(session, entries, part, layout)

    try:
        code = asyncio.run(show())
    except BrokenPipeError:  # `| head` has what it wanted
        give_up_stdout()
    else:
        sys.exit(code)


# --- what is read -----------------------------------------------------------------------------


class _Part(NamedTuple):
    """What of a job's output is asked for.

    Attributes:
        nodes: Indexes of nodes, if some are named.
        follow: Whether to go on until the end.
        streams: ``"stdout"``, ``"stderr"`` or both.
        attempt: Number of an attempt, from 1; None for all.
        since: Only what was stored since.
        tail: Only so many of the lines there are, the last ones.
        grep: Only what matches.
    """

    nodes: Sequence[int]
    follow: bool
    streams: Sequence[str]
    attempt: int | None
    since: datetime | None
    tail: int | None
    grep: re.Pattern[str] | None


class _Source(NamedTuple):
    """A job that is read.

    Attributes:
        detail: The job, or a child of an array.
        label: What stands before its lines; empty where it is the only one.
    """

    detail: JobDetail
    label: str = ""


async def _one(reference: str | None, *, quiet: bool) -> tuple[Session, Entry]:
    settings, session = await opened()
    job_id = await references.job_id(settings, session, reference, quiet=quiet)
    entry = Entry.of(await session.describe(job_id))
    if entry is None:
        raise UnknownError(f"job {job_id} was not submitted by farcall")
    return session, entry


async def _all_of(query: Query) -> tuple[Session, list[Entry]]:
    """Return the jobs that are asked for, the oldest first."""
    settings, session = await opened()
    queue = settings.queue
    found = [entry async for entry in Catalog(session.backend).find([queue], query)]
    if not found:
        what = f"run {query.run}" if query.run else f"workflow {query.workflow} of {query.user}"
        raise UnknownError(f"there is no job of {what}{in_queues([queue])}")
    return session, found[::-1]


def _read(session: Session, detail: JobDetail, part: _Part) -> AsyncGenerator[list[LogLine], None]:
    """Yield the lines of a job, by the reader that can."""
    if detail.is_command:
        return session.node_logs.batches(
            detail.job_id,
            part.nodes or None,
            attempt=part.attempt,
            follow=part.follow,
            tail=part.tail,
            since=part.since,
        )
    node_id = _node_of(detail, part.nodes)
    return reader.lines(
        session,
        node_id,
        follow=part.follow,
        streams=part.streams,
        attempt=part.attempt,
        since=part.since,
        tail=part.tail,
        detail=detail if node_id == detail.job_id else None,
    )


def _node_of(detail: JobDetail, nodes: Sequence[int]) -> str:
    """Return the ID of what is read of a function's job: the node that is named, or the job.

    Raises:
        UnknownError: It has no such node.
        FarcallError: Several are named.
    """
    if len(nodes) > 1:
        raise FarcallError(
            f"job {detail.job_id} runs a function, whose nodes are read one at a time: --node "
            f"{nodes[0]}"
        )
    if nodes and nodes[0] >= max(1, detail.nodes):
        raise UnknownError(f"job {detail.job_id} has no node {nodes[0]}")
    return detail.node_id(nodes[0]) if nodes else detail.job_id


# --- one job, and many ------------------------------------------------------------------------


async def _print(
    session: Session,
    source: _Source,
    part: _Part,
    layout: _Layout,
    turn: asyncio.Event | None = None,
) -> None:
    """Print what is asked for of a job's lines.

    Args:
        session: The event loop's session.
        source: The job.
        part: What of it.
        layout: How a line looks.
        turn: Is waited for before the first line; what can be is read meanwhile.
    """
    printer = layout.printer(source, part.nodes)
    attempt = 1
    async with contextlib.aclosing(_read(session, source.detail, part)) as batches:
        async for batch in batches:
            if turn is not None:
                await turn.wait()
            lines = batch
            if part.grep is not None or layout.as_json:  # each line once, as it is at last
                lines = [line for line in batch if not line.goes_on]
            if part.grep is not None:
                lines = [line for line in lines if part.grep.search(line.text)]
            for number, group in itertools.groupby(lines, key=lambda line: line.attempt):
                if number != attempt and part.attempt is None:
                    layout.tell_attempt(source, number)
                attempt = number
                printer.print(group)


async def _print_all(
    session: Session, entries: Sequence[Entry], part: _Part, layout: _Layout
) -> int:
    """Print the lines of jobs: one after the other, or as they come.

    Returns:
        The exit code: what is wrong with one job leaves the others alone.
    """
    code = 0

    async def show(source: _Source, turn: asyncio.Event, done: asyncio.Event) -> None:
        nonlocal code
        try:
            await _print(session, source, part, layout, turn)
        except FarcallError as error:
            await turn.wait()
            say(f"{source.label} | farcall: {error}", fg="red", err=True)
            code = max(code, exit_codes.code_of(error))
        await turn.wait()
        done.set()

    turn = asyncio.Event()
    turn.set()
    running: set[asyncio.Task[None]] = set()
    async for source in _sources(session, entries, part):
        done = turn if part.follow else asyncio.Event()
        running.add(asyncio.ensure_future(show(source, turn, done)))
        turn = done
        while len(running) >= _TOGETHER:
            running = await _less(running)
    while running:
        running = await _less(running)
    return code


async def _less(running: set[asyncio.Task[None]]) -> set[asyncio.Task[None]]:
    """Wait until one of some tasks is done; return the others."""
    done, rest = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
    for task in done:
        task.result()
    return rest


async def _sources(
    session: Session, entries: Sequence[Entry], part: _Part
) -> AsyncIterator[_Source]:
    """Yield jobs with their labels; of an array its children, a request for a hundred."""
    names = _names(entries)
    width = max(map(_width, entries, names))
    together = session.backend.capabilities.described_together
    for entry, name in zip(entries, names, strict=True):
        whole = entry.detail
        if not whole.array_size:
            yield _Source(whole, name.ljust(width))
        for start in range(0, whole.array_size, together):
            end = min(start + together, whole.array_size)
            ids = [f"{whole.job_id}:{index}" for index in range(start, end)]
            known = await session.backend.describe(ids)
            for child in (known[job_id] for job_id in ids if job_id in known):
                if part.follow or _has_begun(child):
                    yield _Source(child, f"{name}[{child.index}]".ljust(width))


def _names(entries: Sequence[Entry]) -> list[str]:
    """Return what jobs are called; those of one name have the beginning of their IDs with it."""
    count = Counter(entry.function for entry in entries)
    return [
        in_a_line(
            entry.function
            if count[entry.function] == 1
            else f"{entry.function} {short(entry.detail.job_id)}"
        )
        for entry in entries
    ]


def _width(entry: Entry, name: str) -> int:
    """Return the length of a job's longest label."""
    size = entry.detail.array_size
    return len(f"{name}[{size - 1}]" if size else name)


def _has_begun(detail: JobDetail) -> bool:
    return detail.status.is_final or detail.started_at is not None or bool(detail.tried)


# --- how a line looks -------------------------------------------------------------------------


class _Layout(NamedTuple):
    """How lines are written.

    Attributes:
        timestamps: With the time before each.
        quiet: Without names, and nothing is said of attempts.
        as_json: As JSON objects.
    """

    timestamps: bool
    quiet: bool
    as_json: bool

    def printer(self, source: _Source, nodes: Sequence[int]) -> Printer:
        """Return what prints a job's lines, or those of some of its nodes."""
        if self.as_json:
            return Printer(lambda line: self._document(source, line), only=STDOUT)
        several = source.detail.nodes > 1 and len(set(nodes)) != 1
        by_node = source.detail.is_command and several
        return Printer(
            lambda line: line.text,
            begin=lambda line: self._begin(source, line, by_node=by_node),
        )

    def tell_attempt(self, source: _Source, number: int) -> None:
        """Say on stderr that what follows is of another attempt."""
        if not self.quiet and not self.as_json:
            label = f"{source.label} | " if source.label else ""
            say(f"{label}--- attempt {number} ---", err=True)

    def _begin(self, source: _Source, line: LogLine, *, by_node: bool) -> str:
        at = f"{_stamp(line.at)} " if self.timestamps else ""
        if self.quiet or not (source.label or by_node):
            return at
        if not source.label:
            return f"{at}{line.node}: "
        return f"{at}{source.label}{f'#{line.node}' if by_node else ''} | "

    def _document(self, source: _Source, line: LogLine) -> str:
        said = line._asdict()
        del said["goes_on"]
        if not source.detail.is_command:
            del said["node"]
        return json.dumps({**said, "at": iso(line.at), "job": source.detail.job_id})


def _stamp(at: datetime | None) -> str:
    """Return a moment in a fixed width."""
    if at is None:
        return f"{'-':24}"
    return f"{at.astimezone(timezone.utc):%Y-%m-%dT%H:%M:%S}.{at.microsecond // 1000:03d}Z"
