"""``farcall demo``: example jobs on the local AWS emulator.

The functions are ordinary functions, which run in a real account if the options name one.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import statistics
import time
from typing import Any

import click
from rich.panel import Panel
from rich.text import Text

import farcall_local
from farcall.cli import tables
from farcall.cli.demo_page import next_steps, serve_page
from farcall.client.console import Console
from farcall.client.executor import BatchExecutor
from farcall.client.job import Job
from farcall.model import names
from farcall.model.jobs import JobDetail
from farcall.operations.catalog import Entry

_EXPERIMENT = """\
@executor.task
def train_svm(data, C, gamma): ...        # runs as an AWS Batch job

data = load_data()
clf = await train_svm(data, C=1.0, gamma=0.7)
print(score_svm(data, clf))"""

_NEXT = (
    ("farcall demo --page", "open the web UI, with example workflows"),
    (
        "farcall local -- python workflow.py",
        "your own script, on a local AWS emulator like this one",
    ),
    ("farcall doctor", "check your AWS account: bucket, queue, roles and image"),
    ("farcall --help", "list the other commands"),
)


@click.command("demo")
@click.option(
    "--tasks",
    metavar="N",
    type=click.IntRange(2, 10_000),
    default=200,
    show_default=True,
    help="Number of tasks in the sweep.",
)
@click.option("--page", is_flag=True, help="Serve the web UI with two workflows instead.")
@click.option(
    "--port",
    metavar="PORT",
    type=click.IntRange(0, 65535),
    default=8750,
    show_default=True,
    help="Port of the web UI; 0 for a free one.",
)
def run_demo(tasks: int, port: int, *, page: bool) -> None:
    """Train a model and run a sweep without an AWS account.

    \b
    Examples:
      farcall demo
      farcall demo --page    # the web UI with two sample workflows

    With --page, two workflows run for some minutes instead, and the web UI shows
    them until Ctrl-C.
    """  # noqa: D301  # click's marker for preformatted lines
    if not page:
        asyncio.run(_run(tasks))
        return
    try:
        farcall_local.launch.require_extra()
        from farcall import ui  # noqa: F401 - what the page needs
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"the demo's web UI requires {error.name}. {names.install('local,ui')}",
            name=error.name,
        ) from error
    asyncio.run(serve_page(port))


async def _run(tasks: int) -> None:
    """Run the demo.

    Raises:
        ModuleNotFoundError: The ``demo`` extra is not installed.
    """
    for module in ("sklearn", "numpy"):
        if importlib.util.find_spec(module) is None:
            raise ModuleNotFoundError(
                f"the demo requires {module}. {names.install('demo')}", name=module
            )
    console = Console(markup=True, highlight=True)
    began = time.monotonic()
    with console.status("Starting the local AWS emulator (S3, Batch, CloudWatch Logs, IAM, STS)"):
        aws = farcall_local.start()
    os.environ.update(aws.environment)
    with aws:
        console.print(f"A local AWS emulator runs on [cyan]{aws.endpoint_url}[/]\n")
        executor = BatchExecutor(vcpu=1, memory=2, time_limit=300)
        async with executor:
            rows = [
                await _train(executor, console),
                await _sweep(executor, console, tasks),
            ]
        entries = [entry for row in rows if (entry := Entry.of(row)) is not None]
        console.print(tables.table(entries, console.width))
    console.print(f"Total time: {time.monotonic() - began:.1f} s.\n")
    console.print(next_steps(_NEXT))


async def _train(executor: BatchExecutor, console: Console) -> JobDetail:
    """Load iris, train a support vector machine on Batch, and score it locally."""

    def load_data() -> Any:
        from numpy.random import permutation
        from sklearn import datasets

        iris = datasets.load_iris()
        order = permutation(iris.target.size)
        return iris.data[order], iris.target[order]

    @executor.task
    def train_svm(data: Any, C: float, gamma: float) -> Any:  # noqa: N803  # sklearn's own name
        import os

        from sklearn import svm

        features, labels = data
        print(f"process {os.getpid()} trains on {len(labels[90:])} flowers")  # noqa: T201
        model = svm.SVC(C=C, gamma=gamma)
        model.fit(features[90:], labels[90:])
        print(f"done: {model.support_vectors_.shape[0]} support vectors")  # noqa: T201
        return model

    def score_svm(data: Any, model: Any) -> float:
        features, labels = data
        return float(model.score(features[:90], labels[:90]))

    console.print(Panel(_EXPERIMENT, title="A model, trained as a Batch job"))
    data = load_data()
    job = await train_svm.submit(data, C=1.0, gamma=0.7)
    console.print(f"submitted as job [cyan]{job.id}[/] from process {os.getpid()}")
    with console.status("waiting for the job"):
        async for line in job.logs(follow=True):
            console.print(Text.assemble(("  stdout | ", "dim"), line))
        model = await job.result()
        detail = await _ended(job)
    console.print(
        f"the model came back; its score is [bold green]{score_svm(data, model):.4f}[/]\n"
    )
    return detail


async def _sweep(executor: BatchExecutor, console: Console, tasks: int) -> JobDetail:
    """Estimate pi with many tasks."""

    @executor.task(retry_attempts=1)
    def sample(seed: int) -> float:
        import random

        draw = random.Random(seed).random  # noqa: S311  # a simulation, no secret
        points = 5_000
        inside = sum(draw() ** 2 + draw() ** 2 < 1 for _ in range(points))
        return 4 * inside / points

    title = f"{tasks} tasks, one array job, one upload"
    console.print(Panel(f"await sample.map(range({tasks}), progress=True)", title=title))
    sweep = sample.map(range(tasks), progress=True)
    console.print(f"pi is about {statistics.fmean(await sweep):.4f}\n")
    return await _ended(executor.attach(sweep.job_ids[0]))


async def _ended(job: Job[Any]) -> JobDetail:
    """Wait until Batch reports the end, which is some time after the result."""
    detail = await job.detail()
    while not detail.status.is_final:
        await asyncio.sleep(0.2)
        detail = await job.detail()
    return detail
