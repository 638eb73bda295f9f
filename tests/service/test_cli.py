"""The installed command."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import farcall

FARCALL = Path(sys.executable).with_name("farcall")


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([FARCALL, *arguments], capture_output=True, text=True, check=False)


def test_it_tells_its_version_and_what_it_can_do() -> None:
    assert f"farcall, version {farcall.__version__}\n" == run("--version").stdout
    told = run("--help").stdout
    for command in ("local", "demo", "attach", "result", "recover"):
        assert command in told


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

    done = run("local", "--", sys.executable, str(script))

    assert "42\n" == done.stdout, done.stderr
    assert 0 == done.returncode


def test_local_gives_the_commands_exit_code() -> None:
    assert 3 == run("local", "--", sys.executable, "-c", "raise SystemExit(3)").returncode


def test_the_demo_trains_scores_sweeps_and_says_what_is_next() -> None:
    done = run("demo", "--tasks", "4")

    assert 0 == done.returncode, done.stderr
    score = re.search(r"its score is ([\d.]+)", done.stdout)
    assert score is not None
    assert 0.5 < float(score[1]) <= 1
    for expected in ("stdout | process", "4/4", "train_svm", "SUCCEEDED", "What to type next"):
        assert expected in done.stdout
