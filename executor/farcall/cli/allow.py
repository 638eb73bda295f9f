"""``farcall allow``: agree to what a file of the working directory decides."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from farcall.cli.printing import say
from farcall.model import config_trust
from farcall.model.errors import FarcallError
from farcall.model.settings import WORKING_FILE, decided
from farcall.model.terminal import in_a_line


@click.command("allow")
@click.argument(
    "path", type=click.Path(exists=True, path_type=Path), metavar="[PATH]", default=WORKING_FILE
)
def allow(path: Path) -> None:
    """Agree to what a folder's farcall.toml decides.

    Such a file may come with a repository. What it says of where things are, and who one is,
    counts only once you agreed: whoever decides it has their pickles read by you, and gets what
    you upload. What you agree to is shown, and noted in ~/.config/farcall/agreed.json: the file's
    path and a digest of these values. Another value needs another yes; vcpu, memory and the like
    need none, nor does a program that lies in the file's folder.
    """
    path = path / WORKING_FILE if path.is_dir() else path
    if not path.is_file():
        raise FarcallError(f"there is no {path}")
    decides = decided(path)
    tell(path, decides)
    if decides:
        say(f"agreed, as {config_trust.agree(path, decides)} notes", err=True)


def tell(path: Path, decides: Mapping[str, Any]) -> None:
    """Show what a file decides."""
    what = "decides nothing that needs your yes" if not decides else "decides"
    owner = "" if config_trust.is_own(path) else ", which somebody else can write,"
    say(f"{path.absolute()}{owner} {what}", err=True)
    for name, value in decides.items():
        say(f"  {name} = {in_a_line(str(value))}", err=True)
