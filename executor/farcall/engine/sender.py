"""Exactly-once submission: one job runs, whatever becomes of SubmitJob or of its answer.

SubmitJob takes no token. A request that was not answered may have been carried out, or may be
carried out later, so it is never sent again as it was:

1. The job is looked for by its name, which is unique, in Batch's lists, which lag behind, and by
   what it may have left in the bucket. It is adopted where it is found.
2. Where it is not, it is *withdrawn*: its bundle gets another name, and is there no more under the
   one that the request told. A job that turns up later finds no payload, runs nothing, and is not
   retried; it is looked for, and ended.
3. It is looked for once more. What had begun in time is adopted, and has its bundle back.
4. The request is sent again, for a job of the new name; or it was the last one, or was cancelled.

So a function runs twice only where a job was accepted and begun, and had fetched its payload,
before the withdrawal, and is in no list so long after its submission.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

from farcall.aws.paced_client import Ticket, Tries
from farcall.backends.base import Backend, JobSpec
from farcall.engine.in_flight import InFlight, unanswered
from farcall.model.endings import WITHDRAWN
from farcall.model.errors import ServiceError
from farcall.model.timing import Timing
from farcall.payload.bundle import Bundle
from farcall.storage.store import Store
from farcall_runtime.contract import Location

_log = logging.getLogger("farcall")

Write = Callable[[], JobSpec]
"""Says what job is to carry a bundle, by the name that it has now."""

T = TypeVar("T")

Renamed = Callable[[Location], Awaitable[None]]
"""Is told another place of a bundle, before a job is submitted that carries it."""


class Sender:
    """Sends SubmitJob requests for bundles of one bucket.

    Args:
        backend: Where the jobs run.
        store: The bucket.
        timing: How long is submitted, and looked for what was.
    """

    def __init__(self, backend: Backend, store: Store, timing: Timing) -> None:
        self._backend = backend
        self._store = store
        self._timing = timing
        self._in_flight = InFlight(backend, timing)

    async def send(
        self, bundle: Bundle, write: Write, ticket: Ticket, renamed: Renamed | None = None
    ) -> str:
        """Have one job carry a bundle that is in the bucket, and return its ID.

        Cancelling the wait takes a request back that waits for its turn. For one on its way the
        answer is waited for, and the job is terminated.

        Args:
            bundle: The bundle. It may have another name afterwards.
            write: Writes the request.
            ticket: Tells afterwards whether Batch may have a job of the bundle's name.
            renamed: Is told of another name.

        Raises:
            SettingsError: There is no such queue.
            SubmissionError: Batch refused the job.
            ServiceError: The credentials don't allow it, or AWS cannot be reached.
        """
        sending = self._send(bundle, write, ticket, renamed)
        return await self._in_flight.finish(sending, ticket, lambda: bundle.where.bundle)

    async def close(self) -> None:
        """Look no more for withdrawn jobs: without their payload they end by themselves."""
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
                queue = job.settings.job_queue
                found = await self._follow_up(bundle, queue, error, ticket, tries)
                if found:
                    return found
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
        """Find out what became of a request that failed; return its job, or None for a new try."""
        found = await self._look(bundle.where, queue, error) if error.sent else None
        if found:
            return found
        if not error.sent:
            ticket.note_refused()
        last = await _wait(tries, error)
        if error.sent:
            found = await self._withdraw(bundle, queue, error)
            if found:
                return found
            ticket.note_refused()  # only now: until here a job of it could run
        if last is not None:
            raise last from error
        return None

    # --- without an answer --------------------------------------------------------------------

    async def _look(self, where: Location, queue: str, error: ServiceError) -> str | None:
        """Return the job of a request that was not answered; None where there seems to be none."""
        found = await self._in_flight.look(where.bundle, queue, error)
        if found:
            return found[0]
        try:
            if await has_begun(self._store, where):
                return await self._await_listed(where, queue)
        except ServiceError as failure:
            raise unanswered(where.bundle, error, failure) from failure
        return None

    async def _withdraw(self, bundle: Bundle, queue: str, error: ServiceError) -> str | None:
        """Take the payload away from the job of a request that was not answered.

        Returns:
            The job, where it has begun all the same; then it has its payload back.

        Raises:
            ServiceError: Whether there is one cannot be told; then it has its payload back, too.
        """
        old = bundle.where
        new = bundle.rename()

        async def look() -> list[str] | None:
            found = await self._backend.find(old.bundle, queue)
            return found if found or await has_begun(self._store, old) else None

        try:
            found = await withdraw(self._store, old, new, look)
            if found is not None:
                bundle.where = old
                return found[0] if found else await self._await_listed(old, queue)
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
        """Return the ID of a job that has left something in the bucket, once Batch lists it."""
        found = await self._in_flight.await_listed(where.bundle, queue)
        if found:
            return found[0]
        within_s = self._timing.listed_within_s
        raise ServiceError(
            f"it has begun, and no list has told of it for {within_s:.0f} s; try again",
            operation="ListJobs",
        )


async def _wait(tries: Tries, error: ServiceError) -> ServiceError | None:
    """Wait before the next try; return the error where there is to be none."""
    try:
        await tries.wait_after(error)
    except ServiceError as last:
        return last
    return None


async def withdraw(
    store: Store, old: Location, new: Location, look: Callable[[], Awaitable[T | None]]
) -> T | None:
    """Take the payload away from a job that nobody finds, and look for it once more.

    The bundle gets another name. It has its own back where the job is there all the same, and
    where that cannot be told.

    Args:
        store: The bucket.
        old: The bundle's place.
        new: Its other place.
        look: Returns what is found, or None.

    Returns:
        What was found; where it is None, the bundle is at its new place alone.

    Raises:
        ServiceError: There is no such bundle, or S3 refused.
        Exception: What ``look`` raises.
    """
    found: T | None = None
    is_known = False
    await store.copy(old.bundle_key, new.bundle_key)
    try:
        await store.delete([old.bundle_key])
        found = await look()
        is_known = True
    finally:
        if not is_known or found is not None:
            await store.copy(new.bundle_key, old.bundle_key)
            store.delete_later([new.bundle_key])
    return found


async def has_begun(store: Store, where: Location) -> bool:
    """Tell whether the job of a bundle has left something in the bucket.

    Raises:
        ServiceError: S3 refused.
    """
    found = await asyncio.gather(*map(store.is_there, where.prefixes))
    return any(found)
