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
"""Path relative to the repository to absolute path."""

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
        page: Path of the page.
        line: Number of the first line.
        language: Language after the fence; may be empty.
        code: Content of the block.
        reason: Reason why no test runs the block; empty if a test does.
    """

    page: Path
    line: int
    language: str
    code: str
    reason: str

    @property
    def script(self) -> str:
        """File name in the first line if the block is a complete script; otherwise empty."""
        named = re.match(r"# (\w+\.py)\n", self.code)
        return named[1] if named else ""


def blocks(page: Path) -> Iterator[Block]:
    """Yield the blocks of a page in order."""
    text = page.read_text(encoding="utf-8")
    for found in _FENCED.finditer(text):
        line = text.count("\n", 0, found.start("code")) + 1
        code = textwrap.dedent(found["code"])
        yield Block(page, line, found["language"], code, found["reason"] or "")


def spans(page: Path) -> Iterator[str]:
    """Yield the texts in backticks on a page."""
    text = _FENCED.sub("", page.read_text(encoding="utf-8"))
    for found in re.finditer(r"(?<!`)`([^`]+)`(?!`)", text):
        yield re.sub(r"\s+", " ", found[1])


def run_installed(*command: object, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command with this environment's programs on PATH, as if it were activated."""
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    return subprocess.run(
        list(map(str, command)),
        env={**os.environ, **environment, "PATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
