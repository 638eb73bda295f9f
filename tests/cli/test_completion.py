"""Shell completion, and the table of commands.

Starts bash, because only a shell shows what it completes.
"""

import os
import shlex
import subprocess
import sys

import click
import pytest

from farcall.cli.main import COMMANDS, cli
from tests.support.commands import FARCALL


def script(shell):
    """Return the completion script that click prints, as described in docs/commands.md."""
    done = subprocess.run(
        [FARCALL],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "_FARCALL_COMPLETE": f"{shell}_source"},
    )
    return done.stdout


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("farcall li", ["list"]),
        ("farcall list --state fa", ["failed"]),
        ("farcall image ", ["build", "push"]),
        ("farcall lsit --st", []),
    ],
)
def test_bash_completes_commands_and_options(line, expected, tmp_path):
    (tmp_path / "farcall.bash").write_text(script("bash"))
    words = line.split(" ")
    ask = "\n".join(
        [
            "source farcall.bash",
            "declare -F _farcall_completion",
            f"COMP_WORDS=({shlex.join(words)})",
            f"COMP_CWORD={len(words) - 1}",
            "_farcall_completion farcall",
            'printf "%s\\n" "${COMPREPLY[@]}"',
        ]
    )
    done = subprocess.run(
        ["bash", "--norc", "-c", ask],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
        env={"PATH": f"{FARCALL.parent}:/usr/bin:/bin", "HOME": str(tmp_path)},
    )
    assert done.stdout.split() == ["_farcall_completion", *expected]


@pytest.mark.parametrize("name", list(COMMANDS))
def test_command_matches_command_table(name):
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    assert command.name == name
    assert command.get_short_help_str(200) == COMMANDS[name].help


def test_help_imports_no_command():
    imported = "import sys; sys.argv = ['farcall', '--help']; import farcall.cli.main\n"
    imported += "try: farcall.cli.main.main()\n"
    imported += "finally: print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", imported], capture_output=True, text=True, check=True
    )
    modules = done.stdout.splitlines()[-1].split()
    assert "farcall.cli.main" in modules
    heavy = {"aioboto3", "botocore", "moto", "obstore", "pydantic", "starlette", "covalent"}
    assert not heavy.intersection(modules)
