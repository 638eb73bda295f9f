"""Job status, and why a job ended.

The only place that reads Batch's texts (``statusReason``, a container's ``reason``) and exit
codes. A pure table, no I/O. It is asked only about jobs that left no outcome in the bucket: where
there is one, the outcome wins.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any

from farcall import errors
from farcall_runtime.contract import ExitCode

OWN_REASON = "farcall: "
"""How the reasons begin that farcall gives when it terminates a job."""


class JobStatus(str, enum.Enum):
    """Status of a job, in Batch's words.

    Source:
        https://docs.aws.amazon.com/batch/latest/userguide/job_states.html
    """

    SUBMITTED = "SUBMITTED"
    PENDING = "PENDING"
    """Waits for other jobs; also an array job whose children are not all done."""
    RUNNABLE = "RUNNABLE"
    """Waits for a place to run."""
    STARTING = "STARTING"
    """Has a place; the image is being pulled."""
    RUNNING = "RUNNING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    """Also a cancelled job: Batch has no status of its own for it."""

    @property
    def is_final(self) -> bool:
        """Whether no other status follows."""
        return self in (JobStatus.SUCCEEDED, JobStatus.FAILED)

    def __str__(self) -> str:
        return self.value


# AWS Batch user guide (job_retries, job_timeouts, job_queue_parameters) and ECS's stopped-task
# errors. Others there may be, and are taken for those of a person.
_OWN_WORDS = (
    "Essential container in task exited",
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


@dataclass(frozen=True)
class JobDetail:
    """What Batch says of a job, or of one child of an array job.

    Attributes:
        job_id: The job's ID; an array child's is ``"<parent>:<index>"``.
        name: The job's name.
        status: Its status.
        status_reason: Batch's words on the status; of the last attempt where the job has none.
        exit_code: Exit code of the container's last attempt, or None where it had none.
        container_reason: The container agent's words, such as ``"OutOfMemoryError: ..."``.
        attempts: Number of attempts that have ended.
        created_at: When it was submitted.
        started_at: When the last attempt began to run, or None.
        stopped_at: When it ended, or None.
        is_cancelled: CancelJob or TerminateJob was called before it ran.
        is_terminated: TerminateJob was called.
        log_group: CloudWatch log group.
        log_stream: CloudWatch log stream of the last attempt; empty before it runs.
        array_size: Number of children of an array job; 0 for others.
        status_summary: Of an array job, the number of children by status.
        environment: The job's own environment variables.
    """

    job_id: str
    name: str
    status: JobStatus
    status_reason: str = ""
    exit_code: int | None = None
    container_reason: str = ""
    attempts: int = 0
    created_at: datetime | None = None
    started_at: datetime | None = None
    stopped_at: datetime | None = None
    is_cancelled: bool = False
    is_terminated: bool = False
    log_group: str = ""
    log_stream: str = ""
    array_size: int = 0
    status_summary: Mapping[str, int] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)

    @classmethod
    def from_describe(cls, job: Mapping[str, Any]) -> JobDetail:
        """Read a member of DescribeJobs's ``jobs``, with containerProperties or ecsProperties.

        Source:
            https://docs.aws.amazon.com/batch/latest/APIReference/API_JobDetail.html
        """
        attempts = job.get("attempts") or []
        last = attempts[-1] if attempts else {}
        container = _first_container(job)
        ended = _first_container(last)
        log = (container.get("logConfiguration") or {}).get("options") or {}
        array = job.get("arrayProperties") or {}
        return cls(
            job_id=job["jobId"],
            name=job.get("jobName", ""),
            status=JobStatus(job["status"]),
            status_reason=job.get("statusReason") or last.get("statusReason") or "",
            exit_code=_either(container.get("exitCode"), ended.get("exitCode")),
            container_reason=container.get("reason") or ended.get("reason") or "",
            attempts=len(attempts),
            created_at=_moment(job.get("createdAt")),
            started_at=_moment(job.get("startedAt")),
            stopped_at=_moment(job.get("stoppedAt")),
            is_cancelled=bool(job.get("isCancelled")),
            is_terminated=bool(job.get("isTerminated")),
            log_group=log.get("awslogs-group", "/aws/batch/job"),
            log_stream=container.get("logStreamName") or ended.get("logStreamName") or "",
            array_size=array.get("size") or 0,
            status_summary=array.get("statusSummary") or {},
            environment={
                pair["name"]: pair.get("value", "") for pair in container.get("environment") or []
            },
        )

    @property
    def is_blocked(self) -> bool:
        """Whether Batch says that it cannot place the job as things are.

        Source:
            https://docs.aws.amazon.com/batch/latest/userguide/job_stuck_in_runnable.html
        """
        words = ("MISCONFIGURATION:", "CAPACITY:", "ACTION_REQUIRED", "UNDETERMINED")
        return self.status is JobStatus.RUNNABLE and self.status_reason.startswith(words)

    @property
    def is_explained(self) -> bool:
        """Whether the status reason is Batch's or farcall's, and not that of who ended the job."""
        return self.status_reason.startswith((*_OWN_WORDS, OWN_REASON))

    @property
    def reason(self) -> str:
        """Batch's words on the end, status reason and container reason."""
        return "; ".join(text for text in (self.status_reason, self.container_reason) if text)


@dataclass(frozen=True)
class Ending:
    """How a job without an outcome ended.

    Attributes:
        error: The class of the error to raise.
        sentence: What happened.
        remedy: What to do.
    """

    error: type[errors.JobError | errors.OutcomeError]
    sentence: str
    remedy: str


def ending(detail: JobDetail) -> Ending:
    """Say why a job that left no outcome ended.

    Args:
        detail: A job whose status is final.

    Returns:
        The first row of the table that fits.
    """
    if detail.status is JobStatus.SUCCEEDED:
        return Ending(
            errors.OutcomeMissingError,
            "the job succeeded and left no outcome in the bucket",
            "container_image_uri must be an image built from farcall's Dockerfile, and nothing "
            "but the client may delete outcomes",
        )
    for fits, found in _TABLE:
        if fits(detail):
            return found
    return Ending(
        errors.JobError,
        "the job failed and left no outcome in the bucket",
        "its log says more; the job role may lack s3:PutObject on the bucket",
    )


def _status(*starts: str) -> Callable[[JobDetail], bool]:
    return lambda detail: detail.status_reason.startswith(starts)


def _container(*starts: str) -> Callable[[JobDetail], bool]:
    lowered = tuple(start.lower() for start in starts)
    return lambda detail: any(
        text.lower().startswith(lowered)
        for text in (detail.container_reason, detail.status_reason)
    )


def _exit(*codes: int) -> Callable[[JobDetail], bool]:
    return lambda detail: detail.exit_code in codes


_LOST = "raise retry_attempts, or run on a queue with on-demand capacity"

# Texts: AWS Batch user guide (job_retries, job_timeouts, job_queue_parameters), ECS's list of
# stopped-task errors. The order matters: what somebody did comes before what followed from it.
_TABLE: tuple[tuple[Callable[[JobDetail], bool], Ending], ...] = (
    (
        _status("Canceled by JobStateTimeLimit action"),
        Ending(
            errors.JobStuckError,
            "the queue's time limit for waiting jobs ended the job",
            "the queue's jobStateTimeLimitActions and its compute environment say why it waited",
        ),
    ),
    (
        lambda detail: (
            detail.is_cancelled
            or detail.is_terminated
            or detail.status_reason.startswith(OWN_REASON)
        ),
        Ending(errors.JobCancelledError, "the job was cancelled", "submit it again if needed"),
    ),
    (
        _status("Job attempt duration exceeded timeout"),
        Ending(errors.JobTimeoutError, "the job ran longer than time_limit", "raise time_limit"),
    ),
    (
        _status("Host EC2"),
        Ending(errors.HostLostError, "the instance under the job was terminated", _LOST),
    ),
    (
        _status("Your Spot Task was interrupted"),
        Ending(errors.HostLostError, "Fargate Spot took its capacity back", _LOST),
    ),
    (
        _container("OutOfMemoryError"),
        Ending(errors.OutOfMemoryError, "the container ran out of memory", "raise memory"),
    ),
    (
        _container("CannotPullContainerError", "CannotPullImageManifestError"),
        Ending(
            errors.ImageError,
            "the image could not be pulled",
            "check container_image_uri, the registry's permissions of batch_execution_role_name, "
            "and that the subnet reaches the registry",
        ),
    ),
    (
        _container("CannotCreateContainerError"),
        Ending(
            errors.ImageError,
            "the container could not be created",
            "check memory, and volumes, devices and user in job_definition_extra",
        ),
    ),
    (
        _container("CannotStartContainerError"),
        Ending(
            errors.ImageError,
            "the container could not be started",
            "check the image's entry point and its architecture (x86_64 or arm64)",
        ),
    ),
    (
        _container("ResourceInitializationError"),
        Ending(
            errors.ImageError,
            "the job's surroundings could not be prepared",
            "check batch_job_log_group_name, the execution role's permissions, secrets, and the "
            "network of the subnet",
        ),
    ),
    (
        _container("ECS was unable to assume the role"),
        Ending(
            errors.ImageError,
            "the job's role cannot be assumed",
            "batch_job_role_name and batch_execution_role_name must exist and trust "
            "ecs-tasks.amazonaws.com",
        ),
    ),
    (
        _container("DockerTimeoutError", "CannotInspectContainerError"),
        Ending(errors.HostLostError, "the host's container engine did not answer", _LOST),
    ),
    (
        _container("Container Overrides length"),
        Ending(
            errors.ImageError,
            "the job's overrides exceed ECS's 8192 characters",
            "shorten prefix and the environment in job_definition_extra",
        ),
    ),
    (
        _status("Dependent Job failed"),
        Ending(errors.JobError, "a job this one depends on failed", "see that job"),
    ),
    (
        _status("JobQueue deleted"),
        Ending(errors.JobError, "the queue was deleted", "set batch_queue to another"),
    ),
    (
        _exit(ExitCode.BAD_ENVIRONMENT),
        Ending(
            errors.ImageError,
            "the image did not understand how it was started",
            "build it from this version's Dockerfile",
        ),
    ),
    (
        _exit(ExitCode.BUNDLE_MISSING),
        Ending(
            errors.OutcomeMissingError,
            "the job did not find its payload in the bucket",
            "the job role needs s3:GetObject, and a lifecycle rule must not be shorter than the "
            "wait in the queue",
        ),
    ),
    (
        _exit(ExitCode.INTEGRITY),
        Ending(
            errors.IntegrityError,
            "the payload in the bucket is not the one that was submitted; it was not run",
            "find out who writes to the bucket, then submit again",
        ),
    ),
    (
        _exit(ExitCode.VERSION_MISMATCH),
        Ending(
            errors.VersionMismatchError,
            "workflow and image run different versions",
            "use the same Python minor and the same farcall on both sides",
        ),
    ),
    (
        _exit(ExitCode.TIMED_OUT),
        Ending(errors.JobTimeoutError, "the job ran longer than time_limit", "raise time_limit"),
    ),
    (
        _exit(ExitCode.UNREADABLE),
        Ending(
            errors.TaskError,
            "the image could not read the function",
            "install what the function imports in the image",
        ),
    ),
    (
        _exit(ExitCode.OUTCOME_NOT_STORED),
        Ending(
            errors.OutcomeMissingError,
            "the function ran and its outcome could not be stored",
            "the job role needs s3:PutObject on the bucket, and the subnet a way to S3",
        ),
    ),
    (
        _exit(ExitCode.STORAGE_UNREACHABLE),
        Ending(
            errors.OutcomeMissingError,
            "the job could not reach the bucket",
            "the job role needs s3:GetObject and s3:ListBucket on the bucket, and the subnet a "
            "way to S3",
        ),
    ),
    (
        _exit(ExitCode.SUPERVISOR_FAILED),
        Ending(
            errors.OutcomeMissingError,
            "the container's own part failed and left no outcome",
            "its log has the traceback; a limit of processes or of open files (ulimits in "
            "job_definition_extra) is the most likely cause",
        ),
    ),
    (
        _exit(ExitCode.CHILD_KILLED),
        Ending(errors.ChildKilledError, "the task's process was killed", "see its output"),
    ),
    (
        _exit(ExitCode.OUT_OF_MEMORY),
        Ending(errors.OutOfMemoryError, "the task ran out of memory", "raise memory"),
    ),
    (
        _exit(ExitCode.TERMINATED),
        Ending(errors.HostLostError, "the container was told to stop (SIGTERM)", _LOST),
    ),
    (
        _exit(137),
        Ending(
            errors.OutOfMemoryError,
            "the container was killed (SIGKILL), most often for its memory",
            "raise memory",
        ),
    ),
    (
        _exit(126, 127),
        Ending(
            errors.ImageError,
            "the image's entry point could not be run",
            "build the image from farcall's Dockerfile",
        ),
    ),
)


def _first_container(job: Mapping[str, Any]) -> Mapping[str, Any]:
    """The container of a job or an attempt, wherever this kind of definition puts it."""
    tasks = job.get("taskProperties") or (job.get("ecsProperties") or {}).get("taskProperties")
    containers = tasks[0].get("containers") if tasks else None
    found = containers[0] if containers else job.get("container")
    return found or {}


def _either(first: int | None, second: int | None) -> int | None:
    return first if first is not None else second


def _moment(milliseconds: float | None) -> datetime | None:
    if milliseconds is None:
        return None
    return datetime.fromtimestamp(milliseconds / 1000, tz=timezone.utc)
