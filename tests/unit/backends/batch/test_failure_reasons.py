"""Each failure from recorded texts, in each form of DescribeJobs.

The texts are from the AWS documentation and recorded responses.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import botocore.session
import pytest
from botocore.validate import ParamValidator

from farcall.backends import bootstrap
from farcall.backends.base import Runtime
from farcall.backends.batch.describe import from_describe
from farcall.backends.batch.failure_reasons import (
    COMMAND_ENDINGS,
    ENDINGS,
    failure_reason,
    is_explained,
    telling,
)
from farcall.model import errors, failure_reasons
from farcall.model.exit_codes import EXITS
from farcall.model.jobs import JobDetail, JobStatus
from farcall.model.start_script import Fetched, wrap
from farcall_runtime.contract import ExitCode
from tests.unit.fakes import JOB

EXITED = "Essential container in task exited"
NOT_STARTED = "Task failed to start"
HOST_LOST = "Host EC2 (instance i-0a1b2c3d4e5f60718) terminated."
SPOT = "Your Spot Task was interrupted."
TIMED_OUT = "Job attempt duration exceeded timeout"
OOM = "OutOfMemoryError: Container killed due to memory usage"
OOM_FARGATE = "OutOfMemoryError: container killed due to memory usage"
TOO_LARGE = "MISCONFIGURATION:JOB_RESOURCE_REQUIREMENT"


class Recorded(NamedTuple):
    """Failure as Batch reports it, and its expected explanation.

    Attributes:
        error: Class of the error.
        sentence: Words of the sentence about what happened, which identify the row.
        status_reason: `statusReason`, or empty.
        reason: The container's `reason`, or empty.
        exit_code: The container's exit code, if any.
        flag: `isCancelled` or `isTerminated` if it is true.
        status: `status`.
        runtime: Whether its image lacks farcall's runtime.
        log: Whether it has a log although it has no exit code.
    """

    error: type[errors.FarcallError]
    sentence: str
    status_reason: str = ""
    reason: str = ""
    exit_code: int | None = None
    flag: str = ""
    status: str = "FAILED"
    log: bool = False
    runtime: bool = False


RUNTIME = Runtime("https://b.s3.r.amazonaws.com", "b", "r", "p/" + 64 * "0", "x86_64", "3.11")


def pull(error: str) -> str:
    return f"CannotPullContainerError: pull image manifest has been retried 1 time(s): {error}"


DAEMON = "Error response from daemon"
STARTS = [
    ("refused access", "CannotPullECRContainerError: AccessDeniedException: it is not authorized"),
    ("refused access", f"CannotPullContainerError: {DAEMON}: pull access denied for lab/x"),
    (
        "could not be reached",
        f"CannotPullContainerError: {DAEMON}: dial tcp 52.1.2.3: i/o timeout",
    ),
    ("pull limit", pull("429 Too Many Requests - toomanyrequests: your pull rate limit")),
    ("architecture", "CannotPullContainerError: no descriptor matching platform 'linux/amd64'"),
    ("disk is full", "CannotPullContainerError: write /tmp/x: no space left on device"),
    ("does not exist in", pull("failed to resolve ref docker.io/no-such:latest: not found")),
    ("could not be pulled", f"CannotPullImageManifestError: {DAEMON}: something new"),
    ("could not be created", f"CannotCreateContainerError: {DAEMON}: Minimum memory is 6MB"),
    ("another architecture", f"CannotStartContainerError: {DAEMON}: exec /x: exec format error"),
    (
        "lacks the requested GPUs",
        f"CannotStartContainerError: {DAEMON}: could not select device driver with capabilities",
    ),
    ("log could not be opened", "ResourceInitializationError: failed to validate logger args"),
    ("environment could not", "ResourceInitializationError: failed to invoke EFS utils commands"),
    ("was not started", "SnapshotterError: unknown words"),
]
RECORDED = [
    # users, and time limits
    Recorded(
        errors.JobStuckError,
        "time limit for waiting jobs",
        f"Canceled by JobStateTimeLimit action due to reason: {TOO_LARGE}",
        flag="isCancelled",
    ),
    Recorded(
        errors.JobStuckError,
        "time limit for waiting jobs",
        "Canceled by JobStateTimeLimit action due to reason: SOMETHING_NEW",
        flag="isCancelled",
    ),
    Recorded(
        errors.JobStuckError,
        "could not be placed",
        f"farcall: stuck for 300 s: {TOO_LARGE} - The job resource requirement is too high",
        flag="isTerminated",
    ),
    Recorded(
        errors.JobStuckError,
        "no instance came for the job within queue_patience",
        f"farcall: {failure_reasons.NO_INSTANCE}600 s (queue_patience)",
        flag="isCancelled",
    ),
    Recorded(
        errors.JobCancelledError,
        "was cancelled",
        "farcall: cancelled by its owner",
        exit_code=143,
        flag="isTerminated",
    ),
    Recorded(errors.JobCancelledError, "was cancelled", "farcall: cancelled by its owner"),
    Recorded(
        errors.JobCancelledError,
        "another call of its map raised an exception",
        "farcall: map failed: 3 of 100 raised ValueError; 95 were cancelled because of it",
        exit_code=143,
        flag="isTerminated",
    ),
    Recorded(
        errors.JobCancelledError,
        "appeared after its request was withdrawn",
        f"farcall: {failure_reasons.WITHDRAWN}; if it was submitted again, it is job simulate-0a",
        flag="isTerminated",
    ),
    Recorded(
        errors.JobCancelledError,
        "by another user",
        "not needed any more, Ann",
        exit_code=137,
        flag="isTerminated",
    ),
    Recorded(errors.JobCancelledError, "another user", "no", flag="isCancelled"),
    Recorded(errors.JobCancelledError, "another user", "Host EC2", flag="isTerminated"),
    Recorded(errors.JobTimeoutError, "time_limit", TIMED_OUT, exit_code=137),
    Recorded(errors.JobTimeoutError, "time_limit", TIMED_OUT),
    Recorded(errors.JobTimeoutError, "time_limit", TIMED_OUT, flag="isTerminated"),
    # lost machines
    Recorded(errors.HostLostError, "instance", HOST_LOST),
    Recorded(errors.HostLostError, "instance", HOST_LOST, exit_code=143),
    Recorded(errors.HostLostError, "Fargate Spot", SPOT, exit_code=137),
    Recorded(errors.HostLostError, "Fargate Spot", SPOT, exit_code=3),
    Recorded(errors.HostLostError, "Fargate Spot", SPOT, exit_code=143),
    Recorded(
        errors.HostLostError,
        "container engine",
        NOT_STARTED,
        "DockerTimeoutError: Could not transition to created; timed out after waiting 4m0s",
    ),
    Recorded(
        errors.HostLostError,
        "container engine",
        "",
        "CannotInspectContainerError: Could not transition to inspecting; timed out",
    ),
    # memory
    Recorded(errors.OutOfMemoryError, "out of memory", EXITED, OOM, 137),
    Recorded(errors.OutOfMemoryError, "memory", EXITED, OOM_FARGATE, 137),
    Recorded(errors.OutOfMemoryError, "memory", EXITED, OOM, 1),
    Recorded(errors.OutOfMemoryError, "memory", OOM_FARGATE, exit_code=137),
    Recorded(
        errors.OutOfMemoryError, "killed because of its memory", EXITED, OOM, 0, status="SUCCEEDED"
    ),
    Recorded(errors.OutOfMemoryError, "SIGKILL", EXITED, exit_code=137),
    # containers that did not start
    *(Recorded(errors.ImageError, sentence, NOT_STARTED, reason) for sentence, reason in STARTS),
    Recorded(
        errors.ImageError,
        "could not be started",
        NOT_STARTED,
        'CannotStartContainerError: Error response from daemon: exec: "python": executable file '
        "not found in $PATH",
        127,
    ),
    Recorded(
        errors.ImageError,
        "secrets",
        "ResourceInitializationError: unable to pull secrets or registry auth: execution resource "
        "retrieval failed",
    ),
    Recorded(
        errors.ImageError,
        "role cannot be assumed",
        "ECS was unable to assume the role 'arn:aws:iam::123456789012:role/x' that was provided "
        "for this task. Please verify that the role being passed has the proper trust "
        "relationship",
    ),
    Recorded(
        errors.ImageError, "8192 characters", "Container Overrides length must be at most 8192"
    ),
    Recorded(errors.ImageError, "was not started", "new text, not known yet"),
    Recorded(errors.HostLostError, "was started", "new text, not known yet", log=True),
    Recorded(errors.JobError, "neither an exit code nor a reason", "", log=True),
    Recorded(errors.ImageError, "does not report why", NOT_STARTED),
    # other jobs and the queue
    Recorded(errors.JobError, "depends on", "Dependent Job failed"),
    Recorded(errors.JobError, "array task", "Array Child Job failed"),
    Recorded(errors.JobError, "queue was deleted", "JobQueue deleted"),
    # exit codes
    *(
        Recorded(found.kind, found.sentence, EXITED, exit_code=code)
        for code, found in EXITS.items()
    ),
    Recorded(errors.ImageError, "entry point", EXITED, exit_code=126),
    Recorded(errors.ImageError, "entry point", EXITED, exit_code=127),
    Recorded(
        errors.OutcomeMissingError,
        "not in the bucket",
        EXITED,
        exit_code=ExitCode.RETURNED,
        status="SUCCEEDED",
    ),
    Recorded(
        errors.OutcomeMissingError,
        "succeeded",
        "farcall: cancelled by its owner",
        exit_code=ExitCode.RETURNED,
        flag="isTerminated",
        status="SUCCEEDED",
    ),
    Recorded(
        errors.OutcomeMissingError,
        "succeeded",
        SPOT,
        exit_code=ExitCode.RETURNED,
        status="SUCCEEDED",
    ),
    # steps before the runtime starts, if the image lacks farcall's runtime
    *(
        Recorded(kind, sentence, EXITED, exit_code=code, runtime=True)
        for code, kind, sentence in (
            (64, errors.ImageError, "no credentials"),
            (65, errors.OutcomeMissingError, "did not find farcall's runtime"),
            (66, errors.IntegrityError, "differs from what was stored"),
            (67, errors.VersionMismatchError, "different processor"),
            (73, errors.OutcomeMissingError, "could not download"),
            (74, errors.OutcomeMissingError, "unpacked"),
            (75, errors.DiskFullError, "no space"),
            *((code, errors.ImageError, "could not run farcall's") for code in (1, 126, 127)),
        )
    ),
    # unknown texts
    Recorded(
        errors.JobError, "stored no result", "some new text of AWS", "NewError: and another", 3
    ),
    Recorded(errors.ImageError, "was not started"),
]


# --- shapes -----------------------------------------------------------------------------------

STREAM = "farcall-0f/default/8c1d"
TASK = "arn:aws:ecs:eu-west-1:123456789012:task/x/8c1d"
EARLIER = [
    ("Host EC2 (instance i-1) terminated.", "", None),
    (EXITED, "OutOfMemoryError: Container killed due to memory usage", 137),
]


def present(**members: Any) -> dict[str, Any]:
    """Omit empty members, like Batch."""
    return {name: value for name, value in members.items() if value not in ("", None)}


def ended(reason: str, exit_code: int | None, log: bool = False) -> dict[str, Any]:
    code = None if exit_code is None else int(exit_code)
    stream = None if exit_code is None and not log else STREAM
    return present(taskArn=TASK, exitCode=code, reason=reason, logStreamName=stream)


def attempt(
    status_reason: str, reason: str, exit_code: int | None, log: bool = False
) -> dict[str, Any]:
    return present(
        container={**ended(reason, exit_code, log), "networkInterfaces": []},
        startedAt=None if exit_code is None else 1700000001500,
        stoppedAt=1700000002000,
        statusReason=status_reason,
    )


def plain(row: Recorded) -> dict[str, Any]:
    """Return a job of a definition with containerProperties, after its only attempt."""
    flags = {flag: row.flag == flag for flag in ("isCancelled", "isTerminated")}
    return {
        **present(statusReason=row.status_reason),
        "jobArn": "arn:aws:batch:eu-west-1:123456789012:job/8f1",
        "jobId": "8f1",
        "jobName": "simulate-1",
        "jobQueue": "arn:aws:batch:eu-west-1:123456789012:job-queue/q",
        "jobDefinition": "arn:aws:batch:eu-west-1:123456789012:job-definition/farcall-0f:1",
        "status": row.status,
        "attempts": [attempt(row.status_reason, row.reason, row.exit_code, row.log)],
        "createdAt": 1700000000000,
        "stoppedAt": 1700000002000,
        "retryStrategy": {"attempts": 3, "evaluateOnExit": []},
        "dependsOn": [],
        "parameters": {},
        "container": {
            "image": "farcall:1",
            "command": bootstrap.command(RUNTIME) if row.runtime else [],
            "environment": [{"name": "FARCALL_REGION", "value": "eu-west-1"}],
            "resourceRequirements": [{"type": "VCPU", "value": "1"}],
            **ended(row.reason, row.exit_code, row.log),
        },
        "tags": {},
        "platformCapabilities": ["EC2"],
        "eksAttempts": [],
        **flags,
    }


def with_ecs_properties(row: Recorded) -> dict[str, Any]:
    """Return a job of a definition with ecsProperties, whose `container` is empty."""
    job = plain(row)
    fields = {"name": "default", **ended(row.reason, row.exit_code, row.log)}
    del fields["taskArn"]  # only the task has it
    own = {"image": "farcall:1", "essential": True, **fields}
    own["command"] = job.pop("container")["command"]
    job["ecsProperties"] = {"taskProperties": [{"containers": [own]}]}
    tried = job["attempts"][0]
    tried["container"] = {"networkInterfaces": []}
    tried["taskProperties"] = [{"taskArn": TASK, "containers": [fields]}]
    return job


def child(row: Recorded) -> dict[str, Any]:
    return {**plain(row), "jobId": "8f1:2", "arrayProperties": {"index": 2}}


def after_others(row: Recorded) -> dict[str, Any]:
    """Return a job whose earlier attempts ended in other ways."""
    job = plain(row)
    job["attempts"] = [*(attempt(*before) for before in EARLIER), *job["attempts"]]
    return job


def reason_only_in_attempt(row: Recorded) -> dict[str, Any]:
    job = after_others(row)
    job.pop("statusReason", None)
    for name in ("exitCode", "reason", "logStreamName"):
        job["container"].pop(name, None)
    return job


def reason_only_in_job(row: Recorded) -> dict[str, Any]:
    job = after_others(row)
    job["attempts"][-1] = attempt("", "", None)
    return job


def without_attempts(row: Recorded) -> dict[str, Any]:
    return {**plain(row), "attempts": []}


SHAPES = [
    plain,
    with_ecs_properties,
    child,
    after_others,
    reason_only_in_attempt,
    reason_only_in_job,
    without_attempts,
]

MODEL = botocore.session.Session().get_service_model("batch").shape_for("JobDetail")


def ids(rows):
    return [f"{number}-{row.error.__name__}" for number, row in enumerate(rows)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("row", RECORDED, ids=ids(RECORDED))
def test_each_failure_is_fully_explained(row, shape):
    document = shape(row)
    errors_of_model = ParamValidator().validate(document, MODEL).generate_report().splitlines()
    # Batch omits the start of a job that never started, although its model requires it.
    assert [text for text in errors_of_model if "Missing" not in text] == []
    detail = from_describe(document)
    found = failure_reason(detail)
    assert found.kind is row.error
    assert row.sentence in found.sentence
    assert "{" not in found.remedy
    # Batch's own text is shown in any case.
    assert detail.reason == "; ".join(filter(None, (row.status_reason, row.reason)))
    assert detail.exit_code == row.exit_code


def test_failed_map_is_not_cancelled():
    (row,) = (row for row in RECORDED if "map failed" in row.status_reason)
    array = plain(row) | {"arrayProperties": {"size": 100, "statusSummary": {"FAILED": 98}}}
    detail = from_describe(array)
    assert failure_reason(detail).kind is errors.JobError
    assert detail.map_failure == "3 of 100 raised ValueError; 95 were cancelled because of it"
    assert detail.cancelled_with_map == 95
    cancelled = {**array, "statusReason": "farcall: cancelled by its owner"}
    assert failure_reason(from_describe(cancelled)).kind is errors.JobCancelledError


def test_each_failure_row_is_recorded():
    details = [from_describe(plain(row)) for row in RECORDED]
    hit = {next(n for n, row in enumerate(ENDINGS) if row.fits(detail)) for detail in details}
    assert [row.failure_reason for n, row in enumerate(ENDINGS) if n not in hit] == []


def test_each_container_exit_code_is_recorded():
    alone = {row.exit_code for row in RECORDED if row.status_reason == EXITED and not row.reason}
    assert [code for code in ExitCode if code not in alone] == []


def test_sentences_and_remedies_fit_message():
    """The message is `<sentence>: job …. To do: <remedy>.`"""
    for row in ENDINGS:
        assert row.failure_reason.sentence[-1] not in ".:;,"
        assert row.failure_reason.remedy[-1] not in ".:;,"
        assert row.failure_reason.sentence[0].islower() or row.failure_reason.sentence.startswith(
            "Fargate"
        )


# --- origin of the reason ---------------------------------------------------------------------


def test_batch_reason_is_not_a_users():
    """Lists may lack the flags of a cancellation."""
    for row in RECORDED:
        detail = from_describe({**plain(row), "isTerminated": False})
        by_batch = bool(row.status_reason) and not row.flag and "new text" not in row.status_reason
        by_us = row.status_reason.startswith("farcall: ")
        if by_batch or by_us:
            assert is_explained(detail), row
    for text in ("", "enough", "not needed any more, Ann", "some new text of AWS"):
        detail = JobDetail("j", "n", JobStatus.FAILED, text)
        assert not is_explained(detail)


@pytest.mark.parametrize(
    ("reason", "text"),
    [
        ("Job submitted", ""),
        ("Essential container in task exited", ""),
        ("Essential container in task exited; OutOfMemoryError: x", "'OutOfMemoryError: x'"),
        ("Task failed to start; CannotPullX", "'Task failed to start; CannotPullX'"),
        ("Host EC2 (instance i-1) terminated.", "'Host EC2 (instance i-1) terminated.'"),
    ],
)
def test_only_meaningful_batch_reasons_are_quoted(reason, text):
    error = failure_reasons.lost(JOB._replace(reason=reason, platform_reason=telling(reason)))
    assert error.reason == reason
    assert (
        (f"Batch reported {text}" in str(error)) if text else ("Batch reported" not in str(error))
    )


# --- command jobs -----------------------------------------------------------------------------

COMMANDS = [
    Recorded(errors.CommandError, "command failed", EXITED, "", 3),
    Recorded(errors.CommandError, "command failed", EXITED, "", 64),
    Recorded(errors.CommandError, "not found in the image", EXITED, "", 127),
    Recorded(
        errors.CommandError,
        "not found in the image",
        NOT_STARTED,
        'CannotStartContainerError: Error response from daemon: exec: "x": executable file not '
        "found in $PATH",
        127,
    ),
    Recorded(
        errors.ImageError,
        "could not be started",
        NOT_STARTED,
        "CannotStartContainerError: Error response from daemon: OCI runtime create failed",
    ),
    Recorded(errors.OutOfMemoryError, "SIGKILL", EXITED, "", 137),
    Recorded(errors.HostLostError, "was stopped", EXITED, "", 143),
    Recorded(errors.HostLostError, "lost it", EXITED, log=True),
    Recorded(errors.JobError, "neither an exit code nor a reason", log=True),
]


WORKSPACE = Fetched(
    "eu-west-1", "https://bucket.s3.eu-west-1.amazonaws.com", "bucket", "key", "0" * 64
)


def as_command(row: Recorded, *, in_workspace: bool = False) -> JobDetail:
    job = plain(row)
    job["container"]["environment"] = [{"name": "FARCALL_RUN", "value": "me-1"}]
    if in_workspace:
        job["container"]["command"] = wrap(["train.py"], WORKSPACE)
    return from_describe(job)


IN_A_WORKSPACE = [
    Recorded(errors.ImageError, "lacks", EXITED, "", 80),
    Recorded(errors.ImageError, "no credentials", EXITED, "", 81),
    Recorded(errors.CommandError, "not download", EXITED, "", 82),
    Recorded(errors.IntegrityError, "differs from the one", EXITED, "", 83),
    Recorded(errors.CommandError, "not unpack", EXITED, "", 84),
]


@pytest.mark.parametrize("row", IN_A_WORKSPACE)
def test_missing_workspace_explains_exit_code(row):
    """The same exit code of another command has another explanation."""
    found = failure_reason(as_command(row, in_workspace=True))
    assert found.kind is row.error
    assert row.sentence in found.sentence
    assert "{" not in found.remedy
    assert "nothing was run" in found.sentence
    assert "nothing was run" not in failure_reason(as_command(row)).sentence


@pytest.mark.parametrize("row", COMMANDS)
def test_failed_command_has_reason(row):
    found = failure_reason(as_command(row))
    assert found.kind is row.error
    assert row.sentence in found.sentence
    assert "{" not in found.remedy


def test_each_command_row_is_recorded():
    details = [as_command(row) for row in [*COMMANDS, *RECORDED]]
    details += [as_command(row, in_workspace=True) for row in IN_A_WORKSPACE]
    hit = {next(n for n, row in enumerate(COMMAND_ENDINGS) if row.fits(d)) for d in details}
    assert [row.failure_reason for n, row in enumerate(COMMAND_ENDINGS) if n not in hit] == []


@pytest.mark.parametrize("row", RECORDED)
def test_command_remedies_omit_image_option(row):
    found = failure_reason(as_command(row))
    assert "the option image" not in found.sentence + found.remedy
    assert "{" not in found.remedy
