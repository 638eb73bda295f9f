"""Job descriptions: status, attempts and log location of a job. No I/O.

Backends create them from their platform's responses and know the meaning of its texts.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import ClassVar, NamedTuple

from farcall.model import errors
from farcall.model.exit_codes import exits_of
from farcall.model.failure_reasons import MAP_FAILED, OWN_REASON, Dwell, FailureReason
from farcall.model.names import BATCH, PLATFORMS
from farcall.model.timing import Timing

_CANCELLED = re.compile(r"; ([0-9]{1,9})(?: calls in ([0-9]{1,9}) tasks)? (?:was|were) cancelled")


class JobStatus(enum.StrEnum):
    """Status of a job, with Batch's names; on Kubernetes, the status that corresponds.

    Source:
        https://docs.aws.amazon.com/batch/latest/userguide/job_states.html
    """

    SUBMITTED = "SUBMITTED"
    PENDING = "PENDING"
    """Waiting for other jobs; also an array job with unfinished tasks."""
    RUNNABLE = "RUNNABLE"
    """Waiting for compute resources."""
    STARTING = "STARTING"
    """Placed on compute resources; the image is being pulled."""
    RUNNING = "RUNNING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    """Failed or cancelled, which Batch does not distinguish."""

    @property
    def is_final(self) -> bool:
        """Whether the status can no longer change."""
        return self in (JobStatus.SUCCEEDED, JobStatus.FAILED)

    def __str__(self) -> str:
        return self.value


NOT_STARTED = frozenset((JobStatus.SUBMITTED, JobStatus.PENDING, JobStatus.RUNNABLE))
"""Statuses of jobs that no instance has come for."""


class Attempt(NamedTuple):
    """Platform's description of an attempt.

    Attributes:
        status_reason: The platform's reason for its end.
        container_reason: The container agent's reason, such as ``"OutOfMemoryError: ..."``.
        exit_code: Exit code of the container, or None if it had none.
        log_stream: CloudWatch log stream; empty if it never ran.
        started_at: Start time, or None.
        stopped_at: End time, or None.
    """

    status_reason: str = ""
    container_reason: str = ""
    exit_code: int | None = None
    log_stream: str = ""
    started_at: datetime | None = None
    stopped_at: datetime | None = None

    @property
    def is_over(self) -> bool:
        """Whether the attempt's own fields show that it has ended."""
        ends = self.stopped_at is not None or self.exit_code is not None
        return ends or bool(self.status_reason or self.container_reason)


@dataclass(frozen=True)
class NodeGroup:
    """Nodes of a job with the same container.

    Attributes:
        first: Index of the first node.
        last: Index of the last node.
        image: Image of the nodes.
        command: Command of the nodes; empty for the image's own.
        environment: Environment variables.
        vcpu: Requested vCPUs per node.
        memory_mib: Requested memory per node in MiB.
        gpus: Requested GPUs per node.
    """

    first: int
    last: int
    image: str = ""
    command: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    vcpu: float = 0
    memory_mib: int = 0
    gpus: int = 0


@dataclass(frozen=True)
class JobDetail:
    """Platform's description of a job, or of one array task.

    Each backend has a subclass, which knows the meaning of its platform's texts, so that callers
    never parse them.

    Attributes:
        platform: Name of the platform in messages.
        job_id: The job's ID; of an array task ``"<parent>:<index>"``, of a node
            ``"<job>#<index>"``.
        name: The job's name.
        status: Its status.
        status_reason: The platform's reason for the status; the last attempt's if the job has
            none.
        exit_code: Exit code of the last attempt's container, or None if it had none.
        container_reason: The container agent's reason, such as ``"OutOfMemoryError: ..."``.
        tried: Finished attempts, the first one first.
        attempts_allowed: Maximum number of attempts.
        created_at: Submission time.
        started_at: Start time of the last attempt, or None.
        stopped_at: End time, or None.
        is_cancelled: Whether CancelJob or TerminateJob was called before it ran.
        is_terminated: Whether TerminateJob was called.
        log_group: CloudWatch log group.
        log_stream: CloudWatch log stream of the last attempt; empty before it runs.
        array_size: Number of tasks of an array job; 0 for others.
        status_summary: For an array job, the number of tasks by status.
        environment: The job's own environment variables.
        queue: Name of its queue.
        queue_arn: ARN of its queue.
        definition: Name and revision of its job definition.
        image: Its image; for a multi-node job, this and the following fields describe the first
            node.
        command: Its command; empty for the task runner, and for the image's own.
        runtime: Bucket and key of the task runner that its container downloads first,
            ``bucket/key``; empty if the image contains it.
        vcpu: Requested vCPUs.
        memory_mib: Requested memory in MiB.
        gpus: Requested GPUs.
        time_limit_s: Time limit of an attempt in seconds, or None.
        groups: Node groups of a multi-node job, in a listing a single group with all nodes; empty
            for others, and for a node.
        instance_type: Instance type of its nodes; empty for any.
        address: IP address of a node; otherwise empty.
        tags: Its tags.
        is_command: Whether farcall submitted it as a command job, which stores no outcome.
    """

    platform: ClassVar[str] = PLATFORMS[BATCH]

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
    command: tuple[str, ...] = ()
    runtime: str = ""
    vcpu: float = 0
    memory_mib: int = 0
    gpus: int = 0
    time_limit_s: int | None = None
    groups: tuple[NodeGroup, ...] = ()
    instance_type: str = ""
    address: str = ""
    tags: Mapping[str, str] = field(default_factory=dict)
    is_command: bool = False

    def with_status_of(self, listed: JobDetail) -> JobDetail:
        """Return the same job with the status of a newer listing."""
        return replace(
            self,
            status=listed.status,
            status_reason=listed.status_reason,
            exit_code=listed.exit_code,
            container_reason=listed.container_reason,
            started_at=listed.started_at,
            stopped_at=listed.stopped_at,
            # A listing does not contain it, and it cannot be undone.
            is_cancelled=self.is_cancelled or listed.is_cancelled,
            is_terminated=self.is_terminated or listed.is_terminated,
            # Some regions list no counts for an array.
            status_summary=listed.status_summary or self.status_summary,
        )

    @property
    def nodes(self) -> int:
        """Number of nodes of a multi-node job; 0 for others."""
        return self.groups[-1].last + 1 if self.groups else 0

    @property
    def node_index(self) -> int | None:
        """Index of a node in its job; None for others."""
        _, mark, index = self.job_id.partition("#")
        return int(index) if mark else None

    def node_id(self, index: int) -> str:
        """Return the ID of a node; for other jobs, the job's own ID."""
        return f"{self.job_id}#{index}" if self.groups else self.job_id

    @property
    def attempts(self) -> int:
        """Number of finished attempts."""
        return len(self.tried)

    @property
    def has_lost_attempts(self) -> bool:
        """Whether there may have been attempts that the platform no longer reports."""
        return False

    @property
    def is_child(self) -> bool:
        """Whether it is an array task."""
        return self.job_id.rpartition(":")[2].isdigit() and ":" in self.job_id

    @property
    def index(self) -> int:
        """Index of an array task; 0 for others."""
        return int(self.job_id.rpartition(":")[2]) if self.is_child else 0

    @property
    def reason(self) -> str:
        """The platform's reasons for the job's and the container's state, joined; may be empty."""
        return "; ".join(text for text in (self.status_reason, self.container_reason) if text)

    @property
    def furthest(self) -> JobStatus:
        """The status; for an unfinished array, the status of its most advanced task.

        Batch reports PENDING for such an array until all of its tasks have finished.
        """
        counts = self.status_summary
        if self.status.is_final or not (self.array_size and any(counts.values())):
            return self.status
        for status in (JobStatus.RUNNING, JobStatus.STARTING, JobStatus.RUNNABLE):
            if counts.get(status.value):
                return status
        ended = counts.get(JobStatus.SUCCEEDED.value, 0) + counts.get(JobStatus.FAILED.value, 0)
        return JobStatus.RUNNING if ended >= self.array_size else self.status

    @property
    def has_waiting_tasks(self) -> bool:
        """Whether it, or one of its array tasks, waits for an instance."""
        if self.status.is_final:
            return False
        counts = {name for name, count in self.status_summary.items() if count}
        return not NOT_STARTED.isdisjoint(counts or {self.status.value})

    @property
    def is_waiting(self) -> bool:
        """Whether neither it nor one of its array tasks has started."""
        counts = {name for name, count in self.status_summary.items() if count}
        return NOT_STARTED.issuperset(counts or {self.status.value})

    @property
    def map_failure(self) -> str:
        """Why farcall cancelled an array after a call of its map raised; otherwise empty."""
        start = f"{OWN_REASON}{MAP_FAILED}"
        if not self.array_size or not self.status_reason.startswith(start):
            return ""
        return self.status_reason[len(start) :]

    @property
    def cancelled_with_map(self) -> int:
        """Number of array tasks that were cancelled because a call of their map raised."""
        match = _CANCELLED.search(self.map_failure)
        failed = self.status_summary.get(JobStatus.FAILED.value, 0)
        return min(int(match[2] or match[1]), failed) if match else 0

    # --- meaning of the texts, overridden by the backends' classes
    # --------------------------------

    @property
    def platform_reason(self) -> str:
        """The platform's reason for the state, without its generic phrases; empty if unknown."""
        return self.reason

    @property
    def places(self) -> Mapping[str, str]:
        """Locations of the job and its log on the platform, by label."""
        return {"Log": f"{self.log_group} {self.log_stream}"} if self.log_stream else {}

    @property
    def remedy(self) -> str:
        """The remedy if the platform reports that it cannot place the job; else empty."""
        return ""

    @property
    def is_blocked(self) -> bool:
        """Whether the platform reports that it cannot place the job at present."""
        return False

    @property
    def likely_cause(self) -> str:
        """Likely cause of a long wait, as a sentence."""
        return "Its queue may be full, or an instance may be starting."

    def dwell(self, timing: Timing) -> Dwell:  # other platforms need it
        """Return the grace periods before a blocked job is reported and terminated."""
        return Dwell()

    @property
    def is_explained(self) -> bool:
        """Whether the status reason is from the platform or farcall, not from a user."""
        return True

    def failure_reason(self) -> FailureReason:
        """Return why the job ended, for a finished job without an outcome."""
        known = exits_of(self.platform).get(self.exit_code) if self.exit_code is not None else None
        if known is None and self.status is JobStatus.SUCCEEDED:
            return FailureReason(
                errors.OutcomeMissingError,
                "the job succeeded, but it has no stored result",
                "find out who deletes stored results",
            )
        reason = known or FailureReason(errors.JobError, "the job failed", "see its log")
        return replace(reason, exit_code=self.exit_code)

    def waiting(self) -> tuple[str, str]:
        """Return the activity of an unfinished job or what it waits for, and the remedy."""
        return f"the job is {self.status}", "wait"

    def of_attempt(self, attempt: Attempt) -> JobDetail:
        """Return the job as if it had consisted only of this failed attempt."""
        return replace(
            self,
            status=JobStatus.FAILED,
            status_reason=attempt.status_reason,
            exit_code=attempt.exit_code,
            container_reason=attempt.container_reason,
            log_stream=attempt.log_stream,
            is_cancelled=False,
            is_terminated=False,
            array_size=0,
        )
