"""Job descriptions: a job's status, its attempts, where its log is. No I/O.

A backend makes them of what its platform says, and knows what the texts in them mean.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import ClassVar, NamedTuple

from farcall.model import errors
from farcall.model.endings import MAP_FAILED, OWN_REASON, Dwell, Verdict
from farcall.model.exit_codes import exits_of
from farcall.model.names import BATCH, PLATFORMS
from farcall.model.timing import Timing

_ENDED = re.compile(r"; ([0-9]{1,9})(?: calls in ([0-9]{1,9}) tasks)? (?:was|were) ended")


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


class Attempt(NamedTuple):
    """What Batch says of an attempt.

    Attributes:
        status_reason: The platform's words on its end.
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
class NodeGroup:
    """Nodes of a job that run the same.

    Attributes:
        first: Index of the first of them.
        last: Index of the last.
        image: Their image.
        command: What they run; empty for the image's own.
        environment: Their environment variables.
        vcpu: vCPUs each asked for.
        memory_mib: MiB of memory each asked for.
        gpus: GPUs each asked for.
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
    """What a backend says of a job, or of one child of an array job.

    Each backend has a class of its own below this one, which knows what its platform's texts
    mean: whoever holds a job asks it, and reads no text.

    Attributes:
        platform: What texts call the platform.
        job_id: The job's ID; an array child's is ``"<parent>:<index>"``, a node's
            ``"<job>#<index>"``.
        name: The job's name.
        status: Its status.
        status_reason: The platform's words on the status; of the last attempt where the job has
            none.
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
        image: Its image; of a job on several nodes that of the first of them, as what follows.
        command: What it runs; empty for the task runner, and the image's own.
        runtime: Bucket and key of the task runner that its container fetches first,
            ``bucket/key``; empty where the image holds it.
        vcpu: vCPUs it asked for.
        memory_mib: MiB of memory it asked for.
        gpus: GPUs it asked for.
        time_limit_s: Seconds an attempt may run, or None.
        groups: The nodes of a multi-node parallel job, in a listing all as one group; empty for
            others, and for a node.
        instance_type: Instance type of its nodes; empty for any.
        address: IP address of a node, in its network; else empty.
        tags: Its tags.
        is_command: farcall submitted it as a command job, which leaves no outcome.
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
        """Return the same job as it is by now."""
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
    def nodes(self) -> int:
        """Number of nodes of a multi-node parallel job; 0 for others."""
        return self.groups[-1].last + 1 if self.groups else 0

    @property
    def node_index(self) -> int | None:
        """Number of a node in its job; None for others."""
        _, mark, index = self.job_id.partition("#")
        return int(index) if mark else None

    def node_id(self, index: int) -> str:
        """Return the ID of one of its nodes; without any the job is its own only one."""
        return f"{self.job_id}#{index}" if self.groups else self.job_id

    @property
    def attempts(self) -> int:
        """Number of attempts that have ended."""
        return len(self.tried)

    @property
    def has_lost_attempts(self) -> bool:
        """Whether there may have been attempts of which the platform tells nothing."""
        return False

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
        """The platform's words on the end, status reason and container reason."""
        return "; ".join(text for text in (self.status_reason, self.container_reason) if text)

    @property
    def furthest(self) -> JobStatus:
        """The status; of an array that has not ended, the one that its furthest child has.

        Batch calls such an array PENDING until all of its children have ended.
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
    def map_failure(self) -> str:
        """Of an array that its map has ended because a call raised, what was told; else empty."""
        start = f"{OWN_REASON}{MAP_FAILED}"
        if not self.array_size or not self.status_reason.startswith(start):
            return ""
        return self.status_reason[len(start) :]

    @property
    def ended_with_map(self) -> int:
        """Number of children that were ended because a call of their map raised."""
        found = _ENDED.search(self.map_failure)
        failed = self.status_summary.get(JobStatus.FAILED.value, 0)
        return min(int(found[2] or found[1]), failed) if found else 0

    # --- what the texts mean, which a backend's own class knows better ------------------------

    @property
    def told(self) -> str:
        """What of the reason says more than that the job has ended."""
        return self.reason

    @property
    def places(self) -> Mapping[str, str]:
        """Where the platform has it and its log, by what each is called."""
        return {"Log": f"{self.log_group} {self.log_stream}"} if self.log_stream else {}

    @property
    def remedy(self) -> str:
        """What to do where the platform says that it cannot place the job; else empty."""
        return ""

    @property
    def is_blocked(self) -> bool:
        """Whether the platform says that it cannot place the job as things are."""
        return False

    def dwell(self, timing: Timing) -> Dwell:  # another platform's need it
        """Say how long the job may be blocked before it is told, and before it is ended."""
        return Dwell()

    @property
    def is_explained(self) -> bool:
        """Whether the status reason is the platform's or farcall's own, and no person's."""
        return True

    def verdict(self) -> Verdict:
        """Say why the job ended: one that left no outcome, whose status is final."""
        known = exits_of(self.platform).get(self.exit_code) if self.exit_code is not None else None
        if known is None and self.status is JobStatus.SUCCEEDED:
            return Verdict(
                errors.OutcomeMissingError,
                "the job succeeded, and there is no outcome of it",
                "find out who deletes outcomes",
            )
        found = known or Verdict(errors.JobError, "the job failed", "its log says more")
        return replace(found, exit_code=self.exit_code)

    def waiting(self) -> tuple[str, str]:
        """Say of a job that has not ended what it does or waits for, and what to do."""
        return f"the job is {self.status}", "wait"

    def of_attempt(self, said: Attempt) -> JobDetail:
        """Return the job as if it had been this attempt alone, and had failed."""
        return replace(
            self,
            status=JobStatus.FAILED,
            status_reason=said.status_reason,
            exit_code=said.exit_code,
            container_reason=said.container_reason,
            log_stream=said.log_stream,
            is_cancelled=False,
            is_terminated=False,
            array_size=0,
        )
