"""TorchX's Runner and its command with kubernetes_job, on the embedded Kubernetes."""

from __future__ import annotations

import json
from contextlib import closing
from datetime import datetime, timedelta, timezone

import pytest
from torchx.runner import get_runner
from torchx.schedulers.api import Stream
from torchx.specs import AppState, Resource, macros

from farcall import SettingsError, UnknownError
from farcall.torchx.kubernetes.scheduler import KubernetesScheduler
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


def test_an_app_runs_and_tells_of_itself(runner):
    handle = run(runner, role("echo hello $A", env={"A": "b"}), metadata={"team": "x"})
    assert handle.startswith("kubernetes_job://torchx/default:app-")
    found = ended(runner, handle)
    assert (found.state, found.num_restarts, found.msg) == (AppState.SUCCEEDED, 0, "")
    assert lines(runner, handle) == ["hello b\n"]
    with get_runner() as other:  # which has not submitted it
        described = other.describe(handle)
    [main] = described.roles
    assert (main.name, main.image, main.entrypoint) == ("main", "alpine:3", "sh")
    assert (main.env["A"], main.resource.memMB) == ("b", 256)
    assert described.metadata["team"] == "x"


def test_a_failed_app_says_why(runner):
    found = ended(runner, run(runner, role("exit 3")))
    assert (found.state, found.num_restarts) == (AppState.FAILED, 0)
    assert "exit code 3" in found.msg
    [replica] = found.roles[0].replicas
    assert json.loads(replica.structured_error_msg)["errorCode"] == 3


def test_attempts_are_counted_as_restarts(runner):
    handle = run(runner, role("echo try; exit 1", max_retries=1))
    found = ended(runner, handle)
    assert (found.state, found.num_restarts) == (AppState.FAILED, 1)
    assert lines(runner, handle) == ["try\n", "try\n"]


def test_a_cancelled_app_keeps_its_record_and_a_deleted_one_does_not(runner, go):
    handle = run(runner, role(waiting(go)))
    running(runner, handle)
    runner.cancel(handle)
    found = ended(runner, handle)
    assert found.state is AppState.CANCELLED
    until(lambda: "with TorchX" in runner.status(handle).msg)
    assert runner.describe_native(handle).request.name == handle.rpartition(":")[2]
    runner.delete(handle)
    until(lambda: runner.status(handle) is None)
    runner.delete(handle)
    runner.cancel(handle)


def test_what_is_not_there_is_none(runner):
    handle = "kubernetes_job://torchx/default:nothing-like-it"
    assert runner.status(handle) is None
    assert runner.describe(handle) is None
    assert runner.describe_native(handle) is None
    with closing(KubernetesScheduler("x")) as scheduler:
        assert not scheduler.exists("default:nothing-like-it")
        with pytest.raises(UnknownError, match="no app default:nothing-like-it"):
            list(scheduler.log_iter("default:nothing-like-it", "main"))


# --- two nodes --------------------------------------------------------------------------------


def test_two_replicas_know_each_other(runner, go):
    said = (
        f"echo replica {macros.replica_id} $ME of $FARCALL_NODE_COUNT at ${{{macros.rank0_env}}}"
    )
    script = f"{said}; {waiting(go)}"
    handle = run(runner, role(script, replicas=2, env={"ME": f"no{macros.replica_id}"}))
    for k in range(2):
        # As long as both run: with the main one's end the other's pod is gone, and its log.
        found = until(lambda k=k: lines(runner, handle, k=k))
        assert found[0].startswith(f"replica {k} no{k} of 2 at ")
    go.touch()
    assert ended(runner, handle).state is AppState.SUCCEEDED


def test_two_roles_are_an_app(runner, go):
    small = Resource(cpu=0.2, gpu=0, memMB=64)  # the embedded node is as large as this machine
    script = f"echo works {macros.replica_id}; sleep 600"
    workers = role(script, name="worker", replicas=2, resource=small)
    handle = run(runner, role(waiting(go), name="ps", resource=small), workers)
    found = running(runner, handle)
    assert [(each.role, len(each.replicas)) for each in found.roles] == [("ps", 1), ("worker", 2)]
    for k in range(2):
        until(lambda k=k: lines(runner, handle, "worker", k) == [f"works {k}\n"])
    go.touch()
    assert ended(runner, handle).state is AppState.SUCCEEDED


# --- requests ---------------------------------------------------------------------------------


def test_a_dry_run_asks_nobody(monkeypatch, tmp_path):
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    with get_runner() as runner:
        info = runner.dryrun(app(role("true")), "kubernetes_job", CFG)
    assert info.request.app_id.startswith("default:app-")
    assert "kind: Job" in str(info)


def test_an_edited_request_is_submitted_as_it_is(runner):
    info = runner.dryrun(app(role("echo as it was")), "kubernetes_job", CFG)
    info.request.name = f"edited-{info.request.name}"[:50]
    template = info.request.objects[-1]["spec"]["template"]
    template["spec"]["containers"][0]["command"] = ["sh", "-c", "echo edited"]
    handle = runner.schedule(info)
    assert ":edited-" in handle
    assert ended(runner, handle).state is AppState.SUCCEEDED
    assert lines(runner, handle) == ["edited\n"]


def test_the_server_refuses_before_anything_is_made(runner, kubernetes):
    info = runner.dryrun(app(role("true"), role("true", "y")), "kubernetes_job", CFG)
    info.request.objects[-1]["spec"]["template"]["spec"]["restartPolicy"] = "Sometimes"
    before = len(runner.list("kubernetes_job", CFG))
    with pytest.raises(Exception, match="restartPolicy"):
        runner.schedule(info)
    assert len(runner.list("kubernetes_job", CFG)) == before


def test_the_native_request_is_read_back_and_runs_again(runner):
    handle = run(runner, role("echo $A", env={"A": "$$b $$(c)"}))
    ended(runner, handle)
    info = runner.describe_native(handle)
    info.request.name = "again"
    with closing(KubernetesScheduler("again")) as scheduler:
        app_id = scheduler.schedule(info)
    again = f"kubernetes_job://torchx/{app_id}"
    assert ended(runner, again).state is AppState.SUCCEEDED
    assert lines(runner, again) == lines(runner, handle)


# --- lists and logs ---------------------------------------------------------------------------


def test_apps_are_listed_by_user_and_state(runner):
    cfg = {**CFG, "user": "tester-of-lists"}
    first = run(runner, role("true"), cfg=cfg)
    ended(runner, first)
    second = run(runner, role("exit 1"), cfg=cfg)
    ended(runner, second)

    def listed(**more):
        found = runner.list("kubernetes_job", {"user": "tester-of-lists", **more})
        return [each.app_handle for each in found]

    assert set(listed()) == set(listed(**CFG)) == {first, second}
    assert listed(states=["FAILED"]) == [second]
    assert listed(queue="nowhere") == []


def test_lines_are_chosen_by_time_and_text(runner):
    before = datetime.now(timezone.utc) - timedelta(minutes=1)
    handle = run(runner, role("seq 12"))
    ended(runner, handle)
    later = datetime.now() + timedelta(minutes=1)  # noqa: DTZ005  # local, as TorchX has it
    assert lines(runner, handle) == [f"{number}\n" for number in range(1, 13)]
    assert lines(runner, handle, regex="1$") == ["1\n", "11\n"]
    assert len(lines(runner, handle, since=before, until=later)) == 12
    assert lines(runner, handle, since=later) == lines(runner, handle, until=before) == []
    assert len(lines(runner, handle, streams=Stream.COMBINED)) == 12
    with pytest.raises(SettingsError, match="combined is allowed"):
        lines(runner, handle, streams=Stream.STDERR)
    with pytest.raises(SettingsError, match="no replica 1"):
        lines(runner, handle, k=1)


def test_who_follows_waits_for_the_container_and_gets_the_last_line(runner, go):
    handle = run(runner, role(waiting(go)))
    found = []
    for line in runner.log_lines(handle, "main", 0, should_tail=True):
        found.append(line)
        go.touch()
    assert found == ["waits\n", "went on\n"]


# --- the command ------------------------------------------------------------------------------


@pytest.mark.parametrize("nodes", [1, 2])
def test_every_step_of_the_command(torchx_commands, kubernetes, nodes):
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
