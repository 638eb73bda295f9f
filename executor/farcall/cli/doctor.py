"""``farcall doctor``: checks that everything a job needs exists."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from dataclasses import asdict

import click
from rich.text import Text

from farcall.cli.common import print_json
from farcall.cli.printing import echo
from farcall.client.console import Console
from farcall.model.terminal import in_a_line
from farcall.operations import doctor as checkup
from farcall.operations.doctor import FAILED, NOT_CHECKED, OK, WARNING, Finding

_COLOURS = {OK: "green", WARNING: "yellow", FAILED: "red", NOT_CHECKED: "cyan"}


@click.command("doctor")
@click.option("--json", "as_json", is_flag=True, help="Print the results as JSON.")
def doctor(*, as_json: bool) -> None:
    """Check that everything a job needs exists.

    \b
    Examples:
      farcall doctor
      farcall --profile work doctor
      farcall doctor --json | jq '.checks[] | select(.verdict == "failed")'

    Checks options, credentials, region, bucket, queue, compute environments,
    roles, log group and image, and prints what to do about each problem. No job
    runs. The bucket check writes one small object, reads it, checks that it cannot
    be overwritten, and deletes it. Checks that your credentials do not permit, or
    that a service other than AWS does not support, are reported as "not checked".

    Exits with 0 if no check failed, otherwise with 1.
    """  # noqa: D301  # click's marker for preformatted lines
    with Console(stderr=True).status("checking"):
        findings = asyncio.run(checkup.examine())
    is_well = all(finding.verdict != FAILED for finding in findings)
    if as_json:
        print_json({"ok": is_well, "checks": [asdict(finding) for finding in findings]})
    else:
        _show(findings)
    sys.exit(not is_well)


def _show(findings: Sequence[Finding]) -> None:
    out = Console()
    width = max(len(finding.check) for finding in findings)
    for finding in findings:
        verdict = f"{finding.verdict:<11}", _COLOURS[finding.verdict]
        found = f"  {finding.check:<{width}}  {in_a_line(finding.found)}"
        out.print(Text.assemble(verdict, found), soft_wrap=True)
        if finding.remedy:
            out.print(f"{'':<11}  {'':<{width}}  -> {in_a_line(finding.remedy)}", soft_wrap=True)
    counts = {v: sum(f.verdict == v for f in findings) for v in _COLOURS}
    summary = ", ".join(f"{count} {verdict}" for verdict, count in counts.items() if count)
    echo(summary, err=True)
