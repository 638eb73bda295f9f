"""Command line: ``farcall``."""

from __future__ import annotations

import importlib
import io
import logging
import os
import sys
from typing import Any, NamedTuple

import click
from click.shell_completion import CompletionItem

from farcall import __version__
from farcall.cli import exit_codes
from farcall.model.errors import FarcallError


class Lazy(NamedTuple):
    """Command that is imported only when it is called.

    Attributes:
        place: ``<module of farcall.cli>:<attribute>``.
        help: The command's summary line.
    """

    place: str
    help: str


PANELS = {
    "Run": {
        "run": Lazy("run:run", "Run a function as a job and print its result."),
        "launch": Lazy(
            "launch:launch", "Run a command in an image as a job, on one or more nodes."
        ),
    },
    "Inspect": {
        "list": Lazy("list:list_jobs", "List jobs, the newest first."),
        "describe": Lazy(
            "describe:describe_job", "Show everything about a job, and why it failed."
        ),
        "logs": Lazy("logs:show_logs", "Show the output of a job, an array, a run or a workflow."),
        "result": Lazy(
            "results:get_result", "Wait until a job has finished, and print its result."
        ),
        "ui": Lazy("ui:serve_page", "Serve the web UI until Ctrl-C."),
    },
    "Control": {
        "wait": Lazy("wait:wait_for_jobs", "Wait until jobs have finished."),
        "cancel": Lazy("cancel:cancel_jobs", "Cancel jobs, or all jobs of a workflow or a run."),
    },
    "Recover": {
        "recover": Lazy(
            "results:recover_run", "Collect the results of a run whose client has died."
        ),
        "retry": Lazy("retry:retry_job", "Run the failed tasks of a job again, as a new job."),
        "replay": Lazy("replay:replay_job", "Run a failed call again on this machine."),
        "cache": Lazy("cache:cache", "List or delete cached results of calls."),
        "covalent": Lazy("covalent:covalent", "For workflows on a Covalent server."),
    },
    "Set up": {
        "deploy": Lazy("deploy:deploy", "Create the AWS resources that jobs need."),
        "destroy": Lazy("destroy:destroy", "Delete what `farcall deploy` created."),
        "image": Lazy("image:image", "Build an image for jobs, and push it to ECR."),
        "policy": Lazy("policy:policy", "Print an IAM policy or a Kubernetes manifest."),
        "doctor": Lazy("doctor:doctor", "Check that everything a job needs exists."),
        "configure": Lazy("configure:configure", "Write farcall's options into a file."),
    },
    "Try": {
        "local": Lazy("local:run_local", "Run a command on a local AWS emulator, or serve one."),
        "demo": Lazy("demo:run_demo", "Train a model and run a sweep without an AWS account."),
    },
}
"""Commands in the order of ``--help``."""

COMMANDS = {name: command for panel in PANELS.values() for name, command in panel.items()}

_USUAL_NAMES = {
    "explain": "describe",
    "info": "describe",
    "ps": "list",
    "status": "list",
    "submit": "run",
    "kill": "cancel",
    "stop": "cancel",
    "version": "--version",
}
"""Names of commands in similar programs."""


class Commands(click.Group):
    """Group that lists its commands without importing them; some imports are slow."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the commands' names."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command; None if it does not exist."""
        if cmd_name not in COMMANDS:
            return None
        module, _, attribute = COMMANDS[cmd_name].place.partition(":")
        loaded: click.Command = getattr(
            importlib.import_module(f"farcall.cli.{module}"), attribute
        )
        return loaded

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command; an error for a misspelled one suggests similar names."""
        if args[0] == "help":  # farcall help COMMAND is farcall COMMAND --help
            if len(args) == 1:
                from farcall.cli.printing import echo

                echo(ctx.get_help())
                ctx.exit()
            args = [*args[1:], "--help"]
        name = args[0]
        if name not in COMMANDS and not name.startswith("-") and not ctx.resilient_parsing:
            usual = _USUAL_NAMES.get(name)
            if usual is not None:
                raise click.UsageError(f"No such command {name!r}. Did you mean {usual!r}?", ctx)
            raise click.NoSuchCommand(name, possibilities=COMMANDS, ctx=ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands' section of ``--help``."""
        width = max(map(len, COMMANDS))
        for title, panel in PANELS.items():
            with formatter.section(title):
                formatter.write_dl(
                    [(name.ljust(width), command.help) for name, command in panel.items()]
                )

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Return the commands with a prefix."""
        commands = [
            CompletionItem(name, help=command.help)
            for name, command in COMMANDS.items()
            if name.startswith(incomplete)
        ]
        return commands + click.Command.shell_complete(self, ctx, incomplete)


@click.group(
    cls=Commands, context_settings={"help_option_names": ["-h", "--help"]}, epilog=exit_codes.TABLE
)
@click.option("--profile", metavar="NAME", help="AWS profile, instead of the option profile.")
@click.option("--region", metavar="NAME", help="AWS region, instead of the option region.")
@click.option(
    "--backend",
    type=click.Choice(["batch", "kubernetes"]),
    help="Platform, instead of the option backend.",
)
@click.version_option(__version__, prog_name="farcall")
def cli(**options: str | None) -> None:
    """Run Python functions as AWS Batch or Kubernetes jobs, as if the call were local.

    farcall help COMMAND shows the help of a command.
    """
    for name, value in options.items():
        if value is not None:
            # The command's own options and its subprocesses use them, too.
            os.environ[f"FARCALL_{name.upper()}"] = value


def main() -> None:
    """Run the command line; print farcall's errors without a traceback."""
    for library in ("botocore", "aiobotocore"):
        # botocore logs a traceback if a login cannot be renewed, and farcall then raises an error.
        logging.getLogger(library).addHandler(logging.NullHandler())
    try:
        code = _run()
    except (click.Abort, KeyboardInterrupt):  # click converts most KeyboardInterrupts to Abort
        code = exit_codes.INTERRUPTED
    sys.exit(code)


def _run() -> Any:
    """Return the exit code; a command's return value that is not an int counts as 0."""
    try:
        return cli.main(standalone_mode=False)
    except SystemExit:
        # click then replaces stdout, because `| head` has exited.
        if type(sys.stdout).__name__.endswith("PacifyFlushWrapper"):
            return 0
        raise
    except click.ClickException as error:
        from farcall.cli.printing import echo

        message = io.StringIO()
        error.show(message)  # its text may contain names from the working directory
        echo(message.getvalue().rstrip("\n"), err=True)
        return error.exit_code
    except (FarcallError, ModuleNotFoundError) as error:
        from farcall.cli.printing import echo

        echo(f"farcall: {error}", fg="red", err=True)
        return exit_codes.code_of(error)
