"""TorchX's Runner with the ``aws_batch`` scheduler.

Starts jobs on the local AWS emulator, because states, logs and lists come from Batch.
tests/unit/torchx/batch tests how an app is converted to a job.
"""

import json
from datetime import UTC, datetime, timedelta

import boto3
import pytest
from torchx.runner import get_runner
from torchx.schedulers.api import Stream
from torchx.specs import AppState

from farcall import SettingsError
from farcall.torchx.batch.scheduler import BatchScheduler
from tests.support.patience import until
from tests.torchx.apps import CFG, QUEUE, app, ended, lines, role, running, waiting


def run(runner, *roles, **more):
    return runner.run(app(*roles, **more), "aws_batch", CFG)


@pytest.fixture
def go(tmp_path):
    return tmp_path / "go"


@pytest.fixture
def batch(aws):
    return boto3.client("batch")


# --- submission -------------------------------------------------------------------------------


def test_dry_run_request_can_be_submitted(runner, batch):
    info = runner.dryrun(app(role("exit 3")), "aws_batch", CFG)
    info.request.job["tags"]["team"] = "physics"
    name = info.request.name
    filters = [{"name": "JOB_NAME", "values": [name]}]
    assert batch.list_jobs(jobQueue=QUEUE, filters=filters)["jobSummaryList"] == []
    handle = runner.schedule(info)
    assert handle == f"aws_batch://torchx/{QUEUE}:{name}"
    found = ended(runner, handle)
    assert (found.state, found.num_restarts) == (AppState.FAILED, 0)
    with get_runner() as other:  # another runner than the submitter
        assert other.describe(handle).metadata["team"] == "physics"


# --- descriptions -----------------------------------------------------------------------------


@pytest.mark.core
def test_replicas_have_state_and_reason(runner, go):
    first = role(waiting(go), name="ps")
    workers = role("exit 0$AWS_BATCH_JOB_NODE_INDEX", name="worker", replicas=2)
    handle = run(runner, first, workers)

    def both_failed():
        found = runner.status(handle)
        states = [replica.state for replica in found.roles[1].replicas] if found.roles else []
        return states == [AppState.FAILED] * 2 and found

    found = until(both_failed)
    assert found.state is AppState.RUNNING
    assert found.roles[0].replicas[0].state is AppState.RUNNING
    codes = [json.loads(r.structured_error_msg)["errorCode"] for r in found.roles[1].replicas]
    assert codes == [1, 2]
    assert all(replica.hostname for replica in found.roles[1].replicas)
    go.touch()
    assert ended(runner, handle).state is AppState.SUCCEEDED


def _job_id(batch, handle):
    filters = [{"name": "JOB_NAME", "values": [handle.rpartition(":")[2]]}]
    return batch.list_jobs(jobQueue=QUEUE, filters=filters)["jobSummaryList"][0]["jobId"]


def test_native_request_can_be_resubmitted(runner):
    script = "echo $AWS_BATCH_JOB_NODE_INDEX $A"
    handle = run(runner, role(script, replicas=2, env={"A": "b"}))
    ended(runner, handle)
    info = runner.describe_native(handle)
    assert "RegisterJobDefinition:" in str(info)
    assert info.request.name == handle.rpartition(":")[2]
    info.request.name = f"again-{info.request.name}"
    app_id = BatchScheduler("again").schedule(info)
    again = f"aws_batch://torchx/{app_id}"
    assert ended(runner, again).state is AppState.SUCCEEDED
    assert lines(runner, again) == ["0 b\n"]


def test_unknown_app_returns_none(runner):
    handle = f"aws_batch://torchx/{QUEUE}:nothing-like-it"
    assert runner.status(handle) is None
    assert runner.describe(handle) is None
    assert runner.describe_native(handle) is None
    runner.cancel(handle)
    runner.delete(handle)
    scheduler = BatchScheduler("x")
    scheduler.cancel(f"{QUEUE}:nothing-like-it")
    assert not scheduler.exists(f"{QUEUE}:nothing-like-it")
    scheduler.close()


# --- TorchX's former scheduler ----------------------------------------------------------------


@pytest.fixture
def former(batch):
    """Submit an app like TorchX's former scheduler; return its handle."""

    def group(name, start, end, script):
        variables = {"TORCHX_ROLE_NAME": name, "TORCHX_ROLE_IDX": "0"}
        container = {
            "image": "alpine:3",
            "command": ["sh", "-c", script],
            "environment": [{"name": k, "value": v} for k, v in variables.items()],
            "resourceRequirements": [
                {"type": "VCPU", "value": "1"},
                {"type": "MEMORY", "value": "256"},
            ],
        }
        return {"targetNodes": f"{start}:{end}", "container": container}

    def submit(name, *groups):
        tags = {"torchx.pytorch.org/version": "0.7.0", "torchx.pytorch.org/user": "ann"}
        batch.register_job_definition(
            jobDefinitionName=name,
            type="multinode",
            nodeProperties={
                "numNodes": 3,
                "mainNode": 0,
                "nodeRangeProperties": [group(*each) for each in groups],
            },
            tags=tags,
        )
        batch.submit_job(jobName=name, jobQueue=QUEUE, jobDefinition=name, tags=tags)
        return f"aws_batch://torchx/{QUEUE}:{name}"

    return submit


def test_former_scheduler_app_is_described(runner, former, go):
    handle = former(
        "former-app", ("ps", 0, 0, f"{waiting(go)}; exit 5"), ("worker", 1, 2, "echo works")
    )
    found = runner.describe(handle)
    assert [(r.name, r.num_replicas) for r in found.roles] == [("ps", 1), ("worker", 2)]
    until(lambda: lines(runner, handle, "worker", 1) == ["works\n"])
    go.touch()
    found = ended(runner, handle)
    assert found.state is AppState.FAILED
    assert found.msg.startswith("the command failed (exit code 5)")
    assert lines(runner, handle, "ps") == ["waits\n", "went on\n"]
    mine = runner.list("aws_batch", {"queue": QUEUE, "user": "ann"})
    assert [(each.app_id, each.state) for each in mine] == [
        (f"{QUEUE}:former-app", AppState.FAILED)
    ]


# --- lists ------------------------------------------------------------------------------------


def test_list_filters_queue_user_and_state(runner):
    cfg = {**CFG, "user": "tester-of-lists"}
    first = runner.run(app(role("true")), "aws_batch", cfg)
    second = runner.run(app(role("exit 1")), "aws_batch", cfg)
    for handle in (first, second):
        ended(runner, handle)

    def listed(**cfg):
        found = runner.list("aws_batch", {"user": "tester-of-lists", **cfg})
        return [each.app_handle for each in found]

    assert listed() == listed(**CFG) == listed(queue="farcall-l*") == [second, first]
    assert listed(states=["FAILED"]) == [second]
    assert listed(states=[AppState.SUCCEEDED, AppState.CANCELLED]) == [first]
    assert first in [each.app_handle for each in runner.list("aws_batch")]
    with pytest.raises(SettingsError, match=r"states has 'DONE': .*CANCELLED"):
        listed(states=["DONE"])
    assert listed(queue="nowhere*") == []


# --- logs -------------------------------------------------------------------------------------


def test_lines_are_filtered(runner):
    before = datetime.now(UTC) - timedelta(minutes=1)
    handle = run(runner, role("seq 12"))
    ended(runner, handle)
    later = datetime.now(UTC) + timedelta(minutes=1)
    assert lines(runner, handle) == [f"{number}\n" for number in range(1, 13)]
    assert lines(runner, handle, regex="1$") == ["1\n", "11\n"]
    assert len(lines(runner, handle, since=before, until=later)) == 12
    assert lines(runner, handle, since=later) == []
    assert lines(runner, handle, until=before) == []
    assert len(lines(runner, handle, streams=Stream.COMBINED)) == 12


# --- cancel -----------------------------------------------------------------------------------


def test_cancel_names_the_user(runner, go, batch):
    handle = run(runner, role(waiting(go)))
    running(runner, handle)
    runner.cancel(handle)
    runner.cancel(handle)
    found = ended(runner, handle)
    assert found.state is AppState.CANCELLED
    assert found.roles[0].replicas[0].state is AppState.CANCELLED
    reason = batch.describe_jobs(jobs=[_job_id(batch, handle)])["jobs"][0]["statusReason"]
    assert reason.startswith("farcall: cancelled by ")
    assert " on " in reason
