"""Details of one job, as ``farcall describe`` prints them."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from rich.text import Text

from farcall.cli import tables
from farcall.client.console import Console
from farcall.engine.session import this_user
from farcall.model.names import EMULATOR_IMAGE, counted
from farcall.model.terminal import in_a_line, shown
from farcall.operations import costs, json_view
from farcall.operations.catalog import Entry
from farcall.payload.tracebacks import with_source

_LABEL = 14
_MOST_NODES = 20
"""Maximum number of nodes with separate lines; failed nodes come first."""
_MOST_GROUPS = 5
_MIB = 2**20


def show(entry: Entry, view: Mapping[str, Any], cost: float | None) -> None:
    """Print a job's details, with its cost in dollars if it is known."""
    out = Console()
    prompt = "$ " if entry.is_command else ""
    title = Text.assemble(prompt, (in_a_line(entry.function), "bold"))
    if entry.detail.array_size:
        title.append(f"  array of {entry.detail.array_size}", "dim")
    if entry.detail.nodes:
        title.append(f"  on {counted(entry.detail.nodes, 'node')}", "dim")
    title.append("  ").append_text(tables.coloured(entry.detail))
    title.append(f" since {tables.clock(tables.since(entry.detail))}")
    out.print(title, soft_wrap=True)
    width = max(_LABEL, len(_platform_label(view)) + 2)
    for lines in (
        _why(view),
        _what(entry, view),
        _times(entry, view),
        _nodes(view),
        _means(view, cost),
        _places(view),
    ):
        known = [(label, value) for label, value in lines if value]
        if known:
            out.print()
        for label, value in known:
            out.print(Text.assemble((label.ljust(width), "dim"), value), soft_wrap=True)
    _show_log(out, view["explanation"]["log"])
    traceback = view["explanation"]["traceback"]
    if traceback:
        # Only this user's tasks have their source on this machine.
        own = entry.user == this_user()
        out.print("\nTraceback in the job", style="dim")
        text = shown(with_source(traceback) if own else traceback)
        for line in text.expandtabs().splitlines():
            out.print(f"  {line}", soft_wrap=True)


def _show_log(out: Console, lines: Sequence[str]) -> None:
    if lines:
        out.print("\nLast log lines", style="dim")
    for line in lines:
        out.print(f"  {in_a_line(line)}", soft_wrap=True)


def _why(view: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    why = view["explanation"]
    yield "Why", in_a_line(why["message"])
    yield "To do", in_a_line(why["remedy"])
    yield _platform_label(view), in_a_line(view["job"]["reason"])
    job = view["job"]
    for group in job["errors"][:_MOST_GROUPS]:
        yield "Error", _group_of_errors(job["id"], group)
    if len(job["errors"]) > _MOST_GROUPS:
        left = sum(group["count"] for group in job["errors"][_MOST_GROUPS:])
        yield "Error", f"and {left} more, with {len(job['errors']) - _MOST_GROUPS} other errors"
    yield "Unknown", in_a_line(job["warning"] or "")
    counts = why["calls"]
    yield "Calls", ", ".join(f"{count} {how}" for how, count in counts.items())
    for child in why["children"]:
        yield (
            "Node" if "#" in child["job_id"] else "Task",
            in_a_line(f"{child['job_id']}: {child['message']}"),
        )


def _platform_label(view: Mapping[str, Any]) -> str:
    """Return the label of the platform's own message."""
    return f"{view['job']['platform']} reason"


def _group_of_errors(job_id: str, group: Mapping[str, Any]) -> str:
    """Return the number of array tasks with the same error, and an example."""
    example = f"{job_id}:{group['example']}"
    call = f", {group['call']}" if group["call"] else ""
    return in_a_line(f"{group['count']} x {group['text']} (such as {example}{call})")


def _what(entry: Entry, view: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    job = view["job"]
    for label, name in (
        ("Call", "call"),
        ("Job", "id"),
        ("Name", "name"),
        ("Workflow", "workflow"),
        ("Dispatch", "dispatch"),
        ("Run", "client"),
        ("User", "user"),
        ("Retry of", "retry_of"),
    ):
        yield label, in_a_line(job[name] or "")
        if name == "dispatch" and view["electron"] is not None:
            yield "Electron", f"node {view['electron']}"
    yield "Retried as", ", ".join(map(in_a_line, view["retries"]))
    place = view["position"]
    yield (
        "Queue",
        in_a_line(job["queue"])
        + _rung(job["queue_rung"])
        + (f", position {place} in it" if place else ""),
    )
    if entry.detail.array_size:
        yield "Tasks", tables.note(entry.detail)


def _times(entry: Entry, view: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    detail = entry.detail
    yield "Submitted", f"{tables.clock(detail.created_at)}, {tables.age(detail.created_at)} ago"
    starts = [tried.started_at for tried in detail.tried] + [detail.started_at]
    first = next(filter(None, starts), None)
    if first is not None and detail.created_at is not None:
        yield "Waited", tables.span((first - detail.created_at).total_seconds())
    yield "Ran", tables.ran(detail)
    attempts = view["attempts"]
    if not detail.array_size:
        finished = "unknown" if detail.has_lost_attempts else str(len(attempts))
        yield "Attempts", f"{finished} of {detail.attempts_allowed} allowed"
    earlier = dict(enumerate(view["explanation"]["previous_attempts"], 1))
    for each in attempts:
        yield f"  {each['attempt']}", ", ".join(_attempt(each, earlier.get(each["attempt"], "")))


def _nodes(view: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield a job's nodes; for many nodes, the failed ones and the number per status."""
    nodes = view["nodes"]
    many = len(nodes) > _MOST_NODES
    if many:
        yield "Nodes", tables.counted_states(Counter(node["state"] for node in nodes))
        nodes = [node for node in nodes if node["state"] == "FAILED"][:_MOST_NODES]
    for node in nodes:
        yield f"Node {node['index']}", ", ".join(_node(node))


def _node(node: Mapping[str, Any]) -> Iterator[str]:
    yield json_view.WORDS[node["state"]]
    if node["exit_code"] is not None:
        yield f"exit code {node['exit_code']}"
    _, ran = _span(node)
    if ran:
        yield f"ran {ran}"
    if node["reason"]:
        yield in_a_line(node["reason"])


def _attempt(each: Mapping[str, Any], how: str) -> Iterator[str]:
    begin, ran = _span(each)
    if ran:
        yield f"{tables.clock(begin)}, {ran}"
    yield "no exit code" if each["exit_code"] is None else f"exit code {each['exit_code']}"
    if how or each["reason"]:
        yield in_a_line(how or each["reason"])


def _span(each: Mapping[str, Any]) -> tuple[datetime | None, str]:
    """Return the start and the duration of an attempt or a node, if they are known."""
    if not each["started_at"] or not each["stopped_at"]:
        return None, ""
    begin, end = map(datetime.fromisoformat, (each["started_at"], each["stopped_at"]))
    return begin, tables.span((end - begin).total_seconds())


def _means(view: Mapping[str, Any], cost: float | None) -> Iterator[tuple[str, str]]:
    job = view["job"]
    requested = f"{job['vcpu']:g} vCPU, {job['memory_mib']} MiB{_rung(job['memory_rung'])}"
    if job["gpus"]:
        requested += f", {job['gpus']} GPU"
    if job["time_limit_s"]:
        requested += f", {job['time_limit_s']} s per attempt"
    yield "Requested", requested
    used = view["usage"]
    if used is not None:
        limit = used["memory_limit_bytes"]
        yield (
            "Used",
            (
                f"{used['wall_s']:.1f} s, {used['cpu_s']:.1f} s CPU time, peak memory "
                f"{used['peak_memory_bytes'] / _MIB:.0f} MiB"
            )
            + (f" of {limit / _MIB:.0f}" if limit else "")
            + _excess(used, job),
        )
    yield "Cost", "" if cost is None else costs.dollars(cost)
    if len(job["groups"]) < 2:
        yield "Image", in_a_line(job["image"])
        yield "Command", in_a_line(shlex.join(job["command"]))
    else:
        yield from (("Group", in_a_line(_group(group))) for group in job["groups"])
    yield "Instance", in_a_line(job["instance_type"])
    yield "Definition", in_a_line(job["definition"])
    yield "Tags", in_a_line(", ".join(f"{name}={value}" for name, value in job["tags"].items()))


def _rung(rung: Sequence[int] | None) -> str:
    """Return a value's position in the option's list."""
    return f" ({rung[0]} of {rung[1]})" if rung else ""


def _group(group: Mapping[str, Any]) -> str:
    first, last = group["first"], group["last"]
    nodes = f"node {first}" if first == last else f"nodes {first} to {last}"
    requested = f"{nodes}: {group['vcpu']:g} vCPU, {group['memory_mib']} MiB"
    if group["gpus"]:
        requested += f", {group['gpus']} GPU"
    return f"{requested}, {group['image']}  {shlex.join(group['command'])}"


def _places(view: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield "Input", in_a_line(view["bundle"])
    for label, text in view["log_locations"].items():
        yield label, in_a_line(text)
    for name, url in view["links"].items():
        yield f"{name.capitalize()} page", in_a_line(url)


def _excess(used: Mapping[str, Any], job: Mapping[str, Any]) -> str:
    """Return a warning if the task used more memory than requested, on a lenient emulator."""
    is_lenient = job["image"] == EMULATOR_IMAGE and not used["memory_limit_bytes"]
    if not is_lenient or used["peak_memory_bytes"] <= job["memory_mib"] * _MIB:
        return ""
    return ", more than requested: AWS Batch would have killed the task. Raise memory"
