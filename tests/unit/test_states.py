"""Texts and shapes are those of AWS's documentation and of recorded DescribeJobs replies."""

from __future__ import annotations

from datetime import datetime, timezone

import pytest

from farcall import errors
from farcall.states import JobDetail, JobStatus, ending
from farcall_runtime.contract import ExitCode

EXITED = "Essential container in task exited"
NOT_STARTED = "Task failed to start"
PULL = (
    "CannotPullContainerError: pull image manifest has been retried 1 time(s): failed to resolve "
    "ref docker.io/library/no-such:latest: not found"
)


def failed(status_reason="", container_reason="", exit_code=None, **more):
    return JobDetail(
        "j",
        "n",
        status=JobStatus.FAILED,
        status_reason=status_reason,
        container_reason=container_reason,
        exit_code=exit_code,
        **more,
    )


# --- why a job ended --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expected", "detail"),
    [
        (errors.JobError, failed(EXITED, exit_code=1)),
        (errors.HostLostError, failed("Host EC2 (instance i-0a1b2c) terminated.")),
        (errors.HostLostError, failed("Host EC2 (instance i-0a1b2c) terminated.", exit_code=143)),
        (errors.HostLostError, failed("Your Spot Task was interrupted.", exit_code=137)),
        (errors.HostLostError, failed("Your Spot Task was interrupted.", exit_code=143)),
        (
            errors.OutOfMemoryError,
            failed(EXITED, "OutOfMemoryError: Container killed due to memory usage", 137),
        ),
        (
            errors.OutOfMemoryError,
            failed(EXITED, "OutOfMemoryError: container killed due to memory usage", 137),
        ),
        (
            errors.OutOfMemoryError,  # only a child process was killed
            failed(EXITED, "OutOfMemoryError: Container killed due to memory usage", 1),
        ),
        (errors.JobTimeoutError, failed("Job attempt duration exceeded timeout", exit_code=137)),
        (errors.JobTimeoutError, failed("Job attempt duration exceeded timeout")),
        (errors.ImageError, failed(NOT_STARTED, PULL)),
        (
            errors.ImageError,
            failed(NOT_STARTED, "CannotPullImageManifestError: Error response from daemon"),
        ),
        (
            errors.HostLostError,
            failed(
                NOT_STARTED,
                "DockerTimeoutError: Could not transition to created; timed out after waiting "
                "4m0s",
            ),
        ),
        (
            errors.ImageError,
            failed(
                NOT_STARTED,
                'CannotStartContainerError: Error response from daemon: exec: "python": '
                "executable file not found in $PATH",
                127,
            ),
        ),
        (errors.ImageError, failed(NOT_STARTED, "CannotCreateContainerError: no such volume")),
        (
            errors.ImageError,
            failed(
                NOT_STARTED,
                "ResourceInitializationError: failed to validate logger args: The specified log "
                "group does not exist",
            ),
        ),
        (
            errors.ImageError,  # Fargate gives it as the status reason
            failed("ResourceInitializationError: unable to pull secrets or registry auth"),
        ),
        (
            errors.ImageError,
            failed(
                "ECS was unable to assume the role 'arn:aws:iam::123456789012:role/x' that was "
                "provided for this task. Please verify that the role being passed has the proper "
                "trust relationship"
            ),
        ),
        (
            errors.HostLostError,
            failed(
                container_reason="CannotInspectContainerError: Could not transition to "
                "inspecting; timed out after waiting 30s"
            ),
        ),
        (errors.ImageError, failed("Container Overrides length must be at most 8192")),
        (errors.JobError, failed("Dependent Job failed")),
        (errors.JobError, failed("Array Child Job failed")),
        (errors.JobError, failed("JobQueue deleted")),
        (
            errors.JobStuckError,
            failed(
                "Canceled by JobStateTimeLimit action due to reason: "
                "MISCONFIGURATION:JOB_RESOURCE_REQUIREMENT",
                is_cancelled=True,
            ),
        ),
        (errors.JobCancelledError, failed("not needed", is_cancelled=True)),
        (errors.JobCancelledError, failed("not needed", is_terminated=True, exit_code=137)),
        (errors.JobCancelledError, failed("Host EC2 went", is_terminated=True, exit_code=143)),
        (errors.OutOfMemoryError, failed(EXITED, exit_code=137)),
        (errors.ImageError, failed(EXITED, exit_code=126)),
        (errors.ImageError, failed(EXITED, exit_code=127)),
        (errors.JobError, failed()),
        (errors.JobError, failed("some new text of AWS", exit_code=3)),
    ],
)
def test_each_documented_ending_has_its_error(expected, detail):
    row = ending(detail)
    assert row.error is expected
    assert row.sentence
    assert row.remedy


CODES = {
    ExitCode.RAISED: errors.JobError,
    ExitCode.BAD_ENVIRONMENT: errors.ImageError,
    ExitCode.BUNDLE_MISSING: errors.OutcomeMissingError,
    ExitCode.INTEGRITY: errors.IntegrityError,
    ExitCode.VERSION_MISMATCH: errors.VersionMismatchError,
    ExitCode.TIMED_OUT: errors.JobTimeoutError,
    ExitCode.UNREADABLE: errors.TaskError,
    ExitCode.OUTCOME_NOT_STORED: errors.OutcomeMissingError,
    ExitCode.CHILD_KILLED: errors.ChildKilledError,
    ExitCode.OUT_OF_MEMORY: errors.OutOfMemoryError,
    ExitCode.STORAGE_UNREACHABLE: errors.OutcomeMissingError,
    ExitCode.SUPERVISOR_FAILED: errors.OutcomeMissingError,
    ExitCode.TERMINATED: errors.HostLostError,
}


@pytest.mark.parametrize(
    "text",
    [
        "Minimum memory limit allowed is 6MB",
        'invalid mount config for type "bind": bind source path does not exist: /data',
    ],
)
def test_a_container_that_cannot_be_created_is_not_the_images_fault(text):
    text = f"CannotCreateContainerError: Error response from daemon: {text}"
    row = ending(failed(NOT_STARTED, text))
    assert row.error is errors.ImageError
    assert "memory" in row.remedy
    assert "volumes" in row.remedy
    assert "entry point" not in row.remedy


@pytest.mark.parametrize("code", [code for code in ExitCode if code is not ExitCode.RETURNED])
def test_each_exit_code_of_the_container_has_its_error(code):
    assert ending(failed(EXITED, exit_code=code.value)).error is CODES[code]


def test_a_success_without_an_outcome_is_not_a_success():
    row = ending(JobDetail("j", "n", status=JobStatus.SUCCEEDED, exit_code=0))
    assert row.error is errors.OutcomeMissingError
    assert row.remedy[-1].isalpha()  # a full stop follows


def test_a_job_that_succeeded_while_it_was_terminated_has_succeeded():
    detail = JobDetail("j", "n", status=JobStatus.SUCCEEDED, is_terminated=True)
    assert ending(detail).error is errors.OutcomeMissingError


# --- what Batch says --------------------------------------------------------------------------

CONTAINER = {
    "image": "x",
    "environment": [{"name": "FARCALL_BUNDLE", "value": "s3://b/v1/r/bundles/c"}],
    "logConfiguration": {"logDriver": "awslogs", "options": {"awslogs-group": "own-group"}},
    "exitCode": 1,
    "logStreamName": "farcall/default/abc",
    "taskArn": "arn:aws:ecs:us-east-1:1:task/abc",
}
JOB = {
    "jobArn": "arn:aws:batch:us-east-1:1:job/8f1",
    "jobId": "8f1",
    "jobName": "simulate-1",
    "jobQueue": "arn:aws:batch:us-east-1:1:job-queue/q",
    "status": "FAILED",
    "statusReason": EXITED,
    "createdAt": 1700000000000,
    "startedAt": 1700000001500,
    "stopped": None,
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
}


def described(**changes):
    return JobDetail.from_describe({**JOB, **changes})


def test_a_job_with_container_properties_is_read():
    assert described() == JobDetail(
        job_id="8f1",
        name="simulate-1",
        status=JobStatus.FAILED,
        status_reason=EXITED,
        exit_code=1,
        attempts=1,
        created_at=datetime.fromtimestamp(1700000000, tz=timezone.utc),
        started_at=datetime.fromtimestamp(1700000001.5, tz=timezone.utc),
        stopped_at=datetime.fromtimestamp(1700000002, tz=timezone.utc),
        log_group="own-group",
        log_stream="farcall/default/abc",
        environment={"FARCALL_BUNDLE": "s3://b/v1/r/bundles/c"},
    )


def test_a_job_with_ecs_properties_is_read():
    said = {"name": "default", "exitCode": 137, "reason": "OutOfMemoryError: Container killed"}
    detail = described(
        container=None,
        ecsProperties={"taskProperties": [{"containers": [{**CONTAINER, **said}]}]},
        attempts=[
            {
                "taskProperties": [{"containers": [{**said, "logStreamName": "s"}]}],
                "statusReason": EXITED,
            }
        ],
    )
    assert (detail.exit_code, detail.container_reason) == (137, said["reason"])
    assert (detail.log_group, detail.log_stream) == ("own-group", "farcall/default/abc")
    assert detail.environment["FARCALL_BUNDLE"] == "s3://b/v1/r/bundles/c"


def test_a_job_without_attempts_shows_its_status_reason():
    reason = "Container Overrides length must be at most 8192"
    detail = described(statusReason=reason, attempts=[], container={"image": "x"})
    assert (detail.reason, detail.attempts, detail.exit_code) == (reason, 0, None)


def test_the_container_s_reason_is_shown_beside_the_status_reason():
    detail = described(statusReason=NOT_STARTED, container={**CONTAINER, "reason": PULL})
    assert detail.reason == f"{NOT_STARTED}; {PULL}"


def test_what_the_job_does_not_say_comes_from_its_last_attempt():
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


def test_an_exit_code_of_zero_is_an_exit_code():
    assert described(container={**CONTAINER, "exitCode": 0}).exit_code == 0


def test_a_first_attempt_that_runs_has_its_live_log():
    detail = described(
        status="RUNNING", statusReason=None, attempts=[], container={"logStreamName": "live"}
    )
    assert (detail.status, detail.attempts, detail.log_stream) == (JobStatus.RUNNING, 0, "live")


def test_a_job_that_waits_has_neither_start_nor_log():
    detail = JobDetail.from_describe({"jobId": "j", "jobName": "n", "status": "RUNNABLE"})
    assert (detail.started_at, detail.created_at, detail.log_stream) == (None, None, "")
    assert detail.log_group == "/aws/batch/job"


def test_an_array_and_its_child_are_read():
    parent = described(
        status="PENDING", arrayProperties={"size": 3, "statusSummary": {"RUNNING": 2, "FAILED": 1}}
    )
    child = described(jobId="8f1:2", arrayProperties={"index": 2})
    assert (parent.array_size, parent.status_summary["FAILED"]) == (3, 1)
    assert (child.job_id, child.array_size, dict(child.status_summary)) == ("8f1:2", 0, {})


def test_flags_and_secrets_of_a_job():
    detail = described(isCancelled=True, isTerminated=True)
    assert (detail.is_cancelled, detail.is_terminated) == (True, True)
    assert "s3://b/v1" not in repr(detail)


@pytest.mark.parametrize(
    ("expected", "status", "reason"),
    [
        (True, "RUNNABLE", "MISCONFIGURATION:JOB_RESOURCE_REQUIREMENT - too many vCPUs"),
        (True, "RUNNABLE", "CAPACITY:INSUFFICIENT_INSTANCE_CAPACITY - none left"),
        (True, "RUNNABLE", "ACTION_REQUIRED - CE(s) associated with the job queue are invalid"),
        (True, "RUNNABLE", "UNDETERMINED - the root cause is undetermined"),
        (False, "RUNNABLE", None),
        (False, "STARTING", "CAPACITY:INSUFFICIENT_INSTANCE_CAPACITY - none left"),
    ],
)
def test_a_job_that_batch_cannot_place_is_known(expected, status, reason):
    detail = described(status=status, statusReason=reason, attempts=[])
    assert detail.is_blocked is expected


def test_only_two_states_are_final():
    assert [str(status) for status in JobStatus if status.is_final] == ["SUCCEEDED", "FAILED"]
