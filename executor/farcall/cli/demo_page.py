"""Workflows of ``farcall demo --page``, and the web UI that shows them."""

from __future__ import annotations

import asyncio
import logging
import os
import shlex
import time
from collections.abc import Iterable
from typing import Any

from rich.panel import Panel
from rich.table import Table

import farcall_local
from farcall.client.console import Console
from farcall.client.executor import BatchExecutor
from farcall.client.job import Job
from farcall.config.settings import Settings
from farcall.model.jobs import JobStatus

_ON_PAGE = (
    ("farcall list", "list the jobs in the terminal"),
    ("farcall logs -f JOB", "show a job's output"),
    ("farcall cancel JOB", "cancel a job: the training with learning rate 3 diverges"),
)

CPUS = 8
"""Number of the local AWS emulator's processors for which the workflows are designed."""

MONTHS = 24

SECONDS = 5 * 60
"""Duration of the longest task in seconds."""


async def serve_page(port: int) -> None:
    """Serve the web UI until Ctrl-C, and print its address.

    Args:
        port: The web UI's port on loopback; 0 for a free one.

    Raises:
        ModuleNotFoundError: The ``local`` extra is not installed.
        FarcallError: The port is in use.
    """
    from farcall import ui
    from farcall.cli.ui import serve_until_signal

    console = Console(markup=True, highlight=True)
    # The web UI shows the failed attempts.
    logging.getLogger("farcall").setLevel(logging.ERROR)
    with console.status("Starting the local AWS emulator (S3, Batch, CloudWatch Logs, IAM, STS)"):
        aws = farcall_local.start(cpus=CPUS)
    os.environ.update(aws.environment)
    with aws:
        site = ui.Site(Settings(), ui.Options(port=port))
        work = asyncio.create_task(run_workflows(aws))
        try:
            await serve_until_signal(site, lambda served: _print_link(console, served.link, aws))
        finally:
            work.cancel()
            await asyncio.wait([work])


def _print_link(console: Console, link: str, aws: farcall_local.LocalAWS) -> None:
    console.print("Two workflows run for some minutes. In another terminal:\n")
    for name, value in aws.environment.items():
        console.out(f"export {name}={shlex.quote(value)}", highlight=False)
    console.print()
    console.print(next_steps(_ON_PAGE))
    console.print("\nThe web UI, until you press Ctrl-C:\n")
    console.out(f"  {link}", highlight=False)


async def run_workflows(aws: farcall_local.LocalAWS) -> None:
    """Run both workflows to the end; failures and cancellations are part of them."""
    # Sequentially, because a job that needs many processors blocks later jobs in the queue.
    training = await _train_jobs(aws)
    await asyncio.gather(*(job.result() for job in training), _ocean(), return_exceptions=True)


async def _train_jobs(aws: farcall_local.LocalAWS) -> list[Job[Any]]:
    executor = BatchExecutor(workflow="train-model", vcpu=1, memory=2, retry_attempts=2)

    @executor.task(time_limit=2 * SECONDS)
    def train(learning_rate: float, seconds: float) -> float:
        import math
        import sys

        epochs = 100
        loss = 2.3
        print(f"learning rate {learning_rate}", flush=True)  # noqa: T201
        for epoch in range(1, epochs + 1):
            time.sleep(seconds / epochs)
            loss *= 1.25 if learning_rate > 1 else 0.97 + learning_rate / 10
            print(f"epoch {epoch:3}  loss {loss:9.4f}", flush=True)  # noqa: T201
            if loss > 5:
                print(f"loss {loss:.1f} and growing", file=sys.stderr, flush=True)  # noqa: T201
        return math.exp(-loss)

    slow = await train.submit(0.01, SECONDS)
    diverging = await train.submit(3.0, SECONDS)
    await _running(slow)
    aws.reclaim(slow.id)
    return [slow, diverging]


async def _ocean() -> None:
    """Run ``ocean-currents``: an array, and a task that needs all CPUs."""
    executor = BatchExecutor(workflow="ocean-currents", vcpu=1, memory=2, retry_attempts=1)

    @executor.task
    def simulate(month: int) -> float:
        import sys

        energy = 1.0
        for step in range(1, 21):
            time.sleep(0.4 + month % 5 * 0.2)
            energy *= 3.7 if month % 9 == 6 else 1.01
            print(f"month {month:2}  step {step:2}/20  energy {energy:.4g}", flush=True)  # noqa: T201
            if energy > 1e3:
                print(f"step {step}: the time step is too long", file=sys.stderr, flush=True)  # noqa: T201
            if energy > 1e6:
                raise ArithmeticError(f"diverged at step {step}: energy {energy:.3g}")
        return energy

    @executor.task(vcpu=CPUS, memory=16)
    def render(energies: int) -> str:
        return f"a film of {energies} months"

    months = asyncio.ensure_future(simulate.map(range(MONTHS), return_exceptions=True))
    await asyncio.sleep(1)  # so that it is queued after the months
    await asyncio.gather(months, render(MONTHS), return_exceptions=True)


async def _running(job: Job[Any]) -> None:
    status = await job.status()
    while status is not JobStatus.RUNNING and not status.is_final:
        await asyncio.sleep(0.2)
        status = await job.status()


def next_steps(commands: Iterable[tuple[str, str]]) -> Panel:
    """Return a panel of commands to try next, with their purposes."""
    following = Table.grid(padding=(0, 3))
    for command, purpose in commands:
        following.add_row(f"[bold]{command}[/]", purpose)
    return Panel(following, title="Next steps", border_style="green")
