"""``farcall local``: commands on the local AWS emulator."""

from __future__ import annotations

import sys
from typing import Any

import click

import farcall_local
from farcall.model.errors import FarcallError


@click.command("local", context_settings={"ignore_unknown_options": True})
@click.option("--cpus", type=click.IntRange(min=1), help="Processors the jobs share.")
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="0 takes a free one.")
@click.option("--docker", is_flag=True, help="Run jobs as containers of their image.")
@click.option("--kubernetes", is_flag=True, help="Serve a Kubernetes too, and use that.")
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def run_local(
    cpus: int | None,
    port: int,
    *,
    docker: bool,
    kubernetes: bool,
    command: tuple[str, ...],
) -> None:
    """Run a command on a local AWS emulator, or serve one.

    \b
    farcall local -- python my_workflow.py     a fresh AWS for one command
    farcall local                              prints the export lines, then serves until Ctrl-C

    With --docker a job runs in a container of the image that the option image names, with a
    docker engine of this machine. Otherwise a job is a process of this machine, and its memory is
    not limited.

    With --kubernetes there is a Kubernetes beside it, whose pods run as the jobs do: KUBECONFIG
    names its file, for kubectl too, and FARCALL_BACKEND has farcall use it.
    """  # noqa: D301  # click's mark for lines to be left as they are
    try:
        options: dict[str, Any] = {"docker": docker, "kubernetes": kubernetes}
        if command:
            sys.exit(farcall_local.run_command(command, cpus=cpus, port=port, **options))
        farcall_local.serve(cpus=cpus, port=port, **options)
    except RuntimeError as error:
        raise FarcallError(str(error)) from error
