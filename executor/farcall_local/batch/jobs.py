"""Batch's record of a job: its submission, state and attempts.

An array of 10,000 child jobs is 10,001 small objects: all child jobs share one `Submission`, their
IDs are derived from the parent's, and the parent maintains the counts of their states, so that
describing it is cheap.

A multi-node parallel job is a job like any other, whose attempts are its main node's. Its nodes
are additional jobs, created at their first launch.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from farcall.model.jobs import JobStatus
from farcall_local import names
from farcall_local.batch.containers import Container
from farcall_local.batch.definitions import Definition
from farcall_local.batch.queues import Resource
from farcall_local.batch.retries import RetryStrategy

#: Job ID, with separator and index of a child job or node. Longer indexes do not exist.
_ID = re.compile(r"([^:#]*)(?:([:#])([0-9]{1,9}))?")
#: States of a job that has a container or is about to get one.
STARTED = (JobStatus.STARTING, JobStatus.RUNNING)


@dataclass(frozen=True)
class Submission:
    """Accepted SubmitJob request, with definition and overrides merged.

    Attributes:
        job_id: ID of the job, or of the array's parent job.
        number: Number of the submission, from 0.
        name: Name of the job.
        queue: Queue of the job.
        definition: Revision of the job definition.
        containers: A single container; for a multi-node parallel job, one for each node.
        node_properties: nodeProperties of a multi-node parallel job with the overrides applied;
            None for other jobs.
        vcpus: Processors that an attempt needs: the sum for all nodes, which start together.
        parameters: Values for ``Ref::`` placeholders.
        retry: Retry strategy.
        timeout_s: Time limit of each attempt in seconds, or None.
        size: Number of child jobs of the array; None for other jobs.
        created_at: Creation time in milliseconds.
        tags: Tags of the request.
        extra: Members that DescribeJobs returns as submitted.
    """

    job_id: str
    number: int
    name: str
    queue: Resource
    definition: Definition
    containers: tuple[Container, ...]
    node_properties: dict[str, Any] | None
    vcpus: float
    parameters: dict[str, str]
    retry: RetryStrategy
    timeout_s: float | None
    size: int | None
    created_at: int
    tags: dict[str, str]
    extra: dict[str, Any] = field(default_factory=dict)

    @property
    def main_node(self) -> int | None:
        """Index of the main node of a multi-node parallel job; None for any other job."""
        return None if self.node_properties is None else self.node_properties["mainNode"]


@dataclass(slots=True, eq=False)
class Attempt:
    """Attempt of a job.

    Attributes:
        task_arn: ARN of the ECS task.
        instance_arn: ARN of the container instance; None on Fargate.
        log_stream: Name of the log stream, set once the container runs.
        started_at: Start time in milliseconds; None if the container never ran.
        stopped_at: End time in milliseconds; None until it ends.
        exit_code: Exit code; None if the container never ran or its host was lost.
        reason: Container reason, usually None.
        status_reason: Reason for the end of the attempt.
    """

    task_arn: str = field(default_factory=lambda: names.ecs_arn("task"))
    instance_arn: str | None = None
    log_stream: str | None = None
    started_at: int | None = None
    stopped_at: int | None = None
    exit_code: int | None = None
    reason: str | None = None
    status_reason: str | None = None

    @property
    def task_id(self) -> str:
        """The last part of the task's ARN, which also names the log stream."""
        return self.task_arn.rpartition("/")[2]


@dataclass(slots=True, eq=False)
class Job:
    """Single job, array parent job, child job or multi-node parallel job.

    Attributes:
        submission: The accepted request.
        parent: Parent job of a child job.
        index: Array index of a child job.
        children: Child jobs of a parent job.
        counts: Number of child jobs by state, for a parent job.
        nodes: Nodes of a multi-node parallel job by index, in launch order.
        status: State of the job; only `enter` changes it.
        status_reason: Reason for the state, if any.
        termination_reason: Reason from TerminateJob, or None.
        attempts: Finished attempts.
        current: Current attempt, or the last one.
        started_at: Start time of the current attempt in milliseconds.
        stopped_at: End time in milliseconds.
    """

    submission: Submission
    parent: Job | None = None
    index: int = 0
    children: list[Job] = field(default_factory=list)
    counts: Counter[JobStatus] = field(default_factory=Counter)
    nodes: dict[int, Node] = field(default_factory=dict)
    status: JobStatus = JobStatus.SUBMITTED
    status_reason: str | None = None
    termination_reason: str | None = None
    attempts: tuple[Attempt, ...] = ()
    current: Attempt | None = None
    started_at: int | None = None
    stopped_at: int | None = None

    def __post_init__(self) -> None:
        size = self.submission.size
        if self.parent is None and size is not None:
            self.children = [Job(self.submission, self, index) for index in range(size)]
            self.counts[JobStatus.SUBMITTED] = size

    @property
    def id(self) -> str:
        """Job ID; ``<parent>:<index>`` for a child job."""
        if self.parent is None:
            return self.submission.job_id
        return f"{self.submission.job_id}:{self.index}"

    @property
    def is_multi_node(self) -> bool:
        """Whether it has nodes instead of a container."""
        return self.submission.node_properties is not None

    @property
    def container(self) -> Container:
        """Container of a job without nodes."""
        return self.submission.containers[0]

    @property
    def created_at(self) -> int:
        """Creation time in milliseconds."""
        return self.submission.created_at

    @property
    def timeout_s(self) -> float | None:
        """Time limit of an attempt in seconds, or None."""
        return self.submission.timeout_s

    @property
    def attempt_number(self) -> int:
        """Number of the current or next attempt, from 1."""
        return len(self.attempts) + 1

    @property
    def arn(self) -> str:
        """ARN of the job."""
        return names.batch_arn(f"job/{self.id}")

    def enter(self, status: JobStatus) -> None:
        """Change the state, and the parent's counts of its child jobs' states."""
        if self.parent is not None:
            self.parent.counts[self.status] -= 1
            self.parent.counts[status] += 1
        self.status = status


class Node(Job):
    """Node of a multi-node parallel job, which Batch describes as a separate job.

    Its state is the state of its last attempt. It is created at its launch, later than the
    multi-node job.

    Args:
        whole: The multi-node job.
        index: Index of the node, from 0.

    Attributes:
        whole: The multi-node job.
    """

    __slots__ = ("_launched_at", "whole")

    def __init__(self, whole: Job, index: int) -> None:
        super().__init__(whole.submission, index=index)
        self.whole = whole
        self._launched_at = names.now_ms()

    @property
    def id(self) -> str:
        """Job ID: ``<job>#<index>``."""
        return f"{self.submission.job_id}#{self.index}"

    @property
    def is_multi_node(self) -> bool:
        """False: a node has a container."""
        return False

    @property
    def container(self) -> Container:
        """Container of the node."""
        return self.submission.containers[self.index]

    @property
    def created_at(self) -> int:
        """Time of the first launch in milliseconds."""
        return self._launched_at

    @property
    def timeout_s(self) -> None:
        """None: the time limit applies to the multi-node job and stops all nodes."""
        return None

    @property
    def attempt_number(self) -> int:
        """Number of the multi-node job's current attempt, from 1."""
        return self.whole.attempt_number

    @property
    def is_main(self) -> bool:
        """Whether this is the main node, whose end decides the job's end."""
        return self.index == self.submission.main_node


class Jobs:
    """Registry of all jobs of all queues, in the order of submission."""

    def __init__(self) -> None:
        self._by_id: dict[str, Job] = {}
        self.submitted: list[Job] = []

    def add(self, job: Job) -> None:
        """Add a single job, or an array with its child jobs."""
        self._by_id[job.id] = job
        self.submitted.append(job)

    def find(self, job_id: str) -> Job | None:
        """Return the job, child job (``<job>:<index>``) or node (``<job>#<index>``).

        An ARN is also accepted, because TorchX describes and terminates jobs by ARN.

        Source:
            https://github.com/meta-pytorch/torchx/blob/v0.7.0/torchx/schedulers/aws_batch_scheduler.py
        """
        match = _ID.fullmatch(job_id.removeprefix(names.batch_arn("job/")))
        if match is None:
            return None
        whole, mark, index = match.groups()
        job = self._by_id.get(whole)
        if job is None or not mark:
            return job
        if mark == "#":
            return job.nodes.get(int(index))
        return job.children[int(index)] if int(index) < len(job.children) else None
