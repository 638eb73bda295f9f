"""``farcall configure``: the options, in a file."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import shutil
import stat
import sys
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click
import tomlkit
from tomlkit.exceptions import TOMLKitError

from farcall.cli.options import check, parse
from farcall.cli.printing import hand_out, say
from farcall.model.config_trust import agree, is_agreed
from farcall.model.errors import FarcallError, SettingsError
from farcall.model.files import replacing
from farcall.model.settings import (
    ENVIRONMENT_PREFIX,
    SECTION,
    WORKING_FILE,
    Settings,
    decided,
    files,
    from_environment,
    from_text,
    read,
)
from farcall.model.settings_help import Description, describe

_HOME = Path("~/.config/farcall/farcall.toml")
_TITLE = f"[{'.'.join(SECTION)}]"
_WIDTH = 88
_ASKED = (
    "region",
    "s3_bucket_name",
    "batch_queue",
    "batch_job_role_name",
    "batch_execution_role_name",
    "batch_job_log_group_name",
    "container_image_uri",
)


@click.command("configure")
@click.option(
    "--file",
    "path",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="PATH",
    help="By default the file in force, else ~/.config/farcall/farcall.toml.",
)
@click.option(
    "--set", "assignments", multiple=True, metavar="NAME=VALUE", help="Set an option; repeatable."
)
@click.option("--print", "is_printed", is_flag=True, help="Print the file instead of writing it.")
def configure(path: Path | None, assignments: tuple[str, ...], *, is_printed: bool) -> None:
    """Write farcall's options into a file.

    \b
    farcall configure                                    asks for the most important ones
    farcall configure --set batch_queue=my-queue         sets one, and leaves the rest
    farcall configure --print                            shows every option there is

    Each option is there with what it is; those that are not set are comments. What else the file
    holds stays as it is, and the file as it was is kept beside it as .bak. Nothing is written
    unless every option has a value that is allowed.
    """  # noqa: D301  # click's mark for lines to be left as they are
    path = path or next(iter(files()), None) or _home_file()
    values = parse(assignments)
    check(values)
    if not values and not is_printed and sys.stdin.isatty():
        values = dict(_ask())
    before = path.read_text(encoding="utf-8") if path.exists() else ""
    after = _updated(before, values, path)
    if is_printed:
        hand_out(after)
        return
    is_known = not before or _is_known(path)
    kept = _write(path, before, after)
    say(f"{path} {'is as it was' if after == before else 'was written'}")
    if kept is not None:
        say(f"as it was before: {kept}")
    if is_known and path.name == WORKING_FILE.name:  # what else it decides was agreed to, too
        agree(path, decided(path, read(path)))
    for name in sorted(values.keys() & from_environment().keys()):
        variable = f"{ENVIRONMENT_PREFIX}{name.upper()}"
        say(f"{variable} is set, and comes before the file", err=True)
    say("next: farcall doctor", err=True)


def _home_file() -> Path:
    try:
        return _HOME.expanduser()
    except RuntimeError as error:  # nobody knows where home is
        raise FarcallError(
            f"there is no home folder to write the options to: {error}; name a file with --file"
        ) from error


def _is_known(path: Path) -> bool:
    """Tell whether all that a file decides was agreed to."""
    decides = decided(path, read(path))
    return not decides or is_agreed(path, decides)


def _ask() -> Iterator[tuple[str, Any]]:
    """Ask for the options without which nothing runs."""
    today = Settings()
    words = {description.name: description for description in describe()}
    for name in _ASKED:
        say(f"\n{words[name].text}")
        while True:
            text = click.prompt(name, default=str(getattr(today, name)))
            try:
                Settings(**{name: from_text(name, text)})
            except SettingsError as error:
                say(str(error), err=True)
                continue
            yield name, from_text(name, text)
            break


def _updated(text: str, values: Mapping[str, Any], path: Path) -> str:
    """Return a file's text with options set, all else as it was.

    Raises:
        FarcallError: The file is not valid TOML.
        SettingsError: An option in it is wrong.
    """
    try:
        found: Any = tomlkit.parse(text)
        for part in SECTION:
            found = found.get(part, {})
        if found:
            text = _changed(text, values, set(found))
        else:
            text = "\n".join(filter(None, [text.rstrip("\n"), _section(values)]))
        section: Any = tomlkit.parse(text).unwrap()
    except (TOMLKitError, AttributeError) as error:
        raise FarcallError(f"{path} is not valid TOML ({error}); nothing was written") from error
    for part in SECTION:
        section = section.get(part, {})
    Settings(**section)
    return text


def _changed(text: str, values: Mapping[str, Any], there: set[str]) -> str:
    """Set options in a section that is there."""
    left = dict(values)
    for name, value in values.items():
        # Where it stands as a comment, as we write those that are not set, it takes its place.
        start = text.find(_TITLE)
        end = re.compile(r"^\[", re.MULTILINE).search(text, start + 1) if start >= 0 else None
        line = re.compile(rf"^# ?{name} =.*$", re.MULTILINE)
        place = line.search(text, start, end.start() if end else len(text)) if start >= 0 else None
        if name not in there and place:
            text = f"{text[: place.start()]}{_assignment(name, value)}{text[place.end() :]}"
            del left[name]
    document: Any = tomlkit.parse(text)
    section = document
    for part in SECTION:
        section = section[part]
    for name, value in left.items():
        section[name] = _item(value)
    return tomlkit.dumps(document)


def _section(values: Mapping[str, Any]) -> str:
    """Write the section with every option; those that are not set are comments."""
    blocks = [_TITLE]
    for description in describe():
        name = description.name
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
        table.update(value)
        return table
    return tomlkit.item(value)


def _write(path: Path, before: str, after: str) -> Path | None:
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


def _keep(path: Path) -> Path:
    """Copy a file beside itself, under a name that no other has."""
    for number in itertools.count():
        kept = path.with_name(f"{path.name}.bak{number or ''}")
        with contextlib.suppress(FileExistsError), kept.open("xb") as file:
            file.write(path.read_bytes())
            shutil.copymode(path, kept)
            return kept
    raise AssertionError
