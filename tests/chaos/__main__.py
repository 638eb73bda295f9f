"""``python -m tests.chaos``: let everything go wrong at once, and account for each task."""

from __future__ import annotations

import secrets
import shutil
import sys
import tempfile

import click

from tests.chaos import report
from tests.chaos.account import Account
from tests.chaos.run import run

_MANY = 100
"""From so many tasks on a run meets everything that there is, and fails if it did not."""


@click.command()
@click.option("--seed", type=int, help="Of a run to be repeated; a new one by default.")
@click.option("--tasks", default=400, show_default=True)
@click.option("--clients", default=4, show_default=True, help="Processes that share them.")
@click.option("--minutes", default=15.0, show_default=True, help="After which it has failed.")
@click.option("--kubernetes", is_flag=True, help="On the local Kubernetes emulator, not on Batch.")
def main(*, seed, tasks, clients, minutes, kubernetes):
    """Run tasks on a local AWS emulator while requests, containers, hosts and clients fail.

    Exit code 1 says that a task is lost, came to two ends or to the wrong one, or that something
    is left behind.
    """
    seed = seed if seed is not None else secrets.randbelow(10**6)
    where = " --kubernetes" if kubernetes else ""
    repeat = f"make chaos CHAOS='--seed {seed} --tasks {tasks} --clients {clients}{where}'"
    click.echo(f"seed {seed}; again: {repeat}")
    folder = tempfile.mkdtemp(prefix="chaos-")
    record = run(seed, tasks, minutes, folder, clients, kubernetes=kubernetes)
    account = Account(record)
    account.check()
    if tasks >= _MANY:
        account.check_happened(kubernetes=kubernetes)
    report.show(record, account, repeat=repeat)
    if account.wrong:
        click.echo(f"what its processes wrote lies in {folder}")
        sys.exit(1)
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
