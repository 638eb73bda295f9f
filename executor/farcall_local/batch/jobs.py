"""Batch's record of a job: its submission, state and attempts.

An array of 10,000 children is 10,001 small objects: all children share one `Submission`, a child's
ID is computed from its parent's, and the parent keeps the count of its children's states up to
date, so that describing it is cheap.

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

#: A job's ID, and the separator and index of a child or node. Longer indexes do not exist.
_ID = re.compile(r"([^:#]*)(?:([:#])([0-9]{1,9}))?")
#: States of a job that has a container, or is about to.
STARTED = (JobStatus.STARTING, JobStatus.RUNNING)


@dataclass(frozen=True)
class Submission:
    """One accepted SubmitJob call, definition and overrides already merged.

    Attributes:
        job_id: Of the job, or of the parent of the array.
        number: Place in the order of submission, from 0.
        name: The job's name.
        queue: Where it waits.
        definition: The revision it runs.
        containers: What is run: of a multi-node parallel job one for each node, else a single one.
        node_properties: nodeProperties of a multi-node parallel job with the overrides in their
            place; None for any other job.
        vcpus: Processors an attempt needs: those of all nodes, which start only when all can.
        parameters: Values for ``Ref::`` placeholders.
        retry: Attempts and rules.
        timeout_s: Limit of each attempt, None for none.
        size: Children of the array, None for a plain job.
        created_at: Milliseconds.
        tags: As given.
        extra: Members DescribeJobs gives back as they were submitted.
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
    """A plain job, an array's parent, one of its children, or a multi-node parallel job.

    Attributes:
        submission: What was submitted.
        parent: The array's parent, for a child.
        index: Index in the array, for a child.
        children: The array's children, for a parent.
        counts: How many children are in each state, for a parent.
        nodes: The nodes by index, in the order they were launched, for a multi-node parallel job.
        status: Where the job is; changed by `enter` only.
        status_reason: Why, once there is something to say.
        termination_reason: The reason that TerminateJob gave, or None.
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
        "nodes",
        "parent",
        "started_at",
        "status",
        "status_reason",
        "stopped_at",
        "submission",
        "termination_reason",
    )

    def __init__(self, submission: Submission, parent: Job | None = None, index: int = 0) -> None:
        self.submission = submission
        self.parent = parent
        self.index = index
        self.children: list[Job] = []
        self.counts: Counter[JobStatus] = Counter()
        self.nodes: dict[int, Node] = {}
        self.status = JobStatus.SUBMITTED
        self.status_reason: str | None = None
        self.termination_reason: str | None = None
        self.attempts: tuple[Attempt, ...] = ()
        self.current: Attempt | None = None
        self.started_at: int | None = None
        self.stopped_at: int | None = None
        if parent is None and submission.size is not None:
            self.children = [Job(submission, self, index) for index in range(submission.size)]
            self.counts[JobStatus.SUBMITTED] = submission.size

    @property
    def id(self) -> str:
        """The job ID; of a child ``<parent>:<index>``."""
        if self.parent is None:
            return self.submission.job_id
        return f"{self.submission.job_id}:{self.index}"

    @property
    def is_multi_node(self) -> bool:
        """Whether it has nodes instead of a container."""
        return self.submission.node_properties is not None

    @property
    def container(self) -> Container:
        """What is run, unless it has nodes."""
        return self.submission.containers[0]

    @property
    def created_at(self) -> int:
        """When it was made, in milliseconds."""
        return self.submission.created_at

    @property
    def timeout_s(self) -> float | None:
        """Limit of an attempt, None for none."""
        return self.submission.timeout_s

    @property
    def attempt_number(self) -> int:
        """Number of the attempt under way, or the next one, from 1."""
        return len(self.attempts) + 1

    @property
    def arn(self) -> str:
        """ARN of the job."""
        return names.batch_arn(f"job/{self.id}")

    def enter(self, status: JobStatus) -> None:
        """Change the state, and the parent's count of its children's states."""
        if self.parent is not None:
            self.parent.counts[self.status] -= 1
            self.parent.counts[status] += 1
        self.status = status


class Node(Job):
    """A node of a multi-node parallel job, which Batch shows as a job of its own.

    Its state is that of its last attempt. It is made when it is launched, so its creation is later
    than the whole job's.

    Args:
        whole: The job it is a node of.
        index: From 0.

    Attributes:
        whole: The job it is a node of.
    """

    __slots__ = ("_launched_at", "whole")

    def __init__(self, whole: Job, index: int) -> None:
        super().__init__(whole.submission, index=index)
        self.whole = whole
        self._launched_at = names.now_ms()

    @property
    def id(self) -> str:
        """The job ID: ``<job>#<index>``."""
        return f"{self.submission.job_id}#{self.index}"

    @property
    def is_multi_node(self) -> bool:
        """Always False: it has a container."""
        return False

    @property
    def container(self) -> Container:
        """What is run."""
        return self.submission.containers[self.index]

    @property
    def created_at(self) -> int:
        """When it was launched for the first time, in milliseconds."""
        return self._launched_at

    @property
    def timeout_s(self) -> None:
        """Always None: the limit is the whole job's, and ends all nodes at once."""
        return None

    @property
    def attempt_number(self) -> int:
        """Number of the whole job's attempt under way, from 1."""
        return self.whole.attempt_number

    @property
    def is_main(self) -> bool:
        """Whether the whole job ends as this node does."""
        return self.index == self.submission.main_node


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
        """Return the job of an ID, also of a child's ``<parent>:<index>`` or a node's ``#``.

        An ARN is taken for the ID at its end: TorchX describes and terminates jobs by ARN.

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
