"""Removal of the resources in an account: ``farcall destroy``."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from farcall.cli import options_file, stacks
from farcall.cli.common import confirm
from farcall.cli.printing import echo
from farcall.config.settings import Settings
from farcall.deploy import contents, stack_options
from farcall.deploy.contents import Bucket
from farcall.deploy.parameters import KINDS
from farcall.deploy.stack import Stack, State
from farcall.model.names import counted, named

_ROLES = ("JobRole", "ExecutionRole")


@dataclass(frozen=True)
class _Found:
    """Resources to delete.

    Attributes:
        state: The stack; None if only a bucket is left of it.
        region: The stack's region.
        account: The account's ID, 12 digits.
        resources: The resources' identifiers, by their names in the template.
        jobs: The unfinished jobs.
        definitions: ARNs of the job definitions that use the stack's roles.
        buckets: Buckets of stacks with this name.
    """

    state: State | None
    region: str
    account: str
    resources: dict[str, str]
    jobs: list[str]
    definitions: list[str]
    buckets: list[Bucket]


@click.command("destroy")
@click.option(
    "--empty-bucket",
    is_flag=True,
    help="Also delete a bucket that has objects, with all of them.",
)
@stacks.stack_region
@stacks.stack_name
@stacks.options_path
@click.option("--dry-run", is_flag=True, help="Print what would be deleted, and exit.")
@click.option("-y", "--yes", is_flag=True, help="Delete without a prompt.")
def destroy(
    region: str | None,
    name: str,
    path: Path | None,
    *,
    empty_bucket: bool,
    dry_run: bool,
    yes: bool,
) -> None:
    """Delete what `farcall deploy` created.

    \b
    Examples:
      farcall destroy --dry-run         # list what would be deleted
      farcall destroy --empty-bucket    # also delete the bucket and its objects

    farcall prints the resources and prompts before it deletes them. Unfinished
    jobs are cancelled. A bucket that still has objects is kept unless you give
    --empty-bucket, now or later. Detach policies that others attached to the roles
    first.
    """  # noqa: D301  # click's marker for preformatted lines
    settings = stacks.batch_settings(region, "farcall destroy")
    path = path or options_file.in_force()
    again = f"farcall destroy{f' --name {name}' * (name != 'farcall')}"
    with stacks.explained(name, again):
        existing = asyncio.run(_find(settings, name))
        gone = [bucket for bucket in existing.buckets if empty_bucket or not bucket.objects]
        kept = [bucket for bucket in existing.buckets if bucket not in gone]
        if existing.state is None and not gone:
            _print_nothing(name, existing.region, kept)
            for file, names in _naming(path, name, existing.region).items():
                echo(f"{file} still names deleted resources: {', '.join(names)}")
            return
        _show(name, existing, gone, kept)
        if dry_run:
            return
        if not yes:
            confirm("Proceed?", refused="nothing was deleted")
        asyncio.run(_delete(settings, name, existing, gone))
    echo(f"stack {name} is deleted")
    for bucket in kept:
        echo(f"bucket {bucket.name} is kept. Run `{again} --empty-bucket` to delete it.")
    for file, names in _naming(path, name, existing.region).items():
        _take_out(file, names)


async def _find(settings: Settings, name: str) -> _Found:
    async with stacks.opened(settings) as access:
        stack = Stack(access, name, stacks.report)
        state = await stack.state()
        resources = await stack.resources() if state else {}
        queues = [resources[kind.queue] for kind in KINDS.values() if kind.queue in resources]
        roles = [resources[role] for role in _ROLES if role in resources]
        jobs, definitions, buckets = await asyncio.gather(
            contents.unfinished(access, queues),
            contents.definitions(access, roles),
            contents.buckets(access, name),
        )
        account = await access.account()
        return _Found(state, access.region, account, resources, jobs, definitions, buckets)


def _print_nothing(name: str, region: str, kept: Sequence[Bucket]) -> None:
    echo(f"there is no stack {name} in {region}; nothing was deleted")
    for bucket in kept:
        echo(
            f"bucket {bucket.name} of a former stack has {bucket.counted}. Use --empty-bucket "
            "to delete it."
        )


def _show(name: str, existing: _Found, gone: Sequence[Bucket], kept: Sequence[Bucket]) -> None:
    echo(f"To delete in {existing.region} of account {existing.account}:")
    if existing.state is not None:
        echo(f"  stack       {name}, {existing.state.status}")
    names = {bucket.name for bucket in existing.buckets}
    for resource, identifier in existing.resources.items():
        if identifier not in names and resource != "BucketPolicy":
            echo(f"              {resource} {identifier}")
    if existing.definitions:
        echo(f"  and         its {counted(len(existing.definitions), 'job definition')}")
    if existing.jobs:
        echo(f"  cancels     {named(existing.jobs)}")
    for bucket in gone:
        echo(f"  bucket      {bucket.name}, {bucket.counted}")
    for bucket in kept:
        echo(f"kept: bucket {bucket.name}, which has {bucket.counted} (--empty-bucket deletes it)")


async def _delete(settings: Settings, name: str, existing: _Found, gone: Sequence[Bucket]) -> None:
    """Delete the stack and the buckets.

    Job definitions are deleted first, because an interrupted run can find them again only through
    the stack's roles. Buckets are deleted last, when no job stores objects any more.
    """
    async with stacks.opened(settings) as access:
        await contents.deregister(access, existing.definitions)
        if existing.state is not None:
            await Stack(access, name, stacks.report).delete()
        for bucket in gone:
            await contents.delete(access, bucket.name, stacks.report)
            echo(f"bucket {bucket.name} was deleted", err=True)


def _naming(path: Path, name: str, region: str) -> dict[Path, list[str]]:
    """Return the options in both options files that name a stack's resources."""
    names_by_file = {}
    for file in (path, stacks.covalent_file()):
        if file is not None and file.is_file():
            there = stacks.options_of(file, options_file.text_of(file))
            names = stack_options.of_stack(name, region, there)
            if names:
                names_by_file[file] = names
    return names_by_file


def _take_out(path: Path, names: Sequence[str]) -> None:
    before = options_file.text_of(path)
    options_file.write(path, before, options_file.without(before, names))
    echo(f"removed {', '.join(names)} from {path}")
