"""Two workflows for whoever wants to see the page or the command line with something on it.

Their tasks wait more than they compute. Some fail, one diverges for somebody to cancel, one loses
its host and is tried again, and one waits for more processors than are left.
"""

from __future__ import annotations

import asyncio
from typing import Any

from farcall.client.executor import BatchExecutor
from farcall.client.job import Job
from farcall.local import LocalAWS
from farcall.model.jobs import JobStatus

CPUS = 8
"""Processors of the embedded AWS that they are laid out for."""

MONTHS = 24
SECONDS = 5 * 60
"""How long the longest task runs."""


async def run(aws: LocalAWS) -> None:
    """Run both to their end; what fails or is cancelled on the way belongs to them.

    Args:
        aws: The embedded AWS whose environment is set.
    """
    # One after the other: a job that needs many processors stops those behind it in the queue.
    training = await _train(aws)
    await asyncio.gather(*(job.result() for job in training), _ocean(), return_exceptions=True)


async def _train(aws: LocalAWS) -> list[Job[Any]]:
    """Submit the jobs of ``train-model``."""
    executor = BatchExecutor(workflow="train-model", vcpu=1, memory=2, retry_attempts=2)

    @executor.task(time_limit=2 * SECONDS)
    def train(learning_rate: float, seconds: float) -> float:
        import math
        import sys
        import time

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

    @executor.task(retry_attempts=1)
    def decode_images(folder: str) -> int:
        import os
        import signal

        print(f"decoding {folder} with a library written in C", flush=True)  # noqa: T201
        os.kill(os.getpid(), signal.SIGSEGV)
        return 0

    await decode_images.submit("holiday-photos")
    slow = await train.submit(0.01, SECONDS)
    diverging = await train.submit(3.0, SECONDS)
    await _running(slow)
    aws.reclaim(slow.id)
    return [slow, diverging]


async def _ocean() -> None:
    """Run ``ocean-currents``: a task, an array of tasks, and one that needs the whole machine."""
    executor = BatchExecutor(workflow="ocean-currents", vcpu=1, memory=2, retry_attempts=1)

    @executor.task
    def prepare_grid(degrees: float) -> int:
        cells = round(360 / degrees) * round(180 / degrees)
        print(f"a grid of {cells} cells")  # noqa: T201
        return cells

    @executor.task
    def simulate(month: int) -> float:
        import sys
        import time

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

    await prepare_grid(0.5)
    months = asyncio.ensure_future(simulate.map(range(MONTHS), return_exceptions=True))
    await asyncio.sleep(1)  # so that it stands behind the months in the queue
    await asyncio.gather(months, render(MONTHS), return_exceptions=True)


async def _running(job: Job[Any]) -> None:
    """Wait until it runs, or more."""
    status = await job.status()
    while status not in (JobStatus.RUNNING, JobStatus.SUCCEEDED, JobStatus.FAILED):
        await asyncio.sleep(0.2)
        status = await job.status()
