"""Exact versions of all direct dependencies in constraints.txt."""

import tomllib
from itertools import chain
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def pins():
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return [Requirement(line) for line in lines if line and not line.startswith("#")]


def test_every_direct_dependency_is_pinned(pins):
    """If this fails, run `make constraints`."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wanted = [
        *project["build-system"]["requires"],
        *project["project"]["dependencies"],
        *chain(*project["project"]["optional-dependencies"].values()),
        *chain(*project["dependency-groups"].values()),
    ]
    pinned = {canonicalize_name(pin.name): pin for pin in pins}
    names = {canonicalize_name(Requirement(each).name) for each in wanted} - {"farcall"}
    assert sorted(names - {*pinned}) == []


def test_pins_are_exact_versions_without_url(pins):
    exact = [[each.operator for each in pin.specifier] == ["=="] and not pin.url for pin in pins]
    assert all(exact)
