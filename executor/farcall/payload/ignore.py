"""Ignore files: the paths that a ``.dockerignore`` excludes, as in docker.

A pattern matches paths below the folder: ``*`` and ``?`` match everything except a slash, ``**``
between slashes any number of folders, ``[...]`` one character of a class. A match excludes the
path and everything below it; ``!`` includes paths again. The last matching line decides.

Source:
    https://docs.docker.com/build/concepts/context/#dockerignore-files
"""

from __future__ import annotations

import functools
import os
import posixpath
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from farcall.model.errors import SettingsError
from farcall.payload.folders import is_below, top_of

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
        parts: Patterns of the names in matching paths; None for any number of folders.
        takes_back: Whether matching paths are included again.
        beginning: Common prefix of all paths that it can match.
    """

    text: str
    number: int
    where: str
    parts: tuple[re.Pattern[str] | None, ...]
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

    def matches(self, names: Sequence[str]) -> bool:
        """Return whether the rule matches a path, or a folder above it."""
        ends = {0}  # numbers of names that the parts so far can match
        for part in self.parts:
            if part is None:
                ends = set(range(min(ends, default=len(names)), len(names) + 1))
            else:
                ends = {n + 1 for n in ends if n < len(names) and part.fullmatch(names[n])}
        if self.parts[-1] is None:  # it matches only what is inside
            ends.discard(min(ends, default=0))
        return bool(ends)


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
        names = path.split("/")
        for rule in self._rules:
            if rule.takes_back == (last is not None) and rule.matches(names):
                last = None if rule.takes_back else rule
        return last

    def takes_back(self, path: str) -> bool:
        """Return whether the last rule that matches a path includes it."""
        names = path.split("/")
        last = next((rule for rule in reversed(self._rules) if rule.matches(names)), None)
        return last is not None and last.takes_back

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


class Rules(NamedTuple):
    """Patterns of excluded paths, and the folder that they apply to."""

    ignore: Ignore
    folder: str

    def excluding(self, path: str, *, is_folder: bool) -> Rule | None:
        """Return the rule that excludes a path; for a folder, including all of its contents."""
        if not is_below(path, self.folder):
            return None
        name = os.path.relpath(path, self.folder)
        rule = self.ignore.excluding(name)
        if rule is not None and is_folder and not self.ignore.leaves_out_all_of(name):
            return None
        return rule


def ignored_by(root: str) -> Rules | None:
    """Return the ignore file of a folder, or of a folder above it in its project.

    Raises:
        SettingsError: The file cannot be read, or is invalid.
    """
    top = top_of(root)
    folder = root
    while True:
        try:
            lines = read_lines(folder)
        except OSError as error:
            raise SettingsError(
                f"{Path(folder, NAME)} cannot be read ({error.strerror}), so the files "
                "that it excludes are unknown. Make it readable, or delete it",
                option="sources",
            ) from error
        if lines is not None:
            return Rules(Ignore.of_file(lines, folder), folder)
        if top is None or folder == top:
            return None
        folder = str(Path(folder).parent)


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
    parts = [_part(part) for part in _split(plain)]
    return Rule(text, number, where, tuple(parts), takes_back, beginning)


def _split(pattern: str) -> list[str]:
    """Split a pattern at its slashes, but not in character classes."""
    return re.findall(r"(?:\\.|\[(?:\\.|[^\]\\])+\]|[^/])+", pattern, re.DOTALL)


def _part(pattern: str) -> re.Pattern[str] | None:
    """Return the pattern of one name; None for any number of folders.

    Text between two asterisks is matched where it occurs first, because a later place never helps.
    Without that, a few asterisks would take a regular expression hours:
    https://docs.python.org/3/library/re.html
    """
    if pattern == "**":
        return None
    first, *others = _texts(pattern)
    last = others.pop() if others else None
    made = [first]
    for number, text in enumerate(others):
        made.append(f"(?=(?P<t{number}>.*?{text}))(?P=t{number})")
    return re.compile("".join(made) + (f".*{last}" if last is not None else ""), re.DOTALL)


def _texts(pattern: str) -> list[str]:
    """Return the regular expressions of the texts between a pattern's asterisks."""
    texts, at = [""], 0
    while at < len(pattern):
        letter = pattern[at]
        at += 1
        if letter == "*":
            texts.append("")
            continue
        if letter == "?":
            made = "."
        elif letter == "[":
            made, at = _class(pattern, at)
        elif letter == "\\":
            if at == len(pattern):
                raise ValueError("nothing follows the \\")
            made, at = re.escape(pattern[at]), at + 1
        else:
            made = re.escape(letter)
        texts[-1] += made
    return texts


def _class(pattern: str, at: int) -> tuple[str, int]:
    """Parse a character class after its ``[``; return its regex and its end."""
    match = re.compile(r"(\^?)((?:\\.|[^\]\\])+)\]", re.DOTALL).match(pattern, at)
    if match is None:
        raise ValueError("the [ is not closed")
    inside = re.sub(
        r"\\(.)|([^-])",
        lambda part: re.escape(part[1] or part[2]),
        match[2],
        flags=re.DOTALL,
    )
    try:
        re.compile(f"[{inside}]")
    except re.error as error:
        raise ValueError(str(error)) from error
    return f"[{match[1]}{inside}]", match.end()
