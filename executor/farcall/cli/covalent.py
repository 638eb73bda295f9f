"""``farcall covalent resume``."""

from __future__ import annotations

import click

from farcall.cli.printing import echo
from farcall.covalent.api import DEFAULT_ADDRESS, Covalent
from farcall.model.terminal import in_a_line

_EXECUTOR = "awsbatch"
_UNFINISHED = ("RUNNING", "NEW_OBJECT")


@click.group("covalent")
def covalent() -> None:
    """For workflows on a Covalent server."""


@covalent.command("resume")
@click.argument("dispatch_ids", nargs=-1, metavar="[DISPATCH...]")
@click.option(
    "--covalent",
    "server",
    metavar="URL",
    help="URL of Covalent's server; by default the configured one.",
)
def resume_dispatches(dispatch_ids: tuple[str, ...], server: str | None) -> None:
    """Resume dispatches after a restart of Covalent's server.

    \b
    Examples:
      farcall covalent resume             # all running dispatches
      farcall covalent resume DISPATCH    # one dispatch

    Collects jobs that have finished meanwhile and starts tasks that have no job
    yet. Run it at any time; tasks in progress are not affected.
    """  # noqa: D301  # click's marker for preformatted lines
    # Covalent does not resume tasks. For each unfinished farcall task, the command sends the
    # request with which executors report; `AWSBatchExecutor.receive` does the rest in the server.
    api = Covalent.configured(server) or Covalent(DEFAULT_ADDRESS)
    running = dispatch_ids or api.running()
    for dispatch_id in running:
        manifest = api.manifest(dispatch_id)
        with api.understood():
            name = str(manifest["lattice"]["metadata"]["name"])
            nodes = manifest["lattice"]["transport_graph"]["nodes"]
            ours = [node for node in nodes if node["metadata"]["executor"] == _EXECUTOR]
            unfinished = [node["id"] for node in ours if node["metadata"]["status"] in _UNFINISHED]
            foreign = [
                str(node["id"])
                for node in nodes
                if node not in ours and node["metadata"]["status"] == "RUNNING"
            ]
        # If all tasks have finished and the dispatch has not, one task is enough, because the
        # server checks the whole dispatch.
        for number in unfinished or [node["id"] for node in ours[:1]]:
            api.report(dispatch_id, number, {"resume": True})
        echo(f"{dispatch_id} ({in_a_line(name)}): {len(unfinished)} unfinished tasks")
        if foreign:
            echo(f"  nodes {', '.join(foreign)} ran on other executors, which cannot resume them")
    if not running:
        echo("no dispatch is running there")
