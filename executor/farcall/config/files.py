"""Files of options: where they are, their sections, and what they must not set."""

from __future__ import annotations

import contextlib
import difflib
import os
import re
import tomllib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from farcall.filesystem import NOT_OWN, is_own
from farcall.model.errors import SettingsError
from farcall.model.names import BATCH, KUBERNETES, BackendName

SECTIONS: dict[BackendName, tuple[str, str]] = {
    BATCH: ("executors", "awsbatch"),
    KUBERNETES: ("executors", "kubernetes"),
}
"""Section of each backend's options in a file."""

CONFIG_VARIABLE = "FARCALL_CONFIG"
"""Variable with the path of an options file that replaces both default files."""

_BARE = re.compile(r"^\s*(\w+)\s*=\s*(\d[\d.]*\s*[A-Za-z]\w*)\s*$", re.MULTILINE)
"""Value with a unit and without quotes."""

WORKING_FILE = Path("farcall.toml")
_FILES = (WORKING_FILE, Path("~/.config/farcall/farcall.toml"))


def files() -> list[Path]:
    """Return the existing files of options; the first one is in use.

    Raises:
        SettingsError: FARCALL_CONFIG names a missing file.
    """
    named = os.environ.get(CONFIG_VARIABLE)
    if named:
        path = Path(named)
        if not path.is_file():
            raise SettingsError(
                f"{CONFIG_VARIABLE} is {named!r}, but this file does not exist. Correct "
                f"the path, or unset it to use {' or '.join(map(str, _FILES))}"
            )
        return [path]
    paths = []
    for path in _FILES:
        with contextlib.suppress(RuntimeError):  # the home folder is unknown
            there = path.expanduser()
            if there.is_file():
                paths.append(there)
    return paths


def heading(backend: BackendName) -> str:
    """Return the heading of a backend's section in a file."""
    return f"[{'.'.join(SECTIONS[backend])}]"


def chosen(given: Mapping[str, Any], sections: Collection[BackendName]) -> BackendName:
    """Return the selected backend; an invalid name counts as Batch here.

    Args:
        given: Options from arguments and environment.
        sections: The backends whose sections the file in use has.
    """
    if "backend" in given:
        return next((each for each in SECTIONS if each == given["backend"]), BATCH)
    return KUBERNETES if list(sections) == [KUBERNETES] else BATCH


def tables(path: Path) -> dict[BackendName, dict[str, Any]]:
    """Return the options of a file by backend, including unknown ones.

    Raises:
        SettingsError: The file cannot be read, or options are outside of the sections.
    """
    try:
        document: Any = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        hint = ""
        if bare := _BARE.search(path.read_text(encoding="utf-8", errors="replace")):
            hint = f'. Write quotes around a value with a unit: {bare[1]} = "{bare[2]}"'
        raise SettingsError(f"{path} is not valid TOML: {error}{hint}") from error
    except OSError as error:
        raise SettingsError(f"{path} cannot be read: {error.strerror or error}") from error
    return _sections(path, document)


def _sections(path: Path, document: Mapping[str, Any]) -> dict[BackendName, dict[str, Any]]:
    """Return the tables of a file's options; reject misplaced options.

    Other programs' tables may be in the same file.
    """
    executors = document.get(_OUTER, {})
    sections: dict[BackendName, dict[str, Any]] = {}
    for backend, (_, inner) in SECTIONS.items():
        section = executors.get(inner) if isinstance(executors, dict) else executors
        if section is not None and not isinstance(section, dict):
            raise SettingsError(f"{path}: {heading(backend)} must be a table of options")
        if section is not None:
            sections[backend] = section
    inners = {inner for _, inner in SECTIONS.values()}
    others = {name: table for name, table in document.items() if name != _OUTER}
    others |= {f"{_OUTER}.{name}": t for name, t in executors.items() if name not in inners}
    loose = [name for name, table in others.items() if not isinstance(table, dict)]
    if loose:
        raise SettingsError(
            f"{path} has {', '.join(loose)} outside of the tables that farcall reads; put "
            f"options below a line {' or '.join(map(heading, SECTIONS))}"
        )
    for name in others:
        last = name.removeprefix(f"{_OUTER}.").lower()
        near = difflib.get_close_matches(last, _MEANT, 1, _MEANT_RATIO)
        if near:
            meant = " or ".join(map(heading, _MEANT[near[0]]))
            raise SettingsError(
                f"{path} has a table [{name}], which farcall does not read; did you mean {meant}?"
            )
    return sections


_OUTER = "executors"
_MEANT: dict[str, tuple[BackendName, ...]] = {
    **{inner: (backend,) for backend, (_, inner) in SECTIONS.items()},
    **dict.fromkeys((_OUTER, "farcall"), tuple(SECTIONS)),
}
"""Names that a misspelled table resembles, and the backends whose sections they mean."""

_MEANT_RATIO = 0.8


_CHOICE = "whose credentials are used or where they are sent"
_CHOICES = {"cache_key": "whose cached results are trusted"}
_NOT_HERE = ("endpoint_url", "profile", "credentials", "cache_key", "kubeconfig", "context")


def refuse_here(options: Collection[str], path: Path = WORKING_FILE) -> None:
    """Reject a farcall.toml of the working directory that sets what it must not set.

    Args:
        options: Options that the file has, or will have.
        path: The file; only the working directory's is checked.

    Raises:
        SettingsError: The file has such an option, or is another user's.
    """
    if os.environ.get(CONFIG_VARIABLE) or path.absolute() != WORKING_FILE.absolute():
        return
    refuse_found(path, options, f"{_FILES[1]}, or name this file in {CONFIG_VARIABLE}")


def refuse_found(path: Path, options: Collection[str], instead: str) -> None:
    """Reject a file found in the working directory that sets what it must not set.

    Such a file may come with a repository, or be another user's. It must not choose whose
    credentials are used, where they are sent, nor whose cached results are trusted.

    Args:
        path: The file.
        options: Options that the file has, or will have.
        instead: Files that may set these options, for the error.

    Raises:
        SettingsError: The file has such an option, or is another user's.
    """
    if path.exists() and not is_own(path):
        raise SettingsError(
            f"{path.absolute()} was not read: {NOT_OWN}, or put its options into {instead}"
        )
    refused = [name for name in options if name in _NOT_HERE]
    if refused:
        name = refused[0]
        raise SettingsError(
            f"{path.absolute()} sets {name}: a file in the working directory must not choose "
            f"{_CHOICES.get(name, _CHOICE)}. Set FARCALL_{name.upper()}, put {name} into "
            f"{instead}",
            option=name,
        )
