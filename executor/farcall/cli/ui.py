"""Web UI: ``farcall ui``."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
import webbrowser
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import urlsplit

import click

from farcall import ui
from farcall.cli.common import moment
from farcall.cli.options import queue_names
from farcall.cli.printing import echo
from farcall.config.settings import Settings
from farcall.covalent.cancel import CovalentCompanion
from farcall.ui.guard import is_loopback

_PORT = 8750
_ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@click.command("ui")
@click.option(
    "--port",
    metavar="PORT",
    type=click.IntRange(0, 65535),
    help="Port to listen on; 0 for a free one. By default the port of the option ui_url.",
)
@click.option(
    "--host",
    metavar="ADDRESS",
    default="127.0.0.1",
    show_default=True,
    help="Address to listen on.",
)
@click.option("--read-only", is_flag=True, help="Disable cancel and retry in the web UI.")
@click.option(
    "--since",
    type=moment,
    metavar="WHEN",
    default="7d",
    show_default=True,
    help="Only jobs submitted since: 12h, 2d, 2026-11-20.",
)
@queue_names
@click.option("--all-users", is_flag=True, help="Show the jobs of all users.")
@click.option(
    "--covalent",
    metavar="URL",
    help="URL of the Covalent server that cancels electrons; by default the configured one.",
)
@click.option("--no-covalent", is_flag=True, help="Do not connect to Covalent.")
@click.option(
    "--open",
    "opens",
    is_flag=True,
    help="Open a browser. Other users can see the token in the list of processes.",
)
def serve_page(
    port: int | None,
    host: str,
    since: datetime,
    queues: tuple[str, ...],
    covalent: str | None,
    *,
    read_only: bool,
    all_users: bool,
    no_covalent: bool,
    opens: bool,
) -> None:
    """Serve the web UI until Ctrl-C.

    \b
    Examples:
      farcall ui
      farcall local -- farcall ui                    # for a local AWS emulator
      ssh -tL 8750:127.0.0.1:8750 HOST farcall ui    # on another machine

    The web UI reads everything from Batch and S3, so it can run on any machine at
    any time. Its address contains a token that is new at each start. Everyone who
    has the token can cancel your jobs.
    """  # noqa: D301  # click's marker for preformatted lines
    if covalent and no_covalent:
        raise click.UsageError("--covalent and --no-covalent cannot be used together")
    settings = Settings()
    options = ui.Options(
        host=host,
        port=_configured(settings) if port is None else port,
        read_only=read_only,
        span=max(timedelta(), datetime.now(UTC) - since),
        queues=queues,
        everybody=all_users,
        covalent=None if no_covalent else CovalentCompanion.configured(covalent),
    )
    asyncio.run(_serve(settings, options, opens=opens))
    echo("The web UI has stopped. Jobs continue.")


async def _serve(settings: Settings, options: ui.Options, *, opens: bool) -> None:
    site = ui.Site(settings, options)
    about = await site.about()  # report invalid credentials at once
    account = await (await site.account.session()).aws.account()

    def started(served: ui.Served) -> None:
        _warn(options.host)
        _print_link(served, about, account)
        if opens:
            webbrowser.open(served.link)

    await serve_until_signal(site, started)


async def serve_until_signal(site: ui.Site, started: Callable[[ui.Served], object]) -> None:
    """Serve a web UI until a termination signal; see `farcall.ui.serve`."""
    serving = asyncio.ensure_future(ui.serve(site, started))
    for number in _ENDS:
        asyncio.get_running_loop().add_signal_handler(number, serving.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        await serving


def _warn(host: str) -> None:
    """Print a warning that other machines can reach the web UI."""
    if is_loopback(host):
        return
    text = (
        f"The web UI listens on {host}, so other machines can reach it. Its address, token and "
        "content cross the network unencrypted. Use --host 127.0.0.1 and an SSH tunnel to "
        "keep them private."
    )
    echo(f"Warning: {text}", fg="yellow", err=True)


def _print_link(served: ui.Served, about: dict[str, Any], account: str) -> None:
    queues = about["queues"]
    rows = [
        ("jobs", f"of {about['user'] or 'all users'}, since {_short(about['since'])}"),
        ("queue" if len(queues) == 1 else "queues", ", ".join(queues)),
        ("account", f"{account} in {about['region']}"),
        ("bucket", f"s3://{about['bucket']}/{about['prefix']}"),
    ]
    if about["covalent"]:
        rows.append(("Covalent", f"{about['covalent']}, which cancels electrons"))
    if about["read_only"]:
        rows.append(("read-only", "the web UI cannot cancel or retry jobs"))
    echo("Web UI:\n")
    echo(f"  {served.link}\n")
    for name, value in rows:
        echo(f"  {name:<10}{value}")
    echo("\nPress Ctrl-C to stop. Jobs continue. Anyone with the address can act on your behalf.")
    sys.stdout.flush()


def _short(at: str) -> str:
    return datetime.fromisoformat(at).astimezone().strftime("%Y-%m-%d %H:%M")


def _configured(settings: Settings) -> int:
    return urlsplit(settings.ui_url).port or _PORT
