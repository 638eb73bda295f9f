"""The code in README and the pages of docs/."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
PAGES = {
    str(path.relative_to(ROOT)): path
    for path in (
        ROOT / "README.md",
        ROOT / "examples" / "README.md",
        *sorted((ROOT / "docs").rglob("*.md")),
    )
}
"""By the names under which a reader knows them."""

_FENCED = re.compile(
    r"""
    ^(?:[ ]*<!--\ not\ run:\ (?P<reason>.+?)\ -->\n)?
    ^(?P<indent>[ ]*)```(?P<language>\w*)\n
    (?P<code>.*?)
    ^(?P=indent)```$
    """,
    re.MULTILINE | re.DOTALL | re.VERBOSE,
)


class Block(NamedTuple):
    """A block of code on a page.

    Attributes:
        page: The page.
        line: Of its first line.
        language: As its fence names it, empty where it does not.
        code: What stands in it.
        reason: Why no test runs it; empty where one does.
    """

    page: Path
    line: int
    language: str
    code: str
    reason: str

    @property
    def script(self) -> str:
        """Name of the file that it is as a whole, as its first line says; empty for a part."""
        named = re.match(r"# (\w+\.py)\n", self.code)
        return named[1] if named else ""


def blocks(page: Path) -> Iterator[Block]:
    """Return the blocks of a page in their order."""
    text = page.read_text(encoding="utf-8")
    for found in _FENCED.finditer(text):
        line = text.count("\n", 0, found.start("code")) + 1
        code = textwrap.dedent(found["code"])
        yield Block(page, line, found["language"], code, found["reason"] or "")


def spans(page: Path) -> Iterator[str]:
    """Return the texts in backticks on a page."""
    text = _FENCED.sub("", page.read_text(encoding="utf-8"))
    for found in re.finditer(r"(?<!`)`([^`]+)`(?!`)", text):
        yield re.sub(r"\s+", " ", found[1])


def run_installed(*command: object, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command with the programs of this environment, as where it is activated."""
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    return subprocess.run(
        list(map(str, command)),
        env={**os.environ, **environment, "PATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
