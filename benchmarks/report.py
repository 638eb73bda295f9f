"""Figures to tables on the terminal and to ``RESULTS.md``, part by part."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from rich.console import Console
from rich.table import Table

_PACKAGES = ("farcall", "obstore", "cloudpickle", "aioboto3", "aiobotocore", "botocore", "moto")

_TITLE = "# What farcall costs"
_HEADINGS = ("what", "figure to reach", "measured", "reached", "the peer", "more")
_WIDTH = 140
_ABOUT = """\
The figures that farcall is to reach, the peer's beside them where it ran, and below what was
measured, part by part. Each part says on what machine it ran, what in it is real and what is
played. The peer is covalent-awsbatch-plugin 0.42.0 from PyPI, measured in the same run."""


@dataclass(frozen=True)
class Row:
    """A figure and what it should be.

    Attributes:
        what: What was measured.
        wanted: The most it should be.
        found: What it is.
        unit: Of both.
        peer: The peer's, where it ran.
    """

    what: str
    wanted: float
    found: float
    unit: str = ""
    peer: float | None = None

    def cells(self) -> tuple[str, ...]:
        """Return what a table shows."""
        peer = "" if self.peer is None else self._say(self.peer)
        reached = "yes" if self.found <= self.wanted else "**no**"
        return self.what, f"at most {self._say(self.wanted)}", self._say(self.found), reached, peer

    def _say(self, value: float) -> str:
        return f"{number(value)} {self.unit}".rstrip()


@dataclass(frozen=True)
class Part:
    """A part of the page.

    Attributes:
        title: Its heading.
        rows: Its figures, which go into the table at the top.
        body: The rest, below the line that says when and on what it was measured.
        tables: What the terminal shows of it besides: title, headings, lines.
    """

    title: str
    rows: Sequence[Row]
    body: str
    tables: Sequence[tuple[str, Sequence[str], Sequence[Sequence[str]]]] = field(default=())


def part(
    title: str,
    rows: Sequence[Row],
    pieces: Iterable[str],
    *,
    options: str,
    more: Sequence[str] = (),
    tables: Sequence[tuple[str, Sequence[str], Sequence[Sequence[str]]]] = (),
) -> Part:
    """Put a part together.

    Args:
        title: Its heading, without marks.
        rows: Its figures.
        pieces: Its paragraphs, tables and headings.
        options: Those the command was given.
        more: Packages whose versions matter besides.
        tables: What the terminal shows of it besides.
    """
    command = f"python -m benchmarks {options}".rstrip()
    written = f"Written by `{command}` on {_today()}. {_machine(more)}"
    return Part(title, rows, "\n\n".join([written, *filter(None, pieces)]).rstrip(), tables)


def show(told: Part) -> None:
    """Print a part's tables."""
    _show(told.title, _HEADINGS[:-1], [row.cells() for row in told.rows])
    for each in told.tables:
        _show(*each)


def _show(title: str, headings: Sequence[str], lines: Sequence[Sequence[str]]) -> None:
    shown = Table(*headings, title=title)
    for line in lines:
        shown.add_row(*(re.sub(r"\*\*|`", "", cell) for cell in line))
    Console(width=max(Console().width, _WIDTH)).print(shown)


def write(path: Path, parts: Sequence[Part], order: Sequence[str]) -> None:
    """Write parts of the page, and leave the others as they are.

    Args:
        path: The page.
        parts: What was measured.
        order: Titles of all parts.
    """
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    pieces = (piece.strip() for piece in re.split(r"^(?=# )", text, flags=re.M))
    bodies = {piece.partition("\n")[0]: piece for piece in pieces}
    figures = _figures(bodies.pop(_TITLE, ""))
    for told in parts:
        bodies[f"# {told.title}"] = f"# {told.title}\n\n{told.body}"
        figures[_link(told.title)] = [row.cells() for row in told.rows]
    lines = [(*cells, _link(title)) for title in order for cells in figures.get(_link(title), ())]
    whole = [_TITLE, table(_HEADINGS, lines), _ABOUT]
    whole += [bodies[f"# {title}"] for title in order if f"# {title}" in bodies]
    path.write_text("\n\n".join(whole) + "\n", encoding="utf-8")


def _figures(top: str) -> dict[str, list[tuple[str, ...]]]:
    """Return the lines of the table at the top, by the link to their part."""
    found: dict[str, list[tuple[str, ...]]] = {}
    for line in top.splitlines():
        *cells, link = (cell.strip() for cell in line.strip("|").split(" | "))
        found.setdefault(link, []).append(tuple(cells))
    return found


def _link(title: str) -> str:
    anchor = re.sub(r"[^a-z0-9 -]", "", title.lower()).replace(" ", "-")
    return f"[below](#{anchor})"


def table(headings: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Return a table of the page."""
    bars = ["| " + " | ".join(line) + " |" for line in (headings, ["---"] * len(headings), *lines)]
    return "\n".join(bars)


def number(value: float) -> str:
    """Write a number to three digits."""
    if value == round(value):
        return f"{value:,.0f}"
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"


def runs(values: Sequence[float], middle: float, say: str = ".3g") -> str:
    """Write a median, and in brackets the runs it is of."""
    if not values[1:]:
        return f"{middle:{say}}"
    return f"{middle:{say}} ({', '.join(f'{value:{say}}' for value in values)})"


def _today() -> str:
    return str(datetime.now(timezone.utc).date())


def _machine(more: Sequence[str]) -> str:
    """Say what it was measured on and with."""
    versions = []
    for name in (*_PACKAGES, *more):
        try:
            versions.append(f"{name} {version(name)}")
        except PackageNotFoundError:  # a checkout on the path is not an installed distribution
            versions.append(f"{name} from a checkout" if name == "farcall" else f"no {name}")
    return (
        f"Machine: {os.cpu_count()} CPUs ({_model()}), {_memory_gb():.0f} GB, "
        f"{platform.system()} {platform.machine()}, Python {platform.python_version()}; "
        f"{', '.join(versions)}."
    )


def _model() -> str:
    text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    names = [line.partition(":")[2].strip() for line in text.splitlines() if "model name" in line]
    return names[0] if names else "unknown model"


def _memory_gb() -> float:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
