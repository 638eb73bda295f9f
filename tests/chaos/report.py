"""The figures of a chaos run, and what is wrong with it, for people to read."""

from __future__ import annotations

import sys
from collections import Counter

from rich.console import Console
from rich.table import Table

from tests.chaos.plan import WAYS

_WIDTH = 120  # of a file


def show(record, account, *, repeat, console=None):
    """Print what is wrong, if anything is, and the figures.

    Args:
        record: What is left of the run.
        account: Its accountant, done.
        repeat: The command that makes the same run.
        console: Where to print.
    """
    console = console or Console(width=None if sys.stdout.isatty() else _WIDTH)
    for wrong in account.wrong:
        task = f"task {wrong.task}: " if wrong.task is not None else ""
        console.print(f"WRONG  {task}{wrong.what}", style="bold red", markup=False)
        for line in wrong.known.splitlines():
            console.print(f"       {line}", markup=False, highlight=False)
    for table in (_ends(record, account), _faults(record), _blows(record, account)):
        console.print(table)
    tasks = len(account.ends)
    requests = sum(record.requests.values())
    began = sum(line["what"] == "begin" for line in record.ledger)
    console.print(
        f"{tasks} tasks, {began} executions, {len(record.truth.submitted)} jobs, "
        f"{requests / tasks:.1f} requests a task, {sum(record.injected.values())} of "
        f"{requests} requests went wrong, {record.seconds:.0f} s",
        highlight=False,
    )
    if account.wrong:
        console.print(f"{len(account.wrong)} things are wrong; again: {repeat}", style="bold red")
    else:
        console.print("each task is accounted for, and nothing is left", style="green")


def _ends(record, account):
    works = record.plan.works()
    ends = sorted(set(account.ends.values()))
    table = Table("tasks", *ends, "in all")
    for way in WAYS:
        own = Counter(end for n, end in account.ends.items() if works[n][1].way == way)
        table.add_row(way, *(str(own[end] or "") for end in ends), str(own.total()))
    return table


def _faults(record):
    found = Counter()
    for name, count in record.injected.items():
        operation, kind = _split(name)
        found[operation, kind] += count
    kinds = sorted({kind for _, kind in found})
    table = Table("faults", *kinds, "requests")
    for operation in sorted({operation for operation, _ in found}):
        counts = (str(found[operation, kind] or "") for kind in kinds)
        table.add_row(operation, *counts, str(record.requests.get(operation, 0)))
    return table


def _split(name):
    """Split ``batch submitjob slow down``; S3's operations have one word more or less."""
    for kind in ("slow down",):
        if name.endswith(f" {kind}"):
            return name[: -len(kind) - 1], kind
    operation, _, kind = name.rpartition(" ")
    return operation, kind


def _blows(record, account):
    dealt = Counter(blow["kind"] for blow in record.dealt)
    table = Table("what happened", "times")
    words = {
        "container": "containers killed",
        "child": "tasks' processes killed",
        "host": "hosts reclaimed",
        "start": "starts that failed",
        "client": "clients killed",
        "recovery": "recovering clients killed",
    }
    for kind, text in words.items():
        table.add_row(text, str(dealt[kind]))
    found = [line["jobs"] for line in record.told if "jobs" in line]
    table.add_row("runs recovered", f"{len(found)}, with {sum(found)} tasks")
    retries = [nth for nth in account.retries.values() if nth]
    table.add_row(
        "calls run again by retries", f"{len(retries)}, up to {max(retries, default=0)} times"
    )
    table.add_row("jobs retried by the command", str(sum("attached" in t for t in record.told)))
    table.add_row("withdrawn jobs that turned up", str(len(account.withdrawn)))
    table.add_row("uploads of killed clients that are unfinished", str(len(account.unfinished)))
    table.add_row("objects left that killed clients were deleting", str(len(account.left)))
    cancelled = [o for orders in record.plan.clients for o in orders if o.cancel_s is not None]
    single = sum(order.way in ("await", "submit") for order in cancelled)
    table.add_row("single tasks to be cancelled", str(single))
    table.add_row("whole maps to be cancelled", str(len(cancelled) - single))
    return table
