"""Tables on the terminal and in ``RESULTS.md``, with one part per benchmark.

The texts that explain how each part is measured are in ``RESULTS.md`` itself, below a heading that
begins with "How". They are preserved.
"""

from __future__ import annotations

import os
import platform
import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from rich.console import Console
from rich.markdown import Markdown

_PACKAGES = (
    "farcall",
    "obstore",
    "cloudpickle",
    "aioboto3",
    "aiobotocore",
    "botocore",
    "covalent",
)
_TITLE = "# What farcall costs"
_HEADINGS = ("what", "target", "measured", "reached", "the peer", "more")
_HOW = "\n## How "
_WIDTH = 140


@dataclass(frozen=True)
class Row:
    """Measurement, its target (a maximum), and the peer's value if measured."""

    what: str
    target: float
    found: float
    unit: str = ""
    peer: float | None = None

    def cells(self) -> tuple[str, ...]:
        """Return the row's cells for the table at the top of the page."""
        values = [self.target, self.found, *([] if self.peer is None else [self.peer])]
        target, found, *peer = (f"{number(value)} {self.unit}".rstrip() for value in values)
        reached = "yes" if self.found <= self.target else "**no**"
        return self.what, f"at most {target}", found, reached, *(peer or [""])


@dataclass(frozen=True)
class Part:
    """Results of one benchmark: rows for the summary, a table, and a text below it."""

    title: str
    rows: Sequence[Row]
    headings: Sequence[str]
    lines: Sequence[Sequence[str]]
    text: str = ""


def publish(page: Path, part: Part, order: Sequence[str], command: str) -> None:
    """Print a part and write it to the page; the page's other parts are preserved.

    Args:
        page: The page, which is created if it does not exist.
        part: The results.
        order: Titles of all parts, in the page's order.
        command: Command line of the measurement.
    """
    text = page.read_text(encoding="utf-8") if page.exists() else ""
    chunks = (chunk.strip() for chunk in re.split(r"^(?=# )", text, flags=re.M))
    bodies = {chunk.partition("\n")[0]: chunk for chunk in chunks}
    _, top, about = re.split(
        r"(^\|.*\|$)", bodies.pop(_TITLE, "|\n|"), maxsplit=1, flags=re.M | re.S
    )
    rows = _rows(top)
    rows[_link(part.title)] = [row.cells() for row in part.rows]
    title = f"# {part.title}"
    written = f"Written by `{command}` on {datetime.now(UTC).date()}. {_machine()}"
    pieces = [title, written, table(part.headings, part.lines), *filter(None, [part.text])]
    _, how, method = bodies.get(title, "").partition(_HOW)
    bodies[title] = "\n\n".join([*pieces, *([f"{how}{method}".strip()] if how else [])])
    lines = [(*cells, _link(each)) for each in order for cells in rows.get(_link(each), ())]
    whole = [_TITLE, table(_HEADINGS, lines), *filter(None, [about.strip()])]
    whole += [bodies[f"# {each}"] for each in order if f"# {each}" in bodies]
    page.write_text("\n\n".join(whole) + "\n", encoding="utf-8")
    shown = table(_HEADINGS[:-1], rows[_link(part.title)])
    console = Console(width=max(Console().width, _WIDTH))
    console.print(Markdown("\n\n".join([title, shown, *pieces[2:]])))


def _rows(top: str) -> dict[str, list[tuple[str, ...]]]:
    """Return the rows of the summary table by the link to their part."""
    found: dict[str, list[tuple[str, ...]]] = {}
    for line in top.splitlines():
        *cells, link = (cell.strip() for cell in line.strip("|").split(" | "))
        found.setdefault(link, []).append(tuple(cells))
    return found


def _link(title: str) -> str:
    anchor = re.sub(r"[^a-z0-9 -]", "", title.lower()).replace(" ", "-")
    return f"[below](#{anchor})"


def table(headings: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table."""
    bars = ["| " + " | ".join(line) + " |" for line in (headings, ["---"] * len(headings), *lines)]
    return "\n".join(bars)


def number(value: float) -> str:
    """Format a number with three significant digits."""
    if value == round(value):
        return f"{value:,.0f}"
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"


def runs(values: Sequence[float], style: str = ".3g") -> str:
    """Format the median of several runs, followed by each run in parentheses."""
    middle = f"{statistics.median(values):{style}}"
    if not values[1:]:
        return middle
    return f"{middle} ({', '.join(f'{value:{style}}' for value in values)})"


def requests(counts: Mapping[str, int]) -> str:
    """Format the number of requests by operation."""
    return ", ".join(f"{operation} {n}" for operation, n in sorted(counts.items()))


def _machine() -> str:
    """Return a description of the machine and the package versions."""
    versions = []
    for name in _PACKAGES:
        try:
            versions.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            versions.append(f"no {name}")
    model = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text(encoding="utf-8"))
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    return (
        f"Machine: {os.cpu_count()} CPUs ({model[1] if model else 'unknown'}), {memory:.0f} GB, "
        f"{platform.system()} {platform.machine()}, Python {platform.python_version()}; "
        f"{', '.join(versions)}."
    )
