"""docs/commands.md has every command and every exit code, and no other."""

from __future__ import annotations

import re
from pathlib import Path

from farcall.cli import exit_codes
from farcall.cli.covalent import covalent
from farcall.cli.image import image
from farcall.cli.main import COMMANDS

PAGE = (Path(__file__).parents[2] / "docs" / "commands.md").read_text(encoding="utf-8")


def test_the_page_has_every_command_and_no_other():
    [table] = re.findall(r"^\| command \| .*\n\|.*\n((?:\| .*\n)+)", PAGE, re.MULTILINE)
    told = re.findall(r"^\| `(.+?)` \|", table, re.MULTILINE)
    groups = {"covalent": covalent, "image": image}
    inside = {f"{name} {each}" for name, group in groups.items() for each in group.commands}
    assert sorted(told) == sorted({*COMMANDS, *inside} - groups.keys())


def test_the_page_has_every_exit_code_and_no_other():
    told = re.findall(r"^\| (\d+) \|", PAGE, re.MULTILINE)
    assert told == re.findall(r"^ +(\d+)  ", exit_codes.TABLE, re.MULTILINE)
