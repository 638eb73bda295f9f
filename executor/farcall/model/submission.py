"""A submission: a job that was accepted, and what is needed to find its outcomes. No I/O.

A job on several nodes has one task. What each node stores is found by the node's index, in the
place of a task's number; the main node's, 0, is also the task's. A command job leaves none.
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
    """A job that Batch accepted: a plain one, an array, or one on several nodes.

    Attributes:
        job_id: The job's ID; of an array the parent's.
        name: The job's name, which is that of its bundle.
        where: The bundle's place in the bucket.
        key: What outcomes are signed with.
        size: Number of tasks.
        digest: SHA-256 of the root of the bundle's index, hexadecimal.
        nodes: Number of nodes of each task.
        texts: What lists show of the tasks' calls, as `farcall.payload.call_texts.seal` makes it;
            empty where this process has not submitted the job.
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
        """Return the ID of one task's job, or of a node that is not the main one."""
        if self.size == 1:
            return f"{self.job_id}#{index}" if self.is_other_node(index) else self.job_id
        return f"{self.job_id}:{index}"

    def is_other_node(self, index: int) -> bool:
        """Return whether an index is that of a node that is not the main one."""
        return self.nodes > 1 and index > 0

    def name_of(self, index: int) -> str:
        """Return what errors call one task, or one node."""
        return f"{self.name}, node {index} of {self.nodes}" if self.nodes > 1 else self.name

    def attempt_key(self, index: int, attempt: int) -> str:
        """Return where an attempt's outcome lies that is not the job's last word."""
        if self.is_other_node(index):
            return self.where.node_key(attempt, index)
        return self.where.attempt_key(index, attempt)

    @classmethod
    def whole(cls, detail: JobDetail) -> Submission:
        """Find out from Batch's description what a plain job or an array of ours carries.

        Raises:
            UnknownError: farcall did not submit the job.
            FarcallError: It is a command job, which carries nothing.
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
        """Find out from Batch's description what a job of one task, or a node of one, carries.

        Returns:
            The submission, and the number of the task in it, or the node's index.

        Raises:
            UnknownError: farcall did not submit the job.
            FarcallError: It is an array job as a whole.
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
        size = 2 if index else 1  # all that matters is whether the ID has an index
        return replace(whole, job_id=parent, size=size), int(index or 0)


@dataclass(frozen=True)
class CommandSubmission:
    """A command job that Batch accepted; on however many nodes, it is one.

    Attributes:
        job_id: The job's ID.
        name: The job's name.
    """

    job_id: str
    name: str
    size: ClassVar[int] = 1

    def id_of(self, _index: int) -> str:
        """Return the ID of the job."""
        return self.job_id

    @classmethod
    def of(cls, detail: JobDetail) -> CommandSubmission:
        """Find out from Batch's description whether a job is a command job of ours.

        Raises:
            UnknownError: It is none.
        """
        if detail.is_command:
            return cls(detail.job_id, detail.name)
        raise UnknownError(
            f"job {detail.job_id} ({detail.name}) is not a command job submitted by farcall"
        )
