"""Command-line options that set a job's settings."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

import click

from farcall.config.settings import Settings, from_text
from farcall.engine.session import this_user
from farcall.model.errors import SettingsError

F = TypeVar("F", bound=Callable[..., Any])


value_file = click.option(
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Save the result as a pickle, and delete it from the bucket.",
)
"""Decorator that adds the option for the file of a job's result."""


def owner(command: F) -> F:
    """Add the options for the jobs' owner; `chosen_user` reads their values."""
    command = click.option("--all-users", is_flag=True, help="Jobs of all users.")(command)
    return click.option("--user", metavar="NAME", help="Owner of the jobs; by default you.")(
        command
    )


def chosen_user(user: str | None, *, all_users: bool, run: str | None) -> str | None:
    """Return the user to filter by; None for all users, also if a run is given."""
    if user and all_users:
        raise click.UsageError("--user and --all-users cannot be used together")
    return user or (None if all_users or run else this_user())


queue_names = click.option(
    "--queue",
    "queues",
    multiple=True,
    metavar="NAME",
    help="Queue of the jobs, instead of the option queue; repeatable.",
)
"""Decorator that adds the option for the queues to read."""


def job_options(command: F) -> F:
    """Add the options of a new job; `given` reads their values."""
    command = click.option("--workflow", metavar="NAME", help="Workflow name of the job.")(command)
    return resource_options(command)


def resource_options(command: F) -> F:
    """Add the common options of new jobs and retries; `given` reads their values."""
    for decorate in (
        click.option("--queue", metavar="NAME", help="Queue of the job."),
        click.option("--time-limit", metavar="TIME", help="Time limit of an attempt: 1h30m, 90s."),
        click.option("--memory", metavar="SIZE", help="Memory of the job: 4GiB, 512MiB."),
        click.option("--gpus", "num_gpus", metavar="N", help="GPUs of the job."),
        click.option("--vcpu", metavar="N", help="vCPUs of the job."),
        click.option(
            "-o",
            "--option",
            "assignments",
            multiple=True,
            metavar="NAME=VALUE",
            help="Any option, such as retry_attempts=1; see `farcall configure --print`.",
        ),
    ):
        command = decorate(command)
    return command


def given(assignments: Iterable[str], short: dict[str, Any]) -> dict[str, Any]:
    """Return the command line's options after validation.

    Args:
        assignments: Values of ``--option``.
        short: Values of options with their own flags; None if not given.

    Raises:
        click.UsageError: An option is unknown, or its value is wrong.
    """
    options = parse(assignments)
    for name, text in short.items():
        if text is not None:
            options[name] = from_text(name, text)
    check(options)
    return options


def parse(assignments: Iterable[str]) -> dict[str, Any]:
    """Parse assignments such as ``vcpu=2``.

    Raises:
        click.UsageError: A text is not an assignment.
    """
    options = {}
    for assignment in assignments:
        name, equals, text = assignment.partition("=")
        name = name.strip().replace("-", "_")
        if not equals or not name:
            raise click.UsageError(
                f"{assignment!r} is not an option assignment. Write NAME=VALUE, for example "
                "vcpu=2."
            )
        options[name] = from_text(name, text)
    return options


def check(options: dict[str, Any]) -> None:
    """Reject options that Settings rejects.

    Raises:
        click.UsageError: An option is unknown, or its value is wrong.
    """
    try:
        Settings(**options)
    except SettingsError as error:
        if error.option in options:
            raise click.UsageError(str(error)) from error
        raise
