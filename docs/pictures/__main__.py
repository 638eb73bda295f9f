"""``python -m pictures [NAME ...]``: make the pictures in ``docs/images``, or some of them."""

from __future__ import annotations

import asyncio
from pathlib import Path

import click

from pictures import page, terminal
from pictures.stage import Stage, stage

IMAGES = Path(__file__).parents[1] / "images"
# In this order: at the terminal something is cancelled.
_PICTURES = {"page": page.draw, "terminal": terminal.draw}


@click.command()
@click.argument("names", nargs=-1, type=click.Choice(list(_PICTURES)), metavar="[NAME ...]")
def main(names: tuple[str, ...]) -> None:
    """Make the pictures called NAME, or all: page, terminal."""
    IMAGES.mkdir(exist_ok=True)
    with stage() as ready:
        asyncio.run(_draw(ready, names or tuple(_PICTURES)))


async def _draw(ready: Stage, names: tuple[str, ...]) -> None:
    async with ready.running_workflows():
        for name in names:
            for path in await _PICTURES[name](ready, IMAGES):
                click.echo(f"{path.relative_to(Path.cwd())}: {path.stat().st_size // 1000} kB")


if __name__ == "__main__":
    main()
