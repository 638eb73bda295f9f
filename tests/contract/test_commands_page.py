"""docs/commands.md lists exactly farcall's commands and exit codes."""

import re
from pathlib import Path

from farcall.cli import exit_codes
from farcall.cli.cache import cache
from farcall.cli.covalent import covalent
from farcall.cli.image import image
from farcall.cli.main import COMMANDS

PAGE = (Path(__file__).parents[2] / "docs" / "commands.md").read_text(encoding="utf-8")


def test_page_lists_exactly_all_commands():
    [table] = re.findall(r"^\| command \| .*\n\|.*\n((?:\| .*\n)+)", PAGE, re.MULTILINE)
    told = re.findall(r"^\| `(.+?)` \|", table, re.MULTILINE)
    groups = {"cache": cache, "covalent": covalent, "image": image}
    inside = {f"{name} {each}" for name, group in groups.items() for each in group.commands}
    assert sorted(told) == sorted({*COMMANDS, *inside} - groups.keys())


def test_page_lists_exactly_all_exit_codes():
    told = re.findall(r"^\| (\d+) \|", PAGE, re.MULTILINE)
    assert told == re.findall(r"^ +(\d+)  ", exit_codes.TABLE, re.MULTILINE)
