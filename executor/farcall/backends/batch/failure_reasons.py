"""Failure reasons: why a job failed, or cannot start.

Together with its tables in `farcall.backends.batch.start_failures` and `farcall.model.exit_codes`,
this is the only module that interprets Batch's texts (``statusReason``, a container's ``reason``)
and exit codes. No I/O. It is called only for jobs without an outcome in the bucket, because an
outcome takes precedence.

Sources:
    https://docs.aws.amazon.com/batch/latest/userguide/job_retries.html
    https://docs.aws.amazon.com/batch/latest/userguide/job_timeouts.html
    https://docs.aws.amazon.com/batch/latest/userguide/job_queue_parameters.html
    https://docs.aws.amazon.com/batch/latest/userguide/job_stuck_in_runnable.html
    https://docs.aws.amazon.com/AmazonECS/latest/developerguide/stopped-task-error-codes.html
"""

from __future__ import annotations

from typing import NamedTuple

from farcall.backends.batch.start_failures import LOST, STARTS
from farcall.backends.matching import (
    CREATED_BY,
    IMAGE,
    STARTED_BY,
    Row,
    all_of,
    container,
    exit_code,
    status,
)
from farcall.backends.own_failure_reasons import GIVEN, MAP_FAILED, RESULT_MISSING
from farcall.model import errors, start_script
from farcall.model.exit_codes import EXITS
from farcall.model.failure_reasons import (
    MEMORY,
    OWN_REASON,
    STUCK,
    SUBNET,
    FailureReason,
)
from farcall.model.jobs import JobDetail, JobStatus
from farcall_runtime.contract import ExitCode

_STOPPED = (None, ExitCode.TERMINATED, 137)
"""Exit codes of stopped jobs: without a container, after SIGTERM, after SIGKILL."""

EXITED = "Essential container in task exited"
"""Batch's uninformative status reason for any container that has exited by itself."""

_HOLLOW = (EXITED, "Job submitted", "Job started", "Job succeeded", "Job failed")
"""Status reasons that only repeat the status; most come from emulators."""

_MACHINE_LOST_IT = FailureReason(
    errors.HostLostError,
    "the container was started, but its machine or its container engine lost it",
    f"see its log for its progress; {LOST}",
)


def failure_reason(detail: JobDetail) -> FailureReason:
    """Return why a job without an outcome ended.

    Args:
        detail: A job with a final status, or the known facts about a failed attempt.

    Returns:
        The failure reason of the first matching row. If Batch reports why a job was never placed,
        the remedy is from `blocked`.
    """
    if detail.map_failure:  # Batch cancelled its remaining child jobs, but not the array itself
        return MAP_FAILED
    rows = COMMAND_ENDINGS if detail.is_command else ENDINGS
    found = next(row.failure_reason for row in rows if row.fits(detail))
    sentence, remedy = found.sentence, found.remedy
    for mark, words in _words_for(detail).items():
        remedy = remedy.replace(mark, words)
    if found.kind is errors.JobStuckError:
        remedy = blocked(detail.status_reason) or remedy
    if found.kind in (errors.JobError, errors.CommandError) and detail.exit_code is not None:
        sentence += f" (exit code {detail.exit_code})"
    return FailureReason(found.kind, sentence, remedy, detail.exit_code)


def _words_for(detail: JobDetail) -> dict[str, str]:
    """Return the texts for placeholders in remedies; they name the user's settings."""
    if detail.is_command:
        return {
            IMAGE: f"the image {detail.image}",
            CREATED_BY: "memory, mounts, devices and user",
            STARTED_BY: ", command, devices, shm_size and ulimits",
        }
    if detail.runtime:
        return {
            IMAGE: (
                f"the image {detail.image} (stock_image_uri; or set image to one built from "
                "farcall's Dockerfile)"
            ),
            CREATED_BY: "memory, and volumes, devices and user in job_definition_extra",
            STARTED_BY: (
                ", which requires python3, and command and linuxParameters in job_definition_extra"
            ),
        }
    return {
        IMAGE: "the image in the option image",
        CREATED_BY: "memory, and volumes, devices and user in job_definition_extra",
        STARTED_BY: (
            " (farcall's Dockerfile sets the entry point of the task runner), and command and "
            "linuxParameters in job_definition_extra"
        ),
    }


def is_explained(detail: JobDetail) -> bool:
    """Return whether the status reason was written by Batch or farcall.

    Any other reason is assumed to be written by a person who terminated the job.
    """
    return detail.status_reason.startswith((*_HOLLOW, *_BATCH_WORDS, OWN_REASON))


def telling(reason: str) -> str:
    """Return Batch's reason without its uninformative part; see `JobDetail.reason`."""
    first, _, rest = reason.partition("; ")
    return rest if first.rstrip(".") in _HOLLOW else reason


def may_be_stopped(detail: JobDetail) -> bool:
    """Return whether a job may have been terminated from outside.

    Batch neither confirms nor excludes it: the job has failed, and its container, if there was
    one, was stopped by a signal.
    """
    otherwise = tuple(word for word in _BATCH_WORDS if word != EXITED)
    return (
        detail.status is JobStatus.FAILED
        and detail.exit_code in _STOPPED
        and not _withdrawn(detail)
        and not detail.status_reason.startswith((*otherwise, OWN_REASON))
        and not detail.container_reason.startswith(otherwise)
    )


def is_blocked(detail: JobDetail) -> bool:
    """Return whether Batch reports that it cannot place a job at present."""
    return detail.status is JobStatus.RUNNABLE and detail.status_reason.startswith(_BLOCKED_WORDS)


def blocked(reason: str) -> str:
    """Return the remedy for a job that Batch cannot place.

    Args:
        reason: A text that contains Batch's reason.

    Returns:
        The remedy; empty if the text contains no known reason.
    """
    return next((remedy for word, remedy in BLOCKED if word in reason), "")


def _succeeded(detail: JobDetail) -> bool:
    return detail.status is JobStatus.SUCCEEDED


def _was_not_started(detail: JobDetail) -> bool:
    """Return whether the container never existed: no exit code, and no log either."""
    return detail.exit_code is None and not (detail.log_stream or detail.array_size)


def _fetches_workspace(detail: JobDetail) -> bool:
    """Return whether the command begins with farcall's start script."""
    return start_script.unwrap(detail.command)[0] is not None


def _fetches_runtime(detail: JobDetail) -> bool:
    """Return whether the image lacks farcall's runtime."""
    return bool(detail.runtime)


def _withdrawn(detail: JobDetail) -> bool:
    """Return whether a user cancelled the job.

    If it succeeded at the same time, its status decides.
    """
    return detail.is_cancelled or detail.is_terminated


# --- jobs that cannot be placed ---------------------------------------------------------------


class Blocked(NamedTuple):
    """The remedy for a job that Batch cannot place.

    Attributes:
        word: Text in Batch's reason.
        remedy: The remedy.
    """

    word: str
    remedy: str


_BLOCKED_WORDS = ("MISCONFIGURATION:", "CAPACITY:", "ACTION_REQUIRED", "UNDETERMINED")

BLOCKED: tuple[Blocked, ...] = (
    Blocked(
        "INSUFFICIENT_INSTANCE_CAPACITY",
        "wait, or set queue to one whose compute environment has more instance types, more "
        "subnets or on-demand capacity",
    ),
    Blocked(
        "COMPUTE_ENVIRONMENT_MAX_RESOURCE",
        "request less (vcpu, memory, num_gpus), or raise the maximum vCPUs (maxvCpus) of the "
        "queue's compute environment",
    ),
    Blocked(
        "JOB_RESOURCE_REQUIREMENT",
        "request less (vcpu, memory, num_gpus), or set queue to one with larger instances; an "
        "instance offers a few hundred MiB less memory than its type has",
    ),
    Blocked(
        "EC2_INSTANCE_CONFIGURATION_UNSUPPORTED",
        "change the instance types of the queue's compute environment: none of them is "
        "available in its subnets",
    ),
    Blocked(
        "SERVICE_ROLE_PERMISSIONS",
        "attach the policy AWSBatchServiceRole to the service role of the queue's compute "
        "environment",
    ),
    Blocked(
        "ACTION_REQUIRED",
        "repair the queue's compute environments, which are invalid; see the statusReason of each",
    ),
    Blocked(
        "MISCONFIGURATION:",
        "change what Batch names in the queue's compute environment, or request less (vcpu, "
        "memory, num_gpus)",
    ),
    Blocked(
        "CAPACITY:",
        "wait, or set queue to one whose compute environment has other capacity",
    ),
    Blocked(
        "UNDETERMINED",
        "check that the queue's compute environment is ENABLED and VALID, that its instances "
        "can reach ECS, and that vcpu, memory and num_gpus fit into one of them",
    ),
)
"""Remedies by a text in Batch's reason; specific texts come before general ones."""


# --- failure reasons --------------------------------------------------------------------------


_BATCH_WORDS = (
    "Host EC2",
    "Your Spot Task was interrupted",
    "Task failed to start",
    "Job attempt duration exceeded timeout",
    "Array Child Job failed",
    "Dependent Job failed",
    "JobQueue deleted",
    "Canceled by JobStateTimeLimit action",
    "ECS was unable to assume the role",
    "Container Overrides length",
    "CannotPull",
    "CannotCreateContainerError",
    "CannotStartContainerError",
    "CannotInspectContainerError",
    "DockerTimeoutError",
    "OutOfMemoryError",
    "ResourceInitializationError",
)

# The order matters: a user's action comes before its consequences.
_BY_TEXT: tuple[Row, ...] = (
    # Recognized by their texts, even if Batch flags the jobs as terminated.
    Row(
        status("Canceled by JobStateTimeLimit action"),
        FailureReason(
            errors.JobStuckError,
            "the queue's time limit for waiting jobs terminated the job",
            "request less (vcpu, memory, num_gpus), or check the jobStateTimeLimitActions and "
            "the compute environment of the queue",
        ),
    ),
    Row(
        status(f"{OWN_REASON}{STUCK}"),
        FailureReason(
            errors.JobStuckError,
            "the job could not be placed for stuck_timeout_s and was terminated",
            "request less (vcpu, memory, num_gpus), or enlarge the queue's compute environment",
        ),
    ),
    Row(
        status("Job attempt duration exceeded timeout"),
        FailureReason(
            errors.JobTimeoutError,
            "the job ran longer than time_limit, so Batch terminated it",
            "raise time_limit",
        ),
    ),
    *GIVEN,
    Row(
        _withdrawn,
        FailureReason(
            errors.JobCancelledError,
            "the job was cancelled or terminated by another user",
            "find out who did, and submit it again if needed",
        ),
    ),
    Row(
        status("Host EC2"),
        FailureReason(errors.HostLostError, "the job's instance was terminated", LOST),
    ),
    Row(
        status("Your Spot Task was interrupted"),
        FailureReason(errors.HostLostError, "Fargate Spot reclaimed its capacity", LOST),
    ),
    # Regardless of the exit code: 137, or 1 if only a child process was killed.
    Row(
        container("OutOfMemoryError"),
        FailureReason(errors.OutOfMemoryError, "the container ran out of memory", MEMORY),
    ),
    Row(
        status("Dependent Job failed"),
        FailureReason(
            errors.JobError,
            "a job that this job depends on failed",
            "check that job (dependsOn in DescribeJobs), then submit both again",
        ),
    ),
    Row(
        status("Array Child Job failed"),
        FailureReason(
            errors.JobError,
            "an array task failed",
            "see the errors of its tasks, <job ID>:<index>",
        ),
    ),
    Row(
        status("JobQueue deleted"),
        FailureReason(
            errors.JobError,
            "the queue was deleted while it contained the job",
            "set queue to another queue, and submit the job again",
        ),
    ),
    *STARTS,
    Row(
        _was_not_started,
        FailureReason(
            errors.ImageError,
            "the container was not started",
            f"check {IMAGE} (registry, repository, tag, architecture), that "
            "batch_execution_role_name can pull it and that the subnet can reach the "
            "registry, then the image's entry point, and the job's volumes and log group",
        ),
    ),
)
"""Failure reasons of any job, recognized by Batch's texts."""

_RUNTIME_ENDINGS: tuple[Row, ...] = tuple(
    Row(all_of(_fetches_runtime, exit_code(*codes)), failure_reason)
    for codes, failure_reason in (
        (
            (ExitCode.BAD_ENVIRONMENT,),
            FailureReason(
                errors.ImageError,
                "the job had no credentials to download farcall's runtime, or did not "
                "understand its start parameters; nothing was run",
                "set batch_job_role_name to a role that can read s3_bucket_name, and remove "
                "FARCALL_ variables from job_definition_extra",
            ),
        ),
        (
            (ExitCode.BUNDLE_MISSING,),
            FailureReason(
                errors.OutcomeMissingError,
                "the job did not find farcall's runtime, or its input data, in the bucket; "
                "nothing was run",
                "make the lifecycle rule of s3_bucket_name longer than the wait in the queue, "
                "and do not delete objects below runtime/ and bundles/; then submit again, "
                "which stores them again",
            ),
        ),
        (
            (ExitCode.INTEGRITY,),
            FailureReason(
                errors.IntegrityError,
                "farcall's runtime in the bucket, or the job's input data, differs from what "
                "was stored; nothing was run",
                "find out who else writes to s3_bucket_name, then submit again, which stores "
                "the changed objects again",
            ),
        ),
        (
            (ExitCode.VERSION_MISMATCH,),
            FailureReason(
                errors.VersionMismatchError,
                "farcall's runtime was built for a different processor, Python or libc than "
                "the job's",
                "set architecture to the processor of the queue's machines, and "
                "stock_image_uri to an image with glibc (Debian, not Alpine) and the Python "
                "minor version used here, or to an empty string for the official image",
            ),
        ),
        (
            (ExitCode.STORAGE_UNREACHABLE,),
            FailureReason(
                errors.OutcomeMissingError,
                "the job could not download its data from the bucket; nothing was run",
                "give batch_job_role_name s3:GetObject and s3:ListBucket on s3_bucket_name, "
                f"including runtime/; {SUBNET} S3; and check the clock of its machine",
            ),
        ),
        (
            (ExitCode.DISK_FULL,),
            FailureReason(
                errors.DiskFullError,
                "the job's temporary folder has no space for farcall's runtime or its "
                "packages; nothing was run",
                "give the job more disk space: ephemeralStorage in job_definition_extra on "
                "Fargate, a larger volume in the launch template of the compute environment "
                "on EC2, or a larger tmpfs if /tmp is one",
            ),
        ),
        (
            (ExitCode.SUPERVISOR_FAILED,),
            FailureReason(
                errors.OutcomeMissingError,
                "farcall's runtime could not be unpacked, or failed, and stored no result",
                "see its log; with readonlyRootFilesystem, /tmp must be a volume, or a tmpfs "
                "with the mount option exec",
            ),
        ),
        (
            (126, 127, ExitCode.RAISED),
            FailureReason(
                errors.ImageError,
                "the image could not run farcall's bootstrap",
                "see its log; stock_image_uri must name an image with python3 and without its "
                "own entry point",
            ),
        ),
    )
)
"""Failure reasons of tasks that download the runtime first, and store no outcome."""

ENDINGS: tuple[Row, ...] = (
    Row(
        all_of(_succeeded, container("OutOfMemoryError")),
        FailureReason(
            errors.OutOfMemoryError,
            "a process of the job was killed because of its memory use, and the job stored no "
            "result",
            MEMORY,
        ),
    ),
    Row(_succeeded, RESULT_MISSING),
    *_BY_TEXT,
    *_RUNTIME_ENDINGS,
    *(Row(exit_code(code), EXITS[code]) for code in EXITS if code is not ExitCode.CANCELLED),
    Row(
        lambda detail: detail.exit_code is None and not detail.array_size,
        _MACHINE_LOST_IT,
    ),
    Row(
        lambda _: True,
        FailureReason(
            errors.JobError,
            "the job failed and stored no result in the bucket",
            "see its log; batch_job_role_name may lack s3:PutObject on s3_bucket_name",
        ),
    ),
)
"""Failure reasons of function jobs.

The first matching row counts, and the last always matches.
"""

_NOT_RUNNABLE = FailureReason(
    errors.CommandError,
    "the command was not found in the image, or is not executable there",
    f"see the job's log, and check the contents of {IMAGE}",
)

_WORKSPACE_ENDINGS: tuple[Row, ...] = tuple(
    Row(all_of(_fetches_workspace, exit_code(code)), failure_reason)
    for code, failure_reason in (
        (
            start_script.TOOLS_MISSING,
            FailureReason(
                errors.ImageError,
                "the image lacks the tools to download its workspace; nothing was run",
                f"see its log for the missing tool; {IMAGE} needs a shell, coreutils, and "
                "python3, curl or wget; or submit without a workspace",
            ),
        ),
        (
            start_script.NO_CREDENTIALS,
            FailureReason(
                errors.ImageError,
                "the job had no credentials to download its workspace; nothing was run",
                "set batch_job_role_name to a role that can read s3_bucket_name",
            ),
        ),
        (
            start_script.NOT_FETCHED,
            FailureReason(
                errors.CommandError,
                "the job could not download its workspace; nothing was run",
                "give batch_job_role_name s3:GetObject on s3_bucket_name, make the lifecycle "
                f"rule longer than the wait in the queue; and {SUBNET} S3",
            ),
        ),
        (
            start_script.TAMPERED,
            FailureReason(
                errors.IntegrityError,
                "the workspace in the bucket differs from the one that was uploaded; nothing "
                "was run",
                "find out who else writes to s3_bucket_name, delete the object that the log "
                "names, then submit again",
            ),
        ),
        (
            start_script.NOT_UNPACKED,
            FailureReason(
                errors.CommandError,
                "the job could not unpack its workspace; nothing was run",
                "see its log for the cause; the container's user must be able to write to the "
                "folder, or choose another folder for the workspace",
            ),
        ),
    )
)
"""Failure reasons of command jobs before their command, because of the workspace."""

COMMAND_ENDINGS: tuple[Row, ...] = (
    # docker's errors, before the container's own shell could report them,
    # https://docs.docker.com/engine/containers/run/#exit-status
    Row(
        container(
            "CannotStartContainerError",
            "executable file not found",
            "no such file or directory",
            "permission denied",
        ),
        _NOT_RUNNABLE,
    ),
    *_BY_TEXT,
    *_WORKSPACE_ENDINGS,
    Row(exit_code(126, 127), _NOT_RUNNABLE),
    Row(
        exit_code(137),
        FailureReason(
            errors.OutOfMemoryError,
            "the container was killed (SIGKILL), most likely because of its memory use",
            MEMORY,
        ),
    ),
    Row(
        exit_code(143),
        FailureReason(errors.HostLostError, "the container was stopped (SIGTERM)", LOST),
    ),
    Row(
        lambda detail: detail.exit_code is None,
        _MACHINE_LOST_IT,
    ),
    Row(
        lambda _: True,
        FailureReason(errors.CommandError, "the command failed", "see its log"),
    ),
)
"""Failure reasons of command jobs whose command did not return 0."""
