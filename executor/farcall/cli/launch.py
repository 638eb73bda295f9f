"""``farcall launch``: runs a command in an image as a job, on one or more nodes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import Awaitable, Iterable, Mapping
from typing import Any

import click

from farcall.cli import exit_codes, plan
from farcall.cli.options import given, job_options
from farcall.cli.printing import Printer, echo, give_up_stdout
from farcall.cli.run import telling_states
from farcall.client.command_job import group_nodes, name_of
from farcall.client.executor import BatchExecutor
from farcall.config.settings import Settings
from farcall.engine.session import Session, session_for
from farcall.engine.workspaces import with_planned_workspace
from farcall.model.errors import JobError, ServiceError
from farcall.model.start_script import HERE
from farcall_runtime.contract import STDOUT

_COMMAND = "farcall.launch.command"
_EXAMPLE = "farcall launch IMAGE -- COMMAND"


class _Launch(click.Command):
    """Click command that passes the arguments after ``--`` to the job's command."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Separate the job's command, and parse the rest."""
        mark = args.index("--") if "--" in args else len(args)
        ctx.meta[_COMMAND] = args[mark + 1 :]
        try:
            return super().parse_args(ctx, args[:mark])
        except click.UsageError as error:
            if mark < len(args) or len(args) < 2:
                raise
            message = f"{error.format_message()} Write the command after --: {_EXAMPLE}"
            raise click.UsageError(message, ctx) from None

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        """Return the usage line's text after the command's name."""
        return [*super().collect_usage_pieces(ctx), "[-- COMMAND...]"]


@click.command("launch", cls=_Launch)
@click.argument("image")
@click.option("--nodes", metavar="N", help="Number of nodes; by default the option nodes.")
@job_options
@click.option(
    "-e",
    "--env",
    "variables",
    multiple=True,
    metavar="NAME[=VALUE]",
    help="Environment variable; without a value, the value of this shell.",
)
@click.option(
    "--workspace", metavar="DIR", help="Local folder to upload, in which the command starts."
)
@click.option(
    "--workspace-dir",
    metavar="FOLDER",
    help="Where the workspace is unpacked; by default the image's working directory.",
)
@click.option("--name", metavar="NAME", help="Name of the job; by default the image's name.")
@click.option("--detach", is_flag=True, help="Print the job's ID after submission, and exit.")
@click.option(
    "--dry-run", "is_plan", is_flag=True, help="Print the requests without sending them."
)
@click.option("--offline", is_flag=True, help="With --dry-run: make no API requests.")
@click.pass_context
def launch(
    ctx: click.Context,
    /,
    image: str,
    assignments: tuple[str, ...],
    variables: tuple[str, ...],
    workspace: str | None,
    workspace_dir: str | None,
    name: str | None,
    *,
    detach: bool,
    is_plan: bool,
    offline: bool,
    **short: str | None,
) -> None:
    """Run a command in an image as a job, on one or more nodes.

    \b
    Examples:
      farcall launch alpine:3 -- echo hello
      farcall launch --nodes 4 --vcpu 8 IMAGE -- sh -c 'echo $AWS_BATCH_JOB_NODE_INDEX'
      farcall launch --gpus 8 -o instance_type=p4d.24xlarge -e NCCL_DEBUG=INFO IMAGE
      farcall launch --workspace . python:3 -- python train.py

    Without COMMAND, the image's own command runs. The image does not need farcall,
    and only a workspace needs the bucket. Equal launches share one job definition.
    The first node is the main node: when it exits, the job ends and the other
    nodes are stopped.

    The workspace is uploaded to the bucket once per content, without the files
    that its .dockerignore names. Each container downloads it with the job role and
    needs python3, curl or wget.

    The nodes' output goes to stdout; with several nodes, each line is prefixed
    with its node's index. --dry-run prints the requests (RegisterJobDefinition and
    SubmitJob) as JSON.

    Ctrl-C cancels the job. Exits with the exit code of the main node's command, or
    with a farcall exit code if the command has none.
    """  # noqa: D301  # click's marker for preformatted lines
    if detach and is_plan:
        raise click.UsageError("--detach and --dry-run cannot be used together")
    if offline and not is_plan:
        raise click.UsageError("--offline requires --dry-run, because submitting a job calls AWS")
    call: dict[str, Any] = {
        "command": ctx.meta[_COMMAND],
        "env": environment(variables, os.environ),
        "workspace": workspace,
        "workspace_dir": _container_folder(workspace, workspace_dir),
    }
    executor = _executor(image, name, given(assignments, short))
    if is_plan:
        plan.show(asyncio.run(_plan(executor.settings, image, call, name, offline=offline)))
    elif detach:
        asyncio.run(_leave(executor.command(image, **call, name=name)))
    else:
        try:
            sys.exit(asyncio.run(_run(executor, image, {**call, "name": name})))
        except BrokenPipeError:  # `| head` has exited, and the job was cancelled
            give_up_stdout()
            sys.exit(exit_codes.FAILED)


def _container_folder(workspace: str | None, folder: str | None) -> str:
    if folder and not workspace:
        raise click.UsageError(
            "--workspace-dir requires --workspace. Name a local folder with --workspace."
        )
    return folder or HERE


async def _plan(
    settings: Settings, image: str, call: dict[str, Any], name: str | None, *, offline: bool
) -> dict[str, Any]:
    workspace, folder = call.pop("workspace"), call.pop("workspace_dir")
    nodes = group_nodes(None, {"image": image, **call}, settings.nodes)
    if workspace:
        nodes = await with_planned_workspace(settings, nodes, workspace, folder)

    def planned(is_offline: bool) -> Awaitable[dict[str, Any]]:
        return plan.of_command(settings, nodes, name, offline=is_offline)

    return await plan.with_account(planned, offline=offline)


def environment(variables: Iterable[str], here: Mapping[str, str]) -> dict[str, str]:
    """Parse variables such as ``A=1``, and ``A`` for its value in this process.

    Raises:
        click.UsageError: A variable has no name or does not exist in this process.
    """
    values = {}
    for given_text in variables:
        name, equals, value = given_text.partition("=")
        if not name:
            raise click.UsageError(
                f"-e {given_text!r} does not name a variable. Write NAME=VALUE."
            )
        if not equals and name not in here:
            raise click.UsageError(
                f"-e {name}: the variable is not set in this shell. Write {name}=VALUE, or set "
                "the variable first."
            )
        values[name] = value if equals else here[name]
    return values


def _executor(image: str, name: str | None, options: dict[str, Any]) -> BatchExecutor:
    """Return an executor with the options; the workflow defaults to the job's name."""
    settings = Settings()
    workflow = settings.workflow or name or name_of(group_nodes(None, {"image": image}, 1))
    return BatchExecutor(settings, **{"workflow": workflow, **options})


async def _leave(submitted: Any) -> None:
    job = await submitted
    echo(job.id)
    echo(f"Run `farcall logs -f {job.id}` to follow the output.", err=True)


async def _run(executor: BatchExecutor, image: str, call: dict[str, Any]) -> int:
    """Submit a job, print its output, and return the exit code."""
    if not call["workspace"]:
        executor = executor.with_options(s3_bucket_name="")  # so that the bucket is not checked
    async with executor:
        job = await executor.command(image, **call)
        session = await session_for(executor.settings)
        async with telling_states(job):
            await _print_output(session, job.id, count=executor.settings.nodes)
        try:
            await job.wait()
        except JobError as error:
            echo(f"farcall: {error}", fg="red", err=True)
            return error.exit_code or exit_codes.code_of(error)
        return 0


async def _print_output(session: Session, job_id: str, *, count: int) -> None:
    """Print the output of all nodes until the job finishes, or why it is unreadable."""
    printer = Printer(begin=lambda line: f"{line.node}: " if count > 1 else "", only=STDOUT)
    try:
        async with contextlib.aclosing(session.logs.lines(job_id, follow=True)) as batches:
            async for batch in batches:
                printer.print(batch)
    except ServiceError as error:  # the job's exit code is still needed
        echo(f"farcall: cannot read the output: {error}", fg="red", err=True)
