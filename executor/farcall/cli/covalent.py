"""``farcall covalent resume``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import click

from farcall.cli.printing import say
from farcall.covalent.api import DEFAULT_ADDRESS, Covalent
from farcall.model.terminal import in_a_line

# --- ``farcall covalent resume``: bring dispatches to their end after Covalent's server was ended
#
# Covalent takes up nothing again by itself. For each task of ours that it calls unfinished it is
# asked, by the call that executors report with, to look at it; `AWSBatchExecutor.receive` does the
# rest in the server.


_EXECUTOR = "awsbatch"
_UNFINISHED = ("RUNNING", "NEW_OBJECT")


@dataclass(frozen=True)
class Resumed:
    """What was found of one dispatch.

    Attributes:
        dispatch_id: The dispatch.
        name: The lattice's name.
        asked: Numbers of the tasks that Covalent was asked to look at.
        foreign: Numbers of running tasks on other executors, which only these can bring back.
    """

    dispatch_id: str
    name: str
    asked: list[int]
    foreign: list[int]


def resume(dispatch_ids: Sequence[str] = (), address: str | None = None) -> Iterator[Resumed]:
    """Ask Covalent's server to look at the unfinished tasks of running dispatches.

    It does no harm where nothing was interrupted: what is under way in the server stays as it is.

    Args:
        dispatch_ids: Only these; by default all that Covalent calls running.
        address: The server's URL; by default the one in Covalent's configuration.

    Raises:
        FarcallError: The server cannot be reached, or does not know a dispatch.
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
        # Where all have ended and the dispatch has not, one will do: it is looked at as a whole.
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

    Collects jobs that have finished meanwhile and starts tasks that have no job
    yet. Run it at any time; tasks in progress are not affected.
    """
    count = 0
    for found in resume(dispatch_ids, server):
        count += 1
        say(f"{found.dispatch_id} ({in_a_line(found.name)}): {len(found.asked)} unfinished tasks")
        if found.foreign:
            nodes = ", ".join(map(str, found.foreign))
            say(f"  nodes {nodes} ran on other executors, which do not bring them back")
    if not count:
        say("no dispatch is running there")
