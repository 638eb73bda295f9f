"""Descriptions of options, and the origin of their values."""

from __future__ import annotations

from pathlib import Path

import pytest

from farcall import Settings
from farcall.config import help as settings_help


def test_every_option_is_described():
    described = {each.name: each for each in settings_help.describe()}
    assert list(described) == list(Settings.model_fields)
    assert described["queue"].text.endswith(".")
    assert not [each.name for each in described.values() if "``" in each.text or "\n" in each.text]


def test_allowed_values_supplement_description():
    described = {each.name: each.allowed for each in settings_help.describe()}
    assert described["retry_on"] == '"failure" or "infrastructure"'
    assert described["vcpu"] == "more than 0"
    assert described["priority"] == ""  # its description has the bounds


def test_environment_dependent_default_is_none():
    described = {each.name: each.default for each in settings_help.describe()}
    assert (described["vcpu"], described["region"]) == (2, None)


def test_job_variables_are_no_origin(monkeypatch):
    for name in ("BUNDLE", "DIGEST", "OUTCOME_KEY", "BUCKET_URL"):
        monkeypatch.setenv(f"FARCALL_{name}", "x")
    assert settings_help.origins().startswith("the defaults only")


def test_variables_are_named_as_spelled(monkeypatch):
    monkeypatch.setenv("FARCALL_REGION", "eu-west-9")
    monkeypatch.setenv("FARCALL_WORKFLOW", "nightly")
    assert settings_help.origin("region") == "FARCALL_REGION"
    assert settings_help.origin("vcpu") == "the defaults"
    assert settings_help.origins() == "the environment (FARCALL_REGION, FARCALL_WORKFLOW)"


@pytest.mark.parametrize("place", ["farcall.toml", "~/.config/farcall/farcall.toml", "named.toml"])
def test_origin_names_the_active_file(place, monkeypatch):
    """It is named even for an unknown option."""
    path = Path(place).expanduser()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("[executors.awsbatch]\nvcpus = 4\nmemory = 8\n")
    if place == "named.toml":
        monkeypatch.setenv("FARCALL_CONFIG", place)
    assert [settings_help.origin(name) for name in ("vcpus", "memory")] == [str(path)] * 2
    assert settings_help.origin("vcpu") == "the defaults"
    monkeypatch.setenv("FARCALL_MEMORY", "4")
    assert settings_help.origin("memory") == "FARCALL_MEMORY"
