"""Submitted job: what a task's job and a command job have in common."""

from __future__ import annotations

from typing import Generic, TypeVar

from farcall.backends.base import raise_first
from farcall.engine.job_handle import JobHandle
from farcall.model.jobs import JobDetail, JobStatus

H = TypeVar("H", bound=JobHandle)


class SubmittedJob(Generic[H]):
    """An AWS Batch job: its name, its status, what Batch says of it, and its cancelling.

    Args:
        handle: The job.

    Attributes:
        id: The job's ID.
    """

    def __init__(self, handle: H) -> None:
        self.id = handle.id
        self._handle = handle

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id}{' done' if self.done() else ''}>"

    @property
    def name(self) -> str:
        """The job's name, which begins with the function's; empty where it is not known yet.

        Of a job that was attached to it is known once something was asked about it.
        """
        return self._handle.name

    def done(self) -> bool:
        """Return whether the job's end is known here; it asks nobody."""
        return self._handle.has_ended

    async def status(self) -> JobStatus:
        """Ask Batch for the job's status. Asking for many jobs at once shares calls.

        Raises:
            JobLostError: Batch does not know the job.
            ServiceError: Batch refused the call.
        """
        return (await self.detail()).status

    async def detail(self) -> JobDetail:
        """Ask Batch for everything it says of the job: status, reasons, times, log stream.

        Raises:
            JobLostError: Batch does not know the job.
            ServiceError: Batch refused the call.
        """
        return await (await self._handle.session()).describe(self.id)

    async def cancel(self, reason: str = "cancelled by its owner") -> None:
        """End the job, on all of its nodes; a job that has ended stays as it is.

        What runs there gets SIGTERM and time to clean up, 20 seconds where it is a function and 30
        where it is a command, then SIGKILL. Who waits for the job gets `JobCancelledError`.

        Args:
            reason: Kept by Batch, up to some 1000 characters.

        Raises:
            ServiceError: Batch refused the call.
        """
        session = await self._handle.session()
        raise_first(await session.terminations.end([self.id], reason, together=True))
