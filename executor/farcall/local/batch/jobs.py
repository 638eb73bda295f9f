"""What Batch remembers of a job: its submission, its state, its attempts.

An array of 10,000 children is 10,001 small objects: what the children have in common is one
`Submission`, a child's ID is made from its parent's when asked for, and the parent keeps the
count of its children's states up to date, so that describing it costs nothing.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from farcall.local import names
from farcall.local.batch.definitions import Definition
from farcall.local.batch.queues import Resource
from farcall.local.batch.resources import Resources
from farcall.local.batch.retries import RetryStrategy


class Status(str, Enum):
    """The states of a job, in the order it passes through them.

    Source:
        https://docs.aws.amazon.com/batch/latest/userguide/job_states.html
    """

    SUBMITTED = "SUBMITTED"
    PENDING = "PENDING"
    RUNNABLE = "RUNNABLE"
    STARTING = "STARTING"
    RUNNING = "RUNNING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"

    @property
    def final(self) -> bool:
        """Whether the job has ended."""
        return self in (Status.SUCCEEDED, Status.FAILED)

    @property
    def started(self) -> bool:
        """Whether the job has a container, or is about to."""
        return self in (Status.STARTING, Status.RUNNING)


@dataclass(frozen=True)
class Submission:
    """One accepted SubmitJob call, definition and overrides already merged.

    Attributes:
        job_id: Of the job, or of the parent of the array.
        number: Place in the order of submission, from 0.
        name: The job's name.
        queue: Where it waits.
        definition: The revision it runs.
        container: containerProperties with the overrides in their place.
        overrides: The overrides alone, whose size ECS limits.
        parameters: Values for ``Ref::`` placeholders.
        resources: What each attempt occupies.
        retry: Attempts and rules.
        timeout_s: Limit of each attempt, None for none.
        size: Children of the array, None for a plain job.
        depends_on: As given.
        created_at: Milliseconds.
        tags: Changed by TagResource.
        extra: Members DescribeJobs gives back as they were submitted.
    """

    job_id: str
    number: int
    name: str
    queue: Resource
    definition: Definition
    container: dict[str, Any]
    overrides: dict[str, Any]
    parameters: dict[str, str]
    resources: Resources
    retry: RetryStrategy
    timeout_s: float | None
    size: int | None
    depends_on: list[dict[str, str]]
    created_at: int
    tags: dict[str, str]
    extra: dict[str, Any] = field(default_factory=dict)


class Attempt:
    """One try of a job.

    Attributes:
        task_arn: The ECS task it was.
        instance_arn: The container instance, None on Fargate.
        log_stream: Set once the container runs.
        started_at: Milliseconds; None when the container never ran.
        stopped_at: Milliseconds; None until it ends.
        exit_code: None when the container never ran or its host was lost.
        reason: The container's reason, mostly None.
        status_reason: Why the attempt ended.
    """

    __slots__ = (
        "exit_code",
        "instance_arn",
        "log_stream",
        "reason",
        "started_at",
        "status_reason",
        "stopped_at",
        "task_arn",
    )

    def __init__(self, *, fargate: bool) -> None:
        self.task_arn = names.ecs_arn("task")
        self.instance_arn = None if fargate else names.ecs_arn("container-instance")
        self.log_stream: str | None = None
        self.started_at: int | None = None
        self.stopped_at: int | None = None
        self.exit_code: int | None = None
        self.reason: str | None = None
        self.status_reason: str | None = None

    @property
    def task_id(self) -> str:
        """The last part of the task's ARN, which also names the log stream."""
        return self.task_arn.rpartition("/")[2]


class Job:
    """A plain job, an array's parent, or one of its children.

    Attributes:
        submission: What was submitted.
        parent: The array's parent, for a child.
        index: Index in the array, for a child.
        children: The array's children, for a parent.
        counts: How many children are in each state, for a parent.
        status: Where the job is; changed by `enter` only.
        status_reason: Why, once there is something to say.
        waiting_for: Jobs that must succeed before this one may run.
        withdrawn: ``isCancelled`` or ``isTerminated`` once such a call has been accepted.
        withdrawn_reason: The reason that call gave.
        attempts: The ended attempts.
        current: The attempt under way, else the last one.
        started_at: Milliseconds, of the current attempt.
        stopped_at: Milliseconds.
    """

    __slots__ = (
        "attempts",
        "children",
        "counts",
        "current",
        "index",
        "parent",
        "started_at",
        "status",
        "status_reason",
        "stopped_at",
        "submission",
        "waiting_for",
        "withdrawn",
        "withdrawn_reason",
    )

    def __init__(self, submission: Submission, parent: Job | None = None, index: int = 0) -> None:
        self.submission = submission
        self.parent = parent
        self.index = index
        self.children: list[Job] = []
        self.counts: Counter[Status] = Counter()
        self.status = Status.SUBMITTED
        self.status_reason: str | None = None
        self.waiting_for = 0
        self.withdrawn: str | None = None
        self.withdrawn_reason: str | None = None
        self.attempts: tuple[Attempt, ...] = ()
        self.current: Attempt | None = None
        self.started_at: int | None = None
        self.stopped_at: int | None = None
        if parent is None and submission.size is not None:
            self.children = [Job(submission, self, index) for index in range(submission.size)]
            self.counts[Status.SUBMITTED] = submission.size

    @property
    def id(self) -> str:
        """The job ID; of a child ``<parent>:<index>``."""
        if self.parent is None:
            return self.submission.job_id
        return f"{self.submission.job_id}:{self.index}"

    @property
    def arn(self) -> str:
        """ARN of the job."""
        return names.batch_arn(f"job/{self.id}")

    def enter(self, status: Status) -> None:
        """Change the state, and the parent's count of its children's states."""
        if self.parent is not None:
            self.parent.counts[self.status] -= 1
            self.parent.counts[status] += 1
        self.status = status


class Jobs:
    """All jobs of all queues, in the order of their submission."""

    def __init__(self) -> None:
        self._by_id: dict[str, Job] = {}
        self.submitted: list[Job] = []

    def add(self, job: Job) -> None:
        """Remember a plain job or an array with its children."""
        self._by_id[job.id] = job
        self.submitted.append(job)

    def find(self, job_id: str) -> Job | None:
        """Return the job of an ID, also of a child's ``<parent>:<index>``."""
        parent_id, colon, index = job_id.partition(":")
        job = self._by_id.get(parent_id)
        if job is None or not colon:
            return job
        known = index.isdecimal() and int(index) < len(job.children)
        return job.children[int(index)] if known else None
