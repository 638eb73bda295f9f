"""Options in signatures, as completion and help show them."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import jedi
import pytest

import farcall
from farcall import BatchExecutor, BatchPoolExecutor
from farcall.config.help import GROUPS
from farcall.config.settings import Settings

PAGE = Path(__file__).parents[3] / "docs" / "options.md"
OWN_OF_COMMANDS = {"image", "mounts", "shm_size"}
"""Options that are also the names of a command's own parameters."""

ALL = [name for names in GROUPS.values() for name in names]


def test_each_option_is_in_one_group():
    assert sorted(ALL) == sorted(Settings.model_fields)


def test_options_page_has_same_groups():
    sections = re.split(r"^## ", PAGE.read_text(), flags=re.MULTILINE)[1:]
    listed = {
        section.partition("\n")[0]: tuple(re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE))
        for section in sections
    }
    assert {name: options for name, options in listed.items() if options} == GROUPS


@pytest.mark.parametrize(
    "function",
    [
        BatchExecutor,
        BatchPoolExecutor,
        BatchExecutor().task,
        BatchExecutor().with_options,
        pytest.param(BatchExecutor().task(print).with_options, id="with_options of a task"),
        BatchExecutor().command,
    ],
)
def test_signature_has_each_option_with_default(function):
    parameters = inspect.signature(function).parameters
    own = OWN_OF_COMMANDS if function.__name__ == "command" else set()
    assert [name for name in parameters if name in ALL and name not in own] == [
        name for name in ALL if name not in own
    ]
    assert parameters["vcpu"].default == 2
    assert parameters["vcpu"].annotation is float


@pytest.mark.parametrize("kind", [BatchExecutor, BatchPoolExecutor])
def test_constructor_help_lists_options_by_group(kind):
    help_text = kind.__init__.__doc__
    assert re.findall(r"^    (\w+): \S", help_text, re.MULTILINE) == ALL
    assert re.findall(r"^(.+):$", help_text, re.MULTILINE) == list(GROUPS)


@pytest.mark.parametrize(
    ("typed", "completed"),
    [
        ("farcall.BatchExecutor(vc", "vcpu="),
        ("farcall.BatchPoolExecutor(time_l", "time_limit="),
        ("executor.task(mem", "memory="),
        ("farcall.BatchPool", "BatchPoolExecutor"),
    ],
)
def test_notebook_completes_options(typed, completed):
    names = {"farcall": farcall, "executor": BatchExecutor()}
    assert completed in [each.name for each in jedi.Interpreter(typed, [names]).complete()]
