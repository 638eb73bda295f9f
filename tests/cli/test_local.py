"""``farcall local``."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.support.commands import run_installed


def test_local_runs_a_script_against_an_embedded_aws(tmp_path: Path) -> None:
    script = tmp_path / "workflow.py"
    script.write_text(
        "import asyncio, farcall\n"
        "executor = farcall.BatchExecutor(vcpu=1)\n"
        "@executor.task\n"
        "def double(x):\n"
        "    return 2 * x\n"
        "async def main():\n"
        "    async with executor:\n"
        "        print(await double(21))\n"
        "asyncio.run(main())\n"
    )

    done = run_installed("local", "--", sys.executable, str(script))

    assert "42\n" == done.stdout, done.stderr
    assert 0 == done.returncode


def test_local_gives_the_commands_exit_code() -> None:
    assert (
        3 == run_installed("local", "--", sys.executable, "-c", "raise SystemExit(3)").returncode
    )
