"""Output of jobs: ``farcall logs``."""

from __future__ import annotations

import asyncio
import re
import sys
from datetime import datetime

import click

from farcall.cli import references
from farcall.cli.common import moment, opened, pattern
from farcall.cli.log_output import Output, Source
from farcall.cli.printing import give_up_stdout
from farcall.engine.session import Session, this_user
from farcall.model.errors import UnknownError
from farcall.model.names import in_queues
from farcall.operations.catalog import Catalog, Entry, Query
from farcall_runtime.contract import STDERR, STDOUT, STREAMS


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
    output = Output(wanted, grep, timestamps, quiet, as_json)

    async def show() -> int:
        if workflow is None and run is None:
            session, entry = await _one(reference, quiet=quiet)
            if not entry.detail.array_size:
                await output.print(session, Source(entry.detail))
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
