"""The ``torchx`` command on the embedded AWS."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.support.commands import TORCHX
from tests.support.patience import until
from tests.support.proxy import Proxy
from tests.torchx.apps import QUEUE

pytestmark = pytest.mark.slow  # the command itself, many times

ON_BATCH = ("run", "-s", "aws_batch", "-cfg", f"queue={QUEUE}", "--workspace", "")

ROLES = """
import torchx.specs as specs


def roles(trainer: str, worker: str, workers: int = 2) -> specs.AppDef:
    '''Run a trainer and workers.

    Args:
        trainer: what the trainer runs
        worker: what a worker runs
        workers: how many there are
    '''
    def role(name: str, script: str, number: int) -> specs.Role:
        return specs.Role(
            name=name, image="alpine:3", entrypoint="sh", args=["-c", script],
            num_replicas=number, resource=specs.Resource(cpu=1, gpu=0, memMB=256),
        )
    return specs.AppDef(
        name="roles", roles=[role("trainer", trainer, 1), role("worker", worker, workers)]
    )
"""

TORCHRUN = """#!/bin/sh
for each in "$@"; do echo "<$each>"; done
touch {here}/ran-$AWS_BATCH_JOB_NODE_INDEX
until [ $(ls {here} | grep -c ran-) = {nodes} ]; do sleep 0.05; done
"""


def sh(script):
    """Return a component that runs a script."""
    return ("utils.sh", "--image", "alpine:3", "--", "sh", "-c", script)


@pytest.fixture
def told(torchx):
    """Run a command that is to go well; return what it printed."""

    def run(*arguments, **environment):
        done = torchx(*arguments, **environment)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


@pytest.fixture
def refused(torchx):
    """Run a command that is to fail; return the one sentence that it says."""

    def run(*arguments, **environment):
        done = torchx(*arguments, **environment)
        assert done.returncode == 1
        assert "Traceback" not in done.stderr
        said = [line for line in done.stderr.splitlines() if "ERROR" in line]
        assert len(said) == 1, done.stderr
        return said[0].partition("ERROR")[2].strip()

    return run


@pytest.fixture
def status(told):
    return lambda handle: json.loads(told("status", "--json", handle))


@pytest.fixture
def ended(status):
    return lambda handle: until(lambda: (s := status(handle))["state"] in _ENDED and s)


_ENDED = ("SUCCEEDED", "FAILED", "CANCELLED")


# --- before anything runs ---------------------------------------------------------------------


def test_runopts_lists_the_options(told):
    said = told("runopts", "aws_batch")
    assert "required arguments:\n        queue=QUEUE (str)" in said
    assert "timeout_s" in said


def test_a_dry_run_shows_app_and_request_and_submits_nothing(told):
    before = told("list", "-s", "aws_batch", "-cfg", f"queue={QUEUE}")
    said = told(*ON_BATCH, "--dryrun", *sh("echo hi"))
    application, _, request = said.partition("=== SCHEDULER REQUEST ===")
    assert "'image': 'alpine:3'" in application
    assert "SubmitJob:\n" in request
    assert f"jobQueue: {QUEUE}" in request
    assert told("list", "-s", "aws_batch", "-cfg", f"queue={QUEUE}") == before


def test_a_dry_run_as_json(told):
    found = json.loads(told(*ON_BATCH, "--dryrun", "--json", *sh("echo hi")))
    assert found["cfg"]["queue"] == QUEUE
    assert found["request"]["job"]["jobQueue"] == QUEUE
    assert found["app"]["roles"][0]["image"] == "alpine:3"


def test_the_queue_is_a_required_option(refused):
    assert "queue" in refused("run", "-s", "aws_batch", "--workspace", "", *sh("echo hi"))


@pytest.fixture
def installed(aws):
    """Run the command as it is installed: it reads its files when it is imported."""

    def run(*arguments):
        done = subprocess.run([TORCHX, *arguments], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


def test_torchxconfig_names_scheduler_and_options(installed, ended):
    Path(".torchxconfig").write_text(
        f"[cli:run]\nscheduler = aws_batch\nworkspace =\n\n[aws_batch]\nqueue = {QUEUE}\n"
    )
    handle = installed("run", *sh("echo hi")).strip()
    assert handle.startswith(f"aws_batch://torchx/{QUEUE}:sh-")
    assert ended(handle)["state"] == "SUCCEEDED"


def test_torchxconfig_keeps_another_scheduler_the_default(installed):
    Path(".torchxconfig").write_text("[cli:run]\nscheduler = local_cwd\n")
    found = json.loads(installed("run", "--dryrun", "--json", *sh("echo hi")))
    assert found["scheduler"] == "local_cwd"


# --- one node ---------------------------------------------------------------------------------


def test_an_app_is_told_of_from_its_submission_to_its_end(told, launched, ended):
    handle = launched(*sh("echo hi; echo more"))
    found = ended(handle)
    assert (found["state"], found["num_restarts"], found["msg"]) == ("SUCCEEDED", 0, "")
    assert found["app_id"] == handle.rpartition("/")[2]
    [replica] = found["roles"][0]["replicas"]
    assert (replica["role"], replica["id"]) == ("sh", 0)
    assert "State: SUCCEEDED" in told("status", handle)
    assert "'entrypoint': 'sh'" in told("describe", handle)
    shown = told("log", handle)
    assert shown == "sh/0 hi\nsh/0 more\n"
    assert f"{handle}  " in told("list", "-s", "aws_batch", "-cfg", f"queue={QUEUE}")


def test_a_run_as_json(told):
    found = json.loads(told(*ON_BATCH, "--json", *sh("true")))
    assert found["handle"] == f"aws_batch://torchx/{found['app_id']}"
    assert found["scheduler"] == "aws_batch"


@pytest.mark.parametrize("code", [0, 3])
def test_a_run_that_waits_ends_as_its_command(torchx, code):
    done = torchx(*ON_BATCH, "--wait", "--log", *sh(f"echo hi; exit {code}"))
    assert done.returncode == (1 if code else 0)
    assert "sh/0 hi\n" in done.stderr
    assert ("exit code 3" in done.stderr) == bool(code)


def test_a_failure_is_told_with_exit_code_and_reason(told, launched, ended):
    handle = launched(*sh("exit 3"))
    found = ended(handle)
    assert found["state"] == "FAILED"
    assert found["msg"].startswith("the command failed (exit code 3)")
    assert json.loads(found["structured_error_msg"])["errorCode"] == 3
    assert "FAILED (exitcode: 3)" in told("status", handle)


def test_a_log_is_followed_to_its_last_line(told, launched, tmp_path):
    script = f"echo one; until [ -e {tmp_path}/go ]; do sleep 0.05; done; seq 100"
    handle = launched(*sh(script))
    Path(tmp_path, "go").touch()
    shown = told("log", "--tail", handle)
    assert [line.split()[-1] for line in shown.splitlines()] == ["one", *map(str, range(1, 101))]


def test_a_log_is_filtered(told, launched, ended):
    handle = launched(*sh("seq 30"))
    ended(handle)
    shown = told("log", "--regex", "7$", handle)
    assert [line.split()[-1] for line in shown.splitlines()] == ["7", "17", "27"]


def test_control_characters_in_a_log_are_shown_and_not_obeyed(told, launched, ended):
    handle = launched(*sh("printf 'a\\033]0;title\\007b\\n'"))
    ended(handle)
    assert "a^[]0;title^Gb" in told("log", handle)


def test_a_cancelled_app_says_who_did_it(told, launched, ended, tmp_path):
    handle = launched(*sh("sleep 600"))
    assert told("cancel", handle) == ""
    found = ended(handle)
    assert found["state"] == "CANCELLED"
    assert "cancelled by " in found["msg"]
    told("cancel", handle)
    assert ended(handle)["state"] == "CANCELLED"


def test_deleting_an_app_ends_it(told, launched, ended):
    handle = launched(*sh("sleep 600"))
    told("delete", handle)
    assert ended(handle)["state"] == "CANCELLED"
    told("delete", handle)


def test_an_app_is_found_without_its_queue(launched, ended):
    handle = launched(*sh("true"))
    assert ended(handle.replace(f"{QUEUE}:", ""))["state"] == "SUCCEEDED"


# --- several nodes ----------------------------------------------------------------------------


def test_roles_and_replicas_have_states_and_logs_of_their_own(told, ended, tmp_path):
    Path("apps.py").write_text(ROLES)
    until_both = f"until [ $(ls {tmp_path} | grep -c worked-) = 2 ]; do sleep 0.05; done"
    works = (
        f"echo works $AWS_BATCH_JOB_NODE_INDEX; touch {tmp_path}/worked-$AWS_BATCH_JOB_NODE_INDEX"
    )
    component = ("apps.py:roles", "--trainer", f"echo trains; {until_both}", "--worker", works)
    handle = told(*ON_BATCH, *component)
    found = ended(handle.strip())
    assert found["state"] == "SUCCEEDED"
    replicas = [(r["role"], len(r["replicas"])) for r in found["roles"]]
    assert replicas == [("trainer", 1), ("worker", 2)]
    assert told("log", f"{handle.strip()}/worker/1").endswith(" works 2\n")
    every = told("log", handle.strip())
    assert sorted(every.splitlines()) == [
        "trainer/0 trains",
        "worker/0 works 1",
        "worker/1 works 2",
    ]
    shown = json.loads(told("status", "--json", "--roles", "worker", handle.strip()))
    assert [role["role"] for role in shown["roles"]] == ["worker"]


@pytest.mark.parametrize("component", ["dist.torchrun", "dist.ddp"])
@pytest.mark.parametrize("nodes", [1, 2])
def test_torchrun_is_told_where_its_nodes_meet(told, ended, tmp_path, component, nodes):
    torchrun = tmp_path / "torchrun"
    torchrun.write_text(TORCHRUN.format(here=tmp_path, nodes=nodes))
    torchrun.chmod(0o755)
    handle = told(
        *ON_BATCH,
        *(component, "-j", f"{nodes}x2", "--script", "train.py", "--image", "alpine:3"),
        *("--cpu", "1", "--memMB", "256", "--env", f"PATH={tmp_path}:/usr/bin:/bin"),
    ).strip()
    assert ended(handle)["state"] == "SUCCEEDED"
    shown = told("log", f"{handle}/train/{nodes - 1}")
    assert "<--nnodes>" in shown
    assert f"<{nodes}>" in shown or f"<{nodes}:{nodes}>" in shown
    assert "<train.py>" in shown
    assert ("<127.0.0.1:29500>" in shown) == (nodes == 2)


# --- what goes wrong --------------------------------------------------------------------------


def test_an_app_that_is_not_there(refused):
    said = refused("status", f"aws_batch://torchx/{QUEUE}:nothing-like-it")
    assert "does not exist" in said


@pytest.mark.parametrize("what", ["status", "describe", "cancel", "delete", "log"])
def test_a_queue_that_is_not_there(refused, what):
    said = refused(what, "aws_batch://torchx/nowhere:app")
    expected = "queue is 'nowhere': there is no such job queue in this account and region"
    assert said == f"{expected}, but 1 queue ({QUEUE})"


def test_a_role_and_a_replica_that_are_not_there(refused, launched, ended):
    handle = launched(*sh("true"))
    name = handle.rpartition(":")[2]
    ended(handle)
    assert refused("log", f"{handle}/ps/0") == f"app {name} has no role 'ps': its roles are sh"
    said = refused("log", f"{handle}/sh/5")
    assert said == f"role sh of {name} has no replica 5: it has replica 0 alone"
    assert "combined is allowed" in refused("log", "--streams", "stdout", f"{handle}/sh/0")


def test_no_credentials(refused, monkeypatch):
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    said = refused("status", f"aws_batch://torchx/{QUEUE}:app")
    assert said.startswith("no AWS credentials were found")


def test_keys_that_aws_does_not_take(refused):
    said = refused("list", "-s", "aws_batch", AWS_SECRET_ACCESS_KEY="wrong")
    assert "AWS does not take them" in said or "permission" in said


@pytest.fixture
def proxied(aws):
    with Proxy(aws.endpoint_url) as running:
        yield running


def test_a_throttled_account_is_waited_for(told, proxied):
    proxied.faults["batch listjobs"] += ["throttled"] * 3
    assert "APP HANDLE" in told("list", "-s", "aws_batch", AWS_ENDPOINT_URL=proxied.url)
