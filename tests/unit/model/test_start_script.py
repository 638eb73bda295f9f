"""The command that fetches a workspace: wrapping and unwrapping another command.

The command itself is tested where it runs: tests/service/test_workspaces.py.
"""

import json
import shutil
import string
import subprocess

import pytest

from farcall.backends.batch.documents import OVERRIDE_CHARACTERS
from farcall.model.start_script import SCRIPT, Fetched, unwrap, wrap

WORKSPACE = Fetched(
    "eu-west-1",
    "https://bucket.s3.eu-west-1.amazonaws.com",
    "bucket",
    "a b/(x)",
    "0" * 64,
    "/work",
)


def test_unwrap_restores_wrapped_command():
    command = ["python", "-c", "print('$x $$ ${replica_id}')", ""]
    wrapped = wrap(command, WORKSPACE)
    assert wrapped[:2] == ["sh", "-c"]
    assert unwrap(wrapped) == (WORKSPACE, command)


@pytest.mark.parametrize("command", [[], ["sh"], ["sh", "-c", "echo"], ["sh", "-c", SCRIPT, "x"]])
def test_other_commands_fetch_nothing(command):
    assert unwrap(command) == (None, command)


def test_second_wrap_replaces_first():
    other = WORKSPACE._replace(sha256="1" * 64)
    assert wrap(wrap(["train"], WORKSPACE), other) == wrap(["train"], other)


def test_empty_command_is_rejected():
    with pytest.raises(ValueError, match="no command"):
        wrap([], WORKSPACE)


def test_wrapped_command_is_deterministic_and_short():
    wrapped = wrap(["train"], WORKSPACE)
    assert wrap(["train"], WORKSPACE) == wrapped
    assert wrap(["train"], WORKSPACE._replace(sha256="1" * 64))[2] == wrapped[2]
    assert len(json.dumps(wrapped)) < OVERRIDE_CHARACTERS / 2


def test_torchx_replaces_nothing_in_script():
    """TorchX fills in arguments like Python's templates, whose escape is two dollar signs."""
    macros = {"img_root": "", "app_id": "name", "replica_id": "0", "rank0_env": "MAIN"}
    assert string.Template(SCRIPT).safe_substitute(macros) == SCRIPT


@pytest.mark.parametrize("shell", ["sh", "dash", "bash", "busybox"])
def test_shells_can_parse_script(shell):
    if shutil.which(shell) is None:  # every machine has sh; the others are additional checks
        pytest.skip(f"there is no {shell}")
    command = [shell, "sh"] if shell == "busybox" else [shell]
    subprocess.run([*command, "-n"], input=SCRIPT, text=True, check=True)
