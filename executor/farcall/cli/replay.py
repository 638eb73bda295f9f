"""``farcall replay``: a failed call again, here or in the job's image."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import click

from farcall.backends.base import STOCK_ENVIRONMENT, STOCK_USER
from farcall.cli import docker, references, tables
from farcall.cli.common import opened
from farcall.cli.printing import say
from farcall.engine.session import this_user
from farcall.model.errors import FarcallError
from farcall.model.terminal import in_a_line
from farcall.operations import replay
from farcall.operations.replay import Found
from farcall_runtime.contract import ENV_ARRAY_INDEX, ENV_ATTEMPT, ENV_JOB_ID, module_arguments

_INSIDE = "/farcall-replay"
"""Where a container finds the folder."""


@click.command("replay")
@click.argument("reference", metavar="[JOB]", required=False)
@click.option(
    "--call",
    type=click.IntRange(min=0),
    metavar="N",
    help="Of a task with several calls (chunksize), from 0; by default the first that failed.",
)
@click.option("--pdb", "debug", is_flag=True, help="Stop in the debugger where the call fails.")
@click.option(
    "--image", is_flag=True, help="Run it in the job's image, by docker on this machine."
)
@click.option("--yes", is_flag=True, help="Do not ask before somebody's code is run.")
def replay_job(
    reference: str | None, call: int | None, *, debug: bool, image: bool, yes: bool
) -> None:
    """Run a failed call again on this machine, with the arguments it had.

    \b
    farcall replay JOB:3              in this Python
    farcall replay JOB:3 --pdb        and look around in the frame that failed
    farcall replay JOB:3 --image      in the job's image

    JOB is an ID, its beginning, or a name, which means its newest job; without it, it is the
    newest of all. Of an array it is the first child that failed. Function and arguments are those
    that were submitted. Packages are those of this Python, and it is told in what they differ from
    the job's; in the image they are the job's. It is told whose code it is, and asked, before
    anything is unpickled, for that runs their code with your rights. Nothing is sent to Batch, and
    nothing is stored.

    Exits with 0 if the call returned, and with 1 if it failed again.
    """  # noqa: D301  # click's mark for lines to be left as they are
    program = docker.find("--image") if image else ""
    found = asyncio.run(_find(reference))
    if not image:
        found.check_python()
    _tell(found, image=image)
    if not yes:
        _ask()
    # The outer folder is nobody else's; what is in it, a container's user is to read.
    with _told_to_end(), tempfile.TemporaryDirectory(prefix="farcall-replay-") as outer:
        folder = Path(outer, "replay")
        folder.mkdir()
        asyncio.run(_fetch(found, folder, call, debug=debug, here=not image))
        if image:
            _open_to_all(folder)
        code = _run_in_image(program, found, folder) if image else docker.run(_here(folder))
        sys.exit(int(code != 0))


async def _find(reference: str | None) -> Found:
    settings, session = await opened()
    job_id = await references.job_id(settings, session, reference)
    return await replay.find(session, job_id)


async def _fetch(found: Found, folder: Path, call: int | None, *, debug: bool, here: bool) -> None:
    _, session = await opened()
    variables = _variables(found, here=here)
    await replay.fetch(session, found, folder, variables, call=call, debug=debug, image=not here)


def _tell(found: Found, *, image: bool) -> None:
    entry = found.entry
    detail = entry.detail
    where = f"in image {in_a_line(detail.image)}" if image else f"by {sys.executable}"
    whose = "yours" if entry.user == this_user() else f"{in_a_line(entry.user)}'s"
    say(f"job {detail.job_id} ({in_a_line(detail.name)})", err=True)
    say(f"on {detail.platform}: {in_a_line(found.explanation.sentence)}", err=True)
    say(
        f"bundle {in_a_line(found.submission.where.url)}: {whose}, by its name; submitted "
        f"{tables.age(detail.created_at)} ago by Python {found.python}, and unchanged since",
        err=True,
    )
    say(f"Its code runs here {where}, with your rights.", err=True)


def _ask() -> None:
    if not sys.stdin.isatty():
        raise FarcallError("there is no terminal to ask on; --yes has it run without")
    click.confirm("Run it?", err=True, abort=True)


def _variables(found: Found, *, here: bool) -> dict[str, str]:
    """Return the variables that the job has on Batch; here, what is set stays as it is."""
    detail = found.entry.detail
    own = {
        name: value
        for name, value in detail.environment.items()
        if not name.startswith(("AWS_", "FARCALL_")) and not (here and name in os.environ)
    }
    index = {ENV_ARRAY_INDEX: str(found.index)} if found.bundle.entries > 1 else {}
    return {**own, ENV_JOB_ID: detail.job_id, ENV_ATTEMPT: "1", **index}


def _here(folder: Path) -> list[str]:
    return [sys.executable, *module_arguments("farcall_runtime.replay"), str(folder)]


def _open_to_all(folder: Path) -> None:
    """Let any user of a container read a folder, whatever this one's umask says."""
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)


def _run_in_image(program: str, found: Found, folder: Path) -> int:
    """Run it in a container, which is gone afterwards, whatever ends this."""
    name = f"farcall-replay-{secrets.token_hex(8)}"
    command = [program, "run", "--name", name, *_container(found, folder)]
    return docker.run(command, end=lambda: docker.remove(program, name))


def _container(found: Found, folder: Path) -> list[str]:
    """Return the words that say to docker what is to run, and in what."""
    detail = found.entry.detail
    if not detail.image or detail.image.startswith("-"):
        raise FarcallError(f"{detail.platform} names no image of job {detail.job_id}")
    stock: list[str] = []
    if detail.runtime:
        path = {"PYTHONPATH": f"{_INSIDE}/{replay.RUNTIME}"}
        stock = [f"--env={name}={value}" for name, value in {**STOCK_ENVIRONMENT, **path}.items()]
        stock += ["--user", STOCK_USER, "--workdir", STOCK_ENVIRONMENT["HOME"]]
    return [
        *("--rm", "--interactive", *(["--tty"] if sys.stdin.isatty() else []), *stock),
        *("--mount", f"type=bind,source={folder},target={_INSIDE},readonly"),
        *("--entrypoint", "python3", detail.image),
        *(*module_arguments("farcall_runtime.replay"), _INSIDE),
    ]


@contextlib.contextmanager
def _told_to_end() -> Iterator[None]:
    """Have the signals that end programs leave the block as exceptions do, the first one only."""
    ends = (signal.SIGTERM, signal.SIGHUP)

    def leave(number: int, _: FrameType | None) -> None:
        for each in ends:
            signal.signal(each, signal.SIG_IGN)  # a second one would stop the cleaning up
        raise SystemExit(128 + number)

    former = {number: signal.signal(number, leave) for number in ends}
    try:
        yield
    finally:
        for number, action in former.items():
            signal.signal(number, action)
