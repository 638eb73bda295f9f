"""Locks that do not match their projects."""

import pytest

from farcall import SettingsError
from farcall.packages.lock import check

LOCK = """
version = 1
[[package]]
name = "mine"
source = { virtual = "." }
[package.metadata]
requires-dist = [
    { name = "attrs", marker = "extra == 'more'" },
    { name = "local", editable = "local" },
    { name = "py-yaml", specifier = ">=6,<7" },
    { name = "six", extras = ["a"], marker = "sys_platform == 'win32'" },
]
[[package]]
name = "six"
source = { registry = "https://pypi.org/simple" }
"""
SAME = "'local>=1', 'Py.YAML <7, >=6', 'six[a]; sys_platform == \"win32\"'"


@pytest.fixture
def checked(tmp_path):
    def check_project(text):
        (tmp_path / "uv.lock").write_text(LOCK)
        (tmp_path / "pyproject.toml").write_text(text)
        check(tmp_path / "uv.lock", "pyproject.toml")

    return check_project


@pytest.mark.parametrize(
    "text",
    [
        f"[project]\ndependencies = [{SAME}]",
        "[project]\ndynamic = ['dependencies']",
    ],
)
def test_same_requirements_match(checked, text):
    checked(text)


@pytest.mark.parametrize(
    "dependencies",
    [f"{SAME}, 'new'", SAME.replace(">=6", ">=6.1"), SAME.partition(", ")[2], ""],
)
def test_other_requirements_are_rejected(checked, dependencies):
    with pytest.raises(SettingsError, match=r"uv.lock does not match .*pyproject.toml. Run `uv"):
        checked(f"[project]\ndependencies = [{dependencies}]")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[project", "is not valid TOML"),
        ("[project]\ndependencies = ['a b']", "has an invalid dependency"),
    ],
)
def test_invalid_project_is_named(checked, text, message):
    with pytest.raises(SettingsError, match=rf"pyproject.toml {message}"):
        checked(text)
