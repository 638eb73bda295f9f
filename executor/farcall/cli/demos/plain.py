"""``farcall demo``: one model trained as a Batch job, then a sweep, on the embedded AWS.

Nothing in it is special to the demo: the same functions run on a real account when the options
name one.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import time
from typing import Any

from rich.panel import Panel
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from farcall import local
from farcall.cli.demos import common
from farcall.client.console import Console
from farcall.client.executor import BatchExecutor
from farcall.client.job import Job
from farcall.model.jobs import JobDetail, JobStatus

_EXPERIMENT = """\
@executor.task
def train_svm(data, C, gamma): ...        # runs as an AWS Batch job

data = load_data()
clf = await train_svm(data, C=1.0, gamma=0.7)
print(score_svm(data, clf))"""

_NEXT = (
    ("farcall demo --page", "the page in a browser, with workflows to look at"),
    ("farcall local -- python workflow.py", "your own script, on an embedded AWS like this one"),
    ("farcall doctor", "on your AWS account: are bucket, queue, roles and image there?"),
    ("farcall --help", "what else there is"),
)


async def run(tasks: int) -> None:
    """Run the demo.

    Args:
        tasks: Size of the sweep.

    Raises:
        ModuleNotFoundError: The ``demo`` extra is not installed.
    """
    for module in ("sklearn", "numpy"):
        if importlib.util.find_spec(module) is None:
            raise ModuleNotFoundError(
                f"the demo needs {module}: pip install 'farcall[demo]'", name=module
            )
    console = Console(markup=True, highlight=True)
    began = time.monotonic()
    with console.status("Starting the embedded AWS (S3, Batch, CloudWatch Logs, IAM, STS)"):
        aws = local.start()
    with aws, common.environment({**os.environ, **aws.environment}):
        console.print(f"An embedded AWS runs on [cyan]{aws.endpoint_url}[/]\n")
        executor = BatchExecutor(vcpu=1, memory=2, time_limit=300)
        async with executor:
            rows = [
                await _train(executor, console),
                await _sweep(executor, console, tasks),
            ]
        console.print(_table(rows))
    console.print(f"All of it took {time.monotonic() - began:.1f} s.\n")
    console.print(common.next_steps(_NEXT))


async def _train(executor: BatchExecutor, console: Console) -> JobDetail:
    """The experiment: load iris, train a support vector machine on Batch, score it here."""

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
    console.print(Panel(f"async for seed, value in sample.map(range({tasks})): ...", title=title))
    sweep = sample.map(range(tasks))
    total = 0.0
    columns = (
        TextColumn("running on Batch"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("pi is about {task.fields[pi]:.4f}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console) as progress:
        bar = progress.add_task("", total=tasks, pi=0.0)
        done = 0
        async for _, estimate in sweep:
            total += estimate
            done += 1
            progress.update(bar, completed=done, pi=total / done)
    console.print()
    return await _ended(executor.attach(sweep.job_ids[0]))


async def _ended(job: Job[Any]) -> JobDetail:
    """Ask Batch until it has noticed the end, which the result is a little ahead of."""
    detail = await job.detail()
    while not detail.status.is_final:
        await asyncio.sleep(0.2)
        detail = await job.detail()
    return detail


def _table(rows: list[JobDetail]) -> Table:
    table = Table(title="The jobs, as Batch describes them", title_justify="left")
    for name in ("job", "name", "tasks", "status"):
        table.add_column(name, overflow="fold")
    for name in ("waited", "ran"):
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(
            row.job_id[:8],
            row.name.rpartition("-")[0],
            str(row.array_size or 1),
            f"[green]{row.status}[/]"
            if row.status is JobStatus.SUCCEEDED
            else f"[red]{row.status}[/]",
            common.seconds(row.created_at, row.started_at),
            common.seconds(row.started_at or row.created_at, row.stopped_at),
        )
    return table
