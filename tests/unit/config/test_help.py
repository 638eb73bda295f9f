"""Help on options: descriptions, the sources of values, and signatures."""

import inspect
import re
from pathlib import Path

import jedi
import pytest

import farcall
from farcall import BatchExecutor, BatchPoolExecutor, Settings
from farcall.config import help as options_help
from farcall.config.help import GROUPS


def test_every_option_is_described():
    described = {each.name: each for each in options_help.describe()}
    assert list(described) == list(Settings.model_fields)
    assert described["queue"].text.endswith(".")
    assert not [each.name for each in described.values() if "``" in each.text or "\n" in each.text]


def test_allowed_values_supplement_description():
    described = {each.name: each.allowed for each in options_help.describe()}
    assert described["retry_on"] == '"failure" or "infrastructure"'
    assert described["vcpu"] == "more than 0"
    assert described["priority"] == ""  # its description has the bounds


def test_environment_dependent_default_is_none():
    described = {each.name: each.default for each in options_help.describe()}
    assert (described["vcpu"], described["region"]) == (2, None)


def test_job_variables_are_no_origin(monkeypatch):
    for name in ("BUNDLE", "DIGEST", "OUTCOME_KEY", "BUCKET_URL"):
        monkeypatch.setenv(f"FARCALL_{name}", "x")
    assert options_help.origins().startswith("the defaults only")


def test_variables_are_named_as_spelled(monkeypatch):
    monkeypatch.setenv("FARCALL_REGION", "eu-west-9")
    monkeypatch.setenv("FARCALL_WORKFLOW", "nightly")
    assert options_help.origin("region") == "FARCALL_REGION"
    assert options_help.origin("vcpu") == "the defaults"
    assert options_help.origins() == "the environment (FARCALL_REGION, FARCALL_WORKFLOW)"


@pytest.mark.parametrize("place", ["farcall.toml", "~/.config/farcall/farcall.toml", "named.toml"])
def test_origin_names_the_active_file(place, monkeypatch):
    """It is named even for an unknown option."""
    path = Path(place).expanduser()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("[executors.awsbatch]\nvcpus = 4\nmemory = 8\n")
    if place == "named.toml":
        monkeypatch.setenv("FARCALL_CONFIG", place)
    assert [options_help.origin(name) for name in ("vcpus", "memory")] == [str(path)] * 2
    assert options_help.origin("vcpu") == "the defaults"
    monkeypatch.setenv("FARCALL_MEMORY", "4")
    assert options_help.origin("memory") == "FARCALL_MEMORY"


PAGE = Path(__file__).parents[3] / "docs" / "options.md"
OWN_OF_COMMANDS = {"image", "mounts", "secrets", "shm_size"}
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
    assert parameters["num_gpus"].default == 0
    assert parameters["num_gpus"].annotation is int


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
