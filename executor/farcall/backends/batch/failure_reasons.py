"""Failure reasons: why a job failed, or cannot start.

Together with `farcall.model.exit_codes`, this is the only module that interprets Batch's texts
(``statusReason``, a container's ``reason``) and exit codes. No I/O. It is called only for jobs
without an outcome in the bucket, because an outcome takes precedence.

Sources:
    https://docs.aws.amazon.com/batch/latest/userguide/job_retries.html
    https://docs.aws.amazon.com/batch/latest/userguide/job_timeouts.html
    https://docs.aws.amazon.com/batch/latest/userguide/job_queue_parameters.html
    https://docs.aws.amazon.com/batch/latest/userguide/job_stuck_in_runnable.html
    https://docs.aws.amazon.com/AmazonECS/latest/developerguide/stopped-task-error-codes.html
    https://docs.aws.amazon.com/AmazonECS/latest/developerguide/task_cannot_pull_image.html
"""

from __future__ import annotations

from dataclasses import replace

from farcall.backends.batch import blocked
from farcall.backends.failure_tables import (
    COMMAND_FAILED,
    CREATED_BY,
    GIVEN,
    IMAGE,
    MAP_FAILED,
    NOT_RUNNABLE,
    RESULT_MISSING,
    STARTED_BY,
    Row,
    Words,
    all_of,
    command_exits,
    container,
    filled,
    has_succeeded,
    row,
    status,
    task_exits,
)
from farcall.model import errors
from farcall.model.failure_reasons import (
    MEMORY,
    OWN_REASON,
    STUCK,
    SUBNET,
    TIME_LIMIT,
    FailureReason,
)
from farcall.model.jobs import JobDetail
from farcall.model.names import BATCH, PLATFORMS

EXITED = "Essential container in task exited"
"""Batch's uninformative status reason for any container that has exited by itself."""

_HOLLOW = (EXITED, "Job submitted", "Job started", "Job succeeded", "Job failed")
"""Status reasons that only repeat the status; most come from emulators."""

LOST = "raise retry_attempts, or set queue to one with on-demand capacity"
"""Remedy for a lost host."""

_WORDS = Words(
    credentials="set batch_job_role_name to a role that can read s3_bucket_name",
    script_credentials="set batch_job_role_name to a role that can read s3_bucket_name",
    machines="the queue's machines",
    image="python3 and without its own entry point",
    lost=LOST,
    created_by=(
        "memory, and volumes, devices and user in job_definition_extra",
        "memory, mounts, devices and user",
    ),
    started_by=(
        "command and linuxParameters in job_definition_extra",
        ", command, devices, shm_size and ulimits",
    ),
)

_MACHINE_LOST_IT = FailureReason(
    errors.HostLostError,
    "the container was started, but its machine or its container engine lost it",
    f"see its log for its progress; {LOST}",
)


_UNKNOWN_CAUSE = Row(
    lambda detail: not (detail.reason or detail.array_size) and detail.exit_code is None,
    FailureReason(
        errors.JobError,
        "the job failed, and Batch reports neither an exit code nor a reason",
        "see its log, and the event log of the queue's ECS cluster; then submit it again",
    ),
)


def failure_reason(detail: JobDetail) -> FailureReason:
    """Return why a job without an outcome ended.

    Args:
        detail: A job with a final status, or the known facts about a failed attempt.

    Returns:
        The failure reason of the first matching row. If Batch reports why a job was never placed,
        the remedy is from `blocked.remedy`.
    """
    if detail.map_failure:  # Batch cancelled its remaining child jobs, but not the array itself
        return MAP_FAILED
    rows = COMMAND_ENDINGS if detail.is_command else ENDINGS
    reason = next(row.failure_reason for row in rows if row.fits(detail))
    if reason.kind is errors.JobStuckError:
        reason = replace(reason, remedy=blocked.remedy(detail.status_reason) or reason.remedy)
    return filled(reason, _WORDS, detail)


def is_explained(detail: JobDetail) -> bool:
    """Return whether the status reason was written by Batch or farcall.

    Any other reason is assumed to be written by a person who terminated the job.
    """
    return detail.status_reason.startswith((*_HOLLOW, *_BATCH_WORDS, OWN_REASON))


def telling(reason: str) -> str:
    """Return Batch's reason without its uninformative part; see `JobDetail.reason`."""
    first, _, rest = reason.partition("; ")
    return rest if first.rstrip(".") in _HOLLOW else reason


def _was_not_started(detail: JobDetail) -> bool:
    """Return whether the container never existed: no exit code, and no log either."""
    return detail.exit_code is None and not (detail.log_stream or detail.array_size)


def _withdrawn(detail: JobDetail) -> bool:
    """Return whether a user cancelled the job.

    If it succeeded at the same time, its status decides.
    """
    return detail.is_cancelled or detail.is_terminated


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

_STARTS: tuple[Row, ...] = (
    row(
        container(
            "CannotPull",
            "access denied",
            "not authorized",
            "unauthorized",
            "no basic auth",
            "authentication",
            "403 forbidden",
            "credential",
        ),
        errors.ImageError,
        "the image could not be pulled: the registry refused access",
        "give batch_execution_role_name (on EC2 without this option, the instance role) "
        "the policy AmazonECSTaskExecutionRolePolicy, set repositoryCredentials in "
        f"job_definition_extra for another registry, and check {IMAGE}",
    ),
    row(
        container(
            "CannotPull", "i/o timeout", "dial tcp", "deadline", "request canceled", "no route"
        ),
        errors.ImageError,
        "the image could not be pulled: the registry could not be reached",
        f"{SUBNET} the registry: a NAT gateway, a public address (networkConfiguration in "
        "job_definition_extra) or VPC endpoints",
    ),
    row(
        container("CannotPull", "toomanyrequests", "rate limit", "429"),
        errors.ImageError,
        "the image could not be pulled: the registry's pull limit has been reached",
        f"copy {IMAGE} to ECR and use the copy, or try again later",
    ),
    row(
        container("CannotPull", "platform", "no matching manifest"),
        errors.ImageError,
        "the image could not be pulled: it was not built for the machine's architecture",
        f"build {IMAGE} for x86_64 or arm64, depending on the machines (runtimePlatform in "
        "job_definition_extra on Fargate)",
    ),
    row(
        container("CannotPull", "no space left"),
        errors.ImageError,
        "the image could not be pulled: the machine's disk is full",
        "set ephemeralStorage in job_definition_extra on Fargate, or on EC2 enlarge the "
        "volume in the launch template of the compute environment",
    ),
    row(
        container("CannotPull", "not found", "manifest unknown", "does not exist", "no such"),
        errors.ImageError,
        "the image could not be pulled: it does not exist in the registry",
        f"check {IMAGE}: registry, repository, tag, and the region of ECR",
    ),
    row(
        container("CannotPull"),
        errors.ImageError,
        "the image could not be pulled",
        f"check {IMAGE}, the registry permissions of batch_execution_role_name, and that "
        "the subnet can reach the registry",
    ),
    row(
        container("CannotCreateContainerError"),
        errors.ImageError,
        "the container could not be created",
        f"check {CREATED_BY}",
    ),
    row(
        container("CannotStartContainerError", "exec format error"),
        errors.ImageError,
        "the container could not be started: the image was built for another architecture",
        f"build {IMAGE} for x86_64 or arm64, depending on the machines (runtimePlatform in "
        "job_definition_extra on Fargate)",
    ),
    row(
        container("CannotStartContainerError", "could not select device driver"),
        errors.ImageError,
        "the container could not be started: the machine lacks the requested GPUs",
        "set num_gpus to 0, or submit to a queue whose instances have GPUs and their driver",
    ),
    row(
        container("CannotStartContainerError"),
        errors.ImageError,
        "the container could not be started",
        f"check the entry point of {IMAGE}{STARTED_BY}",
    ),
    row(
        container("ResourceInitializationError", "log group", "logger", "awslogs"),
        errors.ImageError,
        "the job's log could not be opened",
        "check that batch_job_log_group_name exists, and give batch_execution_role_name "
        "logs:CreateLogStream and logs:PutLogEvents on it",
    ),
    row(
        container("ResourceInitializationError", "secret", "registry auth", "ssm"),
        errors.ImageError,
        "the job's secrets or its registry credentials could not be fetched",
        "give batch_execution_role_name the permissions "
        "(AmazonECSTaskExecutionRolePolicy, secretsmanager:GetSecretValue, "
        f"ssm:GetParameters); {SUBNET} these services",
    ),
    row(
        container("ResourceInitializationError"),
        errors.ImageError,
        "the job's environment could not be prepared",
        "check volumes and networkConfiguration in job_definition_extra, "
        "batch_job_log_group_name, the permissions of batch_execution_role_name, and the "
        "network of the subnet",
    ),
    row(
        container("ECS was unable to assume the role"),
        errors.ImageError,
        "the job's role cannot be assumed",
        "check that batch_job_role_name and batch_execution_role_name exist and trust "
        "ecs-tasks.amazonaws.com",
    ),
    row(
        container("DockerTimeoutError"),
        errors.HostLostError,
        "the machine's container engine was too slow to start the container",
        "raise retry_attempts; if it happens again, the machine's disk or network is too "
        f"slow for {IMAGE}",
    ),
    row(
        container("CannotInspectContainerError"),
        errors.HostLostError,
        "the machine's container engine lost the container",
        LOST,
    ),
    row(
        container("Container Overrides length"),
        errors.ImageError,
        "the job's overrides exceed ECS's 8192 characters",
        "shorten prefix and the environment in job_definition_extra",
    ),
    row(
        all_of(status("Task failed to start"), lambda detail: not detail.container_reason),
        errors.ImageError,
        "the container was not started, but Batch does not report why",
        "submit it again; see the event log of the queue's ECS cluster",
    ),
)
"""Failure reasons of containers that did not start, or that their engine lost."""

# The order matters: a user's action comes before its consequences.
_BY_TEXT: tuple[Row, ...] = (
    # Recognized by their texts, even if Batch flags the jobs as terminated.
    row(
        status("Canceled by JobStateTimeLimit action"),
        errors.JobStuckError,
        "the queue's time limit for waiting jobs terminated the job",
        "request less (vcpu, memory, num_gpus), or check the jobStateTimeLimitActions and "
        "the compute environment of the queue",
    ),
    row(
        status(f"{OWN_REASON}{STUCK}"),
        errors.JobStuckError,
        "the job could not be placed for stuck_timeout_s and was terminated",
        "request less (vcpu, memory, num_gpus), or enlarge the queue's compute environment",
    ),
    row(
        status("Job attempt duration exceeded timeout"),
        errors.JobTimeoutError,
        "the job ran longer than time_limit, so Batch terminated it",
        TIME_LIMIT,
    ),
    *GIVEN,
    row(
        _withdrawn,
        errors.JobCancelledError,
        "the job was cancelled or terminated by another user",
        "find out who did, and submit it again if needed",
    ),
    row(status("Host EC2"), errors.HostLostError, "the job's instance was terminated", LOST),
    row(
        status("Your Spot Task was interrupted"),
        errors.HostLostError,
        "Fargate Spot reclaimed its capacity",
        LOST,
    ),
    # Regardless of the exit code: 137, or 1 if only a child process was killed.
    row(
        container("OutOfMemoryError"),
        errors.OutOfMemoryError,
        "the container ran out of memory",
        MEMORY,
    ),
    row(
        status("Dependent Job failed"),
        errors.JobError,
        "a job that this job depends on failed",
        "check that job (dependsOn in DescribeJobs), then submit both again",
    ),
    row(
        status("Array Child Job failed"),
        errors.JobError,
        "an array task failed",
        "see the errors of its tasks, <job ID>:<index>",
    ),
    row(
        status("JobQueue deleted"),
        errors.JobError,
        "the queue was deleted while it contained the job",
        "set queue to another queue, and submit the job again",
    ),
    *_STARTS,
    row(
        _was_not_started,
        errors.ImageError,
        "the container was not started",
        f"check {IMAGE} (registry, repository, tag, architecture), that "
        "batch_execution_role_name can pull it and that the subnet can reach the "
        "registry, then the image's entry point, and the job's volumes and log group",
    ),
)
"""Failure reasons of any job, recognized by Batch's texts."""

ENDINGS: tuple[Row, ...] = (
    row(
        all_of(has_succeeded, container("OutOfMemoryError")),
        errors.OutOfMemoryError,
        "a process of the job was killed because of its memory use, and the job stored no result",
        MEMORY,
    ),
    Row(has_succeeded, RESULT_MISSING),
    *_BY_TEXT,
    *task_exits(PLATFORMS[BATCH], _WORDS),
    _UNKNOWN_CAUSE,
    Row(
        lambda detail: detail.exit_code is None and not detail.array_size,
        _MACHINE_LOST_IT,
    ),
    row(
        lambda _: True,
        errors.JobError,
        "the job failed and stored no result in the bucket",
        "see its log; batch_job_role_name may lack s3:PutObject on s3_bucket_name",
    ),
)
"""Failure reasons of function jobs.

The first matching row counts, and the last always matches.
"""

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
        NOT_RUNNABLE,
    ),
    *_BY_TEXT,
    *command_exits(PLATFORMS[BATCH], _WORDS),
    _UNKNOWN_CAUSE,
    Row(lambda detail: detail.exit_code is None, _MACHINE_LOST_IT),
    COMMAND_FAILED,
)
"""Failure reasons of command jobs whose command did not return 0."""
