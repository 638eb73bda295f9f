"""Lines of ``farcall logs``: their jobs, filters and format."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import re
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

from farcall.cli import exit_codes
from farcall.cli.printing import Printer, echo
from farcall.engine.session import Session
from farcall.model.errors import FarcallError
from farcall.model.jobs import JobDetail, JobStatus
from farcall.model.output import LogLine
from farcall.model.terminal import in_a_line
from farcall.operations.catalog import Entry
from farcall.operations.explain import explain
from farcall.operations.finding import short
from farcall.operations.json_view import moment as iso
from farcall_runtime.contract import STDERR, STDOUT

_TOGETHER = 32
"""Maximum number of jobs that are read concurrently."""


class Source(NamedTuple):
    """Job whose output is printed.

    Attributes:
        detail: The job, or an array task.
        label: Prefix of its lines; empty for the only job.
    """

    detail: JobDetail
    label: str = ""


async def _sources(
    session: Session, entries: Sequence[Entry], *, follow: bool
) -> AsyncIterator[Source]:
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
            yield Source(whole, name.ljust(width))
        for start in range(0, whole.array_size, together):
            end = min(start + together, whole.array_size)
            ids = [f"{whole.job_id}:{index}" for index in range(start, end)]
            known = await session.backend.describe(ids)
            for child in (known[job_id] for job_id in ids if job_id in known):
                has_begun = child.status.is_final or child.started_at is not None or child.tried
                if follow or has_begun:
                    yield Source(child, f"{name}[{child.index}]".ljust(width))


def _width(entry: Entry, name: str) -> int:
    """Return the length of a job's longest label."""
    size = entry.detail.array_size
    return len(f"{name}[{size - 1}]" if size else name)


class Output(NamedTuple):
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

        async def show(source: Source, turn: asyncio.Event, done: asyncio.Event) -> None:
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
        self, session: Session, source: Source, turn: asyncio.Event | None = None
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

    async def _closing(self, session: Session, source: Source, *, is_empty: bool) -> str:
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

    def _printer(self, source: Source) -> Printer:
        if self.as_json:
            return Printer(lambda line: self._document(source, line), only=STDOUT)
        nodes = self.wanted["nodes"]
        if nodes is None:
            by_node = source.detail.is_command and source.detail.nodes > 1
        else:
            by_node = len(set(nodes)) > 1
        return Printer(begin=lambda line: self._prefix(source, line, by_node=by_node))

    def _prefix(self, source: Source, line: LogLine, *, by_node: bool) -> str:
        at = f"{_stamp(line.at)} " if self.timestamps else ""
        if self.quiet or not (source.label or by_node):
            return at
        if not source.label:
            return f"{at}{line.node}: "
        return f"{at}{source.label}{f'#{line.node}' if by_node else ''} | "

    def _document(self, source: Source, line: LogLine) -> str:
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
