"""Ignore files: the paths that a ``.dockerignore`` excludes, as in docker.

A pattern matches paths below the folder: ``*`` and ``?`` match everything except a slash, ``**``
any number of folders, ``[...]`` one character of a class. A match excludes the path and everything
below it; ``!`` includes paths again. The last matching line decides.

Source:
    https://docs.docker.com/build/concepts/context/#dockerignore-files
"""

from __future__ import annotations

import functools
import posixpath
import re
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from farcall.model.errors import SettingsError

NAME = ".dockerignore"
"""Name of the file, in the folder that it applies to."""

OPTION = "exclude_sources"
"""Option with patterns of the same syntax."""

_WILD = re.compile(r"[*?\[\\]")


class Rule(NamedTuple):
    """A line of the file.

    Attributes:
        text: The line.
        number: Its number.
        where: Name of the file, or of the option, that contains it.
        pattern: Matches the paths, and everything below them.
        takes_back: Whether matching paths are included again.
        beginning: Common prefix of all paths that it can match.
    """

    text: str
    number: int
    where: str
    pattern: re.Pattern[str]
    takes_back: bool
    beginning: str

    def __str__(self) -> str:
        line = "" if self.where == OPTION else f", line {self.number}"
        return f'"{self.text}" in {self.where}{line}'

    def remedy(self, path: str) -> str:
        """Return how to include a path, relative to the rule's folder."""
        if self.where == OPTION:
            return f"remove the pattern from {OPTION}"
        return f'add the line "!{path}" at the end of {self.where}'


class Ignore:
    """The rules of one folder.

    Args:
        lines: The file's lines; none if there is no file.
        where: Name of the file in errors.
        option: Option that the errors are about.

    Raises:
        SettingsError: A line is not a valid pattern.
    """

    def __init__(
        self, lines: Iterable[str] = (), where: str = NAME, option: str = "workspace"
    ) -> None:
        self._rules: list[Rule] = []
        for number, line in enumerate(lines, 1):
            text = line.strip()
            if not text or line.startswith("#"):
                continue
            try:
                rule = _rule(text, number, where)
            except ValueError as error:
                raise SettingsError(
                    f"{where}, line {number}: {text!r} is not a valid pattern ({error}). See the "
                    "rules at "
                    "https://docs.docker.com/build/concepts/context/#dockerignore-files",
                    option=option,
                ) from error
            if rule is not None:
                self._rules.append(rule)

    @classmethod
    def of_file(cls, lines: Iterable[str], folder: str) -> Ignore:
        """Return the rules of a project folder's ignore file."""
        return _known(tuple(lines), str(Path(folder, NAME)), "sources")

    @classmethod
    def of_option(cls, patterns: Iterable[str]) -> Ignore:
        """Return the rules of the option ``exclude_sources``."""
        return _known(tuple(patterns), OPTION, OPTION)

    def excluding(self, path: str) -> Rule | None:
        """Return the rule that excludes a path; None if it is included."""
        last: Rule | None = None
        for rule in self._rules:
            if rule.takes_back == (last is not None) and rule.pattern.fullmatch(path):
                last = None if rule.takes_back else rule
        return last

    def leaves_out(self, path: str) -> bool:
        """Return whether a path is excluded."""
        return self.excluding(path) is not None

    def leaves_out_all_of(self, folder: str) -> bool:
        """Return whether no rule includes a path below an excluded folder.

        Args:
            folder: Its path relative to the folder of the file, with slashes.
        """
        return not any(
            rule.takes_back and _may_lie_below(rule.beginning, f"{folder}/")
            for rule in self._rules
        )


@functools.lru_cache(64)
def _known(lines: tuple[str, ...], where: str, option: str) -> Ignore:
    """Return the rules, which are needed again for each submission."""
    return Ignore(lines, where, option)


def read_lines(folder: str) -> list[str] | None:
    """Return the lines of a folder's ignore file; None if it has none.

    Raises:
        OSError: The file cannot be read.
    """
    path = Path(folder, NAME)
    if not path.is_file():
        return None
    return path.read_text(encoding="utf-8-sig", errors="surrogateescape").splitlines()


def _may_lie_below(beginning: str, folder: str) -> bool:
    return beginning.startswith(folder) or folder.startswith(beginning)


def _rule(text: str, number: int, where: str) -> Rule | None:
    """Parse a line; return None if it has no effect.

    Raises:
        ValueError: The line is not a valid pattern.
    """
    takes_back = text.startswith("!")
    inner = text[1:].strip() if takes_back else text
    if not inner:
        raise ValueError("nothing follows the !")
    plain = posixpath.normpath(inner).lstrip("/")
    if plain in ("", "."):
        return None
    wild = _WILD.search(plain)
    beginning = plain[: wild.start()] if wild else f"{plain}/"
    pattern = re.compile(f"{_regex(plain)}(?:/.*)?", re.DOTALL)
    return Rule(text, number, where, pattern, takes_back, beginning)


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
