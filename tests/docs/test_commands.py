"""The commands and options in README and docs/ exist."""

import re
import shlex

import click
import pytest

from farcall.cli.main import cli
from tests.docs.pages import PAGES, ROOT, blocks, spans

pytestmark = pytest.mark.core

MAKEFILE = (ROOT / "Makefile").read_text()
TARGETS = set(re.search(r"^\.PHONY: (.*)$", MAKEFILE, re.MULTILINE)[1].split())
SHELL = {"", "sh", "console"}


def lines(page):
    """Yield a page's commands: the lines of its blocks, and texts in backticks."""
    for block in blocks(page):
        if block.language in SHELL:
            yield from block.code.replace("\\\n", " ").splitlines()
    yield from spans(page)


def commands(program):
    """Yield page and arguments of a program's commands, without pipes and redirections."""
    start = re.compile(rf"(?:\$ )?(?:\w+=\S+ )*{program} (.*)")
    for name, page in PAGES.items():
        for line in lines(page):
            if found := start.fullmatch(line):
                yield name, shlex.split(re.split(r"(?:^| )[#|>;&]", found[1])[0])


def problem(words):
    """Return the problem of a farcall command, or None."""
    command, rest = cli, [*words[1:], "--help"] if words[:1] == ["help"] else list(words)
    while isinstance(command, click.Group) and rest and not rest[0].startswith("-"):
        name = rest.pop(0)
        if name.isupper():  # a placeholder
            return None
        if (found := command.get_command(click.Context(command), name)) is None:
            return f"there is no {name}"
        command = found
    try:
        command.make_parser(click.Context(command, **command.context_settings)).parse_args(rest)
    except click.UsageError as error:
        return error.format_message()
    return None


def test_farcall_commands_and_options_exist():
    found = list(commands("farcall"))
    assert len(found) > 50
    wrong = {(page, shlex.join(words)): problem(words) for page, words in found}
    assert {which: what for which, what in wrong.items() if what} == {}


@pytest.mark.parametrize("line", ["lisst", "list --worflow nightly", "covalent resum"])
def test_unknown_command_is_detected(line):
    assert problem(line.split())


def test_make_targets_and_variables_exist():
    found = list(commands("make"))
    assert len(found) > 10
    named = {word for _, words in found for word in words}
    variables = {word.partition("=")[0] for word in named if "=" in word}
    assert {word for word in named if "=" not in word} - TARGETS == set()
    assert {name for name in variables if f"$({name}" not in MAKEFILE} == set()
