"""Job descriptions as DescribeJobs returns them for each kind of job."""

from datetime import UTC, datetime

import pytest

from farcall.backends.batch.describe import BatchJob, from_describe, from_summary
from farcall.model.jobs import Attempt, JobStatus
from farcall.model.names import EMULATOR_IMAGE

EXITED = "Essential container in task exited"
NOT_STARTED = "Task failed to start"
PULL = "CannotPullContainerError: pull image manifest has been retried 1 time(s): not found"

CONTAINER = {
    "image": "jobs:1",
    "environment": [{"name": "FARCALL_BUNDLE", "value": "s3://b/v1/r/bundles/c"}],
    "logConfiguration": {"logDriver": "awslogs", "options": {"awslogs-group": "own-group"}},
    "resourceRequirements": [
        {"type": "VCPU", "value": "0.5"},
        {"type": "MEMORY", "value": "2048"},
        {"type": "GPU", "value": "1"},
    ],
    "exitCode": 1,
    "logStreamName": "farcall/default/abc",
    "taskArn": "arn:aws:ecs:us-east-1:1:task/abc",
}
BEGAN = datetime.fromtimestamp(1700000001.5, tz=UTC)
ENDED = datetime.fromtimestamp(1700000002, tz=UTC)
JOB = {
    "jobArn": "arn:aws:batch:us-east-1:1:job/8f1",
    "jobId": "8f1",
    "jobName": "simulate-1",
    "jobQueue": "arn:aws:batch:us-east-1:1:job-queue/q",
    "status": "FAILED",
    "statusReason": EXITED,
    "createdAt": 1700000000000,
    "startedAt": 1700000001500,
    "stoppedAt": 1700000002000,
    "attempts": [
        {
            "container": {"exitCode": 1, "logStreamName": "farcall/default/abc"},
            "startedAt": 1700000001500,
            "stoppedAt": 1700000002000,
            "statusReason": EXITED,
        }
    ],
    "container": CONTAINER,
    "isCancelled": False,
    "isTerminated": False,
    "jobDefinition": "arn:aws:batch:us-east-1:1:job-definition/farcall-abc:3",
    "timeout": {"attemptDurationSeconds": 300},
    "tags": {"team": "a"},
}


def described(**changes):
    return from_describe({**JOB, **changes})


def test_job_with_container_properties_is_read():
    assert described() == BatchJob(
        job_id="8f1",
        name="simulate-1",
        status=JobStatus.FAILED,
        status_reason=EXITED,
        exit_code=1,
        tried=(Attempt(EXITED, "", 1, "farcall/default/abc", BEGAN, ENDED),),
        created_at=datetime.fromtimestamp(1700000000, tz=UTC),
        started_at=BEGAN,
        stopped_at=ENDED,
        log_group="own-group",
        log_stream="farcall/default/abc",
        environment={"FARCALL_BUNDLE": "s3://b/v1/r/bundles/c"},
        queue="q",
        queue_arn="arn:aws:batch:us-east-1:1:job-queue/q",
        definition="farcall-abc:3",
        image="jobs:1",
        vcpu=0.5,
        memory_mib=2048,
        gpus=1,
        time_limit_s=300,
        tags={"team": "a"},
    )


def test_job_with_ecs_properties_is_read():
    fields = {"name": "default", "exitCode": 137, "reason": "OutOfMemoryError: Container killed"}
    detail = described(
        container=None,
        ecsProperties={"taskProperties": [{"containers": [{**CONTAINER, **fields}]}]},
        attempts=[
            {
                "taskProperties": [{"containers": [{**fields, "logStreamName": "s"}]}],
                "statusReason": EXITED,
            }
        ],
    )
    assert (detail.exit_code, detail.container_reason) == (137, fields["reason"])
    assert (detail.log_group, detail.log_stream) == ("own-group", "farcall/default/abc")
    assert detail.environment["FARCALL_BUNDLE"] == "s3://b/v1/r/bundles/c"


RUNNING = {"startedAt": 1700000001500, "container": {"logStreamName": "farcall/default/now"}}


@pytest.mark.parametrize("before", [0, 2])
def test_running_attempt_does_not_count(before):
    """Batch may or may not list it with the finished attempts."""
    listed = [*JOB["attempts"] * before, RUNNING]
    running = {name: value for name, value in CONTAINER.items() if name != "exitCode"}
    running.pop("logStreamName")
    changes = {"status": "RUNNING", "statusReason": None, "container": running}
    detail = described(attempts=listed, stoppedAt=None, **changes)
    assert (detail.attempts, detail.log_stream) == (before, "farcall/default/now")
    assert described(attempts=listed[:-1], stoppedAt=None, **changes).tried == detail.tried
    # After the job has ended, each of its attempts has ended, too.
    assert described(attempts=listed).attempts == before + 1


def test_failed_start_counts_while_next_starts():
    failed = {"container": {"reason": PULL}, "statusReason": NOT_STARTED}
    assert described(status="STARTING", attempts=[failed]).attempts == 1


def test_finished_job_has_an_attempt():
    assert described(attempts=[]).tried == described().tried
    bare = [{"startedAt": 1700000001500, "statusReason": EXITED}]
    assert described(attempts=bare).tried[0].log_stream == "farcall/default/abc"
    assert described(attempts=[], status="RUNNING").tried == ()


def test_missing_fields_come_from_last_attempt():
    attempts = [
        {"container": {"exitCode": 3, "reason": "first"}, "statusReason": "one"},
        {"container": {"exitCode": 0, "reason": "last", "logStreamName": "s2"}},
        {
            "container": {"exitCode": 0, "reason": "last", "logStreamName": "s3"},
            "statusReason": "3",
        },
    ]
    detail = described(statusReason=None, attempts=attempts, container={"image": "x"})
    assert (detail.attempts, detail.exit_code, detail.log_stream) == (3, 0, "s3")
    assert detail.reason == "3; last"
    assert detail.tried == (
        Attempt("one", "first", 3),
        Attempt("", "last", 0, "s2"),
        Attempt("3", "last", 0, "s3"),
    )


def test_attempts_allowed_come_from_retry_strategy():
    assert described(retryStrategy={"attempts": 4, "evaluateOnExit": []}).attempts_allowed == 4
    assert described().attempts_allowed == 1


def test_running_first_attempt_has_live_log():
    detail = described(
        status="RUNNING", statusReason=None, attempts=[], container={"logStreamName": "live"}
    )
    assert (detail.status, detail.attempts, detail.log_stream) == (JobStatus.RUNNING, 0, "live")


def test_waiting_job_has_no_log():
    detail = from_describe({"jobId": "j", "jobName": "n", "status": "RUNNABLE"})
    assert (detail.started_at, detail.created_at, detail.log_stream) == (None, None, "")
    assert detail.log_group == "/aws/batch/job"


def test_array_job_and_task_are_read():
    parent = described(
        status="PENDING", arrayProperties={"size": 3, "statusSummary": {"RUNNING": 2, "FAILED": 1}}
    )
    child = described(jobId="8f1:2", arrayProperties={"index": 2})
    assert (parent.array_size, parent.status_summary["FAILED"]) == (3, 1)
    assert (child.job_id, child.array_size, dict(child.status_summary)) == ("8f1:2", 0, {})


def test_flags_are_read_and_secrets_hidden():
    detail = described(isCancelled=True, isTerminated=True)
    assert (detail.is_cancelled, detail.is_terminated) == (True, True)
    assert "s3://b/v1" not in repr(detail)


#: Recorded and shortened:
#: https://github.com/aws/aws-parallelcluster/tree/ff0a1710/awsbatch-cli/tests/awsbatch/data
MULTI_NODE = {
    "jobId": "6abf3ecd-07a8-4faa-8a65-79e7404eb50f",
    "jobName": "mnp",
    "jobQueue": "arn:aws:batch:us-east-1:123456789012:job-queue/parallelcluster",
    "status": "SUCCEEDED",
    "createdAt": 1543836418954,
    "startedAt": 1543836512293,
    "stoppedAt": 1543836586008,
    "attempts": [
        {
            "startedAt": 1543836512293,
            "stoppedAt": 1543836586008,
            "container": {
                "logStreamName": "parallelcluster-mnp/default/3d430bca",
                "exitCode": 0,
            },
        }
    ],
    "nodeProperties": {
        "numNodes": 2,
        "mainNode": 0,
        "nodeRangeProperties": [{"targetNodes": "0:1", "container": {"command": ["echo"]}}],
    },
}
NODE = {
    "jobId": "6abf3ecd-07a8-4faa-8a65-79e7404eb50f#1",
    "jobName": "mnp",
    "jobQueue": MULTI_NODE["jobQueue"],
    "status": "FAILED",
    "createdAt": 1543836514469,
    "startedAt": 1543836554285,
    "stoppedAt": 1543836567456,
    "nodeDetails": {"nodeIndex": 1, "isMainNode": False},
    "container": {
        "image": "alinux",
        "exitCode": 3,
        "logStreamName": "parallelcluster-mnp/default/3557426b",
        "networkInterfaces": [{"privateIpv4Address": "10.0.0.132"}],
    },
    "attempts": [
        {
            "startedAt": 1543836554285,
            "stoppedAt": 1543836567456,
            "container": {"exitCode": 3, "logStreamName": "parallelcluster-mnp/default/3557426b"},
        }
    ],
}


def test_multi_node_end_comes_from_attempts():
    detail = from_describe(MULTI_NODE)
    assert (detail.status, detail.exit_code) == (JobStatus.SUCCEEDED, 0)
    assert detail.log_stream == "parallelcluster-mnp/default/3d430bca"
    assert len(detail.tried) == 1
    [group] = detail.groups
    assert (group.first, group.last, group.command) == (0, 1, ("echo",))
    assert (detail.nodes, detail.node_id(1)) == (2, NODE["jobId"])


def test_waiting_multi_node_job_is_read():
    waiting = {"status": "RUNNABLE", "attempts": [], "createdAt": 1543836418954}
    kept = ("jobId", "jobName", "jobQueue", "nodeProperties")
    detail = from_describe({**{name: MULTI_NODE[name] for name in kept}, **waiting})
    assert (detail.status, detail.exit_code) == (JobStatus.RUNNABLE, None)
    assert detail.log_stream == ""


def test_node_is_read_like_container_job():
    detail = from_describe(NODE)
    assert (detail.status, detail.exit_code) == (JobStatus.FAILED, 3)
    assert detail.log_stream == "parallelcluster-mnp/default/3557426b"
    assert (detail.image, detail.attempts_allowed) == ("alinux", 1)
    assert (detail.node_index, detail.nodes) == (1, 0)
    assert detail.address == "10.0.0.132"


def test_multi_node_summaries_are_read():
    whole = {
        "jobId": "7a712b12",
        "jobName": "mnp-failed",
        "status": "FAILED",
        "container": {"exitCode": 2},
        "createdAt": 1543502756194,
        "nodeProperties": {"numNodes": 2},
    }
    node = {**whole, "jobId": "7a712b12#0", "container": {}, "status": "RUNNING"}
    node["nodeProperties"] = {"nodeIndex": 0, "isMainNode": True}
    assert from_summary(whole).exit_code == 2
    assert (from_summary(whole).nodes, from_summary(node).nodes) == (2, 0)
    assert from_summary(node).status is JobStatus.RUNNING


def test_emulators_wait_has_no_instance():
    waiting = BatchJob("8f1", "fit", JobStatus.RUNNABLE, image=EMULATOR_IMAGE)
    assert "emulator" in waiting.likely_cause
