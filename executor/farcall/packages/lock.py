"""Check that a uv.lock matches its projects, without uv.

uv's own check builds local projects whose metadata is dynamic, also with ``--no-build``: their
build backend's code would run on this machine.

Source:
    https://docs.astral.sh/uv/concepts/projects/layout/#the-lockfile
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from farcall.model.errors import SettingsError

_LOCAL = ("virtual", "editable")
"""Sources in a lock that are folders of projects."""

_PLAIN = {"name", "extras", "marker", "specifier", "index"}
"""Keys of requirements from an index; all others, such as git, replace the specifier."""


def check(path: Path, project: str) -> None:
    """Reject a lock whose projects require other distributions than it says.

    Requirements that only a build backend knows are not compared.

    Args:
        path: The lock.
        project: File name of projects.

    Raises:
        SettingsError: The lock does not match, or a file is invalid.
    """
    for package in read_document(path).get("package", ()):
        folders = [folder for kind, folder in package["source"].items() if kind in _LOCAL]
        for file in (path.parent / each / project for each in folders):
            required = _required(file) if file.is_file() else None
            locked = package.get("metadata", {}).get("requires-dist", ())
            if required is not None and not _is_same(required, locked):
                raise SettingsError(
                    f"packages: {path} does not match {file}. Run `uv lock`", option="packages"
                )


def read_document(path: Path) -> dict[str, Any]:
    """Read a TOML file that the option names.

    Raises:
        SettingsError: It is not valid TOML.
    """
    try:
        document: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(
            f"packages: {path} is not valid TOML: {error}", option="packages"
        ) from error
    return document


def _required(file: Path) -> list[Requirement] | None:
    """Return the dependencies in a project's file; None if they are dynamic."""
    table = read_document(file).get("project", {})
    if "dependencies" in table.get("dynamic", ()):
        return None
    try:
        return [*map(Requirement, table.get("dependencies", ()))]
    except InvalidRequirement as error:
        raise SettingsError(
            f"packages: {file} has an invalid dependency: {error}", option="packages"
        ) from error


def _is_same(required: Sequence[Requirement], locked: Sequence[Mapping[str, Any]]) -> bool:
    of_project = [each for each in locked if "extra ==" not in each.get("marker", "")]
    replaced = {each["name"] for each in of_project if not each.keys() <= _PLAIN}
    return {
        (name, SpecifierSet() if name in replaced else each.specifier)
        for each in required
        for name in [canonicalize_name(each.name)]
    } == {
        (
            each["name"],
            SpecifierSet("" if each["name"] in replaced else each.get("specifier", "")),
        )
        for each in of_project
    }
