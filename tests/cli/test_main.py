"""The installed command."""

from __future__ import annotations

import farcall
from tests.support.commands import run_installed


def test_it_tells_its_version_and_what_it_can_do() -> None:
    assert f"farcall, version {farcall.__version__}\n" == run_installed("--version").stdout
    told = run_installed("--help").stdout
    for command in ("local", "demo", "attach", "result", "recover"):
        assert command in told
