"""``farcall covalent resume``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import click

from farcall.cli.printing import say
from farcall.covalent.api import DEFAULT_ADDRESS, Covalent
from farcall.model.terminal import in_a_line

# --- ``farcall covalent resume``: finish dispatches after Covalent's server was stopped ---------
#
# Covalent does not resume tasks. For each unfinished farcall task, the command sends the
# request with which executors report; `AWSBatchExecutor.receive` does the rest in the server.


_EXECUTOR = "awsbatch"
_UNFINISHED = ("RUNNING", "NEW_OBJECT")


@dataclass(frozen=True)
class Resumed:
    """Result for one dispatch.

    Attributes:
        dispatch_id: The dispatch.
        name: The lattice's name.
        asked: Numbers of the tasks that the server was requested to resume.
        foreign: Numbers of running tasks on other executors, which only those executors can
            resume.
    """

    dispatch_id: str
    name: str
    asked: list[int]
    foreign: list[int]


def resume(dispatch_ids: Sequence[str] = (), address: str | None = None) -> Iterator[Resumed]:
    """Request Covalent's server to resume unfinished tasks of running dispatches.

    Tasks that are already running in the server are not affected.

    Args:
        dispatch_ids: Dispatches to resume; by default all that Covalent reports as running.
        address: The server's URL; by default the one in Covalent's configuration.

    Raises:
        FarcallError: The server cannot be reached or does not know a dispatch.
    """
    server = Covalent.configured(address) or Covalent(DEFAULT_ADDRESS)
    for dispatch_id in dispatch_ids or server.running():
        manifest = server.manifest(dispatch_id)
        with server.understood():
            name = str(manifest["lattice"]["metadata"]["name"])
            nodes = manifest["lattice"]["transport_graph"]["nodes"]
            ours = [node for node in nodes if node["metadata"]["executor"] == _EXECUTOR]
            asked = [node["id"] for node in ours if node["metadata"]["status"] in _UNFINISHED]
            foreign = [
                node["id"]
                for node in nodes
                if node not in ours and node["metadata"]["status"] == "RUNNING"
            ]
        # If all tasks have finished and the dispatch has not, one task is enough, because the
        # server checks the whole dispatch.
        for number in asked or [node["id"] for node in ours[:1]]:
            server.report(dispatch_id, number, {"resume": True})
        yield Resumed(dispatch_id, name, asked, foreign)


@click.group("covalent")
def covalent() -> None:
    """For workflows on a Covalent server."""


@covalent.command("resume")
@click.argument("dispatch_ids", nargs=-1, metavar="[DISPATCH...]")
@click.option("--server", help="URL of Covalent's server; by default the configured one.")
def resume_dispatches(dispatch_ids: tuple[str, ...], server: str | None) -> None:
    """Resume dispatches after a restart of Covalent's server.

    \b
    Examples:
      farcall covalent resume             # all running dispatches
      farcall covalent resume DISPATCH    # one dispatch

    Collects jobs that have finished meanwhile and starts tasks that have no job
    yet. Run it at any time; tasks in progress are not affected.
    """  # noqa: D301  # click's marker for preformatted lines
    count = 0
    for found in resume(dispatch_ids, server):
        count += 1
        say(f"{found.dispatch_id} ({in_a_line(found.name)}): {len(found.asked)} unfinished tasks")
        if found.foreign:
            nodes = ", ".join(map(str, found.foreign))
            say(f"  nodes {nodes} ran on other executors, which cannot resume them")
    if not count:
        say("no dispatch is running there")
