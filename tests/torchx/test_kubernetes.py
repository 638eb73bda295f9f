"""TorchX's Runner and its command with the ``kubernetes_job`` scheduler.

Starts jobs on the local Kubernetes emulator, because states and logs come from pods.
tests/unit/torchx/kubernetes tests how an app is converted to documents.
"""

import json

import pytest
from torchx.runner import get_runner
from torchx.specs import AppState, Resource, macros

from tests.support.patience import until
from tests.torchx.apps import app, ended, lines, role, running, waiting

CFG = {"namespace": "default"}


@pytest.fixture
def runner(kubernetes):
    with get_runner() as made:
        yield made


@pytest.fixture
def go(tmp_path):
    return tmp_path / "go"


def run(runner, *roles, cfg=CFG, **more):
    return runner.run(app(*roles, **more), "kubernetes_job", cfg)


# --- one node ---------------------------------------------------------------------------------


def test_app_runs_and_is_described(runner):
    handle = run(runner, role("echo hello $A", env={"A": "b"}), metadata={"team": "x"})
    assert handle.startswith("kubernetes_job://torchx/default:app-")
    found = ended(runner, handle)
    assert (found.state, found.num_restarts, found.msg) == (AppState.SUCCEEDED, 0, "")
    assert lines(runner, handle) == ["hello b\n"]
    with get_runner() as other:  # another runner than the submitter
        described = other.describe(handle)
    [main] = described.roles
    assert (main.name, main.image, main.entrypoint) == ("main", "alpine:3", "sh")
    assert (main.env["A"], main.resource.memMB) == ("b", 256)
    assert described.metadata["team"] == "x"


def test_failed_app_has_exit_code(runner):
    found = ended(runner, run(runner, role("exit 3")))
    assert (found.state, found.num_restarts) == (AppState.FAILED, 0)
    assert "exit code 3" in found.msg
    [replica] = found.roles[0].replicas
    assert json.loads(replica.structured_error_msg)["errorCode"] == 3


# --- two nodes --------------------------------------------------------------------------------


def test_two_roles_run_together(runner, go):
    small = Resource(cpu=0.2, gpu=0, memMB=64)  # the emulator's node is as large as this machine
    script = f"echo works {macros.replica_id}; sleep 600"
    workers = role(script, name="worker", replicas=2, resource=small)
    handle = run(runner, role(waiting(go), name="ps", resource=small), workers)
    found = running(runner, handle)
    assert [(each.role, len(each.replicas)) for each in found.roles] == [("ps", 1), ("worker", 2)]
    for k in range(2):
        until(lambda k=k: lines(runner, handle, "worker", k) == [f"works {k}\n"])
    go.touch()
    assert ended(runner, handle).state is AppState.SUCCEEDED


# --- the command ------------------------------------------------------------------------------


@pytest.mark.parametrize("nodes", [2])
def test_command_supports_every_step(torchx_commands, kubernetes, nodes):
    torchx = torchx_commands.run
    asked = ("utils.sh", "--num_replicas", str(nodes), "--image", "alpine:3", "echo", "hi there")
    dry = torchx("run", "-s", "kubernetes_job", "--dryrun", "--workspace", "", *asked)
    assert dry.returncode == 0, dry.stderr
    assert "kind: Job" in dry.stdout
    done = torchx("run", "-s", "kubernetes_job", "--workspace", "", "--wait", "--log", *asked)
    assert done.returncode == 0, done.stderr
    assert "hi there" in done.stderr
    handle = done.stdout.split()[0]
    status = json.loads(torchx("status", "--json", handle).stdout)
    assert status["state"] == "SUCCEEDED"
    described = torchx("describe", handle)
    assert described.returncode == 0
    assert "hi there" in described.stdout
    log = torchx("log", f"{handle}/sh/{nodes - 1}")
    assert "hi there" in log.stdout + log.stderr
    assert handle in torchx("list", "-s", "kubernetes_job").stdout
    assert torchx("cancel", handle).returncode == 0
    assert torchx("delete", handle).returncode == 0
    until(lambda: torchx("status", handle).returncode == 1)
