"""How the cost grows, as a plot: the same numbers give the same file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator

from benchmarks.growth import FLOOR, MAP, PEER, SUBMIT, Growth
from benchmarks.measure import Run

_STYLE = {
    "svg.hashsalt": "farcall",  # the names of clip paths are otherwise random
    "svg.fonttype": "none",  # text stays text
    "font.family": "sans-serif",
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#666666",
    "xtick.color": "#444444",
    "ytick.color": "#444444",
}
#: Colours of Okabe and Ito, which the colour-blind can tell apart; and markers besides.
_LINES = {
    PEER: ("covalent-awsbatch-plugin", "#D55E00", "s"),
    SUBMIT: ("farcall, separate submit", "#0072B2", "o"),
    MAP: ("farcall, map", "#009E73", "D"),
    FLOOR: ("floor: bare requests and pickles", "#777777", "None"),
}
_PANELS: dict[str, tuple[Callable[[Run], float], float]] = {
    "client's CPU, seconds": (lambda run: run.cpu_s, 0.0),
    "requests": (lambda run: run.count(), 0.0),
    "client's memory, MB grown at the peak": (lambda run: run.grown_bytes / 1e6, 0.1),
    "wall time, seconds": (lambda run: run.wall_s, 0.0),
}
"""What each panel shows, and the least it shows: a logarithm has no zero."""


def draw(growth: Growth, path: Path) -> None:
    """Write the plot as SVG, with a background of its own."""
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(9, 6.6), facecolor="white")
        panels = figure.subplots(2, 2)
        for panel, (title, (value, least)) in zip(panels.flat, _PANELS.items(), strict=True):
            _draw(panel, growth, title, value, least)
        handles, labels = panels.flat[0].get_legend_handles_labels()
        figure.legend(
            handles,
            labels,
            loc="upper center",
            ncols=len(labels),
            columnspacing=1.5,
            frameon=False,
        )
        figure.supxlabel("tasks", fontsize=10, color="#444444")
        figure.tight_layout(rect=(0, 0, 1, 0.95))
        figure.savefig(path, format="svg", metadata={"Date": None, "Creator": None})


def _draw(
    panel: Axes, growth: Growth, title: str, value: Callable[[Run], float], least: float
) -> None:
    panel.set_xscale("log")
    panel.set_yscale("log")
    for name, (label, colour, marker) in _LINES.items():
        counts = growth.counts(name)
        if not counts:
            continue
        values = [max(least, growth.middle(name, count, value)) for count in counts]
        style = "--" if name == FLOOR else "-"
        panel.plot(counts, values, style, color=colour, marker=marker, markersize=5, label=label)
    panel.set_title(title, loc="left", fontsize=10)
    panel.grid(which="major", color="#dddddd", linewidth=0.6)
    panel.set_axisbelow(True)
    for axis in (panel.xaxis, panel.yaxis):
        axis.set_major_formatter(FuncFormatter(lambda number, _: f"{number:,g}"))
        axis.set_minor_locator(NullLocator())
