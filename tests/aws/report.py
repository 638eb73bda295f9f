"""Report of ``make test-aws``: each assumption, and where AWS differs from the emulator."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tests.aws.assumptions import ASSUMPTIONS, Assumption

PATH = Path(__file__).parents[2] / "build" / "test-aws.md"


def text(
    facts: Mapping[str, str], outcomes: Mapping[str, str], observed: Mapping[str, str]
) -> str:
    """Return the report as Markdown.

    Args:
        facts: Facts about the account and the costs.
        outcomes: Test name to outcome.
        observed: Name of an assumption to the observation.
    """
    differing = [
        name
        for name, value in observed.items()
        if name in ASSUMPTIONS and not ASSUMPTIONS[name].fits(value)
    ]
    lines = ["# farcall on AWS", ""]
    lines += _table(("fact", "value"), facts.items())
    lines += ["", "## Differences from the local AWS emulator", ""]
    lines += [
        f"* **{name}**: {observed[name]} (the emulator: `{ASSUMPTIONS[name].expected}`)"
        for name in differing
    ] or ["None among the observed assumptions."]
    lines += ["", "## Assumptions", ""]
    head = ("name", "assumption", "source", "observed", "same as the emulator")
    rows = [_row(name, each, observed) for name, each in ASSUMPTIONS.items() if not each.is_manual]
    lines += _table(head, rows)
    lines += ["", "## To check manually", ""]
    rows = [
        (name, each.claim, each.source, each.check)
        for name, each in ASSUMPTIONS.items()
        if each.is_manual
    ]
    lines += _table(("name", "assumption", "source", "check"), rows)
    lines += ["", "## Tests", "", *_table(("test", "outcome"), outcomes.items()), ""]
    return "\n".join(lines)


def _row(name: str, assumption: Assumption, observed: Mapping[str, str]) -> tuple[str, ...]:
    value = observed.get(name)
    if value is None:
        same, value = "", f"not observed; see {assumption.check}"
    else:
        same = "yes" if assumption.fits(value) else "**no**"
    return name, assumption.claim, assumption.source, value, same


def _table(head, rows) -> list[str]:
    lines = [head, ["---"] * len(head), *rows]
    return [f"| {' | '.join(cell.replace('|', '/') for cell in line)} |" for line in lines]
