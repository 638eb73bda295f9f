"""``farcall configure``: options in a file."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from farcall.aws.clients import Aws
from farcall.cli import options_file, stacks
from farcall.cli.options import check, parse
from farcall.cli.printing import echo, hand_out
from farcall.config.help import describe
from farcall.config.settings import Settings, from_text
from farcall.deploy import parameters, stack_options
from farcall.deploy.network import choose_network
from farcall.deploy.stack import Stack, State
from farcall.model.errors import FarcallError, SettingsError
from farcall.model.names import BATCH, KUBERNETES, BackendName

_PROMPTED = {
    BATCH: (
        "region",
        "s3_bucket_name",
        "queue",
        "batch_job_role_name",
        "batch_execution_role_name",
        "batch_job_log_group_name",
    ),
    KUBERNETES: (
        "context",
        "namespace",
        "region",
        "s3_bucket_name",
        "service_account",
        "s3_secret",
    ),
}


@click.command("configure")
@click.option(
    "--file",
    "path",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="PATH",
    help="Options file; by default the one in use, or ~/.config/farcall/farcall.toml.",
)
@click.option(
    "--set", "assignments", multiple=True, metavar="NAME=VALUE", help="Set an option; repeatable."
)
@click.option(
    "--from-stack",
    "stack_name",
    metavar="NAME",
    help="Set the options of a stack of farcall deploy in the region of your jobs.",
)
@click.option("--print", "is_printed", is_flag=True, help="Print the file instead of writing it.")
def configure(
    path: Path | None,
    assignments: tuple[str, ...],
    stack_name: str | None,
    *,
    is_printed: bool,
) -> None:
    """Write farcall's options into a file.

    \b
    Examples:
      farcall configure                            # prompt for the most important ones
      farcall configure --set queue=my-queue       # set one option
      farcall configure --from-stack farcall       # use what your administrator deployed
      farcall configure --set backend=kubernetes   # start the Kubernetes section
      farcall configure --print                    # print every option

    The file lists each option with its description; unset options are comments.
    Other content of the file is kept, and the previous file is saved with the
    suffix .bak. Nothing is written if a value is invalid.
    """  # noqa: D301  # click's marker for preformatted lines
    path = path or options_file.in_force()
    values = parse(assignments)
    if stack_name is not None:
        values = asyncio.run(_of_stack(stack_name, path)) | values
    backend = options_file.backend_of(path, values)
    check({**values, "backend": backend})
    if not values and not is_printed and sys.stdin.isatty():
        values = dict(_prompt(backend))
    before = options_file.text_of(path)
    if is_printed:
        hand_out(options_file.updated(before, values, path, backend))
        return
    options_file.put(path, before, values, backend)
    echo("next: farcall doctor", err=True)


async def _of_stack(name: str, path: Path) -> dict[str, Any]:
    """Return the options for running jobs in a stack of `farcall deploy`."""
    settings = stacks.batch_settings(None, "farcall configure --from-stack")
    there = stacks.options_of(path, options_file.text_of(path))
    async with stacks.opened(settings) as access:
        state = await Stack(access, name, stacks.report).settled()
        if state is None or not state.outputs:
            raise FarcallError(
                f"--from-stack: {access.region_and_origin} has no stack {name!r} of farcall "
                "deploy. Ask your administrator for its name and region, and pass the region with "
                f"`farcall --region REGION configure --from-stack {name}`."
            )
        kind = stack_options.main_kind(state, (), there)
        is_public = kind not in parameters.INSTANCES and await _has_public_addresses(access, state)
        return stack_options.options(
            state, access.region, kind=kind, is_public=is_public, there=there
        )


async def _has_public_addresses(access: Aws, state: State) -> bool:
    subnets = state.parameters["SubnetIds"].split(",")
    network = await choose_network(access, state.parameters["VpcId"], subnets)
    return network.is_public


def _prompt(backend: BackendName) -> Iterator[tuple[str, Any]]:
    today = Settings(backend=backend)
    words = {description.name: description for description in describe()}
    for name in _PROMPTED[backend]:

        def valid(text: str, name: str = name) -> Any:
            value = from_text(name, text)
            try:
                Settings(**{"backend": backend, name: value})
            except SettingsError as error:
                raise click.UsageError(str(error)) from error
            return value

        echo(f"\n{words[name].text}")
        yield name, click.prompt(name, default=str(getattr(today, name)), value_proc=valid)
