"""Output of command jobs, of all nodes as it comes, and the exit code that tells of their end."""

from __future__ import annotations

import contextlib

from farcall.cli import exit_codes
from farcall.cli.printing import Printer, say
from farcall.client.command_job import CommandJob
from farcall.engine.logs.nodes import NodeLine
from farcall.engine.session import Session
from farcall.model.errors import JobError, ServiceError
from farcall_runtime.contract import STDOUT


async def follow(session: Session, job_id: str, *, count: int) -> None:
    """Print what all nodes of a job write, to its end; who may not read logs is told so."""
    printer: Printer[NodeLine] = Printer(
        begin=(lambda line: f"{line.node}: ") if count > 1 else (lambda _: ""), only=STDOUT
    )
    batches = session.node_logs.batches(job_id, follow=True)
    try:
        async with contextlib.aclosing(batches):
            async for batch in batches:
                printer.print(batch)
    except ServiceError as error:  # how the job ends is to be known all the same
        say(f"farcall: its output cannot be read: {error}", fg="red", err=True)


async def exit_code(job: CommandJob) -> int:
    """Wait for a job's end, and say why where it is no good one.

    Returns:
        What to exit with: the exit code of the main node's command; where it has none, farcall's.
    """
    try:
        await job.wait()
    except JobError as error:
        say(f"farcall: {error}", fg="red", err=True)
        return error.exit_code or exit_codes.code_of(error)
    return 0
