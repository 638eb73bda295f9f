"""Completion by the shell: ``farcall completion``."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from farcall.cli.printing import hand_out

_SHELLS = ("bash", "zsh", "fish")


@click.command("completion")
@click.argument("shell", type=click.Choice(_SHELLS))
def print_completion(shell: str) -> None:
    """Print what makes a shell complete farcall's commands.

    \b
    bash   farcall completion bash >> ~/.bashrc
    zsh    farcall completion zsh >> ~/.zshrc
    fish   farcall completion fish > ~/.config/fish/completions/farcall.fish
    """  # noqa: D301  # click's mark for lines to be left as they are
    kind = get_completion_class(shell)
    if kind is None:
        raise click.UsageError(f"click has no completion for {shell}")
    root = click.get_current_context().find_root()
    hand_out(f"{kind(root.command, {}, 'farcall', '_FARCALL_COMPLETE').source()}\n")
