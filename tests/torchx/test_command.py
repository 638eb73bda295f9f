"""The ``torchx`` command with the ``aws_batch`` scheduler.

Starts the command and jobs on the local AWS emulator. Slow, because every step imports TorchX in
a new process.
"""

import json

import pytest

from tests.support.patience import until
from tests.torchx.apps import QUEUE

pytestmark = pytest.mark.slow  # starts the command many times

ON_BATCH = ("run", "-s", "aws_batch", "-cfg", f"queue={QUEUE}", "--workspace", "")


TORCHRUN = """#!/bin/sh
for each in "$@"; do echo "<$each>"; done
touch {here}/ran-$AWS_BATCH_JOB_NODE_INDEX
until [ $(ls {here} | grep -c ran-) = {nodes} ]; do sleep 0.05; done
"""


def sh(script):
    """Return a component that runs a script."""
    return ("utils.sh", "--image", "alpine:3", "--", "sh", "-c", script)


@pytest.fixture
def output(torchx):
    """Run a command that must succeed; return its stdout."""

    def run(*arguments, **environment):
        done = torchx(*arguments, **environment)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


@pytest.fixture
def refused(torchx):
    """Run a command that must fail; return its only error message."""

    def run(*arguments, **environment):
        done = torchx(*arguments, **environment)
        assert done.returncode == 1
        assert "Traceback" not in done.stderr
        said = [line for line in done.stderr.splitlines() if "ERROR" in line]
        assert len(said) == 1, done.stderr
        return said[0].partition("ERROR")[2].strip()

    return run


@pytest.fixture
def status(output):
    return lambda handle: json.loads(output("status", "--json", handle))


@pytest.fixture
def ended(status):
    return lambda handle: until(lambda: (s := status(handle))["state"] in _ENDED and s)


_ENDED = ("SUCCEEDED", "FAILED", "CANCELLED")


# --- one node ---------------------------------------------------------------------------------


def test_app_is_run_and_shown(output, launched, ended):
    handle = launched(*sh("echo hi; echo more"))
    found = ended(handle)
    assert (found["state"], found["num_restarts"], found["msg"]) == ("SUCCEEDED", 0, "")
    assert found["app_id"] == handle.rpartition("/")[2]
    [replica] = found["roles"][0]["replicas"]
    assert (replica["role"], replica["id"]) == ("sh", 0)
    assert "State: SUCCEEDED" in output("status", handle)
    assert "'entrypoint': 'sh'" in output("describe", handle)
    shown = output("log", handle)
    assert shown == "sh/0 hi\nsh/0 more\n"
    assert f"{handle}  " in output("list", "-s", "aws_batch", "-cfg", f"queue={QUEUE}")


# --- several nodes ----------------------------------------------------------------------------


@pytest.mark.parametrize("component", ["dist.ddp"])
@pytest.mark.parametrize("nodes", [2])
def test_torchrun_gets_rendezvous_address(output, ended, tmp_path, component, nodes):
    torchrun = tmp_path / "torchrun"
    torchrun.write_text(TORCHRUN.format(here=tmp_path, nodes=nodes))
    torchrun.chmod(0o755)
    handle = output(
        *ON_BATCH,
        *(component, "-j", f"{nodes}x2", "--script", "train.py", "--image", "alpine:3"),
        *("--cpu", "1", "--memMB", "256", "--env", f"PATH={tmp_path}:/usr/bin:/bin"),
    ).strip()
    assert ended(handle)["state"] == "SUCCEEDED"
    shown = output("log", f"{handle}/train/{nodes - 1}")
    assert "<--nnodes>" in shown
    assert f"<{nodes}>" in shown or f"<{nodes}:{nodes}>" in shown
    assert "<train.py>" in shown
    assert ("<127.0.0.1:29500>" in shown) == (nodes == 2)


# --- errors -----------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["status", "log"])
def test_missing_queue_is_reported(refused, what):
    said = refused(what, "aws_batch://torchx/nowhere:app")
    expected = "queue is 'nowhere', which does not exist in us-east-1 (from FARCALL_REGION)"
    assert said.startswith(f"{expected}; its queues are {QUEUE}")
