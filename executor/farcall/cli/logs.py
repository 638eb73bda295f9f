"""Output of jobs: ``farcall logs``."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import re
import sys
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

import click

from farcall.cli import exit_codes, references
from farcall.cli.common import moment, opened, pattern
from farcall.cli.printing import Printer, echo, give_up_stdout
from farcall.engine.session import Session, this_user
from farcall.model.errors import FarcallError, UnknownError
from farcall.model.jobs import JobDetail, JobStatus
from farcall.model.names import in_queues
from farcall.model.output import LogLine
from farcall.model.terminal import in_a_line
from farcall.operations.catalog import Catalog, Entry, Query
from farcall.operations.explain import explain
from farcall.operations.finding import short
from farcall.operations.json_view import moment as iso
from farcall_runtime.contract import STDERR, STDOUT, STREAMS

_TOGETHER = 32
"""Maximum number of jobs that are read concurrently."""


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
    help="Index of a node, from 0; repeatable.",
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
@click.option("--grep", type=pattern, metavar="REGEX", help="Only lines that match.")
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

    The job's stderr goes to stderr. The platform's log has the output if a container died
    before it uploaded its output, or if the result was collected. That log
    merges both streams, so this output goes to stdout and --stdout and --stderr do
    not filter it.

    The output of a command is only in the platform's log, and all nodes are shown by
    default, each line prefixed with the node's index. Multi-node functions show
    the main node, 0, unless --node names others.

    If a progress bar rewrites a line, its last state is shown; with -f and without
    --grep, a terminal also shows the earlier states in its last row.

    The output of a failed task ends with its traceback or failure reason, on
    stderr, unless a filter is given.

    On a terminal, control characters except colors are escaped. Ctrl-C does not
    stop the jobs. Exits with 0 even if the job failed.
    """  # noqa: D301  # click's marker for preformatted lines
    if (reference is not None) + (workflow is not None) + (run is not None) > 1:
        raise click.UsageError("JOB, --workflow and --run cannot be used together")
    wanted = {
        "nodes": nodes or None,
        "follow": follow,
        "streams": STREAMS if only is None else (only,),
        "attempt": attempt,
        "since": since,
        "tail": tail,
    }
    output = _Output(wanted, grep, timestamps, quiet, as_json)

    async def show() -> int:
        if workflow is None and run is None:
            session, entry = await _one(reference, quiet=quiet)
            if not entry.detail.array_size:
                await output.print(session, _Source(entry.detail))
                return 0
            entries = [entry]
        else:
            session, entries = await _all_of(Query(None if run else this_user(), workflow, run))
        if nodes:
            raise click.UsageError("--node requires a single job, not an array or several jobs")
        return await output.print_all(session, entries)

    try:
        code = asyncio.run(show())
    except BrokenPipeError:  # `| head` has exited
        give_up_stdout()
    else:
        sys.exit(code)


# --- the jobs ---------------------------------------------------------------------------------


class _Source(NamedTuple):
    """Job whose output is printed.

    Attributes:
        detail: The job, or an array task.
        label: Prefix of its lines; empty for the only job.
    """

    detail: JobDetail
    label: str = ""


async def _one(reference: str | None, *, quiet: bool) -> tuple[Session, Entry]:
    settings, session = await opened()
    job_id = await references.job_id(settings, session, reference, quiet=quiet)
    return session, await references.described(session, job_id)


async def _all_of(query: Query) -> tuple[Session, list[Entry]]:
    """Return the jobs of a run or workflow, the oldest first."""
    settings, session = await opened()
    queue = settings.queue
    entries = [entry async for entry in Catalog(session.backend).find([queue], query)]
    if not entries:
        what = f"run {query.run}" if query.run else f"workflow {query.workflow} of {query.user}"
        raise UnknownError(f"no jobs of {what}{in_queues([queue])}")
    return session, entries[::-1]


async def _sources(
    session: Session, entries: Sequence[Entry], *, follow: bool
) -> AsyncIterator[_Source]:
    """Yield jobs and array tasks with labels; one request describes a hundred tasks."""
    count = Counter(entry.function for entry in entries)
    names = [
        in_a_line(
            entry.function
            if count[entry.function] == 1
            else f"{entry.function} {short(entry.detail.job_id)}"
        )
        for entry in entries
    ]
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
                has_begun = child.status.is_final or child.started_at is not None or child.tried
                if follow or has_begun:
                    yield _Source(child, f"{name}[{child.index}]".ljust(width))


def _width(entry: Entry, name: str) -> int:
    """Return the length of a job's longest label."""
    size = entry.detail.array_size
    return len(f"{name}[{size - 1}]" if size else name)


# --- lines ------------------------------------------------------------------------------------


class _Output(NamedTuple):
    """Filter and format of printed lines.

    Attributes:
        wanted: Arguments of `LogReader.lines`.
        grep: Only lines that match.
        timestamps: Whether each line is prefixed with its time.
        quiet: Whether names and attempt messages are left out.
        as_json: Whether each line is a JSON object.
    """

    wanted: dict[str, Any]
    grep: re.Pattern[str] | None
    timestamps: bool
    quiet: bool
    as_json: bool

    async def print_all(self, session: Session, entries: Sequence[Entry]) -> int:
        """Print the lines of several jobs, in sequence or, with ``-f``, as they arrive.

        Returns:
            The exit code. If the output of one job cannot be read, the others are printed.
        """
        code = 0
        follow = self.wanted["follow"]

        async def show(source: _Source, turn: asyncio.Event, done: asyncio.Event) -> None:
            nonlocal code
            try:
                await self.print(session, source, turn)
            except FarcallError as error:
                await turn.wait()
                echo(f"{source.label} | farcall: {error}", fg="red", err=True)
                code = max(code, exit_codes.code_of(error))
            await turn.wait()
            done.set()

        turn = asyncio.Event()
        turn.set()
        running: set[asyncio.Task[None]] = set()
        async for source in _sources(session, entries, follow=follow):
            done = turn if follow else asyncio.Event()
            running.add(asyncio.ensure_future(show(source, turn, done)))
            turn = done
            if len(running) >= _TOGETHER:
                ended, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                await asyncio.gather(*ended)
        await asyncio.gather(*running)
        return code

    async def print(
        self, session: Session, source: _Source, turn: asyncio.Event | None = None
    ) -> None:
        """Print the lines of one job.

        Args:
            session: The event loop's session.
            source: The job.
            turn: Set when the job may print; its lines are read before.
        """
        printer = self._printer(source)
        is_told = self.wanted["attempt"] is None and not (self.quiet or self.as_json)
        attempt, is_empty = 1, True
        pages = session.logs.lines(source.detail.job_id, detail=source.detail, **self.wanted)
        async with contextlib.aclosing(pages):
            async for batch in pages:
                is_empty = is_empty and not batch
                if turn is not None:
                    await turn.wait()
                for number, group in itertools.groupby(
                    filter(self._is_wanted, batch), key=lambda line: line.attempt
                ):
                    if number != attempt and is_told:
                        label = f"{source.label} | " if source.label else ""
                        echo(f"{label}--- attempt {number} ---", err=True)
                    attempt = number
                    printer.print(group)
        closing = await self._closing(session, source, is_empty=is_empty)
        if turn is not None:
            await turn.wait()
        for line in closing.splitlines():
            echo(f"{source.label} | {line}" if source.label else line, err=True)

    async def _closing(self, session: Session, source: _Source, *, is_empty: bool) -> str:
        """Return a failed task's traceback or failure reason, or that there is no output."""
        wanted = self.wanted
        is_filtered = self.grep or wanted["attempt"] or wanted["nodes"]
        if self.quiet or self.as_json or is_filtered or STDERR not in wanted["streams"]:
            return ""
        detail = source.detail
        if wanted["follow"]:  # it has finished meanwhile
            known = await session.backend.describe([detail.job_id])
            detail = known.get(detail.job_id, detail)
        if detail.status is JobStatus.FAILED:
            explanation = await explain(session, detail)
            return (
                explanation.traceback
                or f"farcall: {explanation.message}. To do: {explanation.remedy}."
            )
        is_whole = wanted["since"] is None and wanted["tail"] is None and not source.label
        return "farcall: the job has no output" if is_empty and is_whole else ""

    def _is_wanted(self, line: LogLine) -> bool:
        if line.goes_on:  # a state of a progress bar, for terminals
            return self.grep is None and not self.as_json
        return self.grep is None or self.grep.search(line.text) is not None

    def _printer(self, source: _Source) -> Printer:
        if self.as_json:
            return Printer(lambda line: self._document(source, line), only=STDOUT)
        nodes = self.wanted["nodes"]
        if nodes is None:
            by_node = source.detail.is_command and source.detail.nodes > 1
        else:
            by_node = len(set(nodes)) > 1
        return Printer(begin=lambda line: self._prefix(source, line, by_node=by_node))

    def _prefix(self, source: _Source, line: LogLine, *, by_node: bool) -> str:
        at = f"{_stamp(line.at)} " if self.timestamps else ""
        if self.quiet or not (source.label or by_node):
            return at
        if not source.label:
            return f"{at}{line.node}: "
        return f"{at}{source.label}{f'#{line.node}' if by_node else ''} | "

    def _document(self, source: _Source, line: LogLine) -> str:
        said = line._asdict()
        del said["goes_on"]
        if not source.detail.is_command and self.wanted["nodes"] is None:
            del said["node"]
        return json.dumps({**said, "at": iso(line.at), "job": source.detail.job_id})


def _stamp(at: datetime | None) -> str:
    """Return a time in a fixed width."""
    if at is None:
        return f"{'-':24}"
    return f"{at.astimezone(UTC):%Y-%m-%dT%H:%M:%S}.{at.microsecond // 1000:03d}Z"
