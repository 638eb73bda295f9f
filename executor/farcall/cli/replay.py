"""``farcall replay``: runs a failed call again on this machine."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import click

from farcall.cli import docker, references, tables
from farcall.cli.common import confirm, opened
from farcall.cli.printing import echo
from farcall.engine.session import this_user
from farcall.model.terminal import in_a_line
from farcall.operations import replay
from farcall.operations.replay import Found
from farcall_runtime.contract import ENV_ARRAY_INDEX, ENV_ATTEMPT, ENV_JOB_ID, module_arguments


@click.command("replay")
@click.argument("reference", metavar="[JOB]", required=False)
@click.option(
    "--call",
    type=click.IntRange(min=0),
    metavar="N",
    help="Index of a call in the task, from 0; by default the first failed call.",
)
@click.option("--pdb", "debug", is_flag=True, help="Stop in the debugger where the call fails.")
@click.option("-y", "--yes", is_flag=True, help="Run the job's code without a prompt.")
def replay_job(reference: str | None, call: int | None, *, debug: bool, yes: bool) -> None:
    """Run a failed call again on this machine.

    \b
    Examples:
      farcall replay JOB:3
      farcall replay JOB:3 --pdb        # stop in the frame that failed

    JOB is an ID, the beginning of an ID, or a name, which means the newest job of
    that name; by default the newest job. For an array, the first failed task is
    used. Function and arguments are the original ones; packages are those of this
    Python, and differences from the job's are reported. Unpickling runs the
    submitter's code with your rights, so you are prompted first.
    Nothing is submitted or stored.

    Exits with 0 if the call returned, and with 1 if it failed again.
    """  # noqa: D301  # click's marker for preformatted lines
    failed_call = asyncio.run(_find(reference))
    failed_call.check_python()
    _print_job(failed_call)
    if not yes:
        confirm("Run it?", refused="nothing was run")
    with _exit_on_signals(), tempfile.TemporaryDirectory(prefix="farcall-replay-") as name:
        folder = Path(name)
        asyncio.run(_fetch(failed_call, folder, call, debug=debug))
        command = [sys.executable, *module_arguments("farcall_runtime.replay"), str(folder)]
        sys.exit(int(docker.run(command) != 0))


async def _find(reference: str | None) -> Found:
    settings, session = await opened()
    job_id = await references.job_id(settings, session, reference)
    return await replay.find(session, job_id)


async def _fetch(failed_call: Found, folder: Path, call: int | None, *, debug: bool) -> None:
    _, session = await opened()
    await replay.fetch(
        session, failed_call, folder, _variables(failed_call), call=call, debug=debug
    )


def _print_job(failed_call: Found) -> None:
    entry = failed_call.entry
    detail = entry.detail
    whose = "yours" if entry.user == this_user() else f"{in_a_line(entry.user)}'s"
    echo(f"job {detail.job_id} ({in_a_line(detail.name)})", err=True)
    echo(f"on {detail.platform}: {in_a_line(failed_call.explanation.message)}", err=True)
    echo(
        f"input data {in_a_line(failed_call.submission.where.url)}: {whose}, according to its "
        f"name; submitted {tables.age(detail.created_at)} ago with Python {failed_call.python}, "
        "and unchanged since",
        err=True,
    )
    echo(f"Its code runs here with {sys.executable} and your permissions.", err=True)


def _variables(failed_call: Found) -> dict[str, str]:
    """Return the job's Batch variables that are not set in this process."""
    detail = failed_call.entry.detail
    own = {
        name: value
        for name, value in detail.environment.items()
        if not name.startswith(("AWS_", "FARCALL_")) and name not in os.environ
    }
    index = {ENV_ARRAY_INDEX: str(failed_call.index)} if failed_call.bundle.entries > 1 else {}
    return {**own, ENV_JOB_ID: detail.job_id, ENV_ATTEMPT: "1", **index}


@contextlib.contextmanager
def _exit_on_signals() -> Iterator[None]:
    """Convert the first termination signal in the block to an exception."""
    ends = (signal.SIGTERM, signal.SIGHUP)

    def leave(number: int, _: FrameType | None) -> None:
        for each in ends:
            signal.signal(each, signal.SIG_IGN)  # a second one would stop the clean-up
        raise SystemExit(128 + number)

    former = {number: signal.signal(number, leave) for number in ends}
    try:
        yield
    finally:
        for number, action in former.items():
            signal.signal(number, action)
