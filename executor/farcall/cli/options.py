"""Options of a job on a command line, by which commands are given what Settings has."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

import click

from farcall.model.errors import SettingsError
from farcall.model.settings import Settings, from_text

F = TypeVar("F", bound=Callable[..., Any])


value_file = click.option(
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Save the result as a pickle, and delete it from the bucket.",
)
"""Adds the option of a file for a job's value."""


def called(command: F) -> F:
    """Add what is called, and with which arguments."""
    command = click.argument("args", nargs=-1, type=click.UNPROCESSED, metavar="[ARGS]...")(
        command
    )
    return click.argument("target", metavar="MODULE:FUNCTION")(command)


def job_options(command: F) -> F:
    """Add the options of a new job; `given` reads their values."""
    command = click.option("--workflow", metavar="NAME", help="Workflow name of the job.")(command)
    return resource_options(command)


def resource_options(command: F) -> F:
    """Add the options that a new job and a retry have in common; `given` reads their values."""
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
    """Return the options that a command line gives, checked.

    Args:
        assignments: Values of ``--option``.
        short: Values of the options that have a name of their own, None where they are not given.

    Raises:
        click.UsageError: One is unknown, or its value is wrong.
    """
    options = parse(assignments)
    for name, text in short.items():
        if text is not None:
            options[name] = from_text(name, text)
    check(options)
    return options


def parse(assignments: Iterable[str]) -> dict[str, Any]:
    """Read assignments such as ``vcpu=2``.

    Raises:
        click.UsageError: One is no assignment.
    """
    options = {}
    for assignment in assignments:
        name, equals, text = assignment.partition("=")
        name = name.strip().replace("-", "_")
        if not equals or not name:
            raise click.UsageError(f"{assignment!r} is no option; write NAME=VALUE, as in vcpu=2")
        options[name] = from_text(name, text)
    return options


def check(options: dict[str, Any]) -> None:
    """Refuse what Settings refuses of these options.

    Raises:
        click.UsageError: One is unknown, or its value is wrong.
    """
    try:
        Settings(**options)
    except SettingsError as error:
        if error.option in options:
            raise click.UsageError(str(error)) from error
        raise
