"""Editor of options files, farcall's and Covalent's, that keeps all other content."""

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

from farcall.cli.printing import echo
from farcall.config.files import SECTIONS, chosen, files, heading, refuse_here, tables
from farcall.config.help import Description, describe
from farcall.config.settings import ENVIRONMENT_PREFIX, Settings, from_environment, options_of
from farcall.filesystem import replacing
from farcall.model.errors import FarcallError
from farcall.model.names import BATCH, BackendName

_HOME = Path("~/.config/farcall/farcall.toml")
_WIDTH = 88


def in_force() -> Path:
    """Return the active file; the one in the home folder if there is none.

    Raises:
        FarcallError: There is no home folder.
        SettingsError: FARCALL_CONFIG names a file that does not exist.
    """
    return next(iter(files()), None) or _home_file()


def text_of(path: Path) -> str:
    """Return a file's text; empty if the file does not exist."""
    return path.read_text(encoding="utf-8") if path.exists() else ""


def backend_of(path: Path, values: Mapping[str, Any]) -> BackendName:
    """Return the backend whose section of a file contains the options.

    Args:
        path: The file, which may be missing.
        values: The options; ``backend`` among them takes precedence.

    Raises:
        SettingsError: The file cannot be read, or it has options outside the sections.
    """
    return chosen({**from_environment(), **values}, tables(path) if path.exists() else {})


def updated(text: str, values: Mapping[str, Any], path: Path, backend: BackendName = BATCH) -> str:
    """Return a file's text with a backend's options set, all else unchanged.

    Raises:
        FarcallError: The file is not valid TOML.
        SettingsError: An option in it is wrong.
    """
    try:
        if _has_section(text, backend):
            text = changed(text, values, backend)
        else:
            text = _appended(text, _section(values, backend))
        options = section(text, backend)
    except (TOMLKitError, AttributeError) as error:
        raise FarcallError(f"{path} is not valid TOML ({error}); nothing was written") from error
    Settings(**{**options, "backend": options.get("backend", backend)})
    return text


def section(text: str, backend: BackendName = BATCH) -> dict[str, Any]:
    """Return a backend's options in a file's text.

    Raises:
        TOMLKitError: The text is not valid TOML.
        AttributeError: The section is not a table.
    """
    table: Any = tomlkit.parse(text).unwrap()
    for part in SECTIONS[backend]:
        table = table.get(part, {})
    return dict(table.items())


def foreign(text: str, values: Mapping[str, Any]) -> str:
    """Return the text of another program's file with Batch options set.

    The file's section also has options of that program.

    Raises:
        TOMLKitError: The text is not valid TOML.
        AttributeError: The section is not a table.
    """
    if _has_section(text, BATCH):
        return changed(text, values, BATCH)
    lines = [_assignment(name, value) for name, value in values.items()]
    return _appended(text, "\n".join([heading(BATCH), *lines, ""]))


def without(text: str, names: Iterable[str]) -> str:
    """Return a file's text without some options of Batch's section.

    Raises:
        TOMLKitError: The text is not valid TOML.
        AttributeError: The section is not a table.
    """
    document: Any = tomlkit.parse(text)
    for name in section(text).keys() & set(names):
        _table(document, BATCH).remove(name)
    return tomlkit.dumps(document)


def _table(document: Any, backend: BackendName) -> Any:
    outer, inner = SECTIONS[backend]
    return document[outer][inner]


def _has_section(text: str, backend: BackendName) -> bool:
    """Return whether the table exists, even if it is empty."""
    outer, inner = SECTIONS[backend]
    return tomlkit.parse(text).unwrap().get(outer, {}).get(inner) is not None


def _appended(text: str, section: str) -> str:
    return "\n".join(filter(None, [text.rstrip("\n"), section]))


def changed(text: str, values: Mapping[str, Any], backend: BackendName) -> str:
    """Set options in an existing section."""
    left, there, title = dict(values), section(text, backend), heading(backend)
    for name, value in values.items():
        # Unset options are comments; a new value replaces its comment.
        start = text.find(title)
        end = re.compile(r"^\[", re.MULTILINE).search(text, start + 1) if start >= 0 else None
        line = re.compile(rf"^# ?{name} =.*$", re.MULTILINE)
        place = line.search(text, start, end.start() if end else len(text)) if start >= 0 else None
        if name not in there and place:
            text = f"{text[: place.start()]}{_assignment(name, value)}{text[place.end() :]}"
            del left[name]
    document: Any = tomlkit.parse(text)
    for name, value in left.items():
        _table(document, backend)[name] = _item(value)
    return tomlkit.dumps(document)


def _section(values: Mapping[str, Any], backend: BackendName) -> str:
    """Write a section with every available option; unset options are comments."""
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
        text += f" Accepted: {description.allowed}."
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
    """Replace a file's content; return the backup's path if the file existed."""
    if before == after:
        return None
    path = path.resolve()  # follow a link
    kept = None
    try:
        with replacing(path) as file:
            file.write(after.encode())
            file.flush()  # a full disk raises here
            if path.exists():
                os.fchmod(file.fileno(), stat.S_IMODE(path.stat().st_mode))
                kept = _keep(path)
    except OSError as error:
        raise FarcallError(f"cannot write {path}: {error}") from error
    return kept


def put(path: Path, before: str, values: Mapping[str, Any], backend: BackendName = BATCH) -> None:
    """Set options in a file, and print the result.

    Raises:
        FarcallError: The file is not valid TOML or cannot be written.
        SettingsError: An option is wrong.
    """
    refuse_here(values, path)
    after = updated(before, values, path, backend)
    kept = write(path, before, after)
    echo(f"{path} {'is unchanged' if after == before else 'was written'}")
    if kept is not None:
        echo(f"backup of the previous file: {kept}")
    for name in sorted(values.keys() & from_environment().keys()):
        variable = f"{ENVIRONMENT_PREFIX}{name.upper()}"
        echo(f"{variable} is set and takes precedence over the file", err=True)


def _keep(path: Path) -> Path:
    """Copy a file to an unused name in the same folder."""
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
    except RuntimeError as error:  # Path.home() found no home directory
        raise FarcallError(
            f"cannot write the options because there is no home folder: {error}. Name a file "
            "with --file."
        ) from error
