"""The installed command."""

from __future__ import annotations

import subprocess

import farcall
from tests.support.commands import FARCALL


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([FARCALL, *arguments], capture_output=True, text=True, check=False)


def test_it_tells_its_version_and_what_it_can_do() -> None:
    assert f"farcall, version {farcall.__version__}\n" == run("--version").stdout
    told = run("--help").stdout
    for command in ("local", "demo", "attach", "result", "recover"):
        assert command in told
