"""TorchX's Runner, driven from Python, on the embedded AWS."""

from __future__ import annotations

import json
import threading
from datetime import datetime, timedelta, timezone

import boto3
import pytest
from torchx.runner import get_runner
from torchx.schedulers.api import Stream
from torchx.specs import AppState

from farcall import FarcallError, SettingsError
from farcall.torchx.batch.scheduler import BatchScheduler
from tests.support.patience import until
from tests.support.proxy import Proxy
from tests.torchx.apps import CFG, QUEUE, app, ended, lines, role, running, waiting

REPLICAS = 16


def run(runner, *roles, **more):
    return runner.run(app(*roles, **more), "aws_batch", CFG)


@pytest.fixture
def go(tmp_path):
    return tmp_path / "go"


@pytest.fixture
def batch(aws):
    return boto3.client("batch")


# --- submitted --------------------------------------------------------------------------------


def test_a_dry_run_submits_nothing_and_its_request_is_what_is_submitted(runner, batch):
    info = runner.dryrun(app(role("exit 3")), "aws_batch", CFG)
    info.request.job["tags"]["team"] = "physics"
    name = info.request.name
    filters = [{"name": "JOB_NAME", "values": [name]}]
    assert batch.list_jobs(jobQueue=QUEUE, filters=filters)["jobSummaryList"] == []
    handle = runner.schedule(info)
    assert handle == f"aws_batch://torchx/{QUEUE}:{name}"
    found = ended(runner, handle)
    assert (found.state, found.num_restarts) == (AppState.FAILED, 0)
    with get_runner() as other:  # which has not submitted it
        assert other.describe(handle).metadata["team"] == "physics"


def test_an_edited_request_is_submitted_as_it_is(runner):
    info = runner.dryrun(app(role("echo as it was")), "aws_batch", CFG)
    info.request.name = f"edited-{info.request.name}"
    overrides = info.request.job["containerOverrides"]
    overrides["command"] = ["sh", "-c", "echo edited"]
    handle = runner.schedule(info)
    assert ":edited-" in handle
    assert ended(runner, handle).state is AppState.SUCCEEDED
    assert lines(runner, handle) == ["edited\n"]


def test_equal_apps_share_a_definition(runner, batch):
    for _ in range(2):
        ended(runner, run(runner, role("true", name="shared")))
    names = runner.list("aws_batch", CFG)[:2]
    found = [batch.list_jobs(jobQueue=QUEUE, filters=[_named(each)]) for each in names]
    definitions = {one["jobSummaryList"][0]["jobDefinition"] for one in found}
    assert len(definitions) == 1


def _named(listed):
    return {"name": "JOB_NAME", "values": [listed.app_id.partition(":")[2]]}


# --- described --------------------------------------------------------------------------------


def test_an_app_tells_what_it_was_submitted_as(runner):
    workers = role("echo $0", name="worker", replicas=2, env={"A": "1"}, max_retries=1)
    handle = run(runner, role("true", name="ps"), workers, metadata={"team": "x"})
    with get_runner() as other:
        found = other.describe(handle)
    assert [(r.name, r.num_replicas) for r in found.roles] == [("ps", 1), ("worker", 2)]
    second = found.roles[1]
    assert (second.image, second.entrypoint, second.args) == ("alpine:3", "sh", ["-c", "echo $0"])
    assert second.env["A"] == "1"
    assert "FARCALL_RUN" not in second.env
    assert (second.resource.cpu, second.resource.memMB, second.max_retries) == (1, 256, 1)
    assert found.metadata["team"] == "x"
    runner.cancel(handle)
    ended(runner, handle)


def test_the_scheduler_asks_twice_for_an_app_and_then_once(aws, monkeypatch):
    with get_runner() as runner:
        handle = run(runner, role("true", replicas=3))
        ended(runner, handle)
    with Proxy(aws.endpoint_url) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
        with get_runner() as other:
            assert other.status(handle).state is AppState.SUCCEEDED
            assert proxy.of("batch") == {"listjobs": 1, "describejobs": 1}
            assert other.status(handle).state is AppState.SUCCEEDED
            assert proxy.of("batch") == {"listjobs": 1, "describejobs": 2}
        assert proxy.of("logs") == {}


def test_attempts_are_counted_as_restarts(runner):
    handle = run(runner, role("exit 1", max_retries=2))
    found = ended(runner, handle)
    assert (found.state, found.num_restarts) == (AppState.FAILED, 2)
    assert "after 3 attempts" in found.msg


def test_each_replica_has_a_state_and_a_reason(runner, go):
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


def test_a_waiting_app_says_why(runner, batch):
    info = runner.dryrun(app(role("true")), "aws_batch", CFG)
    first = run(runner, role("sleep 600"))
    info.request.job["dependsOn"] = [{"jobId": _job_id(batch, first)}]
    handle = runner.schedule(info)
    found = runner.status(handle)
    assert found.state is AppState.PENDING
    assert found.msg == "the job waits for other jobs that it depends on"
    runner.cancel(first)
    runner.cancel(handle)
    assert ended(runner, handle).state in (AppState.CANCELLED, AppState.FAILED)


def _job_id(batch, handle):
    filters = [{"name": "JOB_NAME", "values": [handle.rpartition(":")[2]]}]
    return batch.list_jobs(jobQueue=QUEUE, filters=filters)["jobSummaryList"][0]["jobId"]


def test_the_native_request_is_read_back_and_runs_again(runner):
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


def test_what_is_not_there_is_none(runner):
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


def test_several_jobs_of_one_name_are_the_newest(runner, batch):
    handles = [run(runner, role(f"exit {code}")) for code in (1, 2)]
    [*_, last] = [ended(runner, handle) for handle in handles]
    definition = batch.describe_jobs(jobs=[_job_id(batch, handles[1])])["jobs"][0]["jobDefinition"]
    for code in (3, 4):
        overrides = {"command": ["sh", "-c", f"exit {code}"]}
        newest = batch.submit_job(
            jobName="namesakes",
            jobQueue=QUEUE,
            jobDefinition=definition,
            containerOverrides=overrides,
        )
        until(lambda job=newest: _status(batch, job["jobId"]) == "FAILED")
    found = runner.status(f"aws_batch://torchx/{QUEUE}:namesakes")
    assert "exit code 4" in found.msg
    assert found.msg.endswith("this is the newest of 2 jobs of this name")
    assert last.state is AppState.FAILED


def _status(batch, job_id):
    return batch.describe_jobs(jobs=[job_id])["jobs"][0]["status"]


# --- of TorchX's former scheduler -------------------------------------------------------------


@pytest.fixture
def former(batch):
    """An app as TorchX's former scheduler submitted it."""

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


def test_an_app_of_the_former_scheduler_is_told_of_by_its_old_handle(runner, former, go):
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


def test_an_app_of_the_former_scheduler_is_cancelled(runner, former):
    handle = former("former-cancelled", ("ps", 0, 2, "sleep 600"))
    runner.cancel(handle)
    assert ended(runner, handle).state is AppState.CANCELLED


# --- lists ------------------------------------------------------------------------------------


def test_apps_are_listed_by_queue_user_and_state(runner):
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
    with pytest.raises(SettingsError, match="no such job queue"):
        listed(queue="nowhere*")


def test_a_list_has_more_than_a_page(aws, batch):
    definition = {
        "image": "alpine:3",
        "command": ["true"],
        "resourceRequirements": [
            {"type": "VCPU", "value": "1"},
            {"type": "MEMORY", "value": "64"},
        ],
    }
    batch.register_job_definition(
        jobDefinitionName="many", type="container", containerProperties=definition
    )
    tags = {"torchx.pytorch.org/version": "0.7.0", "torchx.pytorch.org/user": "many"}
    first, *rest = [
        batch.submit_job(jobName=f"many-{n}", jobQueue=QUEUE, jobDefinition="many", tags=tags)
        for n in range(101)
    ]
    with get_runner() as runner:
        found = runner.list("aws_batch", {**CFG, "user": "many"})
        assert [each.app_id for each in found] == [f"{QUEUE}:many-{n}" for n in range(100, -1, -1)]
    for job in (first, *rest):
        batch.terminate_job(jobId=job["jobId"], reason="enough")


# --- logs -------------------------------------------------------------------------------------


def test_lines_are_chosen_by_time_and_text(runner):
    before = datetime.now(timezone.utc) - timedelta(minutes=1)
    handle = run(runner, role("seq 12"))
    ended(runner, handle)
    later = datetime.now(timezone.utc) + timedelta(minutes=1)
    assert lines(runner, handle) == [f"{number}\n" for number in range(1, 13)]
    assert lines(runner, handle, regex="1$") == ["1\n", "11\n"]
    assert len(lines(runner, handle, since=before, until=later)) == 12
    assert lines(runner, handle, since=later) == []
    assert lines(runner, handle, until=before) == []
    assert len(lines(runner, handle, streams=Stream.COMBINED)) == 12


def test_wrong_arguments_are_value_errors(runner):
    handle = run(runner, role("true", name="ps"), role("true", name="worker", replicas=2))
    with pytest.raises(ValueError, match="no role 'main': its roles are ps, worker"):
        lines(runner, handle)
    with pytest.raises(ValueError, match="no replica 2: it has replicas 0 to 1"):
        lines(runner, handle, "worker", 2)
    with pytest.raises(ValueError, match="combined is allowed"):
        lines(runner, handle, "ps", streams=Stream.STDERR)
    with pytest.raises(ValueError, match="no regular expression"):
        lines(runner, handle, "ps", regex="(")
    ended(runner, handle)


def test_lines_of_all_attempts_are_there(runner, tmp_path):
    script = f"echo try; [ -e {tmp_path}/x ] || {{ touch {tmp_path}/x; exit 1; }}"
    handle = run(runner, role(script, max_retries=1))
    assert ended(runner, handle).state is AppState.SUCCEEDED
    assert lines(runner, handle) == ["try\n", "try\n"]


def test_many_threads_follow_replicas_to_their_last_lines(aws, monkeypatch, tmp_path):
    wait = f"until [ -e {tmp_path}/go ]; do sleep 0.05; done"
    script = f"echo begins; {wait}; seq 50; touch {tmp_path}/done-$AWS_BATCH_JOB_NODE_INDEX"
    main = f"until [ $(ls {tmp_path} | grep -c done-) = {REPLICAS} ]; do sleep 0.05; done"
    found = {k: [] for k in range(REPLICAS)}
    with Proxy(aws.endpoint_url) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
        with get_runner() as runner:
            roles = (role(main), role(script, name="worker", replicas=REPLICAS))
            handle = run(runner, *roles)

            def follow(k):
                for line in runner.log_lines(handle, "worker", k, should_tail=True):
                    found[k].append(line)

            threads = [threading.Thread(target=follow, args=(k,)) for k in found]
            for thread in threads:
                thread.start()
            until(lambda: all(found.values()))
            (tmp_path / "go").touch()
            for thread in threads:
                thread.join()
        # Each asks for the app's state first, and few questions are under way at a time.
        assert proxy.counts["batch describejobs"] < 5 * REPLICAS
    assert found == {k: ["begins\n", *(f"{n}\n" for n in range(1, 51))] for k in found}


# --- ended ------------------------------------------------------------------------------------


def test_a_cancel_does_not_wait_and_says_who_did_it(runner, go, batch):
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


def test_a_wait_ends_with_the_app(runner):
    handle = run(runner, role("true"))
    assert runner.wait(handle, wait_interval=0.1).state is AppState.SUCCEEDED


def test_a_deleted_app_is_ended_and_leaves_no_definition_of_its_own(runner, batch):
    long = role("sleep 600", env={f"V{number}": "x" * 500 for number in range(20)})
    handle = run(runner, long)
    job = batch.describe_jobs(jobs=[_job_id(batch, handle)])["jobs"][0]
    assert _definition_status(batch, job) == "ACTIVE"
    runner.delete(handle)
    assert ended(runner, handle).state is AppState.CANCELLED
    assert _definition_status(batch, job) == "INACTIVE"


def _definition_status(batch, job):
    found = batch.describe_job_definitions(jobDefinitions=[job["jobDefinition"]])
    return found["jobDefinitions"][0]["status"]


def test_closing_again_is_nothing_and_a_closed_scheduler_answers_still(aws):
    scheduler = BatchScheduler("x")
    scheduler.close()
    assert scheduler.describe(f"{QUEUE}:nothing") is None
    scheduler.close()
    scheduler.close()


def test_what_follows_a_log_ends_when_the_runner_is_closed(aws, go):
    found = []
    with get_runner() as runner:
        handle = run(runner, role(waiting(go)))
        followed = runner.log_lines(handle, "main", should_tail=True)
        thread = threading.Thread(target=lambda: found.extend(followed))
        thread.start()
        running(runner, handle)
    thread.join()
    go.touch()
    with get_runner() as runner:
        assert ended(runner, handle).state is AppState.SUCCEEDED


def test_an_error_in_a_call_is_farcalls(runner):
    with pytest.raises(FarcallError, match="no such job queue"):
        runner.status("aws_batch://torchx/nowhere:app")
