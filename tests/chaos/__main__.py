"""``python -m tests.chaos``: run tasks while everything fails, and account for each task."""

import secrets
import shutil
import sys
import tempfile

import click

from tests.chaos.account import Account
from tests.chaos.run import run, run_on_cluster

_MANY = 100
"""Minimum tasks of a run that must meet every kind of failure."""


@click.command()
@click.option("--seed", type=int, help="Seed of a run to repeat; random by default.")
@click.option("--tasks", default=400, show_default=True)
@click.option("--clients", default=4, show_default=True, help="Processes that share the tasks.")
@click.option("--minutes", default=15.0, show_default=True, help="Time limit of the run.")
@click.option("--kubernetes", is_flag=True, help="Use the local Kubernetes emulator, not Batch.")
@click.option("--kubeconfig", help="Use the cluster of this file: clients and pods are killed.")
def main(*, seed, tasks, clients, minutes, kubernetes, kubeconfig):
    """Run tasks on a local emulator while requests, containers, hosts and clients fail.

    A cluster needs FARCALL_S3_BUCKET_NAME, the keys of the bucket, and the options with which its
    pods reach it, such as FARCALL_S3_SECRET.

    Exits 1 if a task is lost or has two results or the wrong one, or if anything is left behind.
    """
    seed = seed if seed is not None else secrets.randbelow(10**6)
    where = " --kubernetes" if kubernetes else ""
    where = f" --kubeconfig {kubeconfig}" if kubeconfig else where
    repeat = f"make chaos CHAOS='--seed {seed} --tasks {tasks} --clients {clients}{where}'"
    click.echo(f"seed {seed}; again: {repeat}")
    folder = tempfile.mkdtemp(prefix="chaos-")
    if kubeconfig:
        record = run_on_cluster(seed, tasks, minutes, folder, kubeconfig, clients)
    else:
        record = run(seed, tasks, minutes, folder, clients, kubernetes=kubernetes)
    account = Account(record)
    account.check()
    if tasks >= _MANY and not kubeconfig:
        account.check_happened(kubernetes=kubernetes)
    click.echo(account.report())
    if account.wrong:
        click.echo(f"{len(account.wrong)} errors; the clients' files are in {folder}")
        sys.exit(1)
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
