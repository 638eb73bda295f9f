"""Options in signatures: what completion and help show."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import jedi
import pytest

import farcall
from farcall import BatchExecutor, BatchPoolExecutor
from farcall.model.option_signatures import GROUPS
from farcall.model.settings import Settings

PAGE = Path(__file__).parents[3] / "docs" / "options.md"
OWN_OF_COMMANDS = {"image", "mounts", "shm_size"}
"""What a command says by parameters of its own, which have these names."""

ALL = [name for names in GROUPS.values() for name in names]


def test_each_option_is_in_one_group():
    assert sorted(ALL) == sorted(Settings.model_fields)


def test_the_page_of_options_has_the_same_groups():
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
def test_a_signature_has_each_option_with_its_default(function):
    parameters = inspect.signature(function).parameters
    own = OWN_OF_COMMANDS if function.__name__ == "command" else set()
    assert [name for name in parameters if name in ALL and name not in own] == [
        name for name in ALL if name not in own
    ]
    assert parameters["vcpu"].default == 2
    assert parameters["vcpu"].annotation is float


@pytest.mark.parametrize("kind", [BatchExecutor, BatchPoolExecutor])
def test_the_constructors_help_has_a_sentence_on_each_by_group(kind):
    told = kind.__init__.__doc__
    assert re.findall(r"^    (\w+): \S", told, re.MULTILINE) == ALL
    assert re.findall(r"^(.+):$", told, re.MULTILINE) == list(GROUPS)


@pytest.mark.parametrize(
    ("typed", "completed"),
    [
        ("farcall.BatchExecutor(vc", "vcpu="),
        ("farcall.BatchPoolExecutor(time_l", "time_limit="),
        ("executor.task(mem", "memory="),
        ("farcall.BatchPool", "BatchPoolExecutor"),
    ],
)
def test_a_notebook_completes_options(typed, completed):
    names = {"farcall": farcall, "executor": BatchExecutor()}
    assert completed in [each.name for each in jedi.Interpreter(typed, [names]).complete()]
