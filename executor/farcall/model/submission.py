"""A submission: a job that was accepted, and what is needed to find its outcomes. No I/O."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from farcall.model.errors import FarcallError, UnknownError
from farcall.model.jobs import JobDetail
from farcall_runtime import contract
from farcall_runtime.contract import Location


@dataclass(frozen=True)
class Submission:
    """A job that Batch accepted: a plain one, or an array.

    Attributes:
        job_id: The job's ID; of an array the parent's.
        name: The job's name, which is that of its bundle.
        where: The bundle's place in the bucket.
        key: What outcomes are signed with.
        size: Number of tasks.
        digest: SHA-256 of the root of the bundle's index, hexadecimal.
    """

    job_id: str
    name: str
    where: Location
    key: bytes = field(repr=False)
    size: int
    digest: str = ""

    def id_of(self, index: int) -> str:
        """Return the ID of one task's job."""
        return self.job_id if self.size == 1 else f"{self.job_id}:{index}"

    @classmethod
    def whole(cls, detail: JobDetail) -> Submission:
        """Find out from Batch's description what a plain job or an array of ours carries.

        Raises:
            UnknownError: farcall did not submit the job.
        """
        try:
            where = Location.parse(detail.environment.get(contract.ENV_BUNDLE, ""))
            key = bytes.fromhex(detail.environment[contract.ENV_OUTCOME_KEY])
            digest = detail.environment[contract.ENV_DIGEST]
        except (KeyError, ValueError) as error:
            raise UnknownError(
                f"job {detail.job_id} ({detail.name}) was not submitted by farcall"
            ) from error
        return cls(detail.job_id, detail.name, where, key, detail.array_size or 1, digest)

    @classmethod
    def of(cls, detail: JobDetail) -> tuple[Submission, int]:
        """Find out from Batch's description what a job of one task carries.

        Returns:
            The submission, and the number of the task in it.

        Raises:
            UnknownError: farcall did not submit the job.
            FarcallError: It is an array job as a whole.
        """
        whole = cls.whole(detail)
        if detail.array_size:
            raise FarcallError(
                f"job {detail.job_id} is an array of {detail.array_size}; name one of its "
                f"children, {detail.job_id}:0 to {detail.job_id}:{detail.array_size - 1}"
            )
        parent, _, index = detail.job_id.partition(":")
        size = 2 if index else 1  # all that matters is whether the ID has an index
        return replace(whole, job_id=parent, size=size), int(index or 0)
