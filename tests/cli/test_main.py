"""The installed command.

Starts it as a process, because its entry point is only used there.
"""

import subprocess
import sys

import pytest

import farcall
from tests.support.commands import run_installed


def test_version_and_help_are_printed():
    assert f"farcall, version {farcall.__version__}\n" == run_installed("--version").stdout
    told = run_installed("--help").stdout
    for command in ("local", "demo", "wait", "result", "recover"):
        assert command in told
    assert told == run_installed("help").stdout
    assert run_installed("help", "wait").stdout == run_installed("wait", "--help").stdout


@pytest.mark.parametrize(
    ("line", "meant"),
    [
        ("lisst", "list"),
        ("descibe JOB", "describe"),
        ("explain JOB", "describe"),
        ("covalent resum", "resume"),
        ("logs --timestmaps", "--timestamps"),
        ("list --worflow nightly", "--workflow"),
        ("run --memroy 4GiB train:fit", "--memory"),
    ],
)
async def test_misspelled_command_or_option_has_suggestion(farcall_command, line, meant):
    done = await farcall_command(*line.split())
    assert (done.returncode, done.stdout) == (2, "")
    assert f"Did you mean '{meant}'?" in done.stderr


def test_botocore_warnings_are_hidden():
    """botocore also raises errors for them, for example if a login has expired."""
    script = """if True:
        import logging, sys
        from farcall.cli.main import main
        sys.argv = ["farcall", "--version"]
        try:
            main()
        finally:
            logging.getLogger("botocore.tokens").warning("refresh failed")
            logging.getLogger("farcall").warning("of our own")
    """
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "of our own\n")


@pytest.mark.parametrize("name", ["profile", "region"])
def test_option_before_the_command_is_used(name):
    value = "no-such-profile" if name == "profile" else "no such region"
    done = run_installed(f"--{name}", value, "list")
    assert done.returncode != 0
    assert value in done.stderr
