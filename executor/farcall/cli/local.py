"""``farcall local``: commands on the local AWS emulator."""

from __future__ import annotations

import sys
from typing import Any

import click

import farcall_local
from farcall.model.errors import FarcallError


@click.command("local", context_settings={"ignore_unknown_options": True})
@click.option(
    "--cpus",
    metavar="N",
    type=click.IntRange(min=1),
    help="Number of CPUs that the jobs share; by default all.",
)
@click.option(
    "--port",
    metavar="PORT",
    type=click.IntRange(0, 65535),
    default=0,
    help="Port of the emulator; 0 for a free one.",
)
@click.option("--docker", is_flag=True, help="Run jobs in docker containers.")
@click.option("--strict", is_flag=True, help="Give jobs only what a container has.")
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def run_local(
    cpus: int | None,
    port: int,
    *,
    docker: bool,
    strict: bool,
    command: tuple[str, ...],
) -> None:
    """Run a command on a local AWS emulator, or serve one.

    \b
    Examples:
      farcall local -- python my_workflow.py     # a new emulator for one command
      farcall local                              # print exports, serve until Ctrl-C

    A job is a process of this machine without a memory limit. With --strict it has
    a limit and does not see your folders and variables, as on AWS. With --docker it
    is a container of the image that the option image names, run by the local docker
    engine.
    """  # noqa: D301  # click's marker for preformatted lines
    if strict and docker:
        raise click.UsageError("--strict does not work with --docker; use one.")
    try:
        options: dict[str, Any] = {"docker": docker, "strict": strict}
        if command:
            sys.exit(farcall_local.run_command(command, cpus=cpus, port=port, **options))
        farcall_local.serve(cpus=cpus, port=port, **options)
    except RuntimeError as error:
        raise FarcallError(str(error)) from error
