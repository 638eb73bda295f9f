"""Submissions: accepted jobs, with the data that locates their outcomes. No I/O.

A multi-node job has one task. Each node's outcome is found by the node's index instead of a task
index; the main node's, 0, is also the task's. A command job stores no outcomes.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar

from farcall.model.errors import FarcallError, UnknownError
from farcall.model.jobs import JobDetail
from farcall_runtime import contract
from farcall_runtime.contract import Location


@dataclass(frozen=True)
class Submission:
    """Job that Batch accepted: a single job, an array job or a multi-node job.

    Attributes:
        job_id: The job's ID; for an array, the parent's.
        name: The job's name, which is also its bundle's name.
        where: The bundle's location in the bucket.
        key: Key that signs the outcomes.
        size: Number of tasks.
        digest: SHA-256 of the root of the bundle's index, hexadecimal.
        nodes: Number of nodes of each task.
        texts: Texts of the tasks' calls for lists, from `farcall.payload.call_texts.seal`; empty
            if another process has submitted the job.
    """

    job_id: str
    name: str
    where: Location
    key: bytes = field(repr=False)
    size: int
    digest: str = ""
    nodes: int = 1
    texts: bytes = field(default=b"", repr=False, compare=False)

    def id_of(self, index: int) -> str:
        """Return the job ID of a task, or of a node other than the main node."""
        if self.size == 1:
            return f"{self.job_id}#{index}" if self.is_other_node(index) else self.job_id
        return f"{self.job_id}:{index}"

    def is_other_node(self, index: int) -> bool:
        """Return whether an index is the index of a node other than the main node."""
        return self.nodes > 1 and index > 0

    def name_of(self, index: int) -> str:
        """Return the name of a task or a node in errors."""
        return f"{self.name}, node {index} of {self.nodes}" if self.nodes > 1 else self.name

    def attempt_key(self, index: int, attempt: int) -> str:
        """Return the key of the outcome of an attempt other than the final one."""
        if self.is_other_node(index):
            return self.where.node_key(attempt, index)
        return self.where.attempt_key(index, attempt)

    @classmethod
    def whole(cls, detail: JobDetail) -> Submission:
        """Create the submission of a single or array job from Batch's description.

        Raises:
            UnknownError: farcall did not submit the job.
            FarcallError: It is a command job, which has no bundle.
        """
        if detail.is_command:
            raise FarcallError(
                f"job {detail.job_id} ({detail.name}) runs a command, which has no result. Run "
                f"`farcall describe {detail.job_id}` to see its status, or `farcall logs "
                f"{detail.job_id}` to see its output"
            )
        try:
            where = Location.parse(detail.environment.get(contract.ENV_BUNDLE, ""))
            key = bytes.fromhex(detail.environment[contract.ENV_OUTCOME_KEY])
            digest = detail.environment[contract.ENV_DIGEST]
        except (KeyError, ValueError) as error:
            raise UnknownError(
                f"job {detail.job_id} ({detail.name}) was not submitted by farcall"
            ) from error
        nodes = max(1, detail.nodes)
        return cls(detail.job_id, detail.name, where, key, detail.array_size or 1, digest, nodes)

    @classmethod
    def of(cls, detail: JobDetail) -> tuple[Submission, int]:
        """Create the submission of one task or node from Batch's description.

        Returns:
            The submission, and the index of the task or the node.

        Raises:
            UnknownError: farcall did not submit the job.
            FarcallError: It is an array job, not one of its tasks.
        """
        whole = cls.whole(detail)
        if detail.array_size:
            raise FarcallError(
                f"job {detail.job_id} is an array of {detail.array_size}; name one of its "
                f"tasks, {detail.job_id}:0 to {detail.job_id}:{detail.array_size - 1}"
            )
        if detail.node_index is not None:
            parent, node = detail.job_id.partition("#")[0], detail.node_index
            return replace(whole, job_id=parent, nodes=max(2, node + 1)), node
        parent, _, index = detail.job_id.partition(":")
        size = 2 if index else 1  # only distinguishes arrays
        return replace(whole, job_id=parent, size=size), int(index or 0)


@dataclass(frozen=True)
class CommandSubmission:
    """Command job that Batch accepted, on one or more nodes.

    Attributes:
        job_id: The job's ID.
        name: The job's name.
    """

    job_id: str
    name: str
    size: ClassVar[int] = 1

    def id_of(self, _index: int) -> str:
        """Return the ID of the job, which has a single submission for all nodes."""
        return self.job_id

    @classmethod
    def of(cls, detail: JobDetail) -> CommandSubmission:
        """Create the submission of a command job from Batch's description.

        Raises:
            UnknownError: It is not a farcall command job.
        """
        if detail.is_command:
            return cls(detail.job_id, detail.name)
        raise UnknownError(
            f"job {detail.job_id} ({detail.name}) is not a command job submitted by farcall"
        )
