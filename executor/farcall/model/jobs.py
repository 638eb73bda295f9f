"""What Batch says of a job: its status, its attempts, where its log is. No I/O.

Batch's documents are read here, and become values of ours. What its texts mean is for
`farcall.backends.batch.endings` to say.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from typing import Any, NamedTuple


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


_UNDER_WAY = (JobStatus.STARTING, JobStatus.RUNNING)
"""In these an attempt goes on, which Batch may list beside those that have ended, or not."""


class Attempt(NamedTuple):
    """What Batch says of an attempt.

    Attributes:
        status_reason: Batch's words on its end.
        container_reason: The container agent's words, such as ``"OutOfMemoryError: ..."``.
        exit_code: Exit code of the container, or None where it had none.
        log_stream: CloudWatch log stream; empty where it never ran.
        started_at: When it began to run, or None.
        stopped_at: When it ended, or None.
    """

    status_reason: str = ""
    container_reason: str = ""
    exit_code: int | None = None
    log_stream: str = ""
    started_at: datetime | None = None
    stopped_at: datetime | None = None

    @property
    def is_over(self) -> bool:
        """Whether it has ended, as far as can be told by itself."""
        ends = self.stopped_at is not None or self.exit_code is not None
        return ends or bool(self.status_reason or self.container_reason)


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
        tried: The attempts that have ended, the first one first.
        attempts_allowed: How many it may have.
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
        queue: Name of its queue.
        queue_arn: ARN of its queue.
        definition: Name and revision of its definition.
        image: Its image.
        vcpu: vCPUs it asked for.
        memory_mib: MiB of memory it asked for.
        gpus: GPUs it asked for.
        time_limit_s: Seconds an attempt may run, or None.
        tags: Its tags.
    """

    job_id: str
    name: str
    status: JobStatus
    status_reason: str = ""
    exit_code: int | None = None
    container_reason: str = ""
    tried: tuple[Attempt, ...] = ()
    attempts_allowed: int = 1
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
    queue: str = ""
    queue_arn: str = ""
    definition: str = ""
    image: str = ""
    vcpu: float = 0
    memory_mib: int = 0
    gpus: int = 0
    time_limit_s: int | None = None
    tags: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def from_describe(cls, job: Mapping[str, Any]) -> JobDetail:
        """Read a member of DescribeJobs's ``jobs``, with containerProperties or ecsProperties.

        Source:
            https://docs.aws.amazon.com/batch/latest/APIReference/API_JobDetail.html
        """
        status, container = JobStatus(job["status"]), _first_container(job)
        listed = list(map(_attempt, job.get("attempts") or ()))
        if status.is_final:
            listed = _completed(listed, job, container)
        last = listed[-1] if listed else Attempt()
        if listed and status in _UNDER_WAY and not last.is_over:
            del listed[-1]
        exit_code = container.get("exitCode")
        log = (container.get("logConfiguration") or {}).get("options") or {}
        array = job.get("arrayProperties") or {}
        asked = {r["type"]: r["value"] for r in container.get("resourceRequirements") or ()}
        return cls(
            job_id=job["jobId"],
            name=job.get("jobName", ""),
            status=status,
            status_reason=job.get("statusReason") or last.status_reason,
            exit_code=last.exit_code if exit_code is None else exit_code,
            container_reason=container.get("reason") or last.container_reason,
            tried=tuple(listed),
            attempts_allowed=(job.get("retryStrategy") or {}).get("attempts") or 1,
            created_at=_moment(job.get("createdAt")),
            started_at=_moment(job.get("startedAt")),
            stopped_at=_moment(job.get("stoppedAt")),
            is_cancelled=bool(job.get("isCancelled")),
            is_terminated=bool(job.get("isTerminated")),
            log_group=log.get("awslogs-group", "/aws/batch/job"),
            log_stream=container.get("logStreamName") or last.log_stream,
            array_size=array.get("size") or 0,
            status_summary=array.get("statusSummary") or {},
            environment={
                pair["name"]: pair.get("value", "") for pair in container.get("environment") or []
            },
            queue=_last_part(job.get("jobQueue")),
            queue_arn=job.get("jobQueue") or "",
            definition=_last_part(job.get("jobDefinition")),
            image=container.get("image") or "",
            vcpu=float(asked.get("VCPU", 0)),
            memory_mib=int(asked.get("MEMORY", 0)),
            gpus=int(asked.get("GPU", 0)),
            time_limit_s=(job.get("timeout") or {}).get("attemptDurationSeconds"),
            tags=job.get("tags") or {},
        )

    @classmethod
    def from_summary(cls, job: Mapping[str, Any]) -> JobDetail:
        """Read a member of ListJobs's ``jobSummaryList``, which tells less.

        Source:
            https://docs.aws.amazon.com/batch/latest/APIReference/API_JobSummary.html
        """
        container = job.get("container") or {}
        array = job.get("arrayProperties") or {}
        return cls(
            job_id=job["jobId"],
            name=job.get("jobName", ""),
            status=JobStatus(job["status"]),
            status_reason=job.get("statusReason") or "",
            exit_code=container.get("exitCode"),
            container_reason=container.get("reason") or "",
            created_at=_moment(job.get("createdAt")),
            started_at=_moment(job.get("startedAt")),
            stopped_at=_moment(job.get("stoppedAt")),
            is_cancelled=bool(job.get("isCancelled")),
            is_terminated=bool(job.get("isTerminated")),
            array_size=array.get("size") or 0,
            status_summary=array.get("statusSummary") or {},
            definition=_last_part(job.get("jobDefinition")),
        )

    def with_status_of(self, listed: JobDetail) -> JobDetail:
        """Return the same job as it is by now.

        Args:
            listed: What `from_summary` made of a listing.
        """
        return replace(
            self,
            status=listed.status,
            status_reason=listed.status_reason,
            exit_code=listed.exit_code,
            container_reason=listed.container_reason,
            started_at=listed.started_at,
            stopped_at=listed.stopped_at,
            # A listing does not tell, and nobody takes it back.
            is_cancelled=self.is_cancelled or listed.is_cancelled,
            is_terminated=self.is_terminated or listed.is_terminated,
            # Of an array some regions list no counts.
            status_summary=listed.status_summary or self.status_summary,
        )

    @property
    def attempts(self) -> int:
        """Number of attempts that have ended."""
        return len(self.tried)

    @property
    def is_child(self) -> bool:
        """Whether it is one child of an array."""
        return self.job_id.rpartition(":")[2].isdigit() and ":" in self.job_id

    @property
    def index(self) -> int:
        """Number of a child in its array; 0 for others."""
        return int(self.job_id.rpartition(":")[2]) if self.is_child else 0

    @property
    def reason(self) -> str:
        """Batch's words on the end, status reason and container reason."""
        return "; ".join(text for text in (self.status_reason, self.container_reason) if text)


def _attempt(attempt: Mapping[str, Any]) -> Attempt:
    container = _first_container(attempt)
    return Attempt(
        attempt.get("statusReason") or "",
        container.get("reason") or "",
        container.get("exitCode"),
        container.get("logStreamName") or "",
        _moment(attempt.get("startedAt")),
        _moment(attempt.get("stoppedAt")),
    )


def _completed(
    listed: list[Attempt], job: Mapping[str, Any], container: Mapping[str, Any]
) -> list[Attempt]:
    """Add what only the job itself says of the last attempt of one that has ended.

    The list may be empty although a container ran, and its last member may lack the log.
    """
    log_stream = container.get("logStreamName") or ""
    if listed:
        last = listed[-1]
        return [*listed[:-1], last._replace(log_stream=last.log_stream or log_stream)]
    if not log_stream and container.get("exitCode") is None:
        return []  # none ever ran
    times = {name: job.get(name) for name in ("startedAt", "stoppedAt")}
    reason = job.get("statusReason")
    return [_attempt({"container": container, "statusReason": reason, **times})]


def _first_container(job: Mapping[str, Any]) -> Mapping[str, Any]:
    """The container of a job or an attempt, wherever this kind of definition puts it."""
    tasks = job.get("taskProperties") or (job.get("ecsProperties") or {}).get("taskProperties")
    containers = tasks[0].get("containers") if tasks else None
    found = containers[0] if containers else job.get("container")
    return found or {}


def _last_part(arn: str | None) -> str:
    """Return the name at the end of an ARN, or the name itself."""
    return (arn or "").rpartition("/")[2]


def _moment(milliseconds: float | None) -> datetime | None:
    if milliseconds is None:
        return None
    return datetime.fromtimestamp(milliseconds / 1000, tz=timezone.utc)
