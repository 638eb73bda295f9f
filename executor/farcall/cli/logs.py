"""What a job prints: ``farcall logs``."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from datetime import datetime, timezone

import click

from farcall.cli.common import moment, opened
from farcall.cli.printing import Printer, give_up_stdout
from farcall.engine.logs import reader
from farcall.engine.logs.reader import Line
from farcall.operations.json_view import moment as iso
from farcall_runtime.contract import STDERR, STDOUT, STREAMS


def _pattern(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as error:
        raise click.BadParameter(
            f"{text!r} is no regular expression of Python's: {error}"
        ) from None


@click.command("logs")
@click.argument("job_id", metavar="JOB")
@click.option("-f", "--follow", is_flag=True, help="Go on until the job's end.")
@click.option("--stdout", "only", flag_value=STDOUT, help="Only what it writes to stdout.")
@click.option("--stderr", "only", flag_value=STDERR, help="Only what it writes to stderr.")
@click.option(
    "--attempt",
    type=click.IntRange(min=1),
    metavar="N",
    help="One attempt, from 1; by default all, one after the other.",
)
@click.option(
    "--since",
    type=moment,
    metavar="WHEN",
    help="Only what was stored since: 90s, 10m, 2h, or a date such as 2026-11-22T10:00.",
)
@click.option(
    "--tail",
    type=click.IntRange(min=0),
    metavar="N",
    help="Of what there is only the last N lines; with -f the new ones follow.",
)
@click.option("--grep", type=_pattern, metavar="REGEX", help="Of these lines only the matching.")
@click.option(
    "--timestamps", is_flag=True, help="Put before each line when it was stored, in UTC."
)
@click.option("--json", "as_json", is_flag=True, help="Each line as a JSON object, all to stdout.")
def show_logs(
    job_id: str,
    only: str | None,
    attempt: int | None,
    since: datetime | None,
    tail: int | None,
    grep: re.Pattern[str] | None,
    *,
    follow: bool,
    timestamps: bool,
    as_json: bool,
) -> None:
    """Show what a job prints, up to now or as it comes.

    What it wrote to stderr goes to stderr. Where a container died before it stored its output, or
    where the result was taken, CloudWatch has it: there both streams are one, which goes to stdout
    and which --stdout and --stderr leave as it is. An array's child is <parent>:<index>.

    On a terminal, control characters are shown and not obeyed, colours excepted. Elsewhere lines
    are written as they are. Ctrl-C leaves the job running. That a job failed is no failure of this
    command.
    """
    streams = STREAMS if only is None else (only,)
    begin = _begin_with_time if timestamps and not as_json else _begin
    layout = _as_json if as_json else _text
    printer = Printer(layout, begin=begin, only=STDOUT if as_json else "")

    async def show() -> None:
        _, session = await opened()
        batches = reader.lines(
            session,
            job_id,
            follow=follow,
            streams=streams,
            attempt=attempt,
            since=since,
            tail=tail,
        )
        async with contextlib.aclosing(batches):
            async for batch in batches:
                printer.print(line for line in batch if grep is None or grep.search(line.text))

    try:
        asyncio.run(show())
    except BrokenPipeError:  # `| head` has what it wanted
        give_up_stdout()


def _text(line: Line) -> str:
    return line.text


def _as_json(line: Line) -> str:
    return json.dumps({**line._asdict(), "at": iso(line.at)})


def _begin(_: Line) -> str:
    return ""


def _begin_with_time(line: Line) -> str:
    return f"{_stamp(line.at)} "


def _stamp(at: datetime | None) -> str:
    """Return a moment in a fixed width."""
    if at is None:
        return f"{'-':24}"
    return f"{at.astimezone(timezone.utc):%Y-%m-%dT%H:%M:%S}.{at.microsecond // 1000:03d}Z"
