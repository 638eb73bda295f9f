"""Options file: options are set and taken out, and all else stays; farcall's and Covalent's."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import shutil
import stat
import textwrap
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import tomlkit
from tomlkit.exceptions import TOMLKitError

from farcall.cli.printing import say
from farcall.model.errors import FarcallError
from farcall.model.files import replacing
from farcall.model.names import BATCH, BackendName
from farcall.model.settings import (
    ENVIRONMENT_PREFIX,
    SECTIONS,
    Settings,
    chosen,
    files,
    from_environment,
    heading,
    options_of,
    refuse_here,
    tables,
)
from farcall.model.settings_help import Description, describe

_HOME = Path("~/.config/farcall/farcall.toml")
_WIDTH = 88


def in_force() -> Path:
    """Return the file in force; where there is none, that of the home folder.

    Raises:
        FarcallError: Nobody knows where home is.
        SettingsError: FARCALL_CONFIG names no file.
    """
    return next(iter(files()), None) or _home_file()


def text_of(path: Path) -> str:
    """Return a file's text; empty where there is no file."""
    return path.read_text(encoding="utf-8") if path.exists() else ""


def backend_of(path: Path, values: Mapping[str, Any]) -> BackendName:
    """Return the backend in whose section of a file options are set.

    Args:
        path: The file, which need not be there.
        values: The options; with ``backend`` they say it themselves.

    Raises:
        SettingsError: It cannot be read, or options stand where they are not read.
    """
    return chosen({**from_environment(), **values}, tables(path) if path.exists() else {})


def updated(text: str, values: Mapping[str, Any], path: Path, backend: BackendName = BATCH) -> str:
    """Return a file's text with options of a backend set, all else as it was.

    Raises:
        FarcallError: The file is not valid TOML.
        SettingsError: An option in it is wrong.
    """
    try:
        if _has_section(text, backend):
            text = changed(text, values, backend)
        else:
            text = _appended(text, _section(values, backend))
        found = section(text, backend)
    except (TOMLKitError, AttributeError) as error:
        raise FarcallError(f"{path} is not valid TOML ({error}); nothing was written") from error
    Settings(**{**found, "backend": found.get("backend", backend)})
    return text


def section(text: str, backend: BackendName = BATCH) -> dict[str, Any]:
    """Return a backend's options of a file's text.

    Raises:
        TOMLKitError: It is not valid TOML.
        AttributeError: The section is no table.
    """
    found: Any = tomlkit.parse(text).unwrap()
    for part in SECTIONS[backend]:
        found = found.get(part, {})
    return dict(found.items())


def foreign(text: str, values: Mapping[str, Any]) -> str:
    """Return the text of another program's file with options of Batch set.

    It has others of its own there.

    Raises:
        TOMLKitError: It is not valid TOML.
        AttributeError: The section is no table.
    """
    if _has_section(text, BATCH):
        return changed(text, values, BATCH)
    lines = [_assignment(name, value) for name, value in values.items()]
    return _appended(text, "\n".join([heading(BATCH), *lines, ""]))


def without(text: str, names: Iterable[str]) -> str:
    """Return a file's text with options taken out of Batch's section.

    A line becomes the comment again that it is in a new file, and a table of its own goes.

    Raises:
        TOMLKitError: It is not valid TOML.
        AttributeError: The section is no table.
    """
    defaults = {description.name: description.default for description in describe()}
    for name in names:
        left = section(text)
        if name not in left:
            continue
        del left[name]
        for place in re.finditer(rf"^{name} *=.*$", text, re.MULTILINE):
            comment = f"# {_assignment(name, defaults[name])}"
            without_it = f"{text[: place.start()]}{comment}{text[place.end() :]}"
            with contextlib.suppress(TOMLKitError):  # a value of several lines
                if section(without_it) == left:
                    text = without_it
                    break
        else:
            document: Any = tomlkit.parse(text)
            table = document
            for part in SECTIONS[BATCH]:
                table = table[part]
            table.remove(name)
            text = tomlkit.dumps(document)
    return text


def _has_section(text: str, backend: BackendName) -> bool:
    """Return whether there is the table, though it be empty."""
    outer, inner = SECTIONS[backend]
    return tomlkit.parse(text).unwrap().get(outer, {}).get(inner) is not None


def _appended(text: str, section: str) -> str:
    return "\n".join(filter(None, [text.rstrip("\n"), section]))


def changed(text: str, values: Mapping[str, Any], backend: BackendName) -> str:
    """Set options in a section that is there."""
    left, there, title = dict(values), section(text, backend), heading(backend)
    for name, value in values.items():
        # Where it stands as a comment, as we write those that are not set, it takes its place.
        start = text.find(title)
        end = re.compile(r"^\[", re.MULTILINE).search(text, start + 1) if start >= 0 else None
        line = re.compile(rf"^# ?{name} =.*$", re.MULTILINE)
        place = line.search(text, start, end.start() if end else len(text)) if start >= 0 else None
        if name not in there and place:
            text = f"{text[: place.start()]}{_assignment(name, value)}{text[place.end() :]}"
            del left[name]
    document: Any = tomlkit.parse(text)
    table = document
    for part in SECTIONS[backend]:
        table = table[part]
    for name, value in left.items():
        table[name] = _item(value)
    return tomlkit.dumps(document)


def _section(values: Mapping[str, Any], backend: BackendName) -> str:
    """Write the section with every option it may have; those that are not set are comments."""
    blocks, own = [heading(backend)], options_of(backend)
    for description in describe():
        name = description.name
        if name not in own:
            continue
        if name in values:
            line = _assignment(name, values[name])
        else:
            line = f"# {_assignment(name, description.default)}"
        blocks.append("\n".join([*_comment(description), line]))
    return "\n\n".join(blocks) + "\n"


def _comment(description: Description) -> list[str]:
    text = description.text
    if description.allowed:
        text += f" Allowed: {description.allowed}."
    return [f"# {line}" for line in textwrap.wrap(text, _WIDTH, break_on_hyphens=False)]


def _assignment(name: str, value: Any) -> str:
    return f"{name} = {_item(value).as_string()}" if value is not None else f"{name} ="


def _item(value: Any) -> Any:
    if isinstance(value, dict):
        table = tomlkit.inline_table()
        table.update({name: _item(each) for name, each in value.items()})
        return table
    if isinstance(value, list):
        array = tomlkit.array()
        array.extend(_item(each) for each in value)
        return array
    return tomlkit.item(value)


def write(path: Path, before: str, after: str) -> Path | None:
    """Replace a file as a whole; return where the former one is kept, if there was one."""
    if before == after:
        return None
    path = path.resolve()  # through a link
    kept = None
    try:
        with replacing(path) as file:
            file.write(after.encode())
            file.flush()  # a full disk is told of here
            if path.exists():
                os.fchmod(file.fileno(), stat.S_IMODE(path.stat().st_mode))
                kept = _keep(path)
    except OSError as error:
        raise FarcallError(f"{path} was not written: {error}") from error
    return kept


def put(path: Path, before: str, values: Mapping[str, Any], backend: BackendName = BATCH) -> None:
    """Set options in a file, and say so.

    Raises:
        FarcallError: It is not valid TOML, or cannot be written.
        SettingsError: An option is wrong.
    """
    refuse_here(values, path)
    after = updated(before, values, path, backend)
    kept = write(path, before, after)
    say(f"{path} {'is as it was' if after == before else 'was written'}")
    if kept is not None:
        say(f"as it was before: {kept}")
    for name in sorted(values.keys() & from_environment().keys()):
        variable = f"{ENVIRONMENT_PREFIX}{name.upper()}"
        say(f"{variable} is set, and comes before the file", err=True)


def _keep(path: Path) -> Path:
    """Copy a file beside itself, under a name that no other has."""
    for number in itertools.count():
        kept = path.with_name(f"{path.name}.bak{number or ''}")
        with contextlib.suppress(FileExistsError), kept.open("xb") as file:
            file.write(path.read_bytes())
            shutil.copymode(path, kept)
            return kept
    raise AssertionError


def _home_file() -> Path:
    try:
        return _HOME.expanduser()
    except RuntimeError as error:  # nobody knows where home is
        raise FarcallError(
            f"there is no home folder to write the options to: {error}; name a file with --file"
        ) from error
