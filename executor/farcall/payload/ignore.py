"""Ignore files: the paths that a ``.dockerignore`` excludes, as in docker. No I/O.

A pattern matches paths below the folder: ``*`` and ``?`` match everything except a slash, ``**``
any number of folders, ``[...]`` one character of a class. A match excludes the path and everything
below it; ``!`` includes paths again. The last matching line decides.

Source:
    https://docs.docker.com/build/concepts/context/#dockerignore-files
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable
from typing import NamedTuple

from farcall.model.errors import SettingsError

NAME = ".dockerignore"
"""Name of the file, in the folder that it applies to."""

_WILD = re.compile(r"[*?\[\\]")


class _Rule(NamedTuple):
    """A line of the file.

    Attributes:
        pattern: Matches the paths, and everything below them.
        takes_back: Whether matching paths are included again.
        beginning: Common prefix of all paths that it can match.
    """

    pattern: re.Pattern[str]
    takes_back: bool
    beginning: str


class Ignore:
    """The rules of one folder.

    Args:
        lines: The file's lines; none if there is no file.
        where: Name of the file in errors.

    Raises:
        SettingsError: A line is not a valid pattern.
    """

    def __init__(self, lines: Iterable[str] = (), where: str = NAME) -> None:
        self._rules: list[_Rule] = []
        for number, line in enumerate(lines, 1):
            text = line.strip()
            if not text or line.startswith("#"):
                continue
            try:
                rule = _rule(text)
            except ValueError as error:
                raise SettingsError(
                    f"{where}, line {number}: {text!r} is not a valid pattern ({error}). See the "
                    "rules at "
                    "https://docs.docker.com/build/concepts/context/#dockerignore-files",
                    option="workspace",
                ) from error
            if rule is not None:
                self._rules.append(rule)

    def leaves_out(self, path: str) -> bool:
        """Return whether a path is excluded."""
        is_out = False
        for rule in self._rules:
            if rule.takes_back == is_out and rule.pattern.fullmatch(path):
                is_out = not rule.takes_back
        return is_out

    def leaves_out_all_of(self, folder: str) -> bool:
        """Return whether no rule includes a path below an excluded folder.

        Args:
            folder: Its path relative to the folder of the file, with slashes.
        """
        return not any(
            rule.takes_back and _may_lie_below(rule.beginning, f"{folder}/")
            for rule in self._rules
        )


def _may_lie_below(beginning: str, folder: str) -> bool:
    return beginning.startswith(folder) or folder.startswith(beginning)


def _rule(text: str) -> _Rule | None:
    """Parse a line; return None if it has no effect.

    Raises:
        ValueError: The line is not a valid pattern.
    """
    takes_back = text.startswith("!")
    if takes_back:
        text = text[1:].strip()
        if not text:
            raise ValueError("nothing follows the !")
    plain = posixpath.normpath(text).lstrip("/")
    if plain in ("", "."):
        return None
    wild = _WILD.search(plain)
    beginning = plain[: wild.start()] if wild else f"{plain}/"
    return _Rule(re.compile(f"{_regex(plain)}(?:/.*)?", re.DOTALL), takes_back, beginning)


def _regex(pattern: str) -> str:
    made, at = "", 0
    while at < len(pattern):
        letter = pattern[at]
        at += 1
        if letter == "*":
            if pattern.startswith("*", at):
                made, at = made + _any_folders(pattern, at + 1), _behind(pattern, at + 1)
            else:
                made += "[^/]*"
        elif letter == "?":
            made += "[^/]"
        elif letter == "[":
            part, at = _class(pattern, at)
            made += part
        elif letter == "\\":
            if at == len(pattern):
                raise ValueError("nothing follows the \\")
            made, at = made + re.escape(pattern[at]), at + 1
        else:
            made += re.escape(letter)
    return made


def _any_folders(pattern: str, at: int) -> str:
    """Return the regular expression for ``**``, if the pattern continues at ``at``."""
    return ".*" if _behind(pattern, at) == len(pattern) else "(?:.*/)?"


def _behind(pattern: str, at: int) -> int:
    """Return the position after ``**`` and the slash that belongs to it."""
    return at + 1 if pattern.startswith("/", at) else at


def _class(pattern: str, at: int) -> tuple[str, int]:
    """Parse a character class after its ``[``; return its regex and its end."""
    found = re.compile(r"(\^?)((?:\\.|[^\]\\])+)\]", re.DOTALL).match(pattern, at)
    if found is None:
        raise ValueError("the [ is not closed")
    inside = re.sub(
        r"\\(.)|([^-])",
        lambda part: re.escape(part[1] or part[2]),
        found[2],
        flags=re.DOTALL,
    )
    try:
        re.compile(f"[{inside}]")
    except re.error as error:
        raise ValueError(str(error)) from error
    return f"(?!/)[{found[1]}{inside}]", found.end()
