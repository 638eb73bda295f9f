"""``terminal.svg``: a session at a terminal, each command with what it really wrote."""

from __future__ import annotations

import asyncio
import io
import json
import shlex
import subprocess
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.terminal_theme import TerminalTheme
from rich.text import Text

from pictures.recording import record
from pictures.stage import HOME, Stage, refuse_private

COLUMNS = 110
_THEME = TerminalTheme(
    (24, 26, 31),
    (208, 212, 220),
    [
        (60, 64, 74),
        (240, 113, 120),
        (140, 200, 120),
        (229, 192, 123),
        (110, 170, 245),
        (200, 140, 230),
        (100, 200, 205),
        (208, 212, 220),
    ],
    [
        (130, 136, 148),
        (255, 140, 145),
        (165, 220, 145),
        (245, 210, 150),
        (140, 190, 255),
        (220, 170, 245),
        (130, 220, 225),
        (255, 255, 255),
    ],
)
#: Like rich's own, but without fonts from the network, which a picture in a page does not get.
_SVG = """\
<svg viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<style>
.{unique_id}-matrix {{
  font-family: ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace;
  font-size: {char_height}px;
  line-height: {line_height}px;
}}
.{unique_id}-title {{ font: bold 18px sans-serif; }}
{styles}
</style>
<defs>
<clipPath id="{unique_id}-clip-terminal">
<rect x="0" y="0" width="{terminal_width}" height="{terminal_height}"/>
</clipPath>
{lines}
</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""


async def draw(stage: Stage, images: Path) -> list[Path]:
    """Make the picture.

    Args:
        stage: Where the commands run.
        images: The folder of the pictures.

    Returns:
        Its path.

    Raises:
        RuntimeError: It would show something of this machine.
    """
    jobs = await asyncio.to_thread(_jobs, stage)
    failed = next(f"{job['id']}:6" for job in jobs if job["function"] == "simulate")
    training = [job["id"] for job in jobs if job["function"] == "train"]
    session = (
        ("farcall list", ""),
        (f"farcall describe {failed}", ""),
        (f"farcall logs --tail 4 {training[0]}", ""),
        (f"farcall cancel {training[0]}", ""),
    )
    console = Console(
        record=True,
        width=COLUMNS,
        file=io.StringIO(),
        force_terminal=True,
        color_system="truecolor",
        legacy_windows=False,
    )
    for line, until in session:
        output = await asyncio.to_thread(
            record, shlex.split(line), stage.environment, HOME, COLUMNS, until
        )
        refuse_private(output)
        console.print(Text.assemble(("$ ", "bold green"), (line, "bold")), soft_wrap=True)
        console.print(Text.from_ansi(output.rstrip()), "", sep="\n")
    path = images / "terminal.svg"
    svg = console.export_svg(
        title="farcall", theme=_THEME, code_format=_SVG, unique_id="farcall-terminal"
    )
    path.write_text(svg, encoding="utf-8")
    return [path]


def _jobs(stage: Stage) -> list[dict[str, Any]]:
    """Return the records of all jobs."""
    listed = subprocess.run(
        ["farcall", "list", "--json"],
        env=stage.environment,
        cwd=HOME,
        check=True,
        capture_output=True,
        text=True,
    )
    found: list[dict[str, Any]] = json.loads(listed.stdout)
    return found
