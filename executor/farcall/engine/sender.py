"""Exactly-once submission: one job runs, even if SubmitJob's response is lost.

SubmitJob has no idempotency token. A request without a response may have been executed, or may be
executed later, so farcall never repeats the same request:

1. farcall searches for the job by its unique name, in Batch's lists, which lag behind, and by the
   objects that the job may have stored. If it finds the job, it tracks that job.
2. Otherwise the request is *withdrawn*: the bundle is renamed, so that the old name no longer
   exists. A job that appears later finds no payload, runs nothing, and is not retried; farcall
   searches for such jobs and terminates them.
3. farcall searches once more. A job that started in time is tracked and gets its bundle back.
4. The request is sent again with the new name, unless it was the last try or was cancelled.

So a function runs twice only if Batch had accepted the job, the job had fetched its payload before
the withdrawal, and Batch still does not list the job long after its submission.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

from farcall.aws.paced_client import Tries
from farcall.backends.base import Backend, JobSpec
from farcall.engine.in_flight import InFlight, unanswered
from farcall.model.errors import ServiceError
from farcall.model.failure_reasons import WITHDRAWN
from farcall.model.pacing import Ticket
from farcall.model.timing import Timing
from farcall.payload.bundle import Bundle
from farcall.storage.store import Store
from farcall_runtime.contract import Location

_log = logging.getLogger("farcall")

Write = Callable[[], JobSpec]
"""Builds the job for a bundle's current name."""

T = TypeVar("T")

Renamed = Callable[[Location], Awaitable[None]]
"""Called with the new location of a bundle before its job is submitted."""


class Sender:
    """Sends SubmitJob requests for bundles of one bucket.

    Args:
        backend: Platform that runs the jobs.
        store: Bucket of the bundles.
        timing: Limits of submissions and searches.
    """

    def __init__(self, backend: Backend, store: Store, timing: Timing) -> None:
        self._backend = backend
        self._store = store
        self._timing = timing
        self._in_flight = InFlight(backend, timing)

    async def send(
        self, bundle: Bundle, write: Write, ticket: Ticket, renamed: Renamed | None = None
    ) -> str:
        """Submit one job for a stored bundle, and return the job's ID.

        Cancelling the wait withdraws a request that was not sent yet. For a sent request, the
        response is awaited, and the job is terminated.

        Args:
            bundle: The bundle. It may be renamed.
            write: Builds the request.
            ticket: Reports afterwards whether Batch may have a job with the bundle's name.
            renamed: Called if the bundle is renamed.

        Raises:
            SettingsError: The queue does not exist.
            SubmissionError: Batch refused the job.
            ServiceError: The credentials lack a permission, or AWS cannot be reached.
        """
        sending = self._send(bundle, write, ticket, renamed)
        return await self._in_flight.finish(sending, ticket, lambda: bundle.where.bundle)

    async def close(self) -> None:
        """Stop the searches for withdrawn jobs, which exit because they have no payload."""
        await self._in_flight.close()

    async def _send(
        self, bundle: Bundle, write: Write, ticket: Ticket, renamed: Renamed | None
    ) -> str:
        tries = Tries(self._timing.submit_retry_s)
        while True:
            job = write()
            try:
                return await self._backend.submit(job, ticket)
            except ServiceError as error:
                queue = job.settings.queue
                job_id = await self._follow_up(bundle, queue, error, ticket, tries)
                if job_id:
                    return job_id
                if error.sent and renamed is not None:
                    await renamed(bundle.where)

    async def _follow_up(
        self,
        bundle: Bundle,
        queue: str,
        error: ServiceError,
        ticket: Ticket,
        tries: Tries,
    ) -> str | None:
        """Find the job of a failed request, or return None for a new try."""
        job_id = await self._find_job(bundle.where, queue, error) if error.sent else None
        if job_id:
            return job_id
        if not error.sent:
            ticket.record_refused()
        last = await _wait(tries, error)
        if error.sent:
            job_id = await self._withdraw(bundle, queue, error)
            if job_id:
                return job_id
            ticket.record_refused()  # only now: before, its job could run
        if last is not None:
            raise last from error
        return None

    # --- without a response -------------------------------------------------------------------

    async def _find_job(self, where: Location, queue: str, error: ServiceError) -> str | None:
        """Return the job of a request without a response; None if it seems to have none."""
        job_ids = await self._in_flight.find_jobs(where.bundle, queue, error)
        if job_ids:
            return job_ids[0]
        try:
            if await has_begun(self._store, where):
                return await self._await_listed(where, queue)
        except ServiceError as failure:
            raise unanswered(where.bundle, error, failure) from failure
        return None

    async def _withdraw(self, bundle: Bundle, queue: str, error: ServiceError) -> str | None:
        """Remove the payload of the job whose request had no response.

        Returns:
            The job, if it has started anyway; then its payload is restored.

        Raises:
            ServiceError: The search failed; then the payload is restored, too.
        """
        old = bundle.where
        new = bundle.rename()

        async def find_jobs() -> list[str] | None:
            job_ids = await self._backend.find(old.bundle, queue)
            return job_ids if job_ids or await has_begun(self._store, old) else None

        try:
            job_ids = await withdraw(self._store, old, new, find_jobs)
            if job_ids is not None:
                bundle.where = old
                return job_ids[0] if job_ids else await self._await_listed(old, queue)
        except ServiceError as failure:
            bundle.where = old
            raise unanswered(old.bundle, error, failure) from failure
        _log.warning(
            "%s was withdrawn; if it is submitted again, it is job %s", old.bundle, new.bundle
        )
        # All its containers would start in vain.
        reason = f"{WITHDRAWN}; if it was submitted again, it is job {new.bundle}"
        self._in_flight.follow(old.bundle, queue, reason)
        return None

    async def _await_listed(self, where: Location, queue: str) -> str:
        """Wait until Batch lists a job that has stored an object; return its ID."""
        job_ids = await self._in_flight.await_listed(where.bundle, queue)
        if job_ids:
            return job_ids[0]
        within_s = self._timing.listed_within_s
        raise ServiceError(
            f"the job has started, but no list has returned it for {within_s:.0f} s; try again",
            operation="ListJobs",
        )


async def _wait(tries: Tries, error: ServiceError) -> ServiceError | None:
    """Wait before the next try; return the error if there is none."""
    try:
        await tries.wait_after(error)
    except ServiceError as last:
        return last
    return None


async def withdraw(
    store: Store, old: Location, new: Location, find_jobs: Callable[[], Awaitable[T | None]]
) -> T | None:
    """Rename a bundle whose job was not found, and search for the job once more.

    If the job is found or the search fails, the old name is restored.

    Args:
        store: Bucket of the bundle.
        old: Location of the bundle.
        new: Its new location.
        find_jobs: Returns the job, or None.

    Returns:
        The job; if None, the bundle exists only at its new location.

    Raises:
        ServiceError: The bundle does not exist, or S3 refused a request.
        Exception: Raised by ``find_jobs``.
    """
    jobs: T | None = None
    is_known = False
    await store.copy(old.bundle_key, new.bundle_key)
    try:
        await store.delete([old.bundle_key])
        jobs = await find_jobs()
        is_known = True
    finally:
        if not is_known or jobs is not None:
            await store.copy(new.bundle_key, old.bundle_key)
            store.delete_later([new.bundle_key])
    return jobs


async def has_begun(store: Store, where: Location) -> bool:
    """Return whether the job of a bundle has stored an object.

    Raises:
        ServiceError: S3 refused a request.
    """
    stored = await asyncio.gather(*map(store.is_there, where.prefixes))
    return any(stored)


if TYPE_CHECKING:
    pass
