"""``farcall demo --page``: the page on an embedded AWS where workflows run, until Ctrl-C."""

from __future__ import annotations

import asyncio
import logging
import os
import shlex
import signal

from farcall import local, ui
from farcall.cli.demos import common, workflows
from farcall.client.console import Console
from farcall.model.settings import Settings

_NEXT = (
    ("farcall list", "the jobs, at a terminal"),
    ("farcall logs -f JOB", "what one prints"),
    ("farcall cancel JOB", "end one: the training with learning rate 3 diverges"),
)


async def run(port: int) -> None:
    """Serve the page until Ctrl-C, and say how it is reached.

    Args:
        port: Of the page, on loopback; 0 for a free one.

    Raises:
        ModuleNotFoundError: The ``local`` extra is not installed.
        FarcallError: The port is taken.
    """
    console = Console(markup=True, highlight=True)
    # The page tells of the attempts that fail.
    logging.getLogger("farcall").setLevel(logging.ERROR)
    with console.status("Starting the embedded AWS (S3, Batch, CloudWatch Logs, IAM, STS)"):
        aws = local.start(cpus=workflows.CPUS)
    with aws, common.environment({**os.environ, **aws.environment}):
        site = ui.Site(Settings(), ui.Options(port=port))
        work = asyncio.create_task(workflows.run(aws))
        serving = asyncio.ensure_future(
            ui.serve(site, lambda served: _tell(console, served.link, aws))
        )
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, serving.cancel)
        await asyncio.wait([serving])
        work.cancel()
        await asyncio.wait([work])
        if not serving.cancelled():
            serving.result()


def _tell(console: Console, link: str, aws: local.LocalAWS) -> None:
    console.print("Two workflows run for some minutes. In another terminal:\n")
    for name, value in aws.environment.items():
        console.out(f"export {name}={shlex.quote(value)}", highlight=False)
    console.print()
    console.print(common.next_steps(_NEXT))
    console.print("\nThe page, until Ctrl-C:\n")
    console.out(f"  {link}", highlight=False)
