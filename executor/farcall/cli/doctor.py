"""``farcall doctor``: checks that everything a job needs exists."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from typing import Any

import click
from rich.text import Text

from farcall.cli import tables
from farcall.cli.common import print_json
from farcall.cli.printing import echo
from farcall.client import trial
from farcall.client.console import Console
from farcall.client.trial import Trial
from farcall.config.settings import Settings
from farcall.model.terminal import in_a_line
from farcall.operations import costs
from farcall.operations import doctor as checkup
from farcall.operations.doctor import FAILED, NOT_CHECKED, OK, WARNING, Finding

_COLOURS = {OK: "green", WARNING: "yellow", FAILED: "red", NOT_CHECKED: "cyan"}


@click.command("doctor")
@click.option("--run", "runs", is_flag=True, help="Also run a few small jobs, and delete them.")
@click.option("--json", "as_json", is_flag=True, help="Print the results as JSON.")
def doctor(*, runs: bool, as_json: bool) -> None:
    """Check that everything a job needs exists.

    \b
    Examples:
      farcall doctor
      farcall doctor --run               # after `farcall deploy`
      farcall --profile work doctor
      farcall doctor --json | jq '.checks[] | select(.verdict == "failed")'

    Checks options, credentials, region, bucket, queue, compute environments,
    roles, log group and image, and prints what to do about each problem. The bucket
    check writes one small object, reads it, checks that it cannot be overwritten,
    and deletes it. Checks that your credentials do not permit, or that a service
    other than AWS does not support, are reported as "not checked".

    Without --run, no job runs. With --run, and if no check failed, farcall submits
    five small jobs with your options, one after the other: a call, an array of two
    tasks, a call that fails, a call that is cancelled, and a call with a package.
    It copies their output to stderr and prints the duration and the result of each,
    and their maximum cost: vCPU-seconds from submission to end, requests, and
    dollars if vcpu_hour_price or gb_hour_price is set. It deletes the jobs' objects,
    also after Ctrl-C. Job definitions, packages and log lines stay.

    Exits with 0 if no check and no job failed, otherwise with 1.
    """  # noqa: D301  # click's marker for preformatted lines
    with Console(stderr=True).status("checking"):
        findings = asyncio.run(checkup.examine())
    is_well = _is_well(findings)
    document: dict[str, Any] = {"checks": [asdict(finding) for finding in findings]}
    if not as_json:
        _show(findings)
    if runs and is_well:
        settings = Settings()
        done = asyncio.run(trial.run(settings, _follow))
        is_well = _is_well([step.finding for step in done.steps])
        document["run"] = _document(done, settings)
        if not as_json:
            _show_run(done, settings)
    elif runs:
        echo("farcall: no jobs were run, because a check failed", err=True)
    if as_json:
        print_json({"ok": is_well, **document})
    sys.exit(not is_well)


def _is_well(findings: Iterable[Finding]) -> bool:
    return all(finding.verdict != FAILED for finding in findings)


def _follow(step: str, line: str) -> None:
    echo(f"{step} | {in_a_line(line)}", err=True)


def _document(done: Trial, settings: Settings) -> dict[str, Any]:
    return {
        "steps": [
            {**asdict(step.finding), "duration_s": round(step.duration_s, 3)}
            for step in done.steps
        ],
        "vcpu_seconds": round(done.vcpu_s, 3),
        "gb_seconds": round(done.gb_s, 3),
        "requests": done.requests,
        "dollars": done.dollars(settings),
    }


def _show_run(done: Trial, settings: Settings) -> None:
    findings = [
        replace(step.finding, found=f"{tables.span(step.duration_s):>6}  {step.finding.found}")
        for step in done.steps
    ]
    echo("")
    _show(findings)
    cost = f"cost at most: {done.vcpu_s:.0f} vCPU-seconds, {done.gb_s:.0f} GB-seconds, "
    cost += f"{done.requests} requests"
    dollars = done.dollars(settings)
    echo(cost if dollars is None else f"{cost}, {costs.dollars(dollars)}")


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
