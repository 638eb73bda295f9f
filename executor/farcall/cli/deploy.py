"""Setup of an account: ``farcall deploy``."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from farcall.aws.error_translation import CODE_NO_CREDENTIALS
from farcall.cli import options_file, stacks
from farcall.cli.common import confirm, seconds
from farcall.cli.printing import echo, hand_out
from farcall.config.option_values import check_tag
from farcall.config.settings import Settings
from farcall.deploy import contents, parameters, quotas, stack, stack_options
from farcall.deploy.network import Network, choose_network
from farcall.deploy.parameters import INSTANCES, KINDS
from farcall.deploy.stack import Stack, State
from farcall.model.errors import ServiceError
from farcall.model.names import named


@dataclass(frozen=True)
class _Plan:
    """Planned changes.

    Attributes:
        parameters: All of the template's parameters.
        tags: The stack's tags.
        network: The jobs' network.
        lines: Lines to show.
        covalent: Covalent's configuration file, if farcall will write it.
    """

    parameters: Mapping[str, str]
    tags: Mapping[str, str]
    network: Network
    lines: list[str]
    covalent: Path | None


@click.command("deploy")
@click.option(
    "--compute",
    type=click.Choice(list(KINDS)),
    multiple=True,
    help="Compute environment with its own queue; repeatable, the default one first. "
    "[default: ec2]",
)
@click.option(
    "--max-vcpus",
    type=click.IntRange(1),
    metavar="N",
    help="Maximum vCPUs per queue. [default: 256]",
)
@click.option(
    "--instance-types",
    metavar="TYPES",
    help="Comma-separated, such as m7i,c7i.large; '' lets Batch choose (default).",
)
@click.option("--gpu/--no-gpu", default=None, help="Use GPU instances: g4dn and g5.")
@click.option("--arm64/--x86-64", default=None, help="Use ARM instances (Graviton).")
@click.option(
    "--vpc", metavar="ID", default="", help="ID of the VPC; by default the subnets' VPC."
)
@click.option(
    "--subnets",
    metavar="IDS",
    default="",
    help="Comma-separated subnet IDs; by default those of the default VPC.",
)
@click.option(
    "--warm",
    type=seconds,
    metavar="TIME",
    help="Keep idle instances for this long, at least 20m, at your cost; 0 for off.",
)
@click.option(
    "--permissions-boundary", metavar="ARN", help="Permissions boundary of the roles; '' for none."
)
@click.option(
    "--tags", multiple=True, metavar="NAME=VALUE", help="Tag of all resources; repeatable."
)
@stacks.stack_region
@stacks.stack_name
@stacks.options_path
@click.option(
    "--covalent/--no-covalent",
    default=None,
    help="Also write Covalent's configuration; by default if Covalent is installed.",
)
@click.option(
    "--template", "is_template", is_flag=True, help="Print the CloudFormation template and exit."
)
@click.option("--dry-run", is_flag=True, help="Print what would be created, and exit.")
@click.option("-y", "--yes", is_flag=True, help="Deploy without a prompt.")
def deploy(
    compute: tuple[str, ...],
    max_vcpus: int | None,
    instance_types: str | None,
    gpu: bool | None,
    arm64: bool | None,
    vpc: str,
    subnets: str,
    warm: float | None,
    permissions_boundary: str | None,
    tags: tuple[str, ...],
    region: str | None,
    name: str,
    path: Path | None,
    covalent: bool | None,
    *,
    is_template: bool,
    dry_run: bool,
    yes: bool,
) -> None:
    """Create the AWS resources that jobs need.

    \b
    Examples:
      farcall deploy                                   # bucket, log group, roles, queue
      farcall deploy --compute spot --compute ec2      # two queues; jobs use the first
      farcall deploy --max-vcpus 1000                  # change one setting
      farcall deploy --template                        # print the template for a review

    Creates one CloudFormation stack, which costs only storage while no job runs.
    farcall prints the planned resources and prompts before it creates them. Run it
    again to change the settings that you give; the others stay. farcall destroy
    deletes the stack.
    """  # noqa: D301  # click's marker for preformatted lines
    if is_template:
        hand_out(stack.template())
        return
    wanted = parameters.requested(
        compute=compute,
        max_vcpus=max_vcpus,
        instance_types=None if instance_types is None else _listed(instance_types),
        gpu=gpu,
        arm64=arm64,
        warm_s=warm,
        permissions_boundary=permissions_boundary,
    )
    given = _tags(tags)
    settings = stacks.batch_settings(region, "farcall deploy")
    path = path or options_file.in_force()
    before = options_file.text_of(path)
    there = stacks.options_of(path, before)
    again = f"farcall deploy{f' --name {name}' * (name != 'farcall')}"
    with stacks.explained(name, again):
        try:
            plan = asyncio.run(
                _plan(settings, name, wanted, given, (vpc, _listed(subnets)), path, covalent)
            )
        except ServiceError as error:
            if not dry_run or error.code != CODE_NO_CREDENTIALS:
                raise
            _print_without_account(name, wanted, settings)
            return
        for line in plan.lines:
            echo(line)
        if dry_run:
            return
        if not yes:
            confirm("Proceed?", refused="nothing was created")
        state, is_changed, used = asyncio.run(_put(settings, name, plan))
    echo(f"stack {name} {'is ready' if is_changed else 'is unchanged'}")
    kind = stack_options.main_kind(state, compute, there)
    is_public = plan.network.is_public
    values = stack_options.options(state, used, kind=kind, is_public=is_public, there=there)
    options_file.put(path, before, values)
    if plan.covalent is not None:
        _write_covalent(plan.covalent, state, used, kind, is_public=is_public)
    _print_more(state, kind, values)


async def _plan(
    settings: Settings,
    name: str,
    wanted: Mapping[str, str],
    tags: Mapping[str, str],
    place: tuple[str, list[str]],
    path: Path,
    covalent: bool | None,
) -> _Plan:
    """Read the existing resources, and return the changes."""
    async with stacks.opened(settings) as access:
        existing = await Stack(access, name, stacks.report).settled()
        state = None if existing is None or existing.is_dead else existing
        before = state.parameters if state else {}
        after = parameters.merged(wanted, before, settings.prefix)
        vpc, subnets = place
        if not vpc and not subnets and before:
            subnets = _listed(before.get("SubnetIds", ""))
        chosen = await choose_network(access, vpc, subnets)
        after |= {"VpcId": chosen.vpc, "SubnetIds": ",".join(chosen.subnets)}
        lost = await _lost(access, state, after)
        warned = await quotas.warnings(access, after)
        account = await access.account()
        write_covalent = access.has_console if covalent is None else covalent
        lines = _lines(name, f"{access.region} of account {account}", after, str(chosen))
        if state is not None:
            lines[0] = (
                f"Stack {name} in {access.region} of account {account} exists. After the "
                "deployment:"
            )
            changes = [
                f"    {key}: {before[key] or 'none'} -> {value or 'none'}"
                for key, value in after.items()
                if key in before and before[key] != value
            ]
            lines += ["  changes:", *changes] if changes else ["  no option changes"]
    where = stacks.covalent_file() if write_covalent else None
    lines += [f"  to delete   {line}" for line in lost]
    lines += [f"  note        {text}" for text in warned]
    lines.append(f"  to write    {' and '.join(str(each) for each in (path, where) if each)}")
    state_tags = dict(state.tags) if state else {}
    return _Plan(after, {**state_tags, **tags}, chosen, lines, where)


def _print_without_account(name: str, wanted: Mapping[str, str], settings: Settings) -> None:
    after = parameters.merged(wanted, {}, settings.prefix)
    for line in _lines(name, "your account", after, "the given or default VPC"):
        echo(line)
    echo("farcall: no AWS credentials were found, so no account was read", err=True)


async def _lost(access: Any, state: State | None, after: Mapping[str, str]) -> list[str]:
    """Return the queues to delete, and the jobs that this terminates."""
    if state is None:
        return []
    kept = parameters.compute(after)
    lines = []
    for kind, queue in stack_options.queues(state).items():
        if kind not in kept:
            jobs = await contents.unfinished(access, [queue])
            ended = f", which cancels {named(jobs)}" if jobs else ""
            lines.append(f"queue {queue}{ended}")
    return lines


def _lines(name: str, place: str, after: Mapping[str, str], network: str) -> list[str]:
    kinds = parameters.compute(after)
    prefix = after["KeyPrefix"]
    what = f"objects of {prefix}" if prefix else "objects"
    lines = [
        f"Stack {name} in {place} will be created:",
        f"  bucket      {name}-bucket-..., encrypted, not public; {what} are kept for 30 days",
        f"  log group   /farcall/{name}, whose lines are kept for 30 days",
        "  roles       for jobs, for ECS, which starts them"
        + (", and for instances" if set(kinds) & set(INSTANCES) else ""),
    ]
    for kind in kinds:
        text = f"{name}-{kind}: {KINDS[kind].text}, up to {after['MaxVcpus']} vCPUs"
        if kind in INSTANCES:
            text += f", {_instances(after)}"
        elif after["Architecture"] == "arm64":
            text += ", arm64"
        lines.append(f"  queue       {text}")
    lines.append(f"  network     {network}; no inbound traffic")
    if after["PermissionsBoundary"]:
        lines.append(f"  boundary    {after['PermissionsBoundary']}")
    idle = "  costs       only storage while no job runs"
    if after["WarmMinutes"] != "0":
        idle += (
            f"; an idle instance is kept, at your cost, for {after['WarmMinutes']} minutes "
            "after its last"
        )
    return [*lines, idle]


def _instances(after: Mapping[str, str]) -> str:
    if after["InstanceTypes"]:
        return after["InstanceTypes"].replace(",", ", ")
    return "g4dn and g5, with GPUs" if after["Gpu"] == "true" else after["Architecture"]


async def _put(settings: Settings, name: str, plan: _Plan) -> tuple[State, bool, str]:
    async with stacks.opened(settings) as access:
        state, is_changed = await Stack(access, name, stacks.report).put(
            plan.parameters, plan.tags
        )
        return state, is_changed, access.region


def _write_covalent(path: Path, state: State, region: str, kind: str, *, is_public: bool) -> None:
    before = options_file.text_of(path)
    there = stacks.options_of(path, before)
    values = stack_options.options(state, region, kind=kind, is_public=is_public, there=there)
    after = options_file.foreign(before, values)
    if after == before:
        echo(f"{path} is unchanged")
        return
    options_file.write(path, before, after)
    echo(f"wrote {path}. Run `covalent restart` if a Covalent server is running.")


def _print_more(state: State, kind: str, values: Mapping[str, Any]) -> None:
    """Print instructions for the other queues, and the next commands."""
    for other, queue in stack_options.queues(state).items():
        if other != kind:
            more = ""
            is_fargate = other not in INSTANCES
            if is_fargate != (kind not in INSTANCES):
                more = " and another job_definition_extra"
            echo(f"to use {KINDS[other].text}: queue={queue!r}{more}")
    sys.stdout.flush()
    echo("next: farcall doctor, or your script: python my_workflow.py", err=True)


def _listed(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _tags(given: tuple[str, ...]) -> dict[str, str]:
    tags = {}
    for text in given:
        key, mark, value = text.partition("=")
        if not mark:
            raise click.BadParameter(f"{text!r} is not NAME=VALUE", param_hint="--tags")
        try:
            check_tag(key, value)
        except ValueError as error:
            raise click.BadParameter(f"{text!r}: {error}", param_hint="--tags") from None
        tags[key] = value
    return tags
