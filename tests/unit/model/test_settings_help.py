"""Options in words, and where the value of each comes from."""

from __future__ import annotations

from pathlib import Path

import pytest

from farcall import Settings
from farcall.model import settings_help


def test_every_option_is_told_in_the_words_of_its_definition():
    said = {each.name: each for each in settings_help.describe()}
    assert list(said) == list(Settings.model_fields)
    assert said["queue"].text.endswith(".")
    assert not [each.name for each in said.values() if "``" in each.text or "\n" in each.text]


def test_what_is_allowed_is_told_where_the_words_do_not():
    said = {each.name: each.allowed for each in settings_help.describe()}
    assert said["retry_on"] == '"failure" or "infrastructure"'
    assert said["vcpu"] == "more than 0"
    assert said["priority"] == ""  # its text has the bounds


def test_a_default_that_depends_on_the_surroundings_is_none():
    said = {each.name: each.default for each in settings_help.describe()}
    assert (said["vcpu"], said["region"]) == (2, None)


def test_the_variables_of_a_job_are_no_origin(monkeypatch):
    for name in ("BUNDLE", "DIGEST", "OUTCOME_KEY", "BUCKET_URL"):
        monkeypatch.setenv(f"FARCALL_{name}", "x")
    assert settings_help.origins().startswith("the defaults only")


def test_variables_are_named_as_they_are_spelled(monkeypatch):
    monkeypatch.setenv("FARCALL_REGION", "eu-west-9")
    monkeypatch.setenv("FARCALL_WORKFLOW", "nightly")
    assert settings_help.origin("region") == "FARCALL_REGION"
    assert settings_help.origin("vcpu") == "the defaults"
    assert settings_help.origins() == "the environment (FARCALL_REGION, FARCALL_WORKFLOW)"


@pytest.mark.parametrize("place", ["farcall.toml", "~/.config/farcall/farcall.toml", "named.toml"])
def test_the_file_in_force_is_named_even_for_an_option_that_it_should_not_have(place, monkeypatch):
    path = Path(place).expanduser()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("[executors.awsbatch]\nvcpus = 4\nmemory = 8\n")
    if place == "named.toml":
        monkeypatch.setenv("FARCALL_CONFIG", place)
    assert [settings_help.origin(name) for name in ("vcpus", "memory")] == [str(path)] * 2
    assert settings_help.origin("vcpu") == "the defaults"
    monkeypatch.setenv("FARCALL_MEMORY", "4")
    assert settings_help.origin("memory") == "FARCALL_MEMORY"
