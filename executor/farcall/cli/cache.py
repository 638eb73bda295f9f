"""Cached results: ``farcall cache list`` and ``farcall cache clear``."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import datetime

import click

from farcall.cli.common import confirm, moment, opened, print_json
from farcall.cli.printing import echo
from farcall.model.names import counted
from farcall.operations.cached import CachedFunction, cached_functions
from farcall.operations.cached import clear as clear_functions

_MOST_DIGEST = 8


@click.group("cache")
def cache() -> None:
    """List or delete cached results of calls."""


@cache.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def list_cached(*, as_json: bool) -> None:
    """List the functions with cached results, the newest first.

    \b
    Examples:
      farcall cache list
      farcall cache list --json

    A function has a line for each state of its code, packages and Python version.
    The option cache fills the cache.
    """  # noqa: D301  # click's marker for preformatted lines
    asyncio.run(_list(as_json=as_json))


@cache.command("clear")
@click.argument("names", nargs=-1, metavar="[FUNCTION...]")
@click.option(
    "--before",
    type=moment,
    metavar="TIME",
    help="Only states whose newest result is older: 30d, or a date.",
)
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
def clear(names: Sequence[str], before: datetime | None, *, yes: bool) -> None:
    """Delete cached results, by default of all functions.

    \b
    Examples:
      farcall cache clear fit
      farcall cache clear --before 30d --yes

    Calls whose results are deleted run again.
    """  # noqa: D301  # click's marker for preformatted lines
    functions = asyncio.run(_selected(names, before))
    if not functions:
        echo("There are no such cached results.")
        return
    if not yes:
        count = counted(sum(each.results for each in functions), "cached result")
        confirm(f"Delete {count}?", refused="no cached result was deleted")
    asyncio.run(_clear(functions))
    echo(f"Deleted {counted(sum(each.results for each in functions), 'cached result')}.")


async def _list(*, as_json: bool) -> None:
    settings, session = await opened()
    functions = await cached_functions(session, settings)
    if as_json:
        print_json(
            [
                {
                    "function": each.name,
                    "digest": each.digest,
                    "results": each.results,
                    "size_bytes": each.size_bytes,
                    "stored_at": each.stored_at.isoformat(),
                }
                for each in functions
            ]
        )
        return
    if not functions:
        echo("There are no cached results. The option cache = true stores them.", err=True)
        return
    width = max(len("FUNCTION"), *(len(each.name) for each in functions))
    echo(f"{'FUNCTION':{width}}  STATE     RESULTS       SIZE  NEWEST")
    for each in functions:
        size = f"{each.size_bytes / 1e6:.1f} MB"
        at = each.stored_at.strftime("%Y-%m-%dT%H:%M:%SZ")
        state = each.digest[:_MOST_DIGEST]
        echo(f"{each.name:{width}}  {state}  {each.results:7}  {size:>9}  {at}")


async def _selected(names: Sequence[str], before: datetime | None) -> list[CachedFunction]:
    settings, session = await opened()
    return [
        each
        for each in await cached_functions(session, settings)
        if (not names or each.name in names) and (before is None or each.stored_at < before)
    ]


async def _clear(functions: Sequence[CachedFunction]) -> None:
    settings, session = await opened()
    await clear_functions(session, settings, functions)
