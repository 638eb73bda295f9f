"""The command that fetches a workspace, put around another one and taken off again.

What it does is tested where it runs: tests/service/test_workspaces.py.
"""

from __future__ import annotations

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


def test_a_command_comes_back_as_it_was_put_in():
    command = ["python", "-c", "print('$x $$ ${replica_id}')", ""]
    wrapped = wrap(command, WORKSPACE)
    assert wrapped[:2] == ["sh", "-c"]
    assert unwrap(wrapped) == (WORKSPACE, command)


@pytest.mark.parametrize("command", [[], ["sh"], ["sh", "-c", "echo"], ["sh", "-c", SCRIPT, "x"]])
def test_other_commands_fetch_nothing(command):
    assert unwrap(command) == (None, command)


def test_a_command_fetches_one_workspace():
    other = WORKSPACE._replace(sha256="1" * 64)
    assert wrap(wrap(["train"], WORKSPACE), other) == wrap(["train"], other)


def test_there_is_no_workspace_for_an_image_s_own_command():
    with pytest.raises(ValueError, match="no command"):
        wrap([], WORKSPACE)


def test_equal_workspaces_and_commands_give_equal_commands_that_leave_room_for_others():
    wrapped = wrap(["train"], WORKSPACE)
    assert wrap(["train"], WORKSPACE) == wrapped
    assert wrap(["train"], WORKSPACE._replace(sha256="1" * 64))[2] == wrapped[2]
    assert len(json.dumps(wrapped)) < OVERRIDE_CHARACTERS / 2


def test_torchx_replaces_nothing_in_the_script():
    """It fills arguments in as Python's templates are, whose escape is two dollars."""
    macros = {"img_root": "", "app_id": "name", "replica_id": "0", "rank0_env": "MAIN"}
    assert string.Template(SCRIPT).safe_substitute(macros) == SCRIPT


@pytest.mark.parametrize("shell", ["sh", "dash", "bash", "busybox"])
def test_shells_can_read_it(shell):
    if shutil.which(shell) is None:  # sh is everywhere, the others are further readers of it
        pytest.skip(f"there is no {shell}")
    command = [shell, "sh"] if shell == "busybox" else [shell]
    subprocess.run([*command, "-n"], input=SCRIPT, text=True, check=True)
