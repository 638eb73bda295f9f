"""``farcall covalent resume``."""

from __future__ import annotations

import click

from farcall.cli.printing import say
from farcall.covalent import resume
from farcall.model.terminal import in_a_line


@click.group("covalent")
def covalent() -> None:
    """For workflows on a Covalent server."""


@covalent.command("resume")
@click.argument("dispatch_ids", nargs=-1, metavar="[DISPATCH...]")
@click.option("--server", help="URL of Covalent's server; by default the configured one.")
def resume_dispatches(dispatch_ids: tuple[str, ...], server: str | None) -> None:
    """Bring dispatches to their end after Covalent's server was ended and started again.

    Jobs that went on meanwhile are received, and what had no job yet is started. It may be called
    at any time: what is under way is left alone.
    """
    count = 0
    for found in resume.resume(dispatch_ids, server):
        count += 1
        say(f"{found.dispatch_id} ({in_a_line(found.name)}): {len(found.asked)} unfinished tasks")
        if found.foreign:
            nodes = ", ".join(map(str, found.foreign))
            say(f"  nodes {nodes} ran on other executors, which do not bring them back")
    if not count:
        say("no dispatch is running there")
