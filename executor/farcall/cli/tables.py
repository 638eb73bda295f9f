"""Job lists: a table that fits the terminal, and plain columns elsewhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from rich.table import Table
from rich.text import Text

from farcall.client.console import Console
from farcall.model.failure_reasons import OWN_REASON
from farcall.model.jobs import JobDetail, JobStatus
from farcall.model.names import counted
from farcall.model.terminal import in_a_line
from farcall.operations import json_view
from farcall.operations.catalog import Entry
from farcall.operations.finding import short

COLOURS = {
    "Waiting": "yellow",
    "Starting": "blue",
    "Running": "cyan",
    "Succeeded": "green",
    "Failed": "bold red",
    "Cancelled": "magenta",
}
_WIDE = 120
"""Minimum number of terminal columns for a table with all columns."""

_LONGEST_TASK = 60
_LEAST_S = 10
_MANY_S = ((86_400 * 2, 86_400, "d"), (3_600 * 2, 3_600, "h"), (120, 60, "m"))
_HEADS = ("JOB", "STATE", "SUBMITTED", "RAN", "TASK", "WORKFLOW", "NOTE")


def show(entries: Sequence[Entry], *, err: bool = False, whole_ids: bool = False) -> None:
    """Print a table of jobs.

    Args:
        entries: The jobs.
        err: Whether to print to stderr.
        whole_ids: Whether terminals show full IDs, too.
    """
    out = Console(stderr=err)
    if not out.is_terminal:
        _show_plain(out, entries)
    elif entries:
        out.print(table(entries, out.width, whole_ids=whole_ids))


def table(entries: Sequence[Entry], width: int, *, whole_ids: bool = False) -> Table:
    """Return a table of jobs for a terminal width."""
    is_wide = width >= _WIDE
    ids = [entry.detail.job_id for entry in entries]
    ids = [in_a_line(job_id if whole_ids else short(job_id)) for job_id in ids]
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=False)
    table.add_column("Job", no_wrap=True, min_width=max(map(len, ids), default=0))
    table.add_column("State", no_wrap=True, min_width=len("Succeeded"))
    table.add_column("Age", no_wrap=True, min_width=4, justify="right")
    if is_wide:
        table.add_column("Ran", no_wrap=True, min_width=4, justify="right")
    most = _LONGEST_TASK if is_wide else None
    table.add_column("Task", no_wrap=True, overflow="ellipsis", max_width=most)
    if is_wide:
        table.add_column("Workflow", no_wrap=True, overflow="ellipsis")
        table.add_column("Note", no_wrap=True, overflow="ellipsis")
    for job_id, entry in zip(ids, entries, strict=True):
        table.add_row(Text(job_id), *(_wide(entry) if is_wide else _narrow(entry)))
    return table


def _wide(entry: Entry) -> list[Text]:
    detail = entry.detail
    return [
        coloured(detail),
        Text(age(detail.created_at)),
        Text(ran(detail)),
        Text(_task(entry)),
        Text(in_a_line(entry.workflow.name)),
        Text(_note(entry), "dim"),
    ]


def _narrow(entry: Entry) -> list[Text]:
    task = Text(_task(entry))
    task.append(f"  {in_a_line(entry.workflow.name)}", "dim")
    remark = _note(entry)
    if remark:
        task.append(f"\n{remark}", "dim")
    return [coloured(entry.detail), Text(age(entry.detail.created_at)), task]


def _show_plain(out: Console, entries: Sequence[Entry]) -> None:
    rows = [_HEADS, *map(_plain_row, entries)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        line = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        out.print(line.rstrip(), soft_wrap=True)


def _plain_row(entry: Entry) -> tuple[str, ...]:
    detail = entry.detail
    at = detail.created_at
    return (
        in_a_line(detail.job_id),
        word(detail),
        "" if at is None else at.strftime("%Y-%m-%dT%H:%M:%SZ"),
        ran(detail),
        _task(entry),
        in_a_line(entry.workflow.name),
        _note(entry),
    )


def line(entry: Entry, *, whole_id: bool = True) -> Text:
    """Return a job's line, which changes whenever its state does."""
    detail = entry.detail
    row = Text(in_a_line(detail.job_id if whole_id else short(detail.job_id)))
    row.append("  ").append_text(coloured(detail))
    row.append(f" since {clock(since(detail))}  {_task(entry)}")
    remark = _note(entry)
    if remark:
        row.append(f"  {remark}", "dim")
    return row


# --- cells ------------------------------------------------------------------------------------


def word(detail: JobDetail) -> str:
    """Return a job's state."""
    return json_view.WORDS[json_view.state(detail)]


def coloured(detail: JobDetail) -> Text:
    """Return a job's state in color."""
    return Text(word(detail), COLOURS[word(detail)])


def counted_states(counts: Mapping[str, int]) -> str:
    """Return the number of jobs per state, such as ``2 running, 1 failed``."""
    words: dict[str, int] = {}
    for state in json_view.STATES:
        if state in counts:
            word = json_view.WORDS[state].lower()
            words[word] = words.get(word, 0) + counts[state]
    return ", ".join(f"{count} {word}" for word, count in words.items())


def note(detail: JobDetail) -> str:
    """Return a short reason for a job's state; for an array, the tasks per state."""
    if detail.map_failure:
        return in_a_line(detail.map_failure)
    if detail.array_size:
        return counted_states(json_view.counts(detail))
    if detail.is_blocked:
        return in_a_line(detail.status_reason.partition(" - ")[0])
    if detail.status is JobStatus.SUCCEEDED:
        return ""
    parts = [f"exit code {detail.exit_code}"] if detail.exit_code else []
    parts.append(detail.platform_reason.removeprefix(OWN_REASON))
    return in_a_line("; ".join(filter(None, parts)))


def _note(entry: Entry) -> str:
    """Return a job's second chance, and a short reason for its state: its error, if known."""
    return "; ".join(filter(None, (_chance(entry), _reason(entry))))


def _chance(entry: Entry) -> str:
    """Return the memory and the queue that are not the first ones of a list."""
    detail = entry.detail
    size = f"memory {detail.memory_mib / 1024:.3g} GiB"
    texts = {"memory": size, "queue": f"queue {detail.queue}"}
    rungs = entry.rungs.items()
    return in_a_line(
        ", ".join(f"{texts[name]} ({rung})" for name, rung in rungs if rung.number > 1)
    )


def _reason(entry: Entry) -> str:
    error = in_a_line(entry.why.error or "")
    if not error or entry.is_command:
        return note(entry.detail)
    return f"{note(entry.detail)}; {error}" if entry.detail.array_size else error


def since(detail: JobDetail) -> datetime | None:
    """Return the time at which a job entered its state, if Batch reports it."""
    if detail.status.is_final:
        return detail.stopped_at or detail.created_at
    return (detail.started_at if detail.status is JobStatus.RUNNING else None) or detail.created_at


def clock(at: datetime | None) -> str:
    """Return a time in the local time zone."""
    return "?" if at is None else at.astimezone().strftime("%Y-%m-%d %H:%M:%S")


def age(at: datetime | None) -> str:
    """Return the time since an event."""
    return "" if at is None else span((datetime.now(UTC) - at).total_seconds())


def ran(detail: JobDetail) -> str:
    """Return the last attempt's duration up to now or its end."""
    if detail.started_at is None:
        return ""
    end = detail.stopped_at or datetime.now(UTC)
    return span((end - detail.started_at).total_seconds())


def span(seconds: float) -> str:
    """Return a duration in the largest unit of which it has at least two."""
    for least, unit, name in _MANY_S:
        if seconds >= least:
            return f"{seconds / unit:.0f}{name}"
    return f"{seconds:.0f}s" if seconds >= _LEAST_S else f"{max(seconds, 0):.1f}s"


def _task(entry: Entry) -> str:
    """Return a job's call, or its command with a shell prompt."""
    detail = entry.detail
    text = f"$ {entry.function}" if entry.is_command else entry.why.call or entry.function
    if detail.array_size:
        text += f"[{detail.array_size}]"
    if detail.nodes:
        text += f" ({counted(detail.nodes, 'node')})"
    elif detail.node_index is not None:
        text += f" (node {detail.node_index})"
    return in_a_line(text)
